"""Target transforms: metrics to normal or robust standard scores, and back.

One place decides how the values of a metric become scores (`Scores.of`, `Scores.of_ranks`), for
predictors, searches and devices alike. It depends on the metric's kind and on the values that are
known of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.special import ndtri

from predictors.inputs import MIN_RANGE
from predictors.metrics import Metric

MAX_KNOTS = 129
ROUNDING = 1e-12  # relative range below which values count as constant
# Largest absolute score of an example under a linear scale; digits reach twice as far
MAX_BY_VALUE = 5.0
# Of the 90th to the 10th percentile of a positive quantity, to be transformed by logarithm
MIN_RATIO = 3.0
MAX_LOG = -float(np.log(MIN_RANGE))  # of restored values, which stay finite and positive


@dataclass(frozen=True)
class Scores:
    """A strictly increasing map between values and scores, piecewise linear in the warped values.

    Below a positive `pivot`, warped values are logarithms, and above it the values themselves; the
    slopes of both are equal there. So a value of a positive quantity stays positive, however low
    its score. Beyond the outermost knots, the map continues with the mean slope of the outer tenth
    of the knots.
    """

    values: np.ndarray  # (k,) knots, warped, increasing
    scores: np.ndarray  # (k,) scores of the knots, increasing
    pivot: float = 0.0  # infinite: logarithms everywhere; 0: nowhere

    @classmethod
    def of(cls, metric: str, values: np.ndarray) -> Self:
        """Fit the target transform of a metric to known values (n,), n >= 1.

        Measured metrics are transformed linearly, those that are positive and span decades by their
        logarithm (`pivot_of`), unless a value is more than `MAX_BY_VALUE` from the center. All
        other metrics are transformed by rank: accuracies are skewed.
        """
        pivot = pivot_of(metric, values)
        if Metric.parse(metric).kind == "measured":
            by_value = cls.fit(values, by_rank=False, pivot=pivot)
            if np.abs(by_value.normalize(values)).max() <= MAX_BY_VALUE:
                return by_value
        return cls.fit(values, by_rank=True, pivot=pivot)

    @classmethod
    def of_ranks(cls, metric: str, values: np.ndarray) -> Self:
        """Normal scores of ranks for any metric; between and beyond the knots, values are warped as
        by `of`.
        """
        return cls.fit(values, by_rank=True, pivot=pivot_of(metric, values))

    @classmethod
    def fit(cls, values: np.ndarray, by_rank: bool, pivot: float = 0.0) -> Self:
        """Fit the map to finite values (n,), n >= 1.

        Args:
            values: (n,) values of one metric; positive if `pivot` is.
            by_rank: True for normal scores of the ranks; False for a linear map by median and
                quantiles.
            pivot: value below which values are warped by logarithm.
        """
        values = _warp(values, pivot)
        distinct, counts = np.unique(values, return_counts=True)
        if np.ptp(distinct) <= ROUNDING * np.abs(distinct).max():
            tiny = 1e-9 * (abs(float(distinct[0])) or 1.0)
            return cls(distinct[0] + np.array([-tiny, tiny]), np.array([-1.0, 1.0]), pivot)
        if by_rank:
            chosen = np.unique(np.linspace(0, len(distinct) - 1, MAX_KNOTS).round().astype(int))
            scores = ndtri((np.cumsum(counts) - counts / 2) / counts.sum())
            return cls(distinct[chosen], scores[chosen], pivot)
        center = float(np.median(values))
        low, high = np.quantile(values, [0.16, 0.84])
        spread = max((high - low) / 2, 0.2 * float(values.std()))
        return cls(np.array([center - spread, center + spread]), np.array([-1.0, 1.0]), pivot)

    def normalize(self, values: np.ndarray) -> np.ndarray:
        """Scores of values of any shape; NaN stays NaN."""
        return _interpolate(_warp(values, self.pivot), self.values, self.scores)

    def restore(self, scores: np.ndarray) -> np.ndarray:
        """Values of scores of any shape."""
        return _unwarp(_interpolate(scores, self.scores, self.values), self.pivot)


def pivot_of(metric: str, values: np.ndarray) -> float:
    """The pivot of a metric with known values (n,): see `Scores`.

    It is infinite for positive costs and losses whose central 80 % span a factor of `MIN_RATIO`, if
    their logarithms are the more symmetric ones: a few networks that are far faster than all others
    are no reason. It is the lowest value for other positive measured metrics, and 0 for all others.
    """
    parsed = Metric.parse(metric)
    least = float(values.min())
    if (
        least <= 0
        or parsed.kind == "exact"
        or (parsed.kind == "accuracy" and parsed.direction == "maximize")
    ):
        return 0.0
    central = np.quantile(values, [0.1, 0.5, 0.9])
    if central[2] > MIN_RATIO * central[0] and _asymmetry(np.log(central)) < _asymmetry(central):
        return np.inf
    return least if parsed.kind == "measured" else 0.0


def _asymmetry(quantiles: np.ndarray) -> float:
    """Absolute skewness by a low quantile, the median and a high quantile, from 0 to 1."""
    low, median, high = quantiles
    return abs(float((low + high - 2 * median) / (high - low)))


def _warp(values: np.ndarray, pivot: float) -> np.ndarray:
    """Values of any shape, with logarithms below the pivot."""
    if pivot <= 0:
        return values
    logs = np.log(np.maximum(values, MIN_RANGE))
    return (
        logs
        if np.isinf(pivot)
        else np.where(values < pivot, pivot * (1 + logs - np.log(pivot)), values)
    )


def _unwarp(warped: np.ndarray, pivot: float) -> np.ndarray:
    """The inverse of `_warp`."""
    if pivot <= 0:
        return warped
    logs = warped if np.isinf(pivot) else warped / pivot - 1 + np.log(pivot)
    powers = np.exp(logs.clip(-MAX_LOG, MAX_LOG))
    return powers if np.isinf(pivot) else np.where(warped < pivot, powers, warped)


def _interpolate(x: np.ndarray, knots: np.ndarray, values: np.ndarray) -> np.ndarray:
    outer = max(1, len(knots) // 10)
    low = (values[outer] - values[0]) / (knots[outer] - knots[0])
    high = (values[-1] - values[-1 - outer]) / (knots[-1] - knots[-1 - outer])
    inside = np.interp(x, knots, values)
    return inside + low * np.minimum(x - knots[0], 0) + high * np.maximum(x - knots[-1], 0)
