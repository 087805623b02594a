"""Random regression tasks over real networks. The in-context decoder is pretrained on them, as
TabPFN on its prior.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from experiments.pretraining.random_curves import LATENTS, MAX_LENGTH, draw_curves
from predictors.rlm.kernel_regression import AXES, COMMON_WEIGHT, Projection
from predictors.rlm.model import Task
from predictors.rlm.tokens import TextFeatures
from predictors.transforms import TargetTransform

FUNCTIONS = {
    "kernel": 0.36,
    "linear": 0.06,
    "counts": 0.12,
    "network": 0.12,
    "targets": 0.23,
    "product": 0.11,
}
"""Share of each kind of random function, see `_function`."""
FEATURES = 384  # random features that approximate a stationary kernel
MIN_SPREAD = 1e-9
STRANGE = 0.07  # share of tasks with queries of another space


@dataclass(frozen=True)
class Prior:
    """Shares of the kinds of tasks.

    Attributes:
        functions: share of each kind of random function.
        measured: share of tasks with proxies or measurements as metrics, in spaces that have some.
        extrapolating: share of tasks whose queries lie beyond the examples.
        curves: share of tasks whose metric is a point of a learning curve, with earlier points as
            covariates.
    """

    functions: Mapping[str, float] = field(default_factory=FUNCTIONS.copy)
    measured: float = 0.5
    extrapolating: float = 0.15
    curves: float = 0.1


PRIOR = Prior()


@dataclass(frozen=True)
class SpaceStates:
    """The states of a space's N networks, and targets.

    Attributes:
        states: (N, S) encoder states.
        targets: (N, T) structural targets.
        others: (N, R) proxies or measurements, NaN if missing.
        structure, quality, counts, neighbours: principal axes, as columns, of these parts of the
            states.
    """

    states: np.ndarray
    targets: np.ndarray
    others: np.ndarray
    structure: np.ndarray
    quality: np.ndarray
    counts: np.ndarray
    neighbours: np.ndarray

    @classmethod
    def of(cls, states: np.ndarray, targets: np.ndarray, others: np.ndarray) -> Self:
        """Compute the principal axes of the states."""
        *parts, _ = TextFeatures.split(states)
        axes = [_axes(part, count) for part, count in zip(parts, AXES, strict=True)]
        return cls(states, targets, others, *axes)

    def coordinates(self, states: np.ndarray, n: int, weights: np.ndarray) -> np.ndarray:
        """Coordinates (m, d) of states (m, S), in which random functions are drawn.

        The last ones are those of neighbours. The parts are scaled to unit mean square in the first
        n rows, then by `weights` (4,).
        """
        # 1. The common numbers, standardized; equal ones tell nothing.
        *parts, common = TextFeatures.split(states)
        spread = common[:n].std(0)
        spread = np.where(spread > 1e-4, spread, np.inf)
        common = (common - common[:n].mean(0)) / spread

        # 2. Each part along its axes, with its share of the length.
        axes = (self.structure, self.quality, self.counts, self.neighbours)
        shares = weights / np.linalg.norm(weights)
        scaled = []
        for part, directions, share in zip(parts, axes, shares, strict=True):
            scaled.append(share * _unit(part @ directions, n))
        structure, *others = scaled
        return np.concatenate([structure, COMMON_WEIGHT * common.clip(-9, 9), *others], 1)


def _axes(part: np.ndarray, count: int) -> np.ndarray:
    """The first `count` principal axes of rows (N, S), as columns."""
    centered = part - part.mean(0)
    _, axes = np.linalg.eigh(centered.T @ centered)  # the least important ones first
    return axes[:, ::-1][:, :count]


def _unit(values: np.ndarray, n: int) -> np.ndarray:
    centered = values - values[:n].mean(0)
    return centered / np.sqrt((centered[:n] ** 2).sum(1).mean() + 1e-12)


def draw_task(
    spaces: Sequence[SpaceStates], n: int, q: int, rng: np.random.Generator, prior: Prior = PRIOR
) -> Task:
    """Draw a task of n examples and q queries from one of the spaces.

    Each space has at least n + q networks. The task has a metric and up to sixteen covariates, which
    share random functions with it or precede it on a curve.
    """
    # 1. The networks; perhaps half of the queries are strange ones, of another space.
    space, other = (spaces[int(i)] for i in rng.integers(len(spaces), size=2))
    rows = rng.choice(len(space.states), n + q, replace=False)
    states = space.states[rows]
    has_strange = rng.random() < STRANGE
    if has_strange:
        strange = rng.choice(len(other.states), q - q // 2, replace=False)
        states[n + q // 2 :] = other.states[strange]
    coordinates = space.coordinates(states, n, np.exp(rng.normal(0, 0.8, 4)))

    # 2. Perhaps the queries lie beyond the examples, along a random direction.
    if rng.random() < prior.extrapolating:
        direction = rng.standard_normal(coordinates.shape[1]) * coordinates[:n].std(0)
        order = (coordinates @ direction).argsort()
        rows = rows[order]
        states = states[order]
        coordinates = coordinates[order]
    targets = np.zeros((n + q, 0)) if has_strange else space.targets[rows]

    # 3. Values: the points of a learning curve, or metrics that share random functions.
    if rng.random() < prior.curves:
        return _task(states, n, _curves(coordinates, targets, rng, prior), rng)
    total = 1 + int(rng.choice([0, 1, 2, 3, 8, 16], p=[0.6, 0.16, 0.06, 0.06, 0.08, 0.04]))
    values = _noisy(_mixtures(coordinates, targets, total, rng, prior), rng)
    values = np.stack([_warped(column, rng) for column in values.T], 1)

    # 4. Perhaps what was measured replaces some of them.
    known = np.flatnonzero(np.isfinite(space.others[rows]).all(0))
    if len(known) and not has_strange and rng.random() < prior.measured:
        columns = rng.permutation(known)[:total]
        replaced = rng.permutation(total)[: len(columns)]
        values[:, replaced] = space.others[np.ix_(rows, columns)]

    # 5. Perhaps they are rounded.
    if rng.random() < 0.1:
        step = 10.0 ** rng.uniform(-1.5, 0)
        values = np.round(values / step) * step
    return _task(states, n, values, rng)


def _curves(
    coordinates: np.ndarray, targets: np.ndarray, rng: np.random.Generator, prior: Prior
) -> np.ndarray:
    """Values (m, k) of m learning curves, last point first. One warp applies to all points."""
    latents = _mixtures(coordinates, targets, LATENTS, rng, prior)
    length = int(rng.integers(2, MAX_LENGTH + 1))
    curves = draw_curves(latents, length, rng)
    return _warped(curves, rng)[:, ::-1]


def _mixtures(
    coordinates: np.ndarray, targets: np.ndarray, total: int, rng: np.random.Generator, prior: Prior
) -> np.ndarray:
    """Values (m, total): mixtures of a few random functions of coordinates (m, d) or targets."""
    latent = int(rng.integers(1, min(total, 6) + 2))
    functions = [_function(coordinates, targets, rng, prior) for _ in range(latent)]
    base = np.stack(functions, 1)  # (m, latent)
    directions = rng.standard_normal((latent, total))
    sizes = np.exp(rng.normal(0, 1.2, (latent, total)))
    return _standard(base @ (directions * sizes))


def _function(
    x: np.ndarray, targets: np.ndarray, rng: np.random.Generator, prior: Prior
) -> np.ndarray:
    """A random function (n,) of unit variance.

    Args:
        x: coordinates (n, d).
        targets: structural targets (n, T); a space may have none.
        rng: draws the function.
        prior: the shares of the kinds of functions.
    """
    kind = rng.choice(list(prior.functions), p=list(prior.functions.values()))
    usable = np.flatnonzero(targets.std(0) > MIN_SPREAD)
    if kind in ("targets", "product") and len(usable):
        columns = rng.choice(usable, rng.choice([1, 1, 2, 3]))
        values = _of_targets(_standard(targets[:, columns]).clip(-4, 4), kind == "product", rng)
    elif kind == "counts":
        values = _of_counts(x, rng)
    elif kind == "linear":
        values = _linear(x, rng)
    elif kind == "network":
        values = _network(_selected(x, rng), rng)
    else:  # a kernel, also where targets are wanted and a space has none
        values = _kernel(_selected(x, rng), rng)
    return _standard(values)


def _of_targets(targets: np.ndarray, with_product: bool, rng: np.random.Generator) -> np.ndarray:
    """A sum (n,) of some structural targets (n, k), or of bent ones and their product."""
    weights = rng.standard_normal(targets.shape[1])
    if not with_product:
        return targets @ weights
    bent = np.tanh(targets * rng.uniform(0.5, 2))
    return bent @ weights + 0.5 * np.prod(targets.clip(-2, 2), 1)


def _of_counts(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A linear function (n,) of the coordinates of counts or of neighbours, the last two parts."""
    *_, counts, neighbours = AXES
    of_counts = slice(-counts - neighbours, -neighbours)
    of_neighbours = slice(-neighbours, None)
    part = x[:, of_counts if rng.random() < 0.5 else of_neighbours]
    return part @ rng.standard_normal(part.shape[1])


