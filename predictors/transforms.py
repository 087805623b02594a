"""Target transforms: the values of a metric to z, on the scale of a standard normal, and back.

One place decides how values become z (`TargetTransform.for_metric`, `TargetTransform.by_ranks`), for
predictors, searches and devices alike. It depends on the metric's kind and on its known values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.special import ndtri

from predictors.metrics import MIN_RANGE, Metric

MAX_KNOTS = 129
ROUNDING = 1e-12  # relative range below which values count as constant
MAX_BY_VALUE = 5.0  # largest absolute z of an example under a linear map; digits reach twice as far
MIN_RATIO = 3.0  # of the 90th to the 10th percentile of a quantity that is transformed by logarithm
FREE_SHARE = 0.5  # of the lowest known value: above it, a narrow metric is not warped
MAX_LOG = -float(np.log(MIN_RANGE))  # of restored values, which stay finite and positive
# A linear map has slope 1 at the median per half of the central 68 % of the values ...
CENTRAL = (0.16, 0.84)
MIN_SPREAD = 0.2  # ... or per this share of the standard deviation, if that is more


@dataclass(frozen=True)
class TargetTransform:
    """A strictly increasing map between values and z, piecewise linear in the warped values.

    Below a positive `pivot`, warped values are logarithms, and above it the values themselves; the
    slopes of both are equal there. So a value of a positive quantity stays positive, however low
    its z. Beyond the outermost knots, the map continues with the mean slope of the outer tenth of
    the knots.

    Attributes:
        values: (k,) knots, warped, increasing.
        z: (k,) of the knots, increasing.
        pivot: value below which values are warped; infinite: everywhere; 0: nowhere.
    """

    values: np.ndarray
    z: np.ndarray
    pivot: float = 0.0

    @classmethod
    def for_metric(cls, metric: str, values: np.ndarray) -> Self:
        """Fit the target transform of a metric to known values (n,), n >= 1.

        Measured metrics are transformed linearly, those that are positive and span decades by their
        logarithm (`pivot_of`), unless a value is more than `MAX_BY_VALUE` from the center. All
        other metrics are transformed by rank: accuracies are skewed.
        """
        pivot = pivot_of(metric, values)
        if Metric.parse(metric).kind == "measured":
            by_value = cls.fit(values, by_rank=False, pivot=pivot)
            if np.abs(by_value.to_z(values)).max() <= MAX_BY_VALUE:
                return by_value
        return cls.fit(values, by_rank=True, pivot=pivot)

    @classmethod
    def by_ranks(cls, metric: str, values: np.ndarray) -> Self:
        """Normal scores of ranks for any metric.

        Between and beyond the knots, values are warped as by `for_metric`.
        """
        return cls.fit(values, by_rank=True, pivot=pivot_of(metric, values))

    @classmethod
    def fit(
        cls,
        values: np.ndarray,
        by_rank: bool,
        pivot: float = 0.0,
    ) -> Self:
        """Fit the map to finite values (n,), n >= 1.

        Args:
            values: (n,) values of one metric; positive if `pivot` is.
            by_rank: True for normal scores of the ranks; False for a linear map by median and
                quantiles.
            pivot: value below which values are warped by logarithm.
        """
        values = _warp(values, pivot)
        distinct, counts = np.unique(values, return_counts=True)

        # 1. A constant is z = 0, and stays close to itself for any z.
        largest = np.abs(distinct).max()
        if np.ptp(distinct) <= ROUNDING * largest:
            constant = float(distinct[0])
            tiny = 1e-9 * (abs(constant) or 1.0)
            return cls._linear(constant, tiny, pivot)

        # 2. By rank: knots at up to MAX_KNOTS distinct values, spread over the ranks.
        if by_rank:
            last = len(distinct) - 1
            spread = np.linspace(0, last, MAX_KNOTS).round()
            knots = np.unique(spread.astype(int))  # (k,) numbers of distinct values
            middle_ranks = np.cumsum(counts) - counts / 2
            shares = middle_ranks / counts.sum()  # in (0, 1)
            z = ndtri(shares)
            return cls(distinct[knots], z[knots], pivot)

        # 3. By value: two knots, one spread below and one above the median.
        center = float(np.median(values))
        low, high = np.quantile(values, CENTRAL)
        half_width = (high - low) / 2
        deviation = float(values.std())
        return cls._linear(center, max(half_width, MIN_SPREAD * deviation), pivot)

    @classmethod
    def _linear(
        cls,
        center: float,
        spread: float,
        pivot: float,
    ) -> Self:
        """The linear map with z = ±1 one spread from the center."""
        knots = np.array([center - spread, center + spread])
        z = np.array([-1.0, 1.0])
        return cls(knots, z, pivot)

    def to_z(self, values: np.ndarray) -> np.ndarray:
        """z of values of any shape; NaN stays NaN."""
        warped = _warp(values, self.pivot)
        return _interpolate(warped, self.values, self.z)

    def to_values(self, z: np.ndarray) -> np.ndarray:
        """Values of z of any shape."""
        warped = _interpolate(z, self.z, self.values)
        return _unwarp(warped, self.pivot)


def pivot_of(metric: str, values: np.ndarray) -> float:
    """The pivot of a metric with known values (n,): see `TargetTransform`.

    It is infinite for positive costs and losses whose central 80 % span a factor of `MIN_RATIO`, if
    their logarithms are the more symmetric ones: a few networks that are far faster than all others
    are no reason. For other positive measured metrics it is `FREE_SHARE` of the lowest value, so
    that predictions may fall well below what is known, and for all others 0.
    """
    parsed = Metric.parse(metric)
    lowest = float(values.min())
    is_quality = parsed.kind == "accuracy" and parsed.direction == "maximize"
    if lowest <= 0 or parsed.kind == "exact" or is_quality:
        return 0.0
    central = np.quantile(values, [0.1, 0.5, 0.9])
    low, _, high = central
    if high > MIN_RATIO * low:
        of_logarithms = _asymmetry(np.log(central))
        if of_logarithms < _asymmetry(central):
            return np.inf
    return FREE_SHARE * lowest if parsed.kind == "measured" else 0.0


def _asymmetry(quantiles: np.ndarray) -> float:
    """Absolute skewness by a low quantile, the median and a high quantile, from 0 to 1."""
    low, median, high = quantiles
    skew = (low + high - 2 * median) / (high - low)
    return abs(float(skew))


def _warp(values: np.ndarray, pivot: float) -> np.ndarray:
    """Values of any shape, with logarithms below the pivot."""
    if pivot <= 0:
        return values
    logs = np.log(np.maximum(values, MIN_RANGE))
    if np.isinf(pivot):
        return logs
    # Both have value `pivot` and slope 1 at the pivot.
    below = pivot * (1 + logs - np.log(pivot))
    return np.where(values < pivot, below, values)


def _unwarp(warped: np.ndarray, pivot: float) -> np.ndarray:
    """The inverse of `_warp`."""
    if pivot <= 0:
        return warped
    if np.isinf(pivot):
        return np.exp(warped.clip(-MAX_LOG, MAX_LOG))
    logs = warped / pivot - 1 + np.log(pivot)
    below = np.exp(logs.clip(-MAX_LOG, MAX_LOG))
    return np.where(warped < pivot, below, warped)


def _interpolate(
    x: np.ndarray,
    knots: np.ndarray,
    values: np.ndarray,
) -> np.ndarray:
    """Piecewise linear map of x through the knots.

    Beyond them, it has the mean slopes of the outer tenths.
    """
    outer = max(1, len(knots) // 10)
    low_slope = _slope(knots, values, 0, outer)
    high_slope = _slope(knots, values, -1 - outer, -1)
    inside = np.interp(x, knots, values)
    below = low_slope * np.minimum(x - knots[0], 0)
    above = high_slope * np.maximum(x - knots[-1], 0)
    return inside + below + above


def _slope(
    knots: np.ndarray,
    values: np.ndarray,
    first: int,
    last: int,
) -> float:
    """Mean slope between two knots."""
    rise = values[last] - values[first]
    run = knots[last] - knots[first]
    return rise / run
