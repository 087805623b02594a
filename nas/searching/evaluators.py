"""Evaluators: where the objective values of an architecture come from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from nas.evaluation.metrics import check_metrics
from search_spaces.text import fingerprint

if TYPE_CHECKING:
    from nas.benchmarks import Benchmark
    from nas.evaluation.measurement import Measurement
    from predictors import Predictor
    from search_spaces import Architecture, SearchSpace

COSTS = ("params", "flops")


class Evaluator(Protocol):
    """Gives n architectures' values (n, m) of m metrics, in the metrics' own units; NaN where one failed."""

    metrics: tuple[str, ...]

    def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray: ...


class TableEvaluator:
    """True values, looked up in a benchmark's table. Raises InputError for an unknown metric or architecture."""

    def __init__(self, benchmark: Benchmark, metrics: Sequence[str]) -> None:
        check_metrics(metrics, benchmark.metrics)
        self.benchmark = benchmark
        self.metrics = tuple(metrics)

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


class MeasuredEvaluator:
    """Values measured on this machine: each different network is trained, timed and weighed once.

    checkpoints: folder for the states of trainings, so that an interrupted one goes on where it stopped; a state is
    removed when its training is done.
    """

    def __init__(self, space: SearchSpace, measurement: Measurement, checkpoints: Path | None = None) -> None:
        self.space = space
        self.measurement = measurement
        self.metrics = measurement.metrics
        self.checkpoints = checkpoints
        self._known: dict[str, list[float]] = {}

    def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
        return np.array([self._values(architecture) for architecture in architectures]).reshape(-1, len(self.metrics))

    def _values(self, architecture: Architecture) -> list[float]:
        network = fingerprint(self.space.to_text(architecture))
        if network not in self._known:
            graph, model = self.space.graph(architecture), self.space.to_onnx(architecture)
            checkpoint = self.checkpoints / f"{network}.pt" if self.checkpoints else None
            found = self.measurement(graph, model, checkpoint)
            self._known[network] = [found[metric].value for metric in self.metrics]
            for done in self.checkpoints.glob(f"{network}*.pt") if self.checkpoints else ():
                done.unlink()
        return self._known[network]
