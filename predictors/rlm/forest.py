"""A random forest beside the in-context decoder, for hundreds of real networks of many families.

Kernels compare networks as a whole. A forest asks for one quantity at a time, such as the multiply-accumulates of
grouped convolutions, and so carries over to families that resemble no example. The errors of both differ, and their
mean is better than either.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from predictors.features import feature_matrix, features
from predictors.rlm.lines import lines

if TYPE_CHECKING:
    from sklearn.ensemble import RandomForestRegressor

TREES = 100
WEIGHT = 0.5  # of the forest in the mean with the decoder
MIN_EXAMPLES = 100  # with a metric, for a forest of it
MIN_SHARE = 0.01  # of the examples that have an operator whose count is a feature
TOTALS = ("elements", "grouped macs", "grouped elements", "macs without weights", "lines", "depth")


class Features(NamedTuple):
    """Features of n networks: log2 of totals, then the counts of some kinds of operators."""

    kinds: list[str]
    matrix: np.ndarray  # (n, 2 + len(TOTALS) + len(kinds)) float32

    @classmethod
    def of(cls, texts: Sequence[str], kinds: list[str]) -> Self:
        """The features of texts; InputError if one is not that of a network."""
        counts = feature_matrix(texts, ["log2 params", "log2 flops", *kinds])
        matrix = np.concatenate([np.array([totals(text) for text in texts]).reshape(-1, len(TOTALS)), counts], 1)
        return cls(kinds, matrix.astype(np.float32))

    @classmethod
    def fit(cls, texts: Sequence[str]) -> Self:
        """The features of examples, with the kinds of operators that occur in `MIN_SHARE` of them."""
        occurs: dict[str, int] = {}
        for text in texts:
            for name in features(text):
                if " > " not in name and not name.startswith("log2 "):
                    occurs[name] = occurs.get(name, 0) + 1
        return cls.of(texts, sorted(name for name, times in occurs.items() if times >= MIN_SHARE * len(texts)))

    def rows(self, rows: np.ndarray) -> Features:
        """The features of the networks in these rows."""
        return Features(self.kinds, self.matrix[rows])

    def extended(self, texts: Sequence[str]) -> Features:
        """These features, followed by those of further networks."""
        return Features(self.kinds, np.concatenate([self.matrix, Features.of(texts, self.kinds).matrix]))


@lru_cache(maxsize=16384)
def totals(text: str) -> tuple[float, ...]:
    """log2 of 1 + the quantities `TOTALS` of a network.

    Grouped operators (depthwise ones count as kinds) and products of two activations run slower than their
    multiply-accumulates suggest. Output elements tell how much memory is moved, lines and depth how many operators
    start one after another.
    """
    found = lines(text)
    weights, macs, elements = np.exp2(found.numbers[:, :3].astype(float)).T - 1
    is_grouped = found.numbers[:, 8] > 0
    sums = [elements.sum(), macs[is_grouped].sum(), elements[is_grouped].sum(), macs[weights == 0].sum()]
    return (*np.log2(1 + np.array(sums)).tolist(), *found.totals[3:].tolist())


def fit_forest(matrix: np.ndarray, scores: np.ndarray, seed: int) -> RandomForestRegressor:
    """A forest fitted to scores (n,) of networks with features (n, f)."""
    from sklearn.ensemble import RandomForestRegressor

    return RandomForestRegressor(TREES, max_features=1 / 3, random_state=seed).fit(matrix, scores)
