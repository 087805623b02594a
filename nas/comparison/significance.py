"""Wilcoxon's signed-rank test for differences between predictors, paired over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

SIGNIFICANCE_LEVEL = 0.05  # a smaller p-value counts as a difference
LEVEL = 0.0005  # differences that are rounded to zero


class Difference(NamedTuple):
    """First minus second over seeds: mean, standard deviation and two-sided p-value.

    The p-value for n seeds is at least 2^(1-n), so fewer than six seeds cannot show a difference. It is 1 if all
    differences are zero. It is not corrected for multiple comparisons: of twenty pairs of equally good predictors, one
    is expected below .05.
    """

    first: str
    second: str
    mean: float
    std: float
    p: float
    seeds: int

    def sentence(self, unit: str) -> str:
        """The difference as a sentence, the better one first. `unit` names the values; higher is better."""
        first, second = (self.first, self.second) if self.mean >= 0 else (self.second, self.first)
        by = f"{abs(self.mean):.3f} ± {self.std:.3f} {unit} over {self.seeds} seeds (Wilcoxon p = {self.p:.2g})"
        if self.p < SIGNIFICANCE_LEVEL:
            return f"{first} is better than {second} by {by}"
        if abs(self.mean) < LEVEL:
            return f"{first} and {second} are level: they differ by {by}"
        few = 2.0 ** (1 - self.seeds) >= SIGNIFICANCE_LEVEL
        return f"{first} is ahead of {second} by {by}: " + ("too few seeds to tell" if few else "no clear difference")


def differences(values: Mapping[str, Sequence[float]]) -> list[Difference]:
    """Differences of all pairs of names.

    Args:
        values: for each name, one value per seed, of the same seeds in the same order; higher is better.
    """
    return [_difference(first, second, values) for first, second in combinations(values, 2)]


def _difference(first: str, second: str, values: Mapping[str, Sequence[float]]) -> Difference:
    from scipy.stats import wilcoxon

    delta = np.asarray(values[first], float) - np.asarray(values[second], float)
    std = float(delta.std(ddof=1)) if len(delta) > 1 else 0.0
    # Some releases of scipy approximate p if differences are tied, and can fall below the exact minimum.
    p = max(float(wilcoxon(delta).pvalue), 2.0 ** (1 - len(delta))) if np.any(delta) else 1.0
    return Difference(first, second, float(delta.mean()), std, p, len(delta))
