"""The first design of a search: networks of all sizes that differ as much as can be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from search_spaces import Architecture, SearchSpace

DRAWS_PER_ARCHITECTURE = 5  # random draws per chosen architecture: of more, the oddest ones would be chosen


def first_design(
    space: SearchSpace,
    size: int,
    rng: np.random.Generator,
    texts: Callable[[Sequence[Architecture]], list[str]] | None = None,
) -> list[Architecture]:
    """Choose up to `size` distinct architectures, fewer in a smaller space.

    Random ones are ordered by FLOPs and cut into groups of equal numbers. Of each group, the one is taken whose states
    in the RLM's encoder are farthest from all that are taken before (greedy farthest-first).

    Args:
        space: the search space.
        size: how many architectures.
        rng: draws the candidates.
        texts: writes architectures' texts, where they are kept; by default, the space does.
    """
    from predictors.rlm.predictor import RLM

    drawn = list(dict.fromkeys(space.sample(rng) for _ in range(DRAWS_PER_ARCHITECTURE * size)))
    states = RLM().states(texts(drawn) if texts else [space.to_text(architecture) for architecture in drawn])
    states = (states - states.mean(0)) / np.maximum(states.std(0), 1e-6)
    by_flops = np.argsort([space.flops(architecture) for architecture in drawn], kind="stable")
    # Before any is taken, the center counts: the first one is usual, the others are far from it and from each other.
    nearest = -np.linalg.norm(states, axis=1)
    chosen: list[int] = []
    for group in np.array_split(by_flops, min(size, len(drawn))):
        best = int(group[np.argmax(nearest[group])])
        distance = np.linalg.norm(states - states[best], axis=1)
        nearest = np.minimum(nearest, distance) if chosen else distance
        chosen.append(best)
    return [drawn[i] for i in chosen]
