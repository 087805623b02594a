"""The initial design of a search: promising networks of all costs that differ from each other."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from nas.search.candidates import Texts

if TYPE_CHECKING:
    from predictors import Predictor
    from predictors.rlm.predictor import RLM
    from search_spaces import Architecture, SearchSpace

READER = "rlm-base"  # checkpoint that reads the networks if the predictor is not an RLM
# Random draws per chosen architecture; many more would leave only extreme ones.
DRAWS_PER_ARCHITECTURE = 5
PROPOSED_SHARE = 0.7  # of the design, at most, are networks that the space itself proposes


def initial_design(
    space: SearchSpace,
    size: int,
    rng: np.random.Generator,
    texts: Texts | None = None,
    predictor: Predictor | None = None,
) -> list[Architecture]:
    """Choose up to `size` distinct architectures.

    There are fewer if the space is smaller, or if some cannot be built. Networks that the space
    itself proposes come first (`SearchSpace.initial_designs`). The others are drawn: random
    architectures are sorted by their ranks in FLOPs and in the number of operators, and split into
    as many groups as are missing. From the half of each group with the higher predicted proxies and
    accuracies of short trainings, the architecture is chosen whose state is farthest from those
    chosen before.

    Args:
        space: the search space.
        size: number of architectures.
        rng: generator of the random draws.
        texts: the texts of the search; by default none is known.
        predictor: the predictor of the search. If it is an RLM, it reads the networks, else
            `READER` does.

    Raises:
        InputError: if none of the random architectures can be built.
    """
    from scipy.stats import rankdata

    from predictors.rlm.tokens import learned_features

    texts = texts or Texts(space)

    # 1. What the space proposes, and random architectures for the rest.
    proposed = space.initial_designs(round(PROPOSED_SHARE * size))
    proposed = [architecture for architecture in proposed if texts.can_be_written(architecture)]
    size -= len(proposed)
    draws = [space.sample(rng) for _ in range(DRAWS_PER_ARCHITECTURE * size)]
    drawn = [architecture for architecture in dict.fromkeys(draws) if architecture not in proposed]
    if not drawn:
        return proposed
    # If none can be built, the error of the first one is raised below.
    can_be_built = [architecture for architecture in drawn if texts.can_be_written(architecture)]
    drawn = can_be_built or drawn  # n architectures

    # 2. What an RLM reads in them without any label: where they are, and how good they promise to
    #    be.
    written = texts(drawn)
    reader = _reader(predictor)
    states = learned_features(reader.states(written))  # (n, S)
    promise = rankdata(reader.proxies(written), axis=0).mean(axis=1)  # (n,), a mean rank

    # 3. Groups of rising cost. Latency follows the number of operators at least as much as FLOPs,
    #    and networks that promise more have more of them: by FLOPs alone, all would be slow.
    flops = [space.flops(architecture) for architecture in drawn]
    operators = [len(space.graph(architecture).nodes) for architecture in drawn]
    costs = rankdata(flops) + rankdata(operators)  # (n,)
    by_cost = np.argsort(costs, kind="stable")
    groups = np.array_split(by_cost, min(size, len(drawn)))

    # 4. From the more promising half of each group, the network that is farthest from those that
    #    are chosen already. The first one is the nearest to the mean.
    chosen: list[int] = []
    distance = ((states - states.mean(axis=0)) ** 2).sum(axis=1)  # (n,)
    for group in groups:
        half = group[promise[group] >= np.median(promise[group])]
        best = int(half[distance[half].argmax() if chosen else distance[half].argmin()])
        to_best = ((states - states[best]) ** 2).sum(axis=1)
        distance = np.minimum(distance, to_best) if chosen else to_best
        chosen.append(best)
    return proposed + [drawn[i] for i in chosen]


def _reader(predictor: Predictor | None) -> RLM:
    """The predictor if it is an RLM that reads texts by itself, else the shipped `READER`."""
    from predictors.rlm.predictor import RLM

    if isinstance(predictor, RLM) and not predictor.backbone:
        return predictor
    return _shipped_reader()


@lru_cache(maxsize=1)
def _shipped_reader() -> RLM:
    import predictors
    from predictors.rlm.predictor import RLM

    loaded = predictors.load(READER)
    assert isinstance(loaded, RLM)
    return loaded
