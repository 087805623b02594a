"""A second opinion on what the decoder writes: Gaussian processes on the encoder's states and on known metrics.

With few labels the decoder alone does not learn how much each of many known metrics tells; a Gaussian process does, by
its likelihood (Rasmussen and Williams 2006, equations 2.25, 2.26 and 2.30). It reads what the decoder reads, so a text
costs hardly more, and its errors differ from the decoder's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from operator import itemgetter
from typing import NamedTuple, Protocol

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.spatial.distance import cdist

from predictors.metrics import is_measured
from predictors.scale import Scale

MOST = 1000
LEAST = 4
ENOUGH = 100  # values show the shape of a device's distribution, which is seldom that of logarithms
LENGTHS = (0.3, 0.6, 1.0, 2.0, 4.0)  # of the median distance
NOISES = (1e-3, 1e-2, 3e-2, 0.1, 0.3)  # of the process's variance
SHARES = (0.3, 1.0, 3.0)  # of known metrics' distances against the states'


class Standard(Protocol):
    """Metrics in their unit to values of mean 0 and deviation 1 or so, and back."""

    def normalize(self, values: np.ndarray) -> np.ndarray: ...

    def restore(self, scores: np.ndarray) -> np.ndarray: ...


class Logarithms(NamedTuple):
    """Standardized logarithms: a device that is twice as fast is so for most networks, which a few values tell."""

    mean: float
    spread: float

    def normalize(self, values: np.ndarray) -> np.ndarray:
        return (np.log(np.maximum(values, 1e-300)) - self.mean) / self.spread

    def restore(self, scores: np.ndarray) -> np.ndarray:
        return np.exp(self.mean + self.spread * scores)


class Inputs(NamedTuple):
    """What a process sees of m texts: states (m, D) and standardized known metrics (m, K)."""

    states: np.ndarray
    known: np.ndarray


class Kernel(NamedTuple):
    """Matérn 3/2 of a mixed squared distance, linear in known metrics, and a constant: the mean is not known exactly.

    scales: factors of the squared distances between states and between known metrics.
    """

    scales: tuple[float, float]
    length: float

    def between(self, a: Inputs, b: Inputs) -> np.ndarray:
        """(m, n) of m and n texts."""
        squared = self.scales[0] * cdist(a.states, b.states, "sqeuclidean")
        if not a.known.shape[1]:
            return self._matern(squared) + 1
        squared += self.scales[1] * cdist(a.known, b.known, "sqeuclidean")
        return self._matern(squared) + a.known @ b.known.T / a.known.shape[1] + 1

    def itself(self, a: Inputs) -> np.ndarray:
        """(m,) of each text with itself."""
        return 2 + (a.known**2).sum(1) / max(1, a.known.shape[1])

    def _matern(self, squared: np.ndarray) -> np.ndarray:
        root = np.sqrt(3 * squared) / self.length
        return (1 + root) * np.exp(-root)


class Process(NamedTuple):
    """A fitted process on the inputs of n texts. inverse: (n, n) of the kernel matrix with noise; weights: (n,)."""

    inputs: Inputs
    kernel: Kernel
    noise: float
    mean: float
    variance: float
    inverse: np.ndarray
    weights: np.ndarray

    def predict(self, asked: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation (m,) of what a measurement would give."""
        kernel = self.kernel.between(asked, self.inputs)
        left = self.kernel.itself(asked) - ((kernel @ self.inverse) * kernel).sum(1)
        return self.mean + kernel @ self.weights, np.sqrt(self.variance * (left.clip(min=0) + self.noise))


class Estimator:
    """Samples of any metric of a table, from states and any of its other metrics, each with a process of its own.

    states: (n, D). values: metrics in their units, (n,) each, NaN where unknown. n is at most `MOST`.
    """

    def __init__(self, states: np.ndarray, values: Mapping[str, np.ndarray]) -> None:
        self.states, self.values = states, dict(values)
        self._standards = {name: _standard(name, known) for name, known in values.items()}
        self._scores = {name: self._standards[name].normalize(known) for name, known in values.items()}
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
        known = {name: self._standards[name].normalize(given[name]) for name in names}
        mean, spread = process.predict(Inputs(states, _columns(known, len(states))))
        return self._standards[metric].restore(mean[:, None] + spread[:, None] * noise)

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
        known = {name: self._scores[name][rows] for name in names}
        return _best(Inputs(self.states[rows], _columns(known, len(rows))), self._scores[metric][rows])


def _standard(name: str, values: np.ndarray) -> Standard:
    known = values[~np.isnan(values)]
    if is_measured(name) and 0 < len(known) < ENOUGH and known.min() > 0:
        logarithms = np.log(known)
        return Logarithms(float(logarithms.mean()), max(float(logarithms.std()), 1e-6))
    return Scale.fit(values)


def _columns(known: Mapping[str, np.ndarray], count: int) -> np.ndarray:
    """(count, K)"""
    return np.stack(list(known.values()), 1) if known else np.empty((count, 0))


def _best(inputs: Inputs, target: np.ndarray) -> Process:
    """The likeliest process for targets (n,), of those whose numbers are tried."""
    mean, n = float(target.mean()), len(target)
    medians = [_median(cdist(values, values, "sqeuclidean")) for values in inputs]
    shares = SHARES if inputs.known.shape[1] else (0.0,)
    kernels = [Kernel((1 / medians[0], share / medians[1]), length) for share, length in product(shares, LENGTHS)]
    found = []
    for kernel in kernels:
        matrix = kernel.between(inputs, inputs)
        found += [(_likelihood(matrix + noise * np.eye(n), target - mean), kernel, noise) for noise in NOISES]
    _, kernel, noise = max(found, key=itemgetter(0))
    inverse = np.linalg.inv(kernel.between(inputs, inputs) + noise * np.eye(n))
    weights = inverse @ (target - mean)
    return Process(inputs, kernel, noise, mean, _variance(weights, target - mean), inverse, weights)


def _median(squared: np.ndarray) -> float:
    """The median of the distances above 0, infinite where there is none."""
    above = squared[squared > 0]
    return float(np.median(above)) if len(above) else np.inf


def _likelihood(matrix: np.ndarray, target: np.ndarray) -> float:
    """Its logarithm at the best variance, but for a constant."""
    factor = cho_factor(matrix, lower=True, check_finite=False)
    variance = _variance(cho_solve(factor, target, check_finite=False), target)
    return float(-0.5 * len(target) * np.log(variance) - np.log(np.diag(factor[0])).sum())


def _variance(weights: np.ndarray, target: np.ndarray) -> float:
    return max(float(target @ weights) / len(target), 1e-12)
