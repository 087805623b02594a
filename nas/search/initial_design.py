"""The first design of a search: promising networks of all sizes that differ from each other."""

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
# Random draws per chosen architecture; many more would leave only extreme ones
DRAWS_PER_ARCHITECTURE = 5
DESIGNED = 0.7  # of the first design, at most, are networks that the space itself proposes


def initial_design(
    space: SearchSpace,
    size: int,
    rng: np.random.Generator,
    texts: Texts | None = None,
    predictor: Predictor | None = None,
) -> list[Architecture]:
    """Choose up to `size` distinct architectures; fewer if the space is smaller, or if some cannot
    be built.

    Networks that the space itself proposes come first (`SearchSpace.initial_designs`). The others
    are drawn: random architectures are sorted by FLOPs and split into as many groups as are
    missing. From the half of each group with the higher predicted proxies and accuracies of short
    trainings, the architecture is chosen whose state is farthest from those chosen before.

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
    designs = list(filter(texts.can_be_written, space.initial_designs(round(DESIGNED * size))))
    size -= len(designs)
    draws = [space.sample(rng) for _ in range(DRAWS_PER_ARCHITECTURE * size)]
    drawn = [one for one in dict.fromkeys(draws) if one not in designs]
    if not drawn:
        return designs
    drawn = list(filter(texts.can_be_written, drawn)) or drawn
    written = texts(drawn)
    reader = _reader(predictor)
    states, promise = (
        learned_features(reader.states(written)),
        rankdata(reader.proxies(written), axis=0).mean(1),
    )
    by_flops = np.argsort([space.flops(architecture) for architecture in drawn], kind="stable")
    groups = np.array_split(by_flops, min(size, len(drawn)))
    chosen: list[int] = []
    nearest = ((states - states.mean(0)) ** 2).sum(
        1
    )  # distance from the mean, until the first is chosen
    for group in groups:
        group = group[promise[group] >= np.median(promise[group])]
        best = (
            int(group[nearest[group].argmax()]) if chosen else int(group[nearest[group].argmin()])
        )
        away = ((states - states[best]) ** 2).sum(1)
        nearest = np.minimum(nearest, away) if chosen else away
        chosen.append(best)
    return designs + [drawn[i] for i in chosen]


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
