"""A second opinion on what the decoder writes: Gaussian processes on the encoder's states and on known metrics.

With few labels the decoder alone does not learn how much each of many known metrics tells; a Gaussian process does, by
its likelihood (Rasmussen and Williams 2006, equations 2.25, 2.26 and 2.30). It reads what the decoder reads, so a text
costs hardly more, and its errors differ from the decoder's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.spatial.distance import cdist

from predictors.scale import Scale

MOST = 1000
LEAST = 4
LENGTHS = (0.3, 0.6, 1.0, 2.0, 4.0)  # of the median distance
NOISES = (1e-3, 1e-2, 3e-2, 0.1, 0.3)  # of the process's variance
SHARES = (0.3, 1.0, 3.0)  # of known metrics' distances against the states'


class Distances(NamedTuple):
    """Squared distances (m, n) between states, and between the normal scores of known metrics."""

    states: np.ndarray
    known: np.ndarray

    def mixed(self, scales: tuple[float, float]) -> np.ndarray:
        return self.states * scales[0] + self.known * scales[1]


class Process(NamedTuple):
    """A fitted process: the `rows` (n,) it stands on, its kernel's numbers, and what it says of normal scores.

    inverse: (n, n) of the kernel matrix with noise; weights: (n,), it times the centred scores.
    """

    rows: np.ndarray
    scales: tuple[float, float]
    length: float
    noise: float
    mean: float
    variance: float
    inverse: np.ndarray
    weights: np.ndarray


class Estimator:
    """Samples of any metric of a table, from states and any of its other metrics, each with a process of its own.

    states: (n, D). values: metrics in their units, (n,) each, NaN where unknown. n is at most `MOST`.
    """

    def __init__(self, states: np.ndarray, values: Mapping[str, np.ndarray]) -> None:
        self.states, self.values = states, dict(values)
        self._scales = {name: Scale.fit(known) for name, known in values.items()}
        self._scores = {name: self._scales[name].normalize(known) for name, known in values.items()}
        self._processes: dict[tuple[str, ...], Process | None] = {}

    def sample(
        self, metric: str, states: np.ndarray, given: Mapping[str, np.ndarray], noise: np.ndarray
    ) -> np.ndarray | None:
        """Values (m, S) for states (m, D) and known metrics (m,) each, by standard normal `noise` (m, S).

        None where the table has fewer than `LEAST` values to learn from.
        """
        names = [name for name in self.values if name in given and name != metric]
        process = self._process(metric, names)
        if process is None:
            return None
        known = {name: self._scales[name].normalize(given[name]) for name in names}
        kernel = _kernel(self._distances(states, known, process.rows).mixed(process.scales), process.length)
        left = 2 + process.noise - ((kernel @ process.inverse) * kernel).sum(1)  # 2: of a text with itself
        spread = np.sqrt(process.variance * np.maximum(left, process.noise))
        scores = process.mean + kernel @ process.weights
        return self._scales[metric].restore(scores[:, None] + spread[:, None] * noise)

    def _process(self, metric: str, names: Sequence[str]) -> Process | None:
        key = (metric, *names)
        if key not in self._processes:
            self._processes[key] = self._fit(metric, names)
        return self._processes[key]

    def _fit(self, metric: str, names: Sequence[str]) -> Process | None:
        if metric not in self.values:
            return None
        rows = np.flatnonzero(~np.isnan([self._scores[name] for name in (metric, *names)]).any(0))
        if len(rows) < LEAST:
            return None
        distances = self._distances(self.states[rows], {name: self._scores[name][rows] for name in names}, rows)
        target = self._scores[metric][rows]
        candidates = product(_scales(distances, informed=bool(names)), LENGTHS, NOISES)
        return max((_regress(rows, distances, *numbers, target) for numbers in candidates), key=itemgetter(0))[1]

    def _distances(self, states: np.ndarray, known: Mapping[str, np.ndarray], rows: np.ndarray) -> Distances:
        """From m states with scores (m,) of known metrics to the table's `rows`."""
        between = np.zeros((len(states), len(rows)))
        for name, scores in known.items():
            between += (scores[:, None] - self._scores[name][rows]) ** 2
        return Distances(cdist(states, self.states[rows], "sqeuclidean"), between)


def _scales(distances: Distances, informed: bool) -> list[tuple[float, float]]:
    """Factors of both distances: median distances count as 1, those of known metrics as much as a share."""
    medians = [float(np.median(d[d > 0])) if (d > 0).any() else np.inf for d in distances]
    return [(1 / medians[0], share / medians[1]) for share in (SHARES if informed else (0.0,))]


def _kernel(squared: np.ndarray, length: float) -> np.ndarray:
    """Matérn 3/2, and a constant: the mean is not known exactly."""
    root = np.sqrt(3 * squared) / length
    return (1 + root) * np.exp(-root) + 1


def _regress(
    rows: np.ndarray,
    distances: Distances,
    scales: tuple[float, float],
    length: float,
    noise: float,
    target: np.ndarray,
) -> tuple[float, Process]:
    """The process with these numbers, at its best variance, and its log likelihood."""
    n, mean = len(rows), float(target.mean())
    kernel = _kernel(distances.mixed(scales), length)
    factor = cho_factor(kernel + noise * np.eye(n), lower=True)
    inverse = cho_solve(factor, np.eye(n))
    weights = inverse @ (target - mean)
    variance = max(float((target - mean) @ weights) / n, 1e-12)
    likelihood = -0.5 * n * np.log(variance) - np.log(np.diag(factor[0])).sum()
    return float(likelihood), Process(rows, scales, length, noise, mean, variance, inverse, weights)
