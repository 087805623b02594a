"""The first design of a search: networks of all sizes that differ as much as can be."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from predictors import Predictor
    from predictors.rlm.predictor import RLM
    from search_spaces import Architecture, SearchSpace

READER = "rlm-base"  # reads networks if the predictor is no RLM
DRAWS_PER_ARCHITECTURE = 5  # random draws per chosen architecture: with many more, only extremes would be chosen


def first_design(
    space: SearchSpace,
    size: int,
    rng: np.random.Generator,
    texts: Callable[[Sequence[Architecture]], list[str]] | None = None,
    predictor: Predictor | None = None,
) -> list[Architecture]:
    """Up to `size` distinct architectures, fewer in a smaller space.

    Random ones are ordered by FLOPs and cut into groups of equal numbers. Of the half of each group whose predicted
    zero-cost proxies are higher, the one whose state is the farthest from those chosen before is taken: all sizes are
    there, and in each a promising one.

    Args:
        space: the search space.
        size: number of architectures.
        rng: of the draws.
        texts: writes architectures' texts.
        predictor: of the search. If it is an RLM, its states and proxies are used, else those of `rlm-base`.
    """
    from predictors.rlm.coordinates import compared

    drawn = list(dict.fromkeys(space.sample(rng) for _ in range(DRAWS_PER_ARCHITECTURE * size)))
    written = texts(drawn) if texts else [space.to_text(architecture) for architecture in drawn]
    reader = _reader(predictor)
    states, promise = compared(reader.states(written)), reader.proxies(written).argsort(0).argsort(0).mean(1)
    by_flops = np.argsort([space.flops(architecture) for architecture in drawn], kind="stable")
    groups = np.array_split(by_flops, min(size, len(drawn)))
    chosen: list[int] = []
    nearest = ((states - states.mean(0)) ** 2).sum(1)  # until the first is chosen: from the mean
    for group in groups:
        group = group[promise[group] >= np.median(promise[group])]
        best = int(group[nearest[group].argmax()]) if chosen else int(group[nearest[group].argmin()])
        away = ((states - states[best]) ** 2).sum(1)
        nearest = np.minimum(nearest, away) if chosen else away
        chosen.append(best)
    return [drawn[i] for i in chosen]


def _reader(predictor: Predictor | None) -> RLM:
    from predictors.rlm.predictor import RLM

    return predictor if isinstance(predictor, RLM) and not predictor.backbone else _base()


@lru_cache(maxsize=1)
def _base() -> RLM:
    import predictors
    from predictors.rlm.predictor import RLM

    loaded = predictors.load(READER)
    assert isinstance(loaded, RLM)
    return loaded
