"""Evaluators: where the objective values of an architecture come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from nas.objectives import check_metrics

if TYPE_CHECKING:
    from nas.benchmarks import Benchmark
    from predictors import Predictor
    from search_spaces import Architecture, SearchSpace


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
    """Values that a fitted predictor gives (the median of its samples): a search without a single true evaluation."""

    def __init__(self, predictor: Predictor, space: SearchSpace, metrics: Sequence[str]) -> None:
        self.predictor = predictor
        self.space = space
        self.metrics = tuple(metrics)

    def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
        texts = [self.space.to_text(architecture) for architecture in architectures]
        return self.predictor.predict(texts, self.metrics).median
