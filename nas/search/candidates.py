"""An evolutionary search on predictions proposes candidates. A prediction is cheap compared with an
evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from typing import TYPE_CHECKING

import numpy as np

from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    from search_spaces import Architecture, SearchSpace

GENERATIONS = 5
MAX_TRIES = 10  # children of a generation, per architecture that is asked for
PARENTS = 50
RANDOM_SHARE = 0.2


def random_unseen(
    space: SearchSpace, seen: Set[Architecture], rng: np.random.Generator
) -> Architecture | None:
    """A random architecture outside `seen`; None if there is none, or if 1,000 draws find none in a
    large space.
    """
    for _ in range(1000):
        architecture = space.sample(rng)
        if architecture not in seen:
            return architecture
    if space.size is not None and space.size <= 100_000:
        rest = [architecture for architecture in space.enumerate() if architecture not in seen]
        return rest[rng.integers(len(rest))] if rest else None
    return None


def best_first(ranks: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Indices (n,) that sort the ranks (n,), lowest first. Ties, which are frequent on a front, are
    shuffled.
    """
    return np.lexsort((rng.random(len(ranks)), ranks))


def evolve(
    space: SearchSpace,
    start: Iterable[Architecture],
    seen: Set[Architecture],
    size: int,
    rank: Callable[[Sequence[Architecture]], np.ndarray],
    rng: np.random.Generator,
    accept: Callable[[Architecture], bool] = lambda _: True,
) -> list[Architecture]:
    """Evolve distinct new architectures towards the predicted front.

    Args:
        space: the search space.
        start: the first population, which may be in `seen`.
        seen: architectures that are not returned.
        size: number of architectures.
        rank: maps n architectures to predicted ranks (n,), lower is better.
        rng: source of randomness.
        accept: False for an architecture that is no candidate, such as one that cannot be built.

    Returns:
        Up to `size` architectures; all that are left in a small space.
    """
    population = list(start)
    if space.size is not None and space.size <= size + len(seen):
        return (
            [a for a in space.enumerate() if a not in seen and accept(a)]
            if len(seen) < space.size
            else []
        )
    found: dict[Architecture, None] = {}
    for generation in range(1, GENERATIONS + 1):
        parents = [population[i] for i in best_first(rank(population), rng)[:PARENTS]]
        for _ in range(MAX_TRIES * size):
            if len(found) >= size * generation // GENERATIONS:
                break
            child = _child(space, parents, rng)
            if child not in seen and accept(child):
                found[child] = None
        else:
            break  # a space of unknown size has few new architectures left
        population = list(dict.fromkeys([*parents, *found]))
    return list(found)


def _child(
    space: SearchSpace, parents: Sequence[Architecture], rng: np.random.Generator
) -> Architecture:
    if rng.random() < RANDOM_SHARE:
        return space.sample(rng)
    first, second = (parents[i] for i in rng.integers(len(parents), size=2))
    if rng.random() < 0.5:
        return space.mutate(first, rng)
    return space.mutate(space.crossover(first, second, rng), rng)


class Texts:
    """Writes the text of each architecture of a space once.

    A space's `build` may fail for some choices. Such architectures are no candidates of a search.
    """

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        self._texts: dict[Architecture, str] = {}
        self._failed: set[Architecture] = set()

    def __call__(self, architectures: Iterable[Architecture]) -> list[str]:
        """Texts of the architectures.

        Raises:
            InputError: if one cannot be built.
        """
        architectures = list(architectures)
        for architecture in architectures:
            if architecture not in self._texts:
                self._texts[architecture] = self.space.to_text(architecture)
        return [self._texts[architecture] for architecture in architectures]

    def can_be_written(self, architecture: Architecture) -> bool:
        """False if the architecture cannot be built."""
        if architecture in self._failed:
            return False
        try:
            self([architecture])
        except InputError:
            self._failed.add(architecture)
            return False
        return True

    def known(self, architectures: Iterable[Architecture]) -> list[str]:
        """The texts that are stored of these architectures."""
        return [self._texts[a] for a in architectures if a in self._texts]

    def forget_all_but(self, architectures: Iterable[Architecture]) -> None:
        """Drop the texts of all other architectures."""
        self._texts = {a: self._texts[a] for a in architectures if a in self._texts}
