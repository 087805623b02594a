"""The first design of a search: networks of all sizes, the most promising of each size by what needs no training."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from predictors import Predictor
    from search_spaces import Architecture, SearchSpace

# This proxy ranks networks of all shipped populations better than chance.
PROXY_PREDICTOR, PROXY = "gnn-label-free", "nwot"
DRAWS_PER_ARCHITECTURE = 5  # random draws per chosen architecture: more would leave only what the proxy likes


def first_design(
    space: SearchSpace,
    size: int,
    rng: np.random.Generator,
    texts: Callable[[Sequence[Architecture]], list[str]] | None = None,
) -> list[Architecture]:
    """Up to `size` distinct architectures, fewer in a smaller space.

    Random ones are ordered by FLOPs and cut into groups of equal numbers: of each, the most promising is taken. So all
    sizes are there, and few networks that hardly learn. texts: writes architectures' texts, where they are kept.
    """
    drawn = list(dict.fromkeys(space.sample(rng) for _ in range(DRAWS_PER_ARCHITECTURE * size)))
    score = promise(texts(drawn) if texts else [space.to_text(architecture) for architecture in drawn])
    by_flops = np.argsort([space.flops(architecture) for architecture in drawn], kind="stable")
    groups = np.array_split(by_flops, min(size, len(drawn)))
    return [drawn[max(group, key=lambda i: score[i])] for group in groups]


def promise(texts: Sequence[str]) -> np.ndarray:
    """(n,), higher is better: how well n networks tell images apart untrained (arXiv 2006.04647), as predicted."""
    return _prior().estimate(texts, [PROXY])[:, 0]


@lru_cache(maxsize=1)
def _prior() -> Predictor:
    import predictors

    return predictors.load(PROXY_PREDICTOR)
