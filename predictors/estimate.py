"""A second opinion on what the decoder writes: Gaussian processes on states, counts of operators, and known metrics.

With few labels the decoder alone does not learn how much each of many known metrics tells, nor that a latency grows by
about as much with every operator of a kind; a Gaussian process does, by its likelihood (Rasmussen and Williams 2006,
equations 2.25, 2.26, 2.30 and 5.9). It reads what the decoder reads, so a text costs hardly more, and its errors differ
from the decoder's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.linalg import LinAlgError
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize
from scipy.spatial.distance import cdist

from predictors.metrics import QUIETEST, is_accuracy, is_chosen, is_measured
from predictors.scale import Scale

MOST = 3000
TRIED = 1000  # of these, a process's numbers are found on so many
LEAST = 4
ENOUGH = 100  # values show the shape of a device's distribution; of fewer, a line is the better guess
FARTHEST = 5.0  # standard deviations: what is rarer among the texts that were learned tells no more
LOWEST = 0.1  # of the smallest latency that was measured
BENT = 20.0  # more is beyond any value's unit
FEW = 20  # texts do not yet show how large errors are
USUAL = 0.6745  # standard deviations: half of a normal distribution's errors are smaller
TRUSTED = (0.3, 1.5)  # what errors may be found to be, in units of what was believed


class Prior(NamedTuple):
    """A parameter whose logarithm is normal: its median, and the logarithm's standard deviation."""

    median: float
    spread: float


LENGTH = Prior(1.5, 0.8)  # of the median distance between states
SHARE = Prior(1.0, 1.5)  # of the distance between known metrics in a distance
NOISE = Prior(0.05, 2.0)
KNOWN = Prior(1.0, 2.0)
EXPECTED, REST = Prior(6.0, 1.0), Prior(2.6, 1.0)  # what is expected tells most, and most that is left is noise
RANKED = "by rank"  # begins the key of a kernel for ranks where there is another for values
BEFORE = " before"  # `x before` is what was expected of `x` before it was learned
KINDS = ("operators", "pairs", "paths")  # of counts: how many operators follow each other in what is counted
# Weights of the three kinds, and of what was chosen. Latencies add up over operators.
COUNTED = (Prior(1.0, 2.0), Prior(0.3, 2.0), Prior(0.1, 2.0), Prior(0.3, 2.0))
HARDLY = Prior(0.03, 2.0)  # accuracies do not, and known latencies tell more about another than counts


class Standard(Protocol):
    """Metrics in their unit to values of mean 0 and deviation 1 or so, and back."""

    def normalize(self, values: np.ndarray) -> np.ndarray: ...

    def restore(self, scores: np.ndarray) -> np.ndarray: ...


class Linear(NamedTuple):
    """Standardized, and never below `least`."""

    mean: float
    spread: float
    least: float

    def normalize(self, values: np.ndarray) -> np.ndarray:
        return (values - self.mean) / self.spread

    def restore(self, scores: np.ndarray) -> np.ndarray:
        return np.maximum(self.mean + self.spread * scores, self.least)

    def noise(self, scores: np.ndarray) -> np.ndarray:
        """The variance (n,) of noise that grows with the value, in units of that around the mean."""
        levels = np.abs(self.restore(scores)) / max(abs(self.mean), QUIETEST * self.spread)
        return levels.clip(QUIETEST, 1 / QUIETEST) ** 2


class Robust(NamedTuple):
    """The inverse hyperbolic sine of values in units of their median deviation, standardized: linear near the median.

    A failed training far below the others does not squeeze them together, as it would on a line; and the distance from
    the best to something better stays what it is, as it would not among ranks.
    """

    middle: float
    unit: float
    mean: float
    spread: float

    @classmethod
    def of(cls, values: np.ndarray) -> Robust:
        middle = float(np.median(values))
        unit = max(float(np.median(np.abs(values - middle))), 1e-3 * float(values.std()), 1e-9)
        bent = np.arcsinh((values - middle) / unit)
        return cls(middle, unit, float(bent.mean()), max(float(bent.std()), 1e-9))

    def normalize(self, values: np.ndarray) -> np.ndarray:
        return (np.arcsinh((values - self.middle) / self.unit) - self.mean) / self.spread

    def restore(self, scores: np.ndarray) -> np.ndarray:
        return self.middle + self.unit * np.sinh(np.clip(self.mean + self.spread * scores, -BENT, BENT))


