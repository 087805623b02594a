"""What a line says of a metric, given the metrics that are known: the decoder writes what is left of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np

from predictors.scores import Scores

MIN_EXAMPLES = 4
MIN_RANKED = 32  # examples; the ranks of fewer errors say little of how far others lie outside
PENALTIES = np.logspace(-3, 3, 13)
MIN_GAIN = 0.9  # of the mean squared error: a line that is hardly better than none is none
LARGEST = 700.0  # logarithm of a value


class Unit(NamedTuple):
    """A metric's values, or their logarithms where all are positive; scale: between its values and scores."""

    scale: Scores
    logarithmic: bool
    least: float

    @classmethod
    def fit(cls, scale: Scores, scores: np.ndarray) -> Self:
        values = scale.restore(scores[~np.isnan(scores)])
        least = float(values.min()) if len(values) else 0.0
        return cls(scale, least > 0, least / 1e3)

    def values(self, scores: np.ndarray) -> np.ndarray:
        found = self.scale.restore(scores)
        return np.log(np.maximum(found, self.least)) if self.logarithmic else found

    def scores(self, values: np.ndarray) -> np.ndarray:
        return self.scale.normalize(np.exp(np.minimum(values, LARGEST)) if self.logarithmic else values)


class Trend(NamedTuple):
    """Ridge regression of a metric on c others: their units, centers (c,), spreads (c,) and weights (c,).

    unit, start: of the metric. left: between what is left of its values and scores.
    """

    units: Sequence[Unit]
    center: np.ndarray
    spread: np.ndarray
    weights: np.ndarray
    unit: Unit
    start: float
    left: Scores

    @classmethod
    def fit(
        cls, scales: Sequence[Scores], covariates: np.ndarray, scale: Scores, scores: np.ndarray
    ) -> tuple[Self, np.ndarray] | None:
        """The trend of n examples, and scores (n,) of what is left of each; None where no line is better than none.

        What is left of an example is its error when it is left out; the penalty is the one with the least.

        Args:
            scales: of the c covariates.
            covariates: (n, c) scores, NaN where unknown.
            scale: of the metric.
            scores: (n,), the metric's.
        """
        n, size = covariates.shape
        known = ~np.isnan(covariates).all(0)
        if n < MIN_EXAMPLES or not size or not known.all():
            return None
        units = [Unit.fit(s, column) for s, column in zip(scales, covariates.T, strict=True)]
        raw = np.stack([unit.values(column) for unit, column in zip(units, covariates.T, strict=True)], 1)
        center, spread = np.nanmean(raw, 0), np.maximum(np.nanstd(raw, 0), 1e-9)
        unit = Unit.fit(scale, scores)
        values = unit.values(scores)
        start = float(values.mean())
        found = _ridge(np.nan_to_num((raw - center) / spread), values - start)
        if found is None:
            return None
        weights, missed = found
        left = Scores.fit(missed, by_rank=n >= MIN_RANKED)
        return cls(units, center, spread, weights, unit, start, left), left.normalize(missed)

    def restore(self, drawn: np.ndarray, covariates: np.ndarray) -> np.ndarray:
        """Scores (...) of the metric from those of what is left of it (...), for scores of covariates (..., c)."""
        raw = np.stack([unit.values(covariates[..., i]) for i, unit in enumerate(self.units)], -1)
        line = self.start + np.nan_to_num((raw - self.center) / self.spread) @ self.weights
        return self.unit.scores(line + self.left.restore(drawn))


def _ridge(inputs: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Weights (c,) for centered inputs (n, c) and values (n,), and errors (n,) of examples that are left out."""
    n = len(values)
    left, singular, right = np.linalg.svd(inputs, full_matrices=False)
    along = left.T @ values
    least = MIN_GAIN * float(((values * n / (n - 1)) ** 2).mean())
    best = None
    for penalty in PENALTIES:
        shrink = singular**2 / (singular**2 + penalty)
        leverage = (left**2 * shrink).sum(1) + 1 / n
        missed = (values - left @ (shrink * along)) / np.maximum(1 - leverage, 1e-2)
        if (error := float((missed**2).mean())) < least:
            least, best = error, (right.T @ (along * singular / (singular**2 + penalty)), missed)
    return best
