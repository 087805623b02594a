"""Student's t-test for differences between predictors, paired over seeds.

Each seed draws another training set from the benchmark, and all other architectures are ranked. The
benchmark is the whole population that the comparison is about, so scores of different seeds are
independent draws, and their mean difference is what is tested. Other tests fit worse:

- Wilcoxon's signed-rank test has p of at least 2^(1-n) for n seeds: with the default of five,
  .0625, it could never tell. A mean over thousands of pairs of architectures, as Kendall's τ is, is
  close to normal, which the t-test needs.
- The correction of Nadeau and Bengio (2003) is for cross-validation, whose training sets overlap by
  most of their examples. Here, two training sets of 78 of 1,500 architectures share 5 %, and its
  factor `test / training size` would inflate the variance a hundredfold.

With five of 40 seeds, centred differences of four predictors on digits201 (78 labels) count as
different in 1.6 to 5.1 % of 2,000 draws per pair, at a level of 5 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

SIGNIFICANCE_LEVEL = 0.05  # a smaller p-value counts as a difference
MIN_SHOWN_P = 0.0001
LEVEL = 0.0005  # differences that are rounded to zero


class Difference(NamedTuple):
    """First minus second over seeds: mean, standard deviation and two-sided p-value.

    The p-value is 1 if all differences are zero, and for a single seed. It is not corrected for
    multiple comparisons: of twenty pairs of equally good predictors, one is expected below .05.
    """

    first: str
    second: str
    mean: float
    std: float
    p: float
    seeds: int

    def sentence(self, unit: str) -> str:
        """The difference as a sentence, the better one first.

        `unit` names the values; higher is better.
        """
        first, second = (self.first, self.second) if self.mean >= 0 else (self.second, self.first)
        p = f"p = {self.p:.2g}" if self.p >= MIN_SHOWN_P else f"p < {MIN_SHOWN_P:.4f}"
        by = (
            f"{abs(self.mean):.3f} ± {self.std:.3f} {unit} over {self.seeds} seeds (paired "
            f"t-test, {p})"
        )
        if self.p < SIGNIFICANCE_LEVEL:
            return f"{first} is better than {second} by {by}"
        if abs(self.mean) < LEVEL:
            return f"{first} and {second} are level: they differ by {by}"
        if self.seeds < 2:
            return (
                f"{first} is ahead of {second} by {abs(self.mean):.3f} {unit} with one seed: "
                "give two or more to tell"
            )
        return f"{first} is ahead of {second} by {by}: no clear difference"


def differences(values: Mapping[str, Sequence[float]]) -> list[Difference]:
    """Differences of all pairs of names.

    Args:
        values: for each name, one value per seed, of the same seeds in the same order; higher is
            better.
    """
    return [_difference(first, second, values) for first, second in combinations(values, 2)]


def _difference(first: str, second: str, values: Mapping[str, Sequence[float]]) -> Difference:
    from scipy.stats import t

    delta = np.asarray(values[first], float) - np.asarray(values[second], float)
    n = len(delta)
    mean = float(delta.mean())
    std = float(delta.std(ddof=1)) if n > 1 else 0.0
    if n < 2 or not np.any(delta):
        p = 1.0
    elif std == 0:
        p = 0.0
    else:
        p = float(2 * t.sf(abs(mean) / (std / np.sqrt(n)), df=n - 1))
    return Difference(first, second, mean, std, p, n)
