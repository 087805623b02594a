"""Target transforms: metrics to normal or robust standard scores, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.special import ndtri

MAX_KNOTS = 129
ROUNDING = 1e-12  # relative range below which values count as constant


@dataclass(frozen=True)
class Scores:
    """A strictly increasing, piecewise linear map between values and scores.

    Beyond the outermost knots, the map continues with the mean slope of the outer tenth of the knots.
    """

    values: np.ndarray  # (k,) knots, increasing
    scores: np.ndarray  # (k,) scores of the knots, increasing

    @classmethod
    def fit(cls, values: np.ndarray, by_rank: bool) -> Self:
        """Fit the map to finite values (n,), n >= 1.

        Args:
            values: (n,) values of one metric.
            by_rank: True for normal scores of the ranks; False for a linear map by median and quantiles.
        """
        distinct, counts = np.unique(values, return_counts=True)
        if np.ptp(distinct) <= ROUNDING * np.abs(distinct).max():
            tiny = 1e-9 * (abs(float(distinct[0])) or 1.0)
            return cls(distinct[0] + np.array([-tiny, tiny]), np.array([-1.0, 1.0]))
        if by_rank:
            chosen = np.unique(np.linspace(0, len(distinct) - 1, MAX_KNOTS).round().astype(int))
            scores = ndtri((np.cumsum(counts) - counts / 2) / counts.sum())
            return cls(distinct[chosen], scores[chosen])
        center = float(np.median(values))
        low, high = np.quantile(values, [0.16, 0.84])
        spread = max((high - low) / 2, 0.2 * float(values.std()))
        return cls(np.array([center - spread, center + spread]), np.array([-1.0, 1.0]))

    def normalize(self, values: np.ndarray) -> np.ndarray:
        """Scores of values of any shape; NaN stays NaN."""
        return _interpolate(values, self.values, self.scores)

    def restore(self, scores: np.ndarray) -> np.ndarray:
        """Values of scores of any shape."""
        return _interpolate(scores, self.scores, self.values)


def _interpolate(x: np.ndarray, knots: np.ndarray, values: np.ndarray) -> np.ndarray:
    outer = max(1, len(knots) // 10)
    low = (values[outer] - values[0]) / (knots[outer] - knots[0])
    high = (values[-1] - values[-1 - outer]) / (knots[-1] - knots[-1 - outer])
    inside = np.interp(x, knots, values)
    return inside + low * np.minimum(x - knots[0], 0) + high * np.maximum(x - knots[-1], 0)
