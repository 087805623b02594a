"""Evaluators: where the objective values of an architecture come from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from nas.evaluation.devices import devices_of
from nas.evaluation.int8 import score_metrics as int8_scores
from nas.evaluation.metrics import check_metrics
from nas.evaluation.trainable import Trainable
from nas.search.study.trial_logger import plain_number
from predictors.values import is_valid
from search_spaces.common.errors import EvaluatorError, InputError
from search_spaces.ir.text import fingerprint

if TYPE_CHECKING:
    from nas.benchmarks import Benchmark
    from nas.evaluation.measurement import Measurement
    from nas.search.study.trial_logger import TrialLogger
    from predictors import Predictor
    from search_spaces import Architecture, SearchSpace

COSTS = ("params", "flops")


class Evaluator(Protocol):
    """Maps n architectures to values (n, m) of m metrics, in the metrics' own units; NaN marks a
    failure.
    """

    metrics: tuple[str, ...]

    def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray: ...


@runtime_checkable
class RecordingEvaluator(Evaluator, Protocol):
    """An evaluator that trains and stores learning curve, further values and weights in the trial's
    record.
    """

    def evaluate(
        self, architecture: Architecture, record: TrialLogger
    ) -> Sequence[float] | np.ndarray: ...


def evaluate_one(
    evaluator: Evaluator, architecture: Architecture, record: TrialLogger
) -> np.ndarray:
    """Evaluate one architecture.

    Returns:
        (m,) values of the evaluator's metrics.

    Raises:
        EvaluatorError: the evaluator returned another number of values.
        InputError: the evaluator returned None, or a value that is not a number.
    """
    if isinstance(evaluator, RecordingEvaluator):
        returned: Any = [evaluator.evaluate(architecture, record)]
    else:
        returned = evaluator([architecture])
    if returned is None:
        raise InputError(
            f"the evaluator returned None, not an array of shape (1, {len(evaluator.metrics)})"
        )
    try:
        values = np.asarray(returned, dtype=float)
    except (TypeError, ValueError):  # one by one, to name what is not a number
        row: list[Any] = list(*returned)
        values = np.array(
            [[plain_number(*pair) for pair in zip(evaluator.metrics, row, strict=False)]]
        )
    if values.shape != (1, len(evaluator.metrics)):
        raise EvaluatorError(
            f"the evaluator returned shape {values.shape}, not (1, {len(evaluator.metrics)})"
        )
    return values[0]


def _refuse_devices(metrics: Sequence[str], known: Sequence[str], reason: str) -> None:
    """Raise InputError if one of the metrics is the latency on an added device and is not among the
    known ones.
    """
    for device in devices_of(metrics, known):
        raise InputError(
            f"{device.metric} is predicted from the measurements of `nas device add "
            f"{device.name}`, {reason}: "
            "search with --space alone, which measures the other metrics"
        )


class TableEvaluator:
    """Looks values up in a benchmark's table. Raises InputError for an unknown metric or
    architecture.
    """

    def __init__(self, benchmark: Benchmark, metrics: Sequence[str]) -> None:
        _refuse_devices(
            metrics, benchmark.metrics, f"but the metrics of {benchmark.name} are looked up"
        )
        check_metrics(metrics, benchmark.known_metrics)
        benchmark.check_counts(metrics)
        self.benchmark = benchmark
        self.metrics = tuple(metrics)

    @property
    def rows(self) -> list[Architecture] | None:
        """The architectures that have a value of every metric; None if these are the whole
        space.
        """
        known = is_valid(np.array([self.benchmark.values(metric) for metric in self.metrics])).all(
            axis=0
        )
        if known.all() and self.benchmark.is_whole:
            return None
        if not known.any():
            raise InputError(
                f"no row of {self.benchmark.name} has all of the metrics {', '.join(self.metrics)}"
            )
        return [self.benchmark.architectures[i] for i in np.flatnonzero(known).tolist()]

    def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
        rows = [self.benchmark.query(architecture, self.metrics) for architecture in architectures]
        return np.array([[row[metric] for metric in self.metrics] for row in rows]).reshape(
            -1, len(self.metrics)
        )


class PredictionEvaluator:
    """Predicts values as the medians of a fitted predictor's samples. Parameters and FLOPs are
    counted.

    Args:
        predictor: the fitted predictor.
        space: the search space.
        metrics: the m metrics to predict or count.
        name: the predictor's checkpoint.

    Raises:
        InputError: the predictor was not trained on one of the metrics.
    """

    def __init__(
        self, predictor: Predictor, space: SearchSpace, metrics: Sequence[str], name: str = ""
    ) -> None:
        self._predicted = [metric for metric in metrics if metric not in COSTS]
        _refuse_devices(
            self._predicted,
            predictor.metrics,
            "but a checkpoint predicts only what it was trained on",
        )
        check_metrics(self._predicted, predictor.metrics)
        self.predictor = predictor
        self.space = space
        self.metrics = tuple(metrics)
        self.name = name

    @classmethod
    def load(
        cls, checkpoint: str, space: SearchSpace, metrics: Sequence[str]
    ) -> PredictionEvaluator:
        """The evaluator with a checkpoint: a folder, or the name of a shipped one."""
        from predictors.checkpoint import load, load_trained

        counted = all(metric in COSTS for metric in metrics)
        return cls(
            load(checkpoint) if counted else load_trained(checkpoint), space, metrics, checkpoint
        )

    def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
        reads_choices = self.predictor.reads_choices
        inputs = (
            list(architectures) if reads_choices else [self.space.to_text(a) for a in architectures]
        )
        found = {
            cost: [getattr(self.space, cost)(a) for a in architectures]
            for cost in COSTS
            if cost in self.metrics
        }
        if self._predicted:
            found |= dict(
                zip(
                    self._predicted,
                    self.predictor.predict(inputs, self._predicted).median.T,
                    strict=True,
                )
            )
        return np.array([found[metric] for metric in self.metrics], dtype=float).T


class _Known(NamedTuple):
    """Measurements of a network: values of the evaluator's metrics, further values, spreads, file
    of the weights.
    """

    values: list[float]
    further: dict[str, float]
    spreads: dict[str, tuple[float, float, str]]
    weights: Path | None


class MeasuredEvaluator:
    """Trains and measures networks on this machine. Duplicates are measured once.

    Args:
        space: the search space.
        measurement: what is measured, and how.
        checkpoints: folder for training checkpoints, from which interrupted trainings resume. A
            finished training removes its own.

    Raises:
        InputError: a metric is a test score. Networks are selected by their validation scores.
    """

    def __init__(
        self, space: SearchSpace, measurement: Measurement, checkpoints: Path | None = None
    ) -> None:
        data = measurement.data
        tests = (
            {data.test_metric: data.metric, int8_scores(data)[1]: int8_scores(data)[0]}
            if data
            else {}
        )
        for test, metric in tests.items():
            if test in measurement.metrics:
                raise InputError(
                    f"{test} is kept for the final report: search by the validation score, {metric}"
                )
        self.space = space
        self.measurement = measurement
        self.metrics = measurement.metrics
        self.checkpoints = checkpoints
        self._known: dict[str, _Known] = {}

    @property
    def device(self) -> str:
        """The PyTorch device that trains networks."""
        return self.measurement.device

    @property
    def settings(self) -> dict[str, Any]:
        """All settings that the values depend on, as plain values."""
        return self.measurement.settings

    def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
        values = [self.evaluate(architecture) for architecture in architectures]
        return np.array(values).reshape(-1, len(self.metrics))

    def evaluate(
        self, architecture: Architecture, record: TrialLogger | None = None
    ) -> list[float]:
        """Values (m,) of one architecture. Its learning curve, further values and weights go into
        the record.
        """
        network = Trainable.of(self.space, architecture)
        if record:
            record.identify(network)
        name = fingerprint(network.identity)
        known = self._known.get(name)
        if known is not None and (record is None or self._serves(known, record)):
            if record:
                record.spread(known.spreads)
                record.keep(
                    known.further,
                    known.weights if known.weights and known.weights.exists() else None,
                )
            return known.values
        known = self._known[name] = self._measure(architecture, network, name, record)
        return known.values

    def _serves(self, known: _Known, record: TrialLogger) -> bool:
        """False if the record needs weights that another search has removed from its folder.

        Weights that are missing from the record's own folder belong to a dominated network and are
        not needed.
        """
        folder = record.weights.folder if record.weights else None
        return known.weights is None or known.weights.exists() or known.weights.parent == folder

    def _measure(
        self, architecture: Architecture, network: Trainable, name: str, record: TrialLogger | None
    ) -> _Known:
        checkpoint = self.checkpoints / f"{name}.pt" if self.checkpoints else None
        report = record.report if record else None
        found = self.measurement(
            network, lambda: self.space.to_onnx(architecture), checkpoint, report=report
        )
        values = {metric: measured.value for metric, measured in found.values.items()}
        further = {metric: value for metric, value in values.items() if metric not in self.metrics}
        spreads = {
            metric: (m.low, m.high, m.spread) for metric, m in found.values.items() if m.spread
        }
        weights = None
        if record:
            record.spread(spreads)
            weights = record.keep(
                further, None if found.state is None else (found.state, found.about)
            )
        for done in self.checkpoints.glob(f"{name}*.pt") if self.checkpoints else ():
            done.unlink()
        return _Known([values[metric] for metric in self.metrics], further, spreads, weights)