class Seen(NamedTuple):
    """What is seen of m texts: states (m, D) and counts (m, F)."""

    states: np.ndarray
    counts: np.ndarray


class Inputs(NamedTuple):
    """What a process sees of m texts: states (m, D), and by name what it is linear in (m, K), known metrics as well."""

    states: np.ndarray
    linear: dict[str, np.ndarray]

    def at(self, rows: np.ndarray) -> Inputs:
        return Inputs(self.states[rows], {name: values[rows] for name, values in self.linear.items()})


class Products(NamedTuple):
    """What kernels of m and n texts are made of, (m, n) each: squared distances, and scalar products by name."""

    states: np.ndarray
    known: np.ndarray | float
    linear: dict[str, np.ndarray]


class Units(NamedTuple):
    """The medians of the squared distances between the states, and between the known metrics, of n texts."""

    states: float
    known: float

    @classmethod
    def of(cls, inputs: Inputs) -> Units:
        known = inputs.linear.get("known")
        return cls(_median(inputs.states), np.inf if known is None else _median(known))

    def products(self, a: Inputs, b: Inputs) -> Products:
        known: np.ndarray | float = 0.0
        if "known" in a.linear:
            known = _squared_distances(a.linear["known"], b.linear["known"]) / self.known
        states = _squared_distances(a.states, b.states) / self.states
        linear = {name: values @ b.linear[name].T / values.shape[1] for name, values in a.linear.items()}
        return Products(states, known, linear)


