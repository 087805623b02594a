"""Two-stage proposals: cheap metrics of a shortlist are measured before any of it is trained.

What costs is a training. A latency costs a second, a number of weights nothing. So a guided sampler
proposes more networks than it trains:

1. The acquisition picks a shortlist, up to `MAX_PER_TRAINING` networks per training.
2. Their cheap metrics are measured. Networks that break a constraint or cannot be measured fall out.
3. The measured values condition the predictions, and the batch is chosen from the networks that are
   left.

Each measured network is an entry of the study: a pruned trial with `MEASURED_KEY`, the values, and no
objective. It is no evaluation. If the network is trained later, the trial of its training copies the
values. A predictor learns from all entries (`nas.search.sampler`, `nas.search.multi_fidelity`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from optuna import TrialPruned
from optuna.trial import TrialState, create_trial

from nas.search.evaluators import MAX_PER_TRAINING, Evaluator
from nas.search.objectives import ConstraintsLike, broken_constraint, parse_constraints
from nas.search.replay import ReplayedTrial, StudySnapshot
from nas.search.study.networks import NetworkId
from nas.search.study.schema import (
    FAILED_KEY,
    MEASURE_SECONDS_KEY,
    MEASURED_KEY,
    NETWORK_KEY,
    PREDICTED_KEY,
    RULED_OUT_KEY,
    SPREAD_KEY,
    VALUES_KEY,
)
from nas.search.study.storage import add_trials, stored_trials
from nas.search.study.trial_logger import EvaluationLogger
from predictors.features import COUNTS
from predictors.metrics import is_valid
from search_spaces.common.errors import EvaluatorError, InputError, StorageError, describe

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

    from nas.evaluation.trainable import Trainable
    from nas.search.study.trials import TrialReader
    from predictors import Predictor
    from search_spaces import Architecture

log = logging.getLogger(__name__)

MAX_SHORTLIST = 50  # networks that are measured before a batch is chosen
# Measuring pays for itself if it takes at most this part of the time of the trainings.
MEASURING_SHARE = 0.2
MIN_TIMED = 3  # trainings whose seconds decide about the default

Predicted = Mapping["Architecture", Mapping[str, Sequence[float]]]
"""Mean and standard deviation by metric that were predicted for networks."""


class Measure(Protocol):
    """Values of the cheap metrics of a network; see `nas.search.evaluators.Evaluator.measure`."""

    def __call__(self, architecture: Architecture, log: EvaluationLogger) -> Mapping[str, float]:
        """Measure it."""


def check_per_training(per_training: int | None) -> None:
    """Raise InputError for a negative number of measured networks per training."""
    if per_training is not None and per_training < 0:
        raise InputError(f"measure {per_training}: give a number of networks per training, from 0")


class Shortlist:
    """Measures the cheap metrics of shortlisted networks and stores them in their study.

    Args:
        reader: of the study's metrics.
        measure: measures a network.
        metrics: the metrics that it gives.
        per_training: measured networks per training; None decides by the seconds of trainings and
            measurements so far (`networks_per_training`).

    Attributes:
        study: of the search, which sets it.
    """

    study: Study

    def __init__(
        self,
        reader: TrialReader,
        measure: Measure,
        metrics: Iterable[str],
        per_training: int | None = None,
    ) -> None:
        self.reader = reader
        self.measure = measure
        self.metrics = tuple(metric for metric in reader.metrics if metric in {*metrics})
        self.per_training = per_training

    def size(self, batch: int, predictor: Predictor | None) -> int:
        """Networks of a shortlist from which `batch` trainings are chosen.

        It is `batch` without a shortlist.

        Args:
            batch: number of trainings.
            predictor: of the search; None if all metrics are counted. One that reads texts knows
                the parameters and FLOPs of all candidates: a shortlist that measures only these
                would bring nothing.
        """
        if predictor is None or (not predictor.reads_choices and COUNTS.keys() >= {*self.metrics}):
            return batch
        per_training = self.per_training
        if per_training is None:
            per_training = networks_per_training(stored_trials(self.study))
        return max(batch, min(per_training * batch, MAX_SHORTLIST))

    def add(
        self, architectures: Iterable[Architecture], predicted: Predicted
    ) -> dict[Architecture, dict[str, float]]:
        """Measure networks, and add each to the study at once, so that an interruption loses one.

        Args:
            architectures: networks without an entry.
            predicted: what was predicted for them.

        Returns:
            The values of the networks that may be trained.
        """
        candidates = {}
        for architecture in architectures:
            started = time.monotonic()
            logger = _EntryLogger()
            try:
                measured = self.measure(architecture, logger)
            except (StorageError, EvaluatorError):
                raise
            except Exception as error:  # as of a runtime that cannot convert the network
                self._store_failure(architecture, time.monotonic() - started, describe(error))
                continue
            seconds = time.monotonic() - started
            values = {name: float(value) for name, value in measured.items() if is_valid(value)}
            attributes = {MEASURED_KEY: seconds, VALUES_KEY: values, **logger.attributes}
            if broken := self.reader.broken(values):
                attributes[RULED_OUT_KEY] = broken
            else:
                candidates[architecture] = values
            self._store(architecture, attributes, dict(predicted.get(architecture, {})))
        return candidates

    def _store_failure(self, architecture: Architecture, seconds: float, reason: str) -> None:
        """Add the entry of a network that could not be measured."""
        attributes = {
            MEASURED_KEY: seconds,
            VALUES_KEY: {},
            RULED_OUT_KEY: reason,
            FAILED_KEY: reason,
        }
        self._store(architecture, attributes)
        notation = self.reader.space.format(architecture)
        log.warning("%s is no candidate, it could not be measured: %s", notation, reason)

    def _store(
        self,
        architecture: Architecture,
        attributes: dict[str, Any],
        predicted: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        """Add an entry to the study.

        Args:
            architecture: the network.
            attributes: user attributes, with the measured values.
            predicted: mean and standard deviation by metric before the measurement.
        """
        chosen = ReplayedTrial(StudySnapshot(self.study), self.reader.space, architecture)
        violations = self.reader.violations_of(attributes[VALUES_KEY])
        entry = create_trial(
            state=TrialState.PRUNED,
            params=chosen.params,
            distributions=chosen.distributions,
            constraints=violations or None,
            user_attrs=attributes,
            system_attrs={PREDICTED_KEY: predicted} if predicted else None,
        )
        add_trials(self.study, [entry])


def shortlist_of(
    reader: TrialReader, evaluator: Evaluator, measure: int | None
) -> Shortlist | None:
    """The shortlist of a search; None if nothing is measured before a choice.

    Args:
        reader: of the search.
        evaluator: of the search.
        measure: networks per training; None for the default of the evaluator.
    """
    check_per_training(measure)
    measured = [metric for metric in reader.metrics if metric in evaluator.measured]
    saves_training = any(metric in evaluator.trained for metric in reader.metrics)
    if measure is None:
        measure = evaluator.measured_per_training
    if not measured or not saves_training or (measure is not None and measure < 2):
        return None
    return Shortlist(reader, evaluator.measure, measured, measure)


def networks_per_training(trials: Iterable[FrozenTrial]) -> int:
    """Networks to measure per training, 1 to `MAX_PER_TRAINING`.

    The networks that are measured and not trained take at most `MEASURING_SHARE` of the seconds of
    the trainings: medians of the trials so far. It is 1 before `MIN_TIMED` trainings.
    """
    measuring, training = [], []
    for trial in trials:
        attributes = trial.user_attrs
        if MEASURED_KEY in attributes and FAILED_KEY not in attributes:
            measuring.append(float(attributes[MEASURED_KEY]))
        elif MEASURE_SECONDS_KEY in attributes and trial.state == TrialState.COMPLETE:
            seconds = float(attributes[MEASURE_SECONDS_KEY])
            if seconds > 0:  # 0 if its measurement was taken over from an entry
                measuring.append(seconds)
            if trial.duration is not None:
                training.append(trial.duration.total_seconds() - seconds)
    if len(training) < MIN_TIMED or not measuring:
        return 1
    affordable = MEASURING_SHARE * np.median(training) / max(np.median(measuring), 1e-6)
    return 1 + int(np.clip(affordable, 0, MAX_PER_TRAINING - 1))


class _EntryLogger(EvaluationLogger):
    """Collects what a measurement says besides its values, as attributes of an entry."""

    def __init__(self) -> None:
        super().__init__()
        self.attributes: dict[str, Any] = {}

    def identify(self, network: Trainable) -> None:
        self.attributes[NETWORK_KEY] = NetworkId.of(network).stored

    def spread(self, spreads: Mapping[str, tuple[float, float, str]]) -> None:
        if spreads:
            self.attributes[SPREAD_KEY] = {name: list(spread) for name, spread in spreads.items()}


# --- in a user's own study


def check_limits(trial: Trial, measured: Mapping[str, float], constraints: ConstraintsLike) -> None:
    """Prune a trial before its training if measured values break a constraint.

    For objective functions of `study.optimize`. Of every trial, the violations are stored, as
    `PredictorSampler` reads them; of a pruned one the measured values as well, from which it learns.

    Example:

        >>> import nas, optuna
        >>> from search_spaces import get_space
        >>> space = get_space("tiny-resnet")
        >>> def objective(trial):
        ...     architecture = space.choose(trial)
        ...     params = space.params(architecture)
        ...     nas.check_limits(trial, {"params": params}, "params <= 50000")
        ...     return train(architecture), params
        >>> def train(architecture):  # takes an hour
        ...     assert space.params(architecture) <= 50000
        ...     return 1.0
        >>> study = optuna.create_study(directions=["maximize", "minimize"])
        >>> study.optimize(objective, n_trials=5)
        >>> {trial.state.name for trial in study.trials} <= {"COMPLETE", "PRUNED"}
        True

    Args:
        trial: the running trial.
        measured: values by metric that are known without a training.
        constraints: see `nas.search.objectives.parse_constraints`. Those on other metrics are
            skipped.

    Raises:
        TrialPruned: a value breaks a constraint.
        InputError: a constraint is malformed.
    """
    limits = parse_constraints(constraints)
    applicable = [constraint for constraint in limits if constraint.metric in measured]
    for constraint in applicable:
        violation = constraint.violation(np.array(measured[constraint.metric]))
        trial.set_constraint(str(constraint), float(violation))
    if broken := broken_constraint(applicable, measured):
        trial.set_user_attr(VALUES_KEY, {name: float(value) for name, value in measured.items()})
        trial.set_user_attr(RULED_OUT_KEY, broken)
        raise TrialPruned(broken)
