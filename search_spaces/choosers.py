"""Choosers: objects with Optuna's `suggest_*` methods that make the choices of
`SearchSpace.build`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn, Protocol

import numpy as np

from search_spaces import domains
from search_spaces.common.errors import InputError, unknown
from search_spaces.domains import MISSING, Choice, Domain, Interval, Steps
from search_spaces.parameter_names import ParameterNames, check_name


class Trial(Protocol):
    """The methods that `build` may call: those of an Optuna trial or a chooser of this module."""

    def suggest_categorical(self, name: str, choices: Sequence[Choice]) -> Choice: ...

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int: ...

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float: ...


class Chooser:
    """Base class of choosers. It records every choice and its options.

    As with an Optuna trial, suggesting a name again returns the earlier choice. Other options for a
    name that has been suggested in the same architecture raise InputError; in another architecture,
    a name may have other options.
    """

    def __init__(self) -> None:
        self.choices: dict[str, Choice] = {}
        self.options: dict[str, Domain] = {}

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"a trial has no {name!r}: it has suggest_categorical, suggest_int and suggest_float"
        )

    def pick(self, name: str, options: Domain) -> Choice:
        """Choose one of `options`; subclasses define this."""
        raise InputError(f"{type(self).__name__} does not define pick, which chooses {name}")

    def answer(self, name: str, options: Domain) -> Choice:
        """The choice for `name`, made now or earlier.

        Raises:
            InputError: if the name had other options before.
        """
        if name not in self.choices:
            check_name(name)
            self.options[name] = options
            self.choices[name] = self.pick(name, options)
        elif self.options[name] != options:
            first, second = domains.shown(self.options[name]), domains.shown(options)
            raise InputError(
                f"{name!r} is suggested twice, from {first} and from {second}: give each choice "
                "its own name"
            )
        return self.choices[name]

    def suggest_categorical(self, name: str, choices: Sequence[Choice]) -> Choice:
        return self.answer(name, domains.categories(name, choices))

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int:
        return self.answer(name, domains.integers(name, low, high, step, log))

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        return self.answer(name, domains.floats(name, low, high, step, log))


def _no_option(name: str, value: object, options: Domain) -> InputError:
    """The error for a value that is not an option."""
    if isinstance(options, Interval | Steps):
        return InputError(f"{name} = {value} is not one of {domains.shown(options)}")
    return unknown(f"option for {name}:", str(value), map(str, options))


class TrialChooser(Chooser):
    """Lets a trial make every choice. Its parameters have the names of
    `search_spaces.parameter_names`.
    """

    def __init__(self, trial: Trial) -> None:
        super().__init__()
        self.trial = trial
        self.names = ParameterNames(trial)

    def pick(self, name: str, options: Domain) -> Choice:
        parameter = self.names.parameter(name, options)
        try:
            answer = self._ask(parameter, options)
        except InputError:
            raise
        except ValueError:  # Optuna's error for a name that has other options, among others
            other = self.names.other_parameter(name, options) if parameter == name else None
            if other is None:
                raise
            answer = self._ask(other, options)
        choice = domains.find(options, answer)
        if choice is MISSING:  # enqueued, or proposed by a sampler
            raise _no_option(name, answer, options)
        return choice

    def _ask(self, name: str, options: Domain) -> Choice:
        if isinstance(options, range):
            return self.trial.suggest_int(name, options.start, options[-1], step=options.step)
        if isinstance(options, Steps):
            return self.trial.suggest_float(name, options.low, options[-1], step=options.step)
        if isinstance(options, Interval) and options.whole:
            return self.trial.suggest_int(
                name, int(options.low), int(options.high), log=options.log
            )
        if isinstance(options, Interval):
            return self.trial.suggest_float(name, options.low, options.high, log=options.log)
        return self.trial.suggest_categorical(name, options)


class RandomChooser(Chooser):
    """Makes every choice at random: uniformly, or uniformly in the logarithm for `log=True`."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__()
        self.rng = rng

    def pick(self, name: str, options: Domain) -> Choice:
        return domains.draw(options, self.rng)


class ReplayChooser(Chooser):
    """Makes the given choices; raises InputError if one is missing or not an option."""

    def __init__(self, given: Mapping[str, Choice]) -> None:
        super().__init__()
        self.given = given

    def pick(self, name: str, options: Domain) -> Choice:
        if name not in self.given:
            raise InputError(f"the choice {name!r} is missing; options: {domains.shown(options)}")
        found = domains.find(options, self.given[name])
        if found is not MISSING:
            return found
        raise _no_option(name, self.given[name], options)

    def check_all_used(self) -> None:
        """Raise InputError if a given choice was not used."""
        for name in self.given:
            if name not in self.choices:
                raise unknown("choice", name, self.choices)


class MutationChooser(RandomChooser):
    """Makes the parent's choices, except another one for `changed`; choices that the parent lacks
    are random.
    """

    def __init__(
        self, parent: Mapping[str, Choice], changed: str, rng: np.random.Generator
    ) -> None:
        super().__init__(rng)
        self.parent, self.changed = parent, changed

    def pick(self, name: str, options: Domain) -> Choice:
        if name == self.changed:
            return domains.draw_other(options, self.parent[name], self.rng)
        found = domains.find(options, self.parent[name]) if name in self.parent else MISSING
        return super().pick(name, options) if found is MISSING else found


class CrossoverChooser(RandomChooser):
    """Takes every choice from a random one of two parents; choices that both lack are random."""

    def __init__(
        self, a: Mapping[str, Choice], b: Mapping[str, Choice], rng: np.random.Generator
    ) -> None:
        super().__init__(rng)
        self.parents = (a, b)

    def pick(self, name: str, options: Domain) -> Choice:
        found = [domains.find(options, parent[name]) for parent in self.parents if name in parent]
        candidates = [value for value in found if value is not MISSING]
        return super().pick(name, candidates or options)


class EnumerationChooser(Chooser):
    """Takes the options at given positions, then first options: one step in the enumeration of all
    combinations.
    """

    def __init__(self, positions: Sequence[int]) -> None:
        super().__init__()
        self.positions = list(positions)

    def pick(self, name: str, options: Domain) -> Choice:
        at = len(self.choices)
        if at == len(self.positions):
            self.positions.append(0)
        return domains.option(options, self.positions[at])

    def next_positions(self) -> list[int] | None:
        """Positions of the next combination, or None after the last.

        Raises:
            InputError: if a choice is continuous.
        """
        sizes = [domains.count(options) for options in self.options.values()]
        for name, size in zip(self.options, sizes, strict=True):
            if size is None:
                raise InputError(
                    f"{name!r} is continuous, so architectures cannot be listed: give it a step"
                )
        positions = self.positions[: len(sizes)]
        while positions and positions[-1] == sizes[len(positions) - 1] - 1:  # type: ignore[operator]
            positions.pop()
        if not positions:
            return None
        positions[-1] += 1
        return positions
