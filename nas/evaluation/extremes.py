"""The smallest and the largest network of a space, by FLOPs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from search_spaces.choosers import RandomChooser
from search_spaces.common.errors import InputError
from search_spaces.domains import count, option
from search_spaces.space import Architecture

if TYPE_CHECKING:
    from search_spaces import SearchSpace
    from search_spaces.domains import Choice, Domain

CLIMB = 100  # mutations towards fewer or more FLOPs


def smallest(
    space: SearchSpace, drawn: Sequence[Architecture], rng: np.random.Generator
) -> Architecture:
    """A network with few FLOPs.

    It comes from the best of some networks and of the corners of the space, by mutations that do
    not make it worse.

    Args:
        space: the space.
        drawn: networks of it, such as random ones.
        rng: draws the mutations.
    """
    return _climbed(space, drawn, rng, 1)


def largest(
    space: SearchSpace, drawn: Sequence[Architecture], rng: np.random.Generator
) -> Architecture:
    """As `smallest`, with many FLOPs."""
    return _climbed(space, drawn, rng, -1)


def corners(space: SearchSpace, rng: np.random.Generator) -> Iterator[Architecture]:
    """The networks of all first and of all last options, which are often the extremes.

    Continuous choices have random values. A network whose choices exclude each other is left out.
    """
    for last in (False, True):
        chooser = _End(last, rng)
        try:
            with space.user_code():
                space.ask(chooser)
        except InputError:  # these choices exclude each other
            continue
        yield Architecture(space.name, tuple(chooser.choices.items()))


def _climbed(
    space: SearchSpace, drawn: Sequence[Architecture], rng: np.random.Generator, sign: int
) -> Architecture:
    flops = cache(space.flops)  # mutations come back to networks
    best = min([*drawn, *corners(space, rng)], key=lambda arch: sign * flops(arch))
    for _ in range(CLIMB):
        other = space.mutate(best, rng)
        if sign * flops(other) <= sign * flops(best):
            best = other
    return best


class _End(RandomChooser):
    """Takes the first or the last option of every choice."""

    def __init__(self, last: bool, rng: np.random.Generator) -> None:
        super().__init__(rng)
        self.last = last

    def pick(self, name: str, options: Domain) -> Choice:
        number = count(options)
        if number is None:
            return super().pick(name, options)
        return option(options, number - 1 if self.last else 0)