class Kernel(NamedTuple):
    """Matérn 3/2 of a mixed distance, linear terms, and a constant: the mean is not known exactly.

    numbers: `length`, `noise`, a weight for each linear term, and `share` where metrics are known, each above 0.
    """

    numbers: dict[str, float]

    def matrix(self, products: Products) -> np.ndarray:
        """(m, n), without noise."""
        root = self._root(products)
        return (1 + root) * np.exp(-root) + 1 + sum(self.numbers[name] * p for name, p in products.linear.items())

    def noisy(self, matrix: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """A matrix (n, n) with noise, given how much of it (n,) each value has in units of the usual."""
        return matrix + self.numbers["noise"] * np.diag(noise)

    def slopes(self, products: Products, noise: np.ndarray) -> dict[str, np.ndarray]:
        """What the matrix (n, n) with noise changes by, for a change of each number's logarithm."""
        root = self._root(products)
        falling = np.exp(-root)
        found = {"length": root**2 * falling, "noise": self.numbers["noise"] * np.diag(noise)}
        if "share" in self.numbers:
            nearer = -1.5 * falling / self.numbers["length"] ** 2
            found["share"] = nearer * self.numbers["share"] * products.known
        return found | {name: self.numbers[name] * p for name, p in products.linear.items()}

    def itself(self, inputs: Inputs) -> np.ndarray:
        """(m,) of each text with itself."""
        sizes = (self.numbers[name] * (values**2).mean(1) for name, values in inputs.linear.items())
        return np.full(len(inputs.states), 2.0) + sum(sizes)

    def _root(self, products: Products) -> np.ndarray:
        squared = products.states + self.numbers.get("share", 0.0) * products.known
        return np.sqrt(3 * squared) / self.numbers["length"]


class Process(NamedTuple):
    """A fitted process on the inputs of n texts. inverse: (n, n) of the kernel matrix with noise; weights: (n,).

    growing: the standard of values whose noise grows with them; None where it is the same for all.
    errors: how large they are, in units of what they are believed to be.
    """

    inputs: Inputs
    units: Units
    kernel: Kernel
    mean: float
    variance: float
    inverse: np.ndarray
    weights: np.ndarray
    growing: Linear | None
    errors: float = 1.0

    def expect(self, asked: Inputs) -> np.ndarray:
        """The mean (m,) of what a measurement would give."""
        return self.mean + self._matrix(asked) @ self.weights

    def predict(self, asked: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation (m,) of what a measurement would give."""
        matrix = self._matrix(asked)
        left = self.kernel.itself(asked) - ((matrix @ self.inverse) * matrix).sum(1)
        mean = self.mean + matrix @ self.weights
        noise = self.kernel.numbers["noise"] * _noise(mean, self.growing)
        return mean, self.errors * np.sqrt(self.variance * (left.clip(min=0) + noise))

    def calibrated(self) -> Process:
        """The same, believing its usual errors for texts that were left out (Rasmussen and Williams, section 5.4.2).

        By their median: a few failed trainings make all others look as uncertain, and what hardly differs from the
        best looks as if it might be far better.
        """
        rows: dict[bytes, list[int]] = {}
        for i, state in enumerate(self.inputs.states):
            rows.setdefault(state.tobytes(), []).append(i)
        if len(rows) < FEW:
            return self
        usual = np.median([np.abs(self._left_out(of_text)).mean() for of_text in rows.values()]) / USUAL
        return self._replace(errors=float(np.clip(usual, *TRUSTED)))

    def _left_out(self, rows: list[int]) -> np.ndarray:
        """Errors (k,) in standard deviations of k of the n texts, had these been left out."""
        covariance = np.linalg.inv(self.inverse[np.ix_(rows, rows)])
        return covariance @ self.weights[rows] / np.sqrt(self.variance * np.diag(covariance))

    def _matrix(self, asked: Inputs) -> np.ndarray:
        return self.kernel.matrix(self.units.products(asked, self.inputs))


class Estimator:
    """Samples of any metric of a table, from what is seen and any of its other metrics, each by a process of its own.

    seen: of n texts; names: the F counts' names, operators that follow each other joined by ` > `.
    values: metrics in their units, (n,) each, NaN where unknown.
    by_value: whether what is not measured on a device is expected half by distances between values, of which the best
        may be surpassed, and half by ranks, which order better, the noise of what is measured grows with it, and
        uncertainties are those that texts left out show; all by ranks, and with the same noise, otherwise.
    likeness: (D, D'), what of the states tells how alike texts are in what is not measured on a device.
    kernels: those that were found before, by a metric and what is known for it, and `RANKED` before these.
    """

    def __init__(
        self,
        seen: Seen,
        names: Sequence[str],
        values: Mapping[str, np.ndarray],
        by_value: bool = False,
        kernels: Mapping[tuple[str, ...], Kernel] | None = None,
        likeness: np.ndarray | None = None,
    ) -> None:
        self.likeness = likeness
        self.seen, self.names, self.values, self.by_value = seen, list(names), dict(values), by_value
        self._standards = {
            way: {name: _standard(name, known[~np.isnan(known)], way) for name, known in values.items()}
            for way in {by_value, False}
        }
        self._kinds = np.array([min(name.count(" > "), len(KINDS) - 1) for name in names], int)
        self._usual, self._spread = seen.counts.mean(0), np.maximum(seen.counts.std(0), 1e-6)
        self._processes: dict[tuple[str, ...], Process | None] = {}
        self._kernels = dict(kernels or {})

    @property
    def kernels(self) -> dict[tuple[str, ...], Kernel]:
        """What has been found so far, at a cost."""
        return self._kernels | {key: process.kernel for key, process in self._processes.items() if process}

    def knows(self, metrics: Iterable[str]) -> bool:
        """Whether there are values enough of every metric to learn from."""
        return all(np.count_nonzero(~np.isnan(self.values.get(name, np.empty(0)))) >= LEAST for name in metrics)

    def sample(self, metric: str, seen: Seen, given: Mapping[str, np.ndarray], noise: np.ndarray) -> np.ndarray | None:
        """Values (m, S) for m texts and known metrics (m,) each, by standard normal `noise` (m, S).

        None where the table has fewer than `LEAST` values to learn from.
        """
        ways, found = self._ways(metric), []
        for way, own in zip(ways, np.array_split(noise, len(ways), axis=1), strict=True):
            process, inputs = self._asked(metric, seen, given, way)
            if process is None:
                return None
            mean, spread = process.predict(inputs)
            found.append(self._standards[way][metric].restore(mean[:, None] + spread[:, None] * own))
        return np.concatenate(found, 1)

    def expect(self, metric: str, seen: Seen, given: Mapping[str, np.ndarray]) -> np.ndarray | None:
        """The middle (m,) of such values."""
        found = []
        for way in self._ways(metric):
            process, inputs = self._asked(metric, seen, given, way)
            if process is None:
                return None
            found.append(self._standards[way][metric].restore(process.expect(inputs)))
        return np.mean(found, 0)

    def _ways(self, metric: str) -> tuple[bool, ...]:
        """By value, by rank, or both."""
        return (True, False) if self.by_value and not is_measured(metric) else (self.by_value,)

    def _asked(
        self, metric: str, seen: Seen, given: Mapping[str, np.ndarray], by_value: bool
    ) -> tuple[Process | None, Inputs]:
        """The process for a metric where so much is given, if there is one, and what it sees of m texts."""
        names = [name for name in self.values if name in given and _tells(name, metric)]
        known = {name: self._standards[by_value][name].normalize(given[name]) for name in names}
        key = (metric, *names) if by_value == self.by_value else (RANKED, metric, *names)
        if key not in self._processes:
            self._processes[key] = self._fit(metric, names, by_value, self._kernels.get(key))
        return self._processes[key], self._inputs(metric, seen, known)

    def _fit(self, metric: str, names: Sequence[str], by_value: bool, kernel: Kernel | None) -> Process | None:
        if metric not in self.values:
            return None
        rows = np.flatnonzero(~np.isnan([self.values[name] for name in (metric, *names)]).any(0))
        if len(rows) < LEAST:
            return None
        scores = {name: self._standards[by_value][name].normalize(self.values[name][rows]) for name in (metric, *names)}
        seen = Seen(self.seen.states[rows], self.seen.counts[rows])
        inputs = self._inputs(metric, seen, {name: scores[name] for name in names})
        additive = not is_accuracy(metric) and not any(map(is_measured, names))
        counted = dict(zip((*KINDS, "chosen"), COUNTED if additive else [HARDLY] * (len(KINDS) + 1), strict=True))
        standard = self._standards[by_value][metric]
        growing = standard if by_value and isinstance(standard, Linear) else None
        process = _fitted(inputs, scores[metric], counted, kernel, growing)
        return process.calibrated() if self.by_value else process

    def _inputs(self, metric: str, seen: Seen, known: Mapping[str, np.ndarray]) -> Inputs:
        """What the metric's process sees."""
        states = seen.states if self.likeness is None or is_measured(metric) else seen.states @ self.likeness
        counts = ((seen.counts - self._usual) / self._spread).clip(-FARTHEST, FARTHEST).astype(float)
        linear = {kind: counts[:, self._kinds == i] for i, kind in enumerate(KINDS) if (self._kinds == i).any()}
        for group in ("known", "chosen", "expected"):
            if columns := [values for name, values in known.items() if _group(name) == group]:
                linear[group] = np.stack(columns, 1)
        return Inputs(states, linear)


def some_of(count: int, most: int) -> np.ndarray:
    """Up to `most` of so many rows, by chance, but always the same: a table's order may be that of its networks."""
    return np.sort(np.random.default_rng(0).permutation(count)[:most])


def _tells(name: str, metric: str) -> bool:
    """Whether a known one may tell of a metric: what was chosen and no text shows changes how a device runs a network,
    but not what the network computes, so that of accuracies it tells nothing.
    """
    if is_chosen(name):
        return is_measured(metric)
    return name == metric + BEFORE or not (name == metric or name.endswith(BEFORE))


def _group(name: str) -> str:
    """What a known metric is to a process: chosen or expected, or plainly known."""
    return "chosen" if is_chosen(name) else "expected" if name.endswith(BEFORE) else "known"


def _standard(name: str, known: np.ndarray, by_value: bool) -> Standard:
    """known: (n,), at least one."""
    if is_chosen(name):
        return Linear(float(known.mean()), max(float(known.std()), 1e-9), -np.inf)
    if is_measured(name) and (by_value or len(known) < ENOUGH):
        return Linear(float(known.mean()), max(float(known.std()), 1e-9), LOWEST * float(known.min()))
    return Robust.of(known) if by_value else Scale.fit(known)


def _fitted(
    inputs: Inputs,
    target: np.ndarray,
    counted: Mapping[str, Prior],
    kernel: Kernel | None = None,
    growing: Linear | None = None,
) -> Process:
    """The process for targets (n,), with the kernel that is likeliest for `TRIED` of them if none is known."""
    mean, noise = float(target.mean()), _noise(target, growing)
    tried = some_of(len(target), TRIED)
    some = inputs.at(tried)
    units = Units.of(some)
    if kernel is None:
        products, priors = units.products(some, some), _priors(inputs, counted)
        kernel = _likeliest(products, target[tried] - mean, noise[tried], priors)
    inverse = np.linalg.inv(kernel.noisy(kernel.matrix(units.products(inputs, inputs)), noise))
    weights = inverse @ (target - mean)
    return Process(inputs, units, kernel, mean, _variance(weights, target - mean), inverse, weights, growing)


def _noise(scores: np.ndarray, growing: Linear | None) -> np.ndarray:
    """The variance (n,) of noise, in units of the usual."""
    return np.ones(len(scores)) if growing is None else growing.noise(scores)


def _priors(inputs: Inputs, counted: Mapping[str, Prior]) -> dict[str, Prior]:
    """What a process's numbers usually are."""
    weights = {"known": KNOWN, "expected": EXPECTED, **counted}
    usual = {"length": LENGTH, "noise": REST if "expected" in inputs.linear else NOISE}
    usual |= {name: weights[name] for name in inputs.linear}
    return usual | ({"share": SHARE} if "known" in inputs.linear else {})


def _likeliest(products: Products, target: np.ndarray, noise: np.ndarray, priors: Mapping[str, Prior]) -> Kernel:
    """The kernel that is likeliest by targets (n,) of mean 0, with so much noise (n,), and by what is usual."""
    usual, spread = np.log([prior.median for prior in priors.values()]), np.array([p.spread for p in priors.values()])

    def kernel(logarithms: np.ndarray) -> Kernel:
        return Kernel(dict(zip(priors, np.exp(logarithms).tolist(), strict=True)))

    def unlikeliness(logarithms: np.ndarray) -> tuple[float, np.ndarray]:
        """The negative logarithm of the likelihood, at the best variance, and of the prior; and its slope."""
        tried = kernel(logarithms)
        try:
            value, inverse = _unlikeliness(tried, products, target, noise)
        except LinAlgError:
            return 1e10, np.zeros(len(priors))
        weights = inverse @ target
        residual = inverse - np.outer(weights, weights) / _variance(weights, target)
        slopes = tried.slopes(products, noise)
        slope = np.array([0.5 * np.vdot(residual, slopes[name]) for name in priors])
        away = (logarithms - usual) / spread
        return value + 0.5 * float(away @ away), slope + away / spread

    bounds = list(zip(usual - 3 * spread, usual + 3 * spread, strict=True))
    return kernel(minimize(unlikeliness, usual, jac=True, method="L-BFGS-B", bounds=bounds).x)


def _unlikeliness(
    kernel: Kernel, products: Products, target: np.ndarray, noise: np.ndarray
) -> tuple[float, np.ndarray]:
    """The negative logarithm of the likelihood at the best variance, but for a constant, and the inverse (n, n)."""
    n = len(target)
    factor = cho_factor(kernel.noisy(kernel.matrix(products), noise), lower=True, check_finite=False)
    inverse = cho_solve(factor, np.eye(n), check_finite=False)
    variance = _variance(inverse @ target, target)
    return float(0.5 * n * np.log(variance) + np.log(np.diag(factor[0])).sum()), inverse


def _squared_distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(m, n) between rows (m, D) and (n, D), from scalar products: one product of matrices."""
    a, b = a.astype(float), b.astype(float)
    return ((a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T).clip(min=0)


def _median(values: np.ndarray) -> float:
    """The median of the squared distances above 0 between rows, infinite where there is none."""
    squared = cdist(values, values, "sqeuclidean")
    above = squared[squared > 0]
    return float(np.median(above)) if len(above) else np.inf


def _variance(weights: np.ndarray, target: np.ndarray) -> float:
    return max(float(target @ weights) / len(target), 1e-12)
