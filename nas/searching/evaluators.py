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
from search_spaces.common.errors import InputError
from search_spaces.text import fingerprint

if TYPE_CHECKING:
    from nas.benchmarks import Benchmark
    from nas.evaluation.measurement import Measurement
    from nas.searching.record import TrialRecord
    from predictors import Predictor
    from search_spaces import Architecture, SearchSpace

COSTS = ("params", "flops")


class Evaluator(Protocol):
    """Gives n architectures' values (n, m) of m metrics, in the metrics' own units; NaN where one failed."""

    metrics: tuple[str, ...]

    def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray: ...


class EvaluatorError(InputError):
    """An evaluator that does not return what it should: no network is to blame, and the search ends."""


@runtime_checkable
class RecordingEvaluator(Evaluator, Protocol):
    """An evaluator that trains, and keeps learning curve, further values and weights in the trial's record."""

    def evaluate(self, architecture: Architecture, record: TrialRecord) -> Sequence[float] | np.ndarray: ...


def evaluate_one(evaluator: Evaluator, architecture: Architecture, record: TrialRecord) -> np.ndarray:
    """An architecture's values (m,). Raises EvaluatorError where the evaluator returns another number of them."""
    if isinstance(evaluator, RecordingEvaluator):
        values = np.asarray([evaluator.evaluate(architecture, record)], dtype=float)
    else:
        values = np.asarray(evaluator([architecture]), dtype=float)
    if values.shape != (1, len(evaluator.metrics)):
        raise EvaluatorError(f"the evaluator returned shape {values.shape}, not (1, {len(evaluator.metrics)})")
    return values[0]


def _refuse_devices(metrics: Sequence[str], known: Sequence[str], others: str) -> None:
    for device in devices_of(metrics, known):
        raise InputError(
            f"{device.metric} is predicted from what `nas device add {device.name}` measured, and {others}: "
            "search with --space alone, which measures the other metrics"
        )


class TableEvaluator:
    """True values, looked up in a benchmark's table. Raises InputError for an unknown metric or architecture.

    rows: the architectures that have all these values; None where these are all of the space.
    """

    def __init__(self, benchmark: Benchmark, metrics: Sequence[str]) -> None:
        _refuse_devices(metrics, benchmark.metrics, f"a table's ({benchmark.name}) are looked up")
        check_metrics(metrics, benchmark.metrics)
        self.benchmark = benchmark
        self.metrics = tuple(metrics)

    @property
    def rows(self) -> list[Architecture] | None:
        known = np.isfinite([self.benchmark.values(metric) for metric in self.metrics]).all(axis=0)
        if known.all() and self.benchmark.is_whole:
            return None
        if not known.any():
            raise InputError(f"no row of {self.benchmark.name} has all of {', '.join(self.metrics)}")
        return [self.benchmark.architectures[i] for i in np.flatnonzero(known).tolist()]

    def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
        rows = [self.benchmark.query(architecture) for architecture in architectures]
        return np.array([[row[metric] for metric in self.metrics] for row in rows]).reshape(-1, len(self.metrics))


class PredictionEvaluator:
    """Values that a fitted predictor gives (the median of its samples): a search without a single true evaluation.

    Parameters and FLOPs are counted instead. name: of the predictor's checkpoint. Raises InputError for metrics that it
    has not learned.
    """

    def __init__(self, predictor: Predictor, space: SearchSpace, metrics: Sequence[str], name: str = "") -> None:
        self._predicted = [metric for metric in metrics if metric not in COSTS]
        _refuse_devices(self._predicted, predictor.metrics, "those of a checkpoint are what it has learned")
        check_metrics(self._predicted, predictor.metrics)
        self.predictor = predictor
        self.space = space
        self.metrics = tuple(metrics)
        self.name = name

    @classmethod
    def load(cls, checkpoint: str, space: SearchSpace, metrics: Sequence[str]) -> PredictionEvaluator:
        """By a checkpoint's folder, or a shipped one's name."""
        import predictors

        return cls(predictors.load(checkpoint), space, metrics, checkpoint)

    def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
        reads_choices = self.predictor.reads_choices
        inputs = list(architectures) if reads_choices else [self.space.to_text(a) for a in architectures]
        found = {cost: [getattr(self.space, cost)(a) for a in architectures] for cost in COSTS if cost in self.metrics}
        if self._predicted:
            found |= dict(zip(self._predicted, self.predictor.predict(inputs, self._predicted).median.T, strict=True))
        return np.array([found[metric] for metric in self.metrics], dtype=float).T


class _Known(NamedTuple):
    """What was measured of a network: values of the evaluator's metrics, further ones, spreads, file of its weights."""

    values: list[float]
    further: dict[str, float]
    spreads: dict[str, tuple[float, float, str]]
    weights: Path | None


class MeasuredEvaluator:
    """Values measured on this machine: each different network is trained, timed and weighed once.

    checkpoints: folder for the states of trainings, so that an interrupted one goes on where it stopped; a state is
    removed when its training is done. Raises InputError for a test score among the metrics: networks are selected by
    the validation part.
    """

    def __init__(self, space: SearchSpace, measurement: Measurement, checkpoints: Path | None = None) -> None:
        data = measurement.data
        tests = {data.test_metric: data.metric, int8_scores(data)[1]: int8_scores(data)[0]} if data else {}
        for test, metric in tests.items():
            if test in measurement.metrics:
                raise InputError(f"{test} is for the end: search by {metric}, of the validation part")
        self.space = space
        self.measurement = measurement
        self.metrics = measurement.metrics
        self.checkpoints = checkpoints
        self._known: dict[str, _Known] = {}

    @property
    def device(self) -> str:
        """Where networks are trained."""
        return self.measurement.device

    @property
    def settings(self) -> dict[str, Any]:
        """All that the values depend on, as plain values."""
        return self.measurement.settings

    def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
        values = [self.evaluate(architecture) for architecture in architectures]
        return np.array(values).reshape(-1, len(self.metrics))

    def evaluate(self, architecture: Architecture, record: TrialRecord | None = None) -> list[float]:
        network = Trainable.of(self.space, architecture)
        name = fingerprint(network.text)
        known = self._known.get(name)
        if known is not None and (record is None or self._serves(known, record)):
            if record:
                record.spread(known.spreads)
                record.keep(known.further, known.weights if known.weights and known.weights.exists() else None)
            return known.values
        known = self._known[name] = self._measure(architecture, network, name, record)
        return known.values

    def _serves(self, known: _Known, record: TrialRecord) -> bool:
        """False if the record wants weights of a network that were removed from the folder of another search.

        In a folder of its own they were removed since the network is dominated, and it still is.
        """
        folder = record.weights.folder if record.weights else None
        return known.weights is None or known.weights.exists() or known.weights.parent == folder

    def _measure(self, architecture: Architecture, network: Trainable, name: str, record: TrialRecord | None) -> _Known:
        checkpoint = self.checkpoints / f"{name}.pt" if self.checkpoints else None
        model = self.space.to_onnx(architecture)
        found = self.measurement(network, model, checkpoint, report=record.report if record else None)
        values = {metric: measured.value for metric, measured in found.values.items()}
        further = {metric: value for metric, value in values.items() if metric not in self.metrics}
        spreads = {metric: (m.low, m.high, m.spread) for metric, m in found.values.items() if m.spread}
        weights = None
        if record:
            record.spread(spreads)
            weights = record.keep(further, None if found.state is None else (found.state, found.about))
        for done in self.checkpoints.glob(f"{name}*.pt") if self.checkpoints else ():
            done.unlink()
        return _Known([values[metric] for metric in self.metrics], further, spreads, weights)
