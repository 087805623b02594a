"""Which values count as measurements: the one place that decides it, for searches, tables, reports
and predictors.
"""

from __future__ import annotations

import numpy as np

MAX_VALUE = 1e18
"""Largest absolute value. Sums of hundreds of squares of such values are finite, also in float32 (up to 3.4e38).

Real metrics are far smaller. A training that diverges reaches more: a perplexity of e^400 is 5e173.
"""


def is_valid(values: np.ndarray | float) -> np.ndarray:
    """Mask (...) of the values (...) that are numbers of at most `MAX_VALUE`; False for NaN and
    infinity.
    """
    with np.errstate(invalid="ignore"):
        return np.abs(np.asarray(values, dtype=float)) <= MAX_VALUE


def only_valid(values: np.ndarray) -> np.ndarray:
    """The values (...), with NaN, the sign of a failure, for those that are not valid."""
    return np.where(is_valid(values), values, np.nan)


def why_invalid(metric: str, value: float) -> str:
    """Why a value of a metric does not count; "" if it does."""
    if is_valid(value):
        return ""
    if np.isfinite(value):
        return f"{metric} is {value:.3g}, and values count up to {MAX_VALUE:.0e}"
    return f"{metric} is {value}"
