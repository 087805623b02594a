"""Evaluators whose trainings pause: tables with fidelities, the built-in training, and functions of
the user.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from nas.evaluation.measurement import known_metrics
from nas.evaluation.trainable import Trainable
from nas.search.by_cost.runs import Fidelities
from nas.search.evaluators import MeasuredEvaluator, TableEvaluator
from nas.search.own_evaluator import FunctionEvaluator
from nas.search.study.trial_logger import whole_epoch
from predictors.metrics import Metric, at_fidelity, split_fidelity
from search_spaces.common.errors import EvaluatorError, InputError
from search_spaces.ir.text import fingerprint

if TYPE_CHECKING:
    from nas.evaluation.measurement import Measurement
    from nas.search.evaluators import Evaluator
    from nas.search.study.trial_logger import TrialLogger
    from search_spaces import Architecture, SearchSpace

Values = Mapping[str, float]
log = logging.getLogger(__name__)


class StagedEvaluator(Protocol):
    """Trains networks from one fidelity to another.

    Attributes:
        metrics: all metrics.
        trained: metrics that depend on training.
        fidelities: epochs at which trainings may pause.
    """

    metrics: tuple[str, ...]
    trained: tuple[str, ...]
    fidelities: Fidelities

    def measure(self, architecture: Architecture, record: TrialLogger) -> dict[str, float]:
        """Measure the metrics that need no training."""

    def advance(
        self, architecture: Architecture, begun: int, until: int, known: Values, record: TrialLogger
    ) -> dict[str, float]:
        """Train a network further.

        Args:
            architecture: the network.
            begun: the fidelity at which the segment starts, 0 for a new network.
            until: the fidelity at which the segment ends.
            known: values at the fidelity `begun`; for a new network, those of `measure`.
            record: record of the trial.

        Returns:
            All metrics at the fidelity `until`.
        """

    def forget(self, architecture: Architecture) -> None:
        """Remove the checkpoint of a network whose training has ended."""


def staged(evaluator: Evaluator, levels: Sequence[int]) -> StagedEvaluator:
    """Make an evaluator whose trainings pause.

    Args:
        evaluator: the evaluator.
        levels: rising epochs; the last is the full training.

    Raises:
        InputError: if the evaluator cannot pause at these fidelities.
    """
    if isinstance(evaluator, TableEvaluator):
        return _Table(evaluator, levels)
    if isinstance(evaluator, MeasuredEvaluator):
        return _Training(evaluator, levels)
    if isinstance(evaluator, FunctionEvaluator):
        return _Function(evaluator, levels)
    raise InputError(
        "fidelities need a table, the built-in training, or a function that trains: predictions "
        "have none"
    )


class _Table:
    """Columns of a benchmark such as `accuracy@12` or `accuracy_12epochs`. The last fidelity is the
    metric itself.

    `accuracy@12` is a point of the learning curve of a full training, `accuracy_12epochs` the
    result of a separate training of 12 epochs.
    """

    def __init__(self, evaluator: TableEvaluator, levels: Sequence[int]) -> None:
        self.fidelities = Fidelities.of(levels, continues=True)
        self.benchmark, self.metrics = evaluator.benchmark, evaluator.metrics
        self.trained = tuple(
            metric for metric in self.metrics if Metric.parse(metric).kind == "accuracy"
        )
        _check_trained(self.trained, self.metrics)
        found = {split_fidelity(column): column for column in self.benchmark.metrics}
        lower = [(metric, level) for metric in self.trained for level in levels[:-1]]
        if missing := [pair for pair in lower if pair not in found]:
            metric, level = missing[0]
            known = sorted(int(of) for name, of in found if name == metric and of < float("inf"))
            have = f"has it at {', '.join(map(str, known))}" if known else "has it at no other"
            raise InputError(
                f"{self.benchmark.name} has no {metric} at fidelity {level}: it {have}"
            )
        self._column = {pair: found[pair] for pair in lower}
        curves = all(column == at_fidelity(*pair) for pair, column in self._column.items())
        self.fidelities = Fidelities(self.fidelities.levels, continues=curves)

    def measure(self, architecture: Architecture, record: TrialLogger) -> dict[str, float]:
        row = self.benchmark.query(architecture)
        return {metric: row[metric] for metric in self.metrics if metric not in self.trained}

    def advance(
        self, architecture: Architecture, begun: int, until: int, known: Values, record: TrialLogger
    ) -> dict[str, float]:
        row = self.benchmark.query(architecture)
        values = {metric: row[self._column.get((metric, until), metric)] for metric in self.metrics}
        record.report(until, {metric: values[metric] for metric in self.trained})
        return values

    def forget(self, architecture: Architecture) -> None:
        """A table has nothing to remove."""


class _Checkpoints:
    """Checkpoint files of paused trainings, one per architecture."""

    def __init__(self, space: SearchSpace, folder: Path | None) -> None:
        if folder is None:
            raise InputError(
                "paused trainings need a folder for their states: give the evaluator "
                "checkpoints=FOLDER, or nas worker "
                "--checkpoints FOLDER"
            )
        self.space, self.folder = space, folder

    def path(self, architecture: Architecture) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / f"paused-{fingerprint(self.space.format(architecture))[:32]}.pt"

    def remove(self, architecture: Architecture) -> None:
        for file in self.folder.glob(f"{self.path(architecture).stem}*"):
            file.unlink(missing_ok=True)


class _Training:
    """The built-in training, of as many epochs as the last fidelity. It resumes from its
    checkpoint, bit for bit.
    """

    def __init__(self, evaluator: MeasuredEvaluator, levels: Sequence[int]) -> None:
        self.fidelities = Fidelities.of(levels, continues=True)
        epochs = evaluator.measurement.training.epochs
        if epochs != self.fidelities.last:
            raise InputError(
                f"the last fidelity is {levels[-1]}, but a training has {epochs} epochs: give "
                "--epochs"
            )
        self.space, self.measurement, self.metrics = (
            evaluator.space,
            evaluator.measurement,
            evaluator.metrics,
        )
        own = self.measurement
        known = known_metrics(own.latency, None, (*own.commands, *own.devices))
        self.untrained = tuple(metric for metric in self.metrics if metric in known)
        self.trained = tuple(metric for metric in self.metrics if metric not in known)
        _check_trained(self.trained, self.metrics)
        self.checkpoints = _Checkpoints(self.space, evaluator.checkpoints)

    def measure(self, architecture: Architecture, record: TrialLogger) -> dict[str, float]:
        return _measured(
            replace(self.measurement, metrics=self.untrained), self.space, architecture, record
        )

    def advance(
        self, architecture: Architecture, begun: int, until: int, known: Values, record: TrialLogger
    ) -> dict[str, float]:
        measurement = replace(self.measurement, metrics=self.trained)
        network = Trainable.of(self.space, architecture)
        path = self.checkpoints.path(architecture)
        found = measurement(
            network,
            lambda: self.space.to_onnx(architecture),
            path,
            report=record.report,
            until=until,
        )
        values = {**known, **{metric: measured.value for metric, measured in found.values.items()}}
        record.spread(
            {metric: (m.low, m.high, m.spread) for metric, m in found.values.items() if m.spread}
        )
        record.report(until, {metric: values[metric] for metric in self.trained})
        if until == self.fidelities.last:
            further = {
                metric: value for metric, value in values.items() if metric not in self.metrics
            }
            record.keep(further, None if found.state is None else (found.state, found.about))
        return {metric: values[metric] for metric in self.metrics}

    def forget(self, architecture: Architecture) -> None:
        self.checkpoints.remove(architecture)


class _Function:
    """A function of the user that trains. To pause or end it at a fidelity, its `report` returns
    False there.

    A trial fails if its function skips the fidelity, since the value of another epoch would be
    stored as its value.

    A function with a parameter `checkpoint` resumes from that file. Any other starts again for each
    fidelity, which then costs all epochs from the first on.
    """

    def __init__(self, evaluator: FunctionEvaluator, levels: Sequence[int]) -> None:
        self.evaluator, self.space, self.metrics = evaluator, evaluator.space, evaluator.metrics
        self.fidelities = Fidelities.of(levels, continues=evaluator.continues)
        self.trained = evaluator.returned
        self.warned = False  # of a training that ended early
        self.checkpoints = (
            _Checkpoints(self.space, evaluator.checkpoints) if evaluator.continues else None
        )

    def measure(self, architecture: Architecture, record: TrialLogger) -> dict[str, float]:
        return _measured(self.evaluator.measurement, self.space, architecture, record)

    def advance(
        self, architecture: Architecture, begun: int, until: int, known: Values, record: TrialLogger
    ) -> dict[str, float]:
        network = Trainable.of(self.space, architecture)
        values = dict(known)
        ended = diverged = (
            False  # `report` told the function to end at the fidelity; the training diverged
        )

        def report(epoch: int, metrics: Values) -> bool:
            nonlocal ended, diverged
            epoch = whole_epoch(epoch)
            if ended and epoch != until:
                raise EvaluatorError(
                    f"report returned False after epoch {until}, but the evaluator trained on: it "
                    "must return then"
                )
            diverged = not record.report(epoch, metrics)
            if epoch > until:
                raise InputError(
                    f"the evaluator reported epoch {epoch}, but not {until}, where its training "
                    "pauses or ends: report "
                    "each epoch in order, after a pause first the epoch in the checkpoint"
                )
            ended = epoch == until
            return not diverged and not ended

        path = self.checkpoints.path(architecture) if self.checkpoints else None
        returned, state = self.evaluator.train(network, architecture, report, path)
        values |= returned
        if record.reported < until and not diverged and not self.warned:
            self.warned = True
            log.warning(
                "the evaluator ended a training after epoch %d, but %d epochs are paid: report all "
                "epochs, from 1 to "
                "the last fidelity",
                record.reported,
                until,
            )
        if until == self.fidelities.last:
            record.keep({m: v for m, v in values.items() if m not in self.metrics}, (state, {}))
        return {metric: values[metric] for metric in self.metrics}

    def forget(self, architecture: Architecture) -> None:
        if self.checkpoints:
            self.checkpoints.remove(architecture)


def _measured(
    measurement: Measurement, space: SearchSpace, architecture: Architecture, record: TrialLogger
) -> dict[str, float]:
    """The metrics of a measurement without training."""
    if not measurement.metrics:
        return {}
    values = measurement(
        Trainable.of(space, architecture), lambda: space.to_onnx(architecture)
    ).values
    record.spread({metric: (m.low, m.high, m.spread) for metric, m in values.items() if m.spread})
    return {metric: measured.value for metric, measured in values.items()}


def _check_trained(trained: Sequence[str], metrics: Sequence[str]) -> None:
    if not trained:
        raise InputError(
            f"fidelities need an objective that depends on training, unlike {', '.join(metrics)}"
        )
