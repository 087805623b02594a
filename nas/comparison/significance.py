"""Is one predictor better than another? Differences paired over seeds, with Wilcoxon's signed-rank test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

SIGNIFICANCE_LEVEL = 0.05  # p-values below it are called a difference


class Difference(NamedTuple):
    """First minus second, over seeds: mean, standard deviation, and the two-sided p-value.

    The p-value of n seeds is at least 2^(1-n), so that fewer than six can show no difference; 1 where all are equal. It
    is of this pair alone: of twenty pairs that are equally good, one is expected below .05.
    """

    first: str
    second: str
    mean: float
    std: float
    p: float
    seeds: int

    def sentence(self, unit: str) -> str:
        """In plain words, the better one first; `unit` is what higher values of are better."""
        first, second = (self.first, self.second) if self.mean >= 0 else (self.second, self.first)
        by = f"{abs(self.mean):.3f} ± {self.std:.3f} {unit} over {self.seeds} seeds (Wilcoxon p = {self.p:.2g})"
        if self.p < SIGNIFICANCE_LEVEL:
            return f"{first} is better than {second} by {by}"
        few = 2.0 ** (1 - self.seeds) >= SIGNIFICANCE_LEVEL
        return f"{first} is ahead of {second} by {by}: " + ("too few seeds to tell" if few else "no clear difference")


def differences(values: Mapping[str, Sequence[float]]) -> list[Difference]:
    """Of every two names; `values`: one per seed, of the same seeds in the same order for all, higher is better."""
    return [_difference(first, second, values) for first, second in combinations(values, 2)]


def _difference(first: str, second: str, values: Mapping[str, Sequence[float]]) -> Difference:
    from scipy.stats import wilcoxon

    delta = np.asarray(values[first], float) - np.asarray(values[second], float)
    std = float(delta.std(ddof=1)) if len(delta) > 1 else 0.0
    # The floor is for releases of scipy that approximate where differences are tied.
    p = max(float(wilcoxon(delta).pvalue), 2.0 ** (1 - len(delta))) if np.any(delta) else 1.0
    return Difference(first, second, float(delta.mean()), std, p, len(delta))
