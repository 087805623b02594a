"""The log of a search: a line per finished trial, with what was predicted, what was measured, and what failed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nas.searching.result import PREDICTED_KEY
from nas.searching.trials import FAILED_KEY

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from nas.searching.trials import TrialReader


def describe_trial(trial: FrozenTrial, reader: TrialReader) -> str:
    """Number, values beside their predictions, failure and network of a finished trial, in one line."""
    architecture = reader.architecture(trial.params)
    network = reader.space.format(architecture) if architecture else f"incomplete choices {trial.params}"
    predicted = trial.system_attrs.get(PREDICTED_KEY, {})
    values = []
    for metric, value in zip(reader.metrics, reader.values(trial).tolist(), strict=True):
        mean, std = predicted.get(metric, (0.0, 0.0))
        expected = f"predicted {mean:.5g} ± {std:.2g}" if std else ""  # a count is no prediction
        if math.isfinite(value):
            shown = f"{value:.0f}" if value.is_integer() else f"{value:.6g}"
            values.append(f"{metric} {shown}{f' ({expected})' if expected else ''}")
        elif expected:
            values.append(f"{metric} {expected}")
    if reason := trial.user_attrs.get(FAILED_KEY):
        values.insert(0, f"failed: {reason}")
    if trial.user_attrs.get("repeat"):
        values.insert(0, "evaluated before")
    if trial.duration:
        values.append(f"{trial.duration.total_seconds():.1f} s")
    return f"trial {trial.number}: {', '.join(values)}: {network}"
