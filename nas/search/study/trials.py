"""Trials of a study as they are read: architecture, values, losses, violations, and a line for the
log.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from optuna import TrialPruned
from optuna.trial import TrialState

from nas.search.objectives import Constraint, broken_constraint, metric_names
from nas.search.study.schema import (
    BEGUN_KEY,
    FAILED_KEY,
    MEASURED_KEY,
    PREDICTED_KEY,
    PRIOR_KEY,
    REPEAT_KEY,
    RESUMED_KEY,
    RULED_OUT_KEY,
    UNTIL_KEY,
    VALUES_KEY,
)
from predictors.metrics import Metric, only_valid, why_invalid
from search_spaces.common.errors import InputError
from search_spaces.parameter_names import plain_names

if TYPE_CHECKING:
    from pathlib import Path

    import optuna
    from optuna.trial import FrozenTrial

    from search_spaces import Architecture, SearchSpace


# Begin of the reason of a trial whose evaluator raised `TrialPruned`
PRUNED_REASON = "the evaluator pruned it"


def is_evaluated(trial: FrozenTrial) -> bool:
    """True if a trial is complete, or failed for a recorded reason.

    False if its process was only interrupted.
    """
    return trial.state == TrialState.COMPLETE or (
        trial.state == TrialState.FAIL and FAILED_KEY in trial.user_attrs
    )


def why_pruned(error: TrialPruned) -> str:
    """The reason for a trial whose evaluator raised `optuna.TrialPruned`."""
    message = " ".join(str(error).split())
    return f"{PRUNED_REASON}{': ' if message else ''}{message}"


def began(trial: FrozenTrial) -> float:
    """POSIX time at which a trial's evaluation began or last resumed; 0 if it has not begun."""
    started = trial.datetime_start.timestamp() if trial.datetime_start else 0.0
    return float(trial.user_attrs.get(RESUMED_KEY, started))


