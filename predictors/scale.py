"""Metrics on one scale: normal scores, whatever the unit and however skewed the distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.special import ndtri

KNOTS = 65


@dataclass(frozen=True)
class Scale:
    """A strictly increasing, piecewise linear map between a metric's values and its normal scores; knots (k,) of each.

    Beyond the outermost knots it goes on as steeply as through the outer tenth of the knots.
    """

    values: np.ndarray
    scores: np.ndarray

    @classmethod
    def fit(cls, values: np.ndarray) -> Self:
        """The map for observed values (n,); NaN is left out, at least one value must be there."""
        distinct, counts = np.unique(values[~np.isnan(values)], return_counts=True)
        if len(distinct) == 1:
            tiny = 1e-9 * max(1.0, abs(float(distinct[0])))
            return cls(distinct[0] + np.array([-tiny, tiny]), np.array([-1.0, 1.0]))
        scores = ndtri((np.cumsum(counts) - counts / 2) / counts.sum())
        chosen = np.unique(np.linspace(0, len(distinct) - 1, KNOTS).round().astype(int))
        return cls(distinct[chosen], scores[chosen])

    def normalize(self, values: np.ndarray) -> np.ndarray:
        """Values, of any shape, as scores; NaN stays NaN."""
        return _interpolate(values, self.values, self.scores)

    def restore(self, scores: np.ndarray) -> np.ndarray:
        """Scores, of any shape, as values."""
        return _interpolate(scores, self.scores, self.values)


def _interpolate(x: np.ndarray, knots: np.ndarray, values: np.ndarray) -> np.ndarray:
    outer = max(1, len(knots) // 10)
    low = (values[outer] - values[0]) / (knots[outer] - knots[0])
    high = (values[-1] - values[-1 - outer]) / (knots[-1] - knots[-1 - outer])
    inside = np.interp(x, knots, values)
    return inside + low * np.minimum(x - knots[0], 0) + high * np.maximum(x - knots[-1], 0)
