"""The log of a search: a line per finished trial, with what was predicted, what was measured, and what failed."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from nas.searching.result import PREDICTED_KEY
from nas.searching.trials import FAILED_KEY
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from nas.searching.trials import TrialReader

LOG_NAME = "nas.log"


def describe_trial(trial: FrozenTrial, reader: TrialReader) -> str:
    """Number, values beside their predictions, failure and network of a finished trial, in one line."""
    architecture = reader.architecture(trial.params)
    network = reader.space.format(architecture) if architecture else f"incomplete choices {trial.params}"
    predicted = trial.system_attrs.get(PREDICTED_KEY, {})
    values = []
    for metric, value in zip(reader.metrics, reader.values(trial).tolist(), strict=True):
        expected = "predicted {:.5g} ± {:.2g}".format(*predicted[metric]) if metric in predicted else ""
        if math.isfinite(value):
            values.append(f"{metric} {value:.6g}{f' ({expected})' if expected else ''}")
        elif expected:
            values.append(f"{metric} {expected}")
    if reason := trial.user_attrs.get(FAILED_KEY):
        values.insert(0, f"failed: {reason}")
    if trial.user_attrs.get("repeat"):
        values.insert(0, "evaluated before")
    if trial.duration:
        values.append(f"{trial.duration.total_seconds():.1f} s")
    return f"trial {trial.number}: {', '.join(values)}: {network}"


@contextmanager
def log_to(path: Path) -> Iterator[None]:
    """Append what the package logs to a file. A search does not end because its log cannot be written any more."""
    logger = logging.getLogger("nas")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = _LogFile(path, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}): give another folder") from None
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        with suppress(OSError):
            handler.close()


class _LogFile(logging.FileHandler):
    def handleError(self, record: logging.LogRecord) -> None:
        """A full disk, say: the standard way is a traceback per line on the terminal."""
