"""Random decisions about a search space, and the choices that they leave to its networks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from search_spaces.choosers import Trial


class Draw:
    """Draws the random decisions about a space."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def one(self, *options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def some(self, options: Iterable[Any], low: int, high: int) -> list[Any]:
        """Between `low` and `high` different options, in random order."""
        listed = list(dict.fromkeys(options))
        number = int(self.rng.integers(low, high + 1))
        return [listed[int(i)] for i in self.rng.permutation(len(listed))[:number]]

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def knob(
        self,
        name: str,
        options: Iterable[Any],
        fixed: float = 0.3,
        scopes: tuple[int, ...] = (0, 1, 1),
    ) -> Knob:
        """A knob with 2 to 4 of the options or, with probability `fixed`, one.

        Its scope is one of `scopes`.
        """
        chosen = self.some(options, 1, 1) if self.chance(fixed) else self.some(options, 2, 4)
        return Knob(name, tuple(sorted(chosen) if self.chance(0.8) else chosen), self.one(*scopes))


class Knob(NamedTuple):
    """A property of a space's networks, constant or chosen.

    scope: 0 if it is chosen once, 1 per stage, 2 per layer.
    """

    name: str
    options: tuple[Any, ...]
    scope: int = 0

    def ask(self, trial: Trial, *place: int) -> Any:
        if len(self.options) == 1:
            return self.options[0]
        return trial.suggest_categorical(
            "_".join([self.name, *map(str, place[: self.scope])]), self.options
        )
