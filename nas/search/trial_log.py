"""The log of a search: one line per finished trial with measured values, predictions and
failures.
"""

from __future__ import annotations

import logging
import math
import re
from typing import TYPE_CHECKING

from nas.search.schema import (
    BEGUN_KEY,
    FAILED_KEY,
    PREDICTED_KEY,
    PRIOR_KEY,
    REPEAT_KEY,
    RULED_OUT_KEY,
    UNTIL_KEY,
    VALUES_KEY,
)
from nas.search.trials import began, is_evaluated
from search_spaces.parameter_names import plain_names

if TYPE_CHECKING:
    from pathlib import Path

    import optuna
    from optuna.trial import FrozenTrial

    from nas.search.trials import TrialReader

log = logging.getLogger(__name__)


def log_missing(path: Path, search: str, study: optuna.Study, reader: TrialReader) -> None:
    """Log the finished trials that are missing from a search's log because its process was killed
    before.
    """
    try:
        text = path.read_text(
            encoding="utf-8", errors="replace"
        )  # a full disk may have cut a line in a character
        logged = set(re.findall(rf" {re.escape(search)}, trial (\d+): ", text))
    except OSError:  # a log that cannot be written does not end a search
        return
    for trial in study.get_trials(deepcopy=False):
        if (
            has_result(trial)
            and PRIOR_KEY not in trial.user_attrs
            and str(trial.number) not in logged
        ):
            log.info("%s, %s", search, describe_trial(trial, reader))


def has_result(trial: FrozenTrial) -> bool:
    """True for an evaluated trial, and for a part of a training that was paused afterwards."""
    return is_evaluated(trial) or (trial.state.is_finished() and VALUES_KEY in trial.user_attrs)


def describe_trial(trial: FrozenTrial, reader: TrialReader) -> str:
    """Describe a finished trial in one line: number, values with their predictions, failure,
    duration, network.
    """
    architecture = reader.architecture(trial.params)
    network = (
        reader.space.format(architecture)
        if architecture
        else f"incomplete choices {plain_names(trial.params)}"
    )
    predicted = trial.system_attrs.get(PREDICTED_KEY, {})
    values = []
    segment = trial.user_attrs.get(VALUES_KEY, {})
    for metric, found in zip(reader.metrics, reader.values(trial).tolist(), strict=True):
        value = float(segment.get(metric, found))
        mean, std = predicted.get(metric, (0.0, 0.0))
        expected = f"predicted {mean:.5g} ± {std:.2g}" if std else ""  # counted, not predicted
        if math.isfinite(value):
            shown = f"{value:.0f}" if value.is_integer() else f"{value:.6g}"
            values.append(f"{metric} {shown}{f' ({expected})' if expected else ''}")
        elif expected:
            values.append(f"{metric} {expected}")
    if broken := trial.user_attrs.get(RULED_OUT_KEY):
        values.insert(0, f"not trained, since it breaks {broken}")
    elif UNTIL_KEY in trial.user_attrs:
        values.insert(0, f"epochs {trial.user_attrs[BEGUN_KEY]} to {trial.user_attrs[UNTIL_KEY]}")
    if reason := trial.user_attrs.get(FAILED_KEY):
        values.insert(0, f"failed: {reason}")
    if trial.user_attrs.get(REPEAT_KEY):
        values.insert(0, "evaluated before")
    if trial.datetime_start and trial.datetime_complete:
        values.append(f"{trial.datetime_complete.timestamp() - began(trial):.1f} s")
    return f"trial {trial.number}: {', '.join(values)}: {network}"