class TrialReader:
    """Reads the trials of a search.

    Args:
        space, objectives, constraints: of the search.
        others: True if trials may have other parameters than the space, as in a user's own study.

    Attributes:
        metrics: names of the m objectives, then of metrics that have a constraint and are no
            objectives.
        keys: the `Metric.key` of each.
        is_cost: (m,) true for objectives that are not accuracies.
    """

    def __init__(
        self,
        space: SearchSpace,
        objectives: Sequence[Metric],
        constraints: Sequence[Constraint],
        others: bool = False,
    ) -> None:
        self.space, self.others = space, others
        self.objectives = tuple(objectives)
        self.constraints = tuple(constraints)
        self.metrics = metric_names(objectives, constraints)
        declared = {objective.name: objective.key for objective in objectives}
        self.keys = tuple(declared.get(metric, metric) for metric in self.metrics)
        self.is_cost = np.array([objective.kind != "accuracy" for objective in objectives])
        self._architectures: dict[tuple[tuple[str, Any], ...], Architecture | None] = {}

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kind of each metric, such as "accuracy"."""
        return tuple(Metric.parse(key).kind for key in self.keys)

    def architecture(self, choices: Mapping[str, Any]) -> Architecture | None:
        """The architecture with these choices.

        None if they are incomplete or belong to another space.
        """
        key = tuple(choices.items())
        if key not in self._architectures:
            try:
                self._architectures[key] = self.space.architecture(choices, self.others)
            except InputError:
                self._architectures[key] = None
        return self._architectures[key]

    def remember(self, architecture: Architecture) -> None:
        """Cache an architecture for later calls of `architecture`."""
        self._architectures[architecture.choices] = architecture

    def reason(self, values: np.ndarray) -> str:
        """Why an evaluation with values (metrics,) failed; "" if all are valid.

        `predictors.metrics` says which values are valid.
        """
        reasons = map(why_invalid, self.metrics, values.tolist())
        return ", ".join(reason for reason in reasons if reason)

    def values(self, trial: FrozenTrial) -> np.ndarray:
        """Values (metrics,) of a finished trial in the metrics' own units.

        Of a network that was measured and not trained, the measured ones. NaN if unknown, as in a
        failed trial, and for values that are not valid: studies of a user's own and of earlier
        versions store them as results.
        """
        # 1. Metrics with a constraint, from the stored violations.
        values: dict[str, float] = {}
        for constraint in self.constraints:
            violation = trial.constraints.get(str(constraint))
            if violation is not None:
                values[constraint.metric] = constraint.value(violation)

        # 2. What was measured of a network that was not trained.
        if {RULED_OUT_KEY, MEASURED_KEY} & trial.user_attrs.keys():
            values.update(trial.user_attrs.get(VALUES_KEY, {}))

        # 3. The objectives of a complete trial.
        names = [objective.name for objective in self.objectives]
        values.update(zip(names, trial.values or (), strict=False))
        return only_valid(np.array([values.get(metric, np.nan) for metric in self.metrics]))

    def violations_of(self, values: Mapping[str, float]) -> dict[str, float]:
        """Violation of each constraint on one of these metrics, in the metric's unit.

        It is how far the value exceeds the bound.
        """
        return {
            str(constraint): float(constraint.violation(np.array(values[constraint.metric])))
            for constraint in self.constraints
            if constraint.metric in values
        }

    def broken(self, values: Mapping[str, float]) -> str:
        """The first constraint that values by metric break, with the value; "" if there is none."""
        return broken_constraint(self.constraints, values)

    def summary(self, samples: np.ndarray) -> dict[str, list[float]]:
        """Mean and standard deviation by metric of samples (s, metrics) of one network.

        The standard deviation of a known value, which is equal in all samples, is exactly 0.
        """
        means = samples.mean(axis=0).tolist()
        deviations = np.where(np.ptp(samples, axis=0) > 0, samples.std(axis=0), 0.0).tolist()
        return {
            metric: [mean, deviation]
            for metric, mean, deviation in zip(self.metrics, means, deviations, strict=True)
        }

    def losses(self, values: np.ndarray) -> np.ndarray:
        """Convert metric values (..., metrics) to losses (..., m), lower is better."""
        columns = [
            objective.sign * values[..., self.metrics.index(objective.name)]
            for objective in self.objectives
        ]
        return np.stack(columns, axis=-1)

    def violation(self, values: np.ndarray, without: Sequence[str] = ()) -> np.ndarray:
        """Largest violation (...) of a constraint by metric values (..., metrics).

        It is relative to the constraint's bound. It is 0 if all constraints are satisfied, and 0.5
        if a value is one and a half times its upper bound. A bound of 0 counts as 1. Constraints on
        the metrics `without` do not count.
        """
        counts = [constraint.metric not in without for constraint in self.constraints]
        return self.violations(values)[..., counts].max(axis=-1, initial=0.0)

    def violations(self, values: np.ndarray) -> np.ndarray:
        """Violation (..., c) of each of the c constraints, relative to its bound.

        A constraint is satisfied where its violation is at most 0.
        """
        relative = np.empty((*values.shape[:-1], len(self.constraints)))
        for i, constraint in enumerate(self.constraints):
            column = self.metrics.index(constraint.metric)
            violation = constraint.violation(values[..., column])
            unit = abs(constraint.bound) or 1.0
            relative[..., i] = violation / unit
        return relative


# --- the log: one line per finished trial

log = logging.getLogger(__name__)


def log_missing(path: Path, search: str, study: optuna.Study, reader: TrialReader) -> None:
    """Log the finished trials that are missing from a search's log.

    A process that was killed may not have logged its last trials.
    """
    try:
        # A full disk may have cut a line in a character
        text = path.read_text(encoding="utf-8", errors="replace")
        logged = set(re.findall(rf" {re.escape(search)}, trial (\d+): ", text))
    except OSError:  # a log that cannot be written does not end a search
        return
    for trial in study.get_trials(deepcopy=False):
        is_logged = PRIOR_KEY in trial.user_attrs or str(trial.number) in logged
        if has_result(trial) and not is_logged:
            log.info("%s, %s", search, describe_trial(trial, reader))


def has_result(trial: FrozenTrial) -> bool:
    """True for an evaluated trial, and for a part of a training that was paused afterwards."""
    return is_evaluated(trial) or (trial.state.is_finished() and VALUES_KEY in trial.user_attrs)


def describe_trial(trial: FrozenTrial, reader: TrialReader) -> str:
    """Describe a finished trial in one line.

    The line has the number, values with their predictions, failure, duration and network.
    """
    attrs = trial.user_attrs

    # 1. What became of it, the unusual first.
    parts = []
    if attrs.get(REPEAT_KEY):
        parts.append("evaluated before")
    if reason := attrs.get(FAILED_KEY):
        parts.append(f"failed: {reason}")
    if RULED_OUT_KEY in attrs and FAILED_KEY not in attrs:
        parts.append(f"not trained, since it breaks {attrs[RULED_OUT_KEY]}")
    elif MEASURED_KEY in attrs:
        parts.append("measured only")
    elif UNTIL_KEY in attrs:
        parts.append(f"epochs {max(attrs[BEGUN_KEY], 0)} to {attrs[UNTIL_KEY]}")

    # 2. Values: of a segment of a training those at its end, else those of the trial.
    predicted = trial.system_attrs.get(PREDICTED_KEY, {})
    at_segment_end = attrs.get(VALUES_KEY, {})
    for metric, value in zip(reader.metrics, reader.values(trial).tolist(), strict=True):
        value = float(at_segment_end.get(metric, value))
        parts += _describe_value(metric, value, *predicted.get(metric, (0.0, 0.0)))

    # 3. Duration and network.
    if trial.datetime_start and trial.datetime_complete:
        parts.append(f"{trial.datetime_complete.timestamp() - began(trial):.1f} s")
    network = f"incomplete choices {plain_names(trial.params)}"
    if (architecture := reader.architecture(trial.params)) is not None:
        network = reader.space.format(architecture)
    return f"trial {trial.number}: {', '.join(parts)}: {network}"


def _describe_value(metric: str, value: float, mean: float, deviation: float) -> list[str]:
    """A value and what was predicted for it, as far as they are known: one text, or none.

    A deviation of 0 says that the value was counted, not predicted.
    """
    is_measured = math.isfinite(value)
    is_predicted = deviation != 0
    shown = f"{value:.0f}" if is_measured and value.is_integer() else f"{value:.6g}"
    expected = f"predicted {mean:.5g} ± {deviation:.2g}"
    if is_measured and is_predicted:
        return [f"{metric} {shown} ({expected})"]
    if is_measured:
        return [f"{metric} {shown}"]
    return [f"{metric} {expected}"] if is_predicted else []
