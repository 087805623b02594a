"""Choosers: objects with Optuna's `suggest_*` methods that decide what `SearchSpace.build` builds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from search_spaces.common.errors import InputError, unknown

Choice = Any
"""A chosen value: str, int, float or bool."""


class Trial(Protocol):
    """What `build` may call: any Optuna trial, or a chooser of this file."""

    def suggest_categorical(self, name: str, choices: Sequence[Choice]) -> Choice: ...

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1) -> int: ...


class Chooser:
    """Base of the choosers: records what was chosen and from which options.

    Asking again for a name gives what was chosen before, as an Optuna trial does.
    """

    def __init__(self) -> None:
        self.choices: dict[str, Choice] = {}
        self.options: dict[str, Sequence[Choice]] = {}

    def pick(self, name: str, options: Sequence[Choice]) -> Choice:
        """Decide: one of `options`."""
        raise InputError(f"{type(self).__name__} does not say how to pick {name}")

    def suggest_categorical(self, name: str, choices: Sequence[Choice]) -> Choice:
        if name not in self.choices:
            self.options[name] = choices
            self.choices[name] = self.pick(name, choices)
        return self.choices[name]

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1) -> int:
        return self.suggest_categorical(name, range(low, high + 1, step))


class RandomChooser(Chooser):
    """Every choice uniformly at random."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__()
        self.rng = rng

    def pick(self, name: str, options: Sequence[Choice]) -> Choice:
        return options[int(self.rng.integers(len(options)))]


class ReplayChooser(Chooser):
    """Exactly the given choices; `InputError` where one is missing or not an option."""

    def __init__(self, given: Mapping[str, Choice]) -> None:
        super().__init__()
        self.given = given

    def pick(self, name: str, options: Sequence[Choice]) -> Choice:
        if name not in self.given:
            raise InputError(f"the choice {name!r} is missing; options: {', '.join(map(str, options))}")
        if self.given[name] not in options:
            raise unknown(f"option for {name}:", str(self.given[name]), map(str, options))
        return self.given[name]

    def check_all_used(self) -> None:
        """`InputError` if a given choice was not asked for."""
        for name in self.given:
            if name not in self.choices:
                raise unknown("choice", name, self.choices)


class MutationChooser(RandomChooser):
    """The parent's choices, but another option for `changed`; what the parent did not choose is random."""

    def __init__(self, parent: Mapping[str, Choice], changed: str, rng: np.random.Generator) -> None:
        super().__init__(rng)
        self.parent, self.changed = parent, changed

    def pick(self, name: str, options: Sequence[Choice]) -> Choice:
        if name == self.changed:
            options = [o for o in options if o != self.parent[name]]
        elif name in self.parent and self.parent[name] in options:
            return self.parent[name]
        return super().pick(name, options)


class CrossoverChooser(RandomChooser):
    """Every choice from one of two parents at random; what neither chose is random."""

    def __init__(self, a: Mapping[str, Choice], b: Mapping[str, Choice], rng: np.random.Generator) -> None:
        super().__init__(rng)
        self.parents = (a, b)

    def pick(self, name: str, options: Sequence[Choice]) -> Choice:
        candidates = [p[name] for p in self.parents if name in p and p[name] in options]
        return super().pick(name, candidates or options)


class EnumerationChooser(Chooser):
    """The options at the given positions, first options after those: one step of an odometer over all choices."""

    def __init__(self, positions: Sequence[int]) -> None:
        super().__init__()
        self.positions = list(positions)

    def pick(self, name: str, options: Sequence[Choice]) -> Choice:
        at = len(self.choices)
        if at == len(self.positions):
            self.positions.append(0)
        return options[self.positions[at]]

    def following(self) -> list[int] | None:
        """Positions of the next combination, or None after the last."""
        sizes = [len(options) for options in self.options.values()]
        positions = self.positions[: len(sizes)]
        while positions and positions[-1] == sizes[len(positions) - 1] - 1:
            positions.pop()
        if not positions:
            return None
        positions[-1] += 1
        return positions