def _linear(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A linear function (n,) of the first coordinates of x (n, d), perhaps standardized."""
    d: int = x.shape[1]
    weights = rng.standard_normal(d)
    used = rng.integers(1, d + 1)
    weights[used:] = 0
    if rng.random() < 0.5:
        return x @ weights
    spread = x.std(0)
    return x / (spread + 0.1 * spread.max() + MIN_SPREAD) @ weights


def _selected(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Coordinates (n, d), some dropped or weighted, scaled to a median squared norm of one."""
    d = x.shape[1]
    weights = np.ones(d)
    if rng.random() < 0.6:
        weights = (np.arange(d) < rng.integers(1, d + 1)).astype(float)
    if rng.random() < 0.5:
        weights = weights * np.exp(rng.normal(0, 0.8, d))
    z = x * weights
    if rng.random() < 0.3:
        spread = z.std(0)
        z = z / (spread + 0.15 * spread.max() + MIN_SPREAD)
    squared_norms = (z**2).sum(1)
    return z / np.sqrt(np.median(squared_norms) + 1e-12)


def _kernel(z: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A draw (n,) from a Gaussian process, by random features.

    Its kernel is squared exponential or Matérn (Rahimi and Recht 2007, "Random Features for
    Large-Scale Kernel Machines").
    """
    directions = rng.standard_normal((z.shape[1], FEATURES))
    length = np.exp(rng.normal(0.3, 0.6))
    frequencies = directions / length
    if rng.random() < 0.5:  # Matérn
        freedom = 3 if rng.random() < 0.6 else 5
        frequencies = frequencies / np.sqrt(rng.chisquare(freedom, FEATURES) / 3)
    phases = rng.random(FEATURES) * 2 * np.pi
    waves = np.cos(z @ frequencies + phases)
    return waves @ rng.standard_normal(FEATURES)


def _network(z: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The output (n,) of a random network with one or two hidden layers."""
    # 1. A hidden layer of 32 units.
    weights = rng.standard_normal((z.shape[1], 32))
    length = np.exp(rng.normal(0.3, 0.6))
    biases = rng.normal(0, 0.5, 32)
    hidden = z @ weights / length * 1.5 + biases
    hidden = np.tanh(hidden) if rng.random() < 0.5 else np.maximum(hidden, 0)

    # 2. Perhaps another one of 16.
    if rng.random() < 0.5:
        second = _standard(hidden @ rng.standard_normal((32, 16)))
        hidden = np.tanh(second * rng.uniform(0.5, 1.5))
    return hidden @ rng.standard_normal(hidden.shape[1])


def _noisy(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Add noise to values (n, m), shared by the metrics and of each metric alone."""
    n, m = values.shape
    noise = np.exp(rng.uniform(np.log(0.005), np.log(1.0), m))
    # 1. Perhaps noise that the metrics share.
    if m > 1 and rng.random() < 0.6:
        rank = 1 + int(rng.integers(0, 1 + m // 3))
        per_network = rng.standard_normal((n, rank))
        shared = _standard(per_network @ rng.standard_normal((rank, m)))
        values = _standard(values + shared * np.exp(rng.uniform(-3, 1.0)))
        noise = noise * np.exp(rng.uniform(-2, 0))
    # 2. Perhaps heteroscedastic noise: more for larger values.
    if rng.random() < 0.3:
        noise = noise * np.exp(0.5 * values)
    # 3. Gaussian, or with the heavy tails of Student's t.
    is_gaussian = rng.random() < 0.8
    drawn = rng.standard_normal((n, m)) if is_gaussian else rng.standard_t(3, (n, m))
    return values + noise * drawn


def _warped(f: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Warp values: skewed, saturating, with failures below a threshold, or unchanged."""
    kind = rng.choice(
        ["none", "exp", "log", "sinh", "tanh", "failures"], p=[0.45, 0.15, 0.15, 0.08, 0.1, 0.07]
    )
    if kind == "exp":
        return np.exp(f.clip(-6, 6) * rng.uniform(0.2, 1.0))
    if kind == "log":
        return -np.exp(-f.clip(-6, 6) * rng.uniform(0.2, 1.2))
    if kind == "sinh":
        return np.sinh(f.clip(-5, 5) * rng.uniform(0.3, 0.9))
    if kind == "tanh":
        return np.tanh((f + rng.normal(0, 1)) * rng.uniform(0.4, 1.5))
    if kind == "failures":
        low = np.quantile(f, rng.uniform(0.02, 0.3))
        return np.where(f < low, low - rng.uniform(0, 4), f)
    return f


def _task(states: np.ndarray, n: int, values: np.ndarray, rng: np.random.Generator) -> Task:
    """The task of values (n + q, 1 + covariates).

    The first column that is finite everywhere is the metric.
    """
    # 1. z of the columns that are finite everywhere, as the examples give it.
    z = np.full(values.shape, np.nan)
    by_rank = rng.random() < 0.75
    for column in range(values.shape[1]):
        of_metric = values[:, column]
        if np.isfinite(of_metric).all():
            transform = TargetTransform.fit(of_metric[:n], by_rank)
            z[:, column] = transform.to_z(of_metric)
    z = z[:, np.isfinite(z).all(0)]
    metric = z[:, 0]
    covariates = z[:, 1:].clip(-1e6, 1e6)

    # 2. Features that mean the same in every task.
    projection = Projection.fit(states[:n], covariates[:n])
    features = projection(states, covariates)
    return Task(features[:n], metric[:n], features[n:], metric[n:])


def _standard(f: np.ndarray) -> np.ndarray:
    return (f - f.mean(0)) / (f.std(0) + MIN_SPREAD)
