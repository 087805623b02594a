"""Choosers: objects with Optuna's `suggest_*` methods that make the choices of
`SearchSpace.build`.

    TrialChooser         asks an Optuna trial
    RandomChooser        draws
    ReplayChooser        makes requested choices
    MutationChooser      changes one choice of a parent
    CrossoverChooser     mixes those of two parents
    EnumerationChooser   goes through all combinations

`Questions` remembers which choices `build` makes, so that a draw of known ones builds no network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
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
        self,
        name: str,
        low: int,
        high: int,
        *,
        step: int = 1,
        log: bool = False,
    ) -> int: ...

    def suggest_float(
        self,
        name: str,
        low: float,
        high: float,
        *,
        step: float | None = None,
        log: bool = False,
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
            first = domains.shown(self.options[name])
            second = domains.shown(options)
            raise InputError(
                f"{name!r} is suggested twice, from {first} and from {second}: give each choice "
                "its own name"
            )
        return self.choices[name]

    def suggest_categorical(self, name: str, choices: Sequence[Choice]) -> Choice:
        return self.answer(name, domains.categories(name, choices))

    def suggest_int(
        self,
        name: str,
        low: int,
        high: int,
        *,
        step: int = 1,
        log: bool = False,
    ) -> int:
        return self.answer(name, domains.integers(name, low, high, step, log))

    def suggest_float(
        self,
        name: str,
        low: float,
        high: float,
        *,
        step: float | None = None,
        log: bool = False,
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
        trial = self.trial
        if isinstance(options, range):
            return trial.suggest_int(name, options.start, options[-1], step=options.step)
        if isinstance(options, Steps):
            return trial.suggest_float(name, options.low, options[-1], step=options.step)
        if not isinstance(options, Interval):
            return trial.suggest_categorical(name, options)
        if options.whole:
            low = int(options.low)
            high = int(options.high)
            return trial.suggest_int(name, low, high, log=options.log)
        return trial.suggest_float(name, options.low, options.high, log=options.log)


class RandomChooser(Chooser):
    """Makes every choice at random: uniformly, or uniformly in the logarithm for `log=True`."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__()
        self.rng = rng

    def pick(self, name: str, options: Domain) -> Choice:
        return domains.draw(options, self.rng)


class ReplayChooser(Chooser):
    """Makes the requested choices; raises InputError if one is missing or not an option."""

    def __init__(self, requested: Mapping[str, Choice]) -> None:
        super().__init__()
        self.requested = requested

    def pick(self, name: str, options: Domain) -> Choice:
        if name not in self.requested:
            raise InputError(f"the choice {name!r} is missing; options: {domains.shown(options)}")
        choice = domains.find(options, self.requested[name])
        if choice is not MISSING:
            return choice
        raise _no_option(name, self.requested[name], options)

    def check_all_used(self) -> None:
        """Raise InputError if a requested choice was not used."""
        for name in self.requested:
            if name not in self.choices:
                raise unknown("choice", name, self.choices)


class MutationChooser(RandomChooser):
    """Makes the parent's choices, except for `changed`, where it draws another option.

    Choices that the parent lacks, and those whose option is not offered, are random.
    """

    def __init__(
        self, parent: Mapping[str, Choice], changed: str, rng: np.random.Generator
    ) -> None:
        super().__init__(rng)
        self.parent, self.changed = parent, changed

    def pick(self, name: str, options: Domain) -> Choice:
        if name == self.changed:
            return domains.draw_other(options, self.parent[name], self.rng)
        if name in self.parent:
            choice = domains.find(options, self.parent[name])
            if choice is not MISSING:
                return choice
        return super().pick(name, options)


class CrossoverChooser(RandomChooser):
    """Takes every choice from a random one of two parents; choices that both lack are random."""

    def __init__(
        self, a: Mapping[str, Choice], b: Mapping[str, Choice], rng: np.random.Generator
    ) -> None:
        super().__init__(rng)
        self.parents = (a, b)

    def pick(self, name: str, options: Domain) -> Choice:
        candidates = []
        for parent in self.parents:
            if name in parent:
                choice = domains.find(options, parent[name])
                if choice is not MISSING:
                    candidates.append(choice)
        return super().pick(name, candidates or options)


class EnumerationChooser(Chooser):
    """Takes the options at given positions, then first options.

    Each chooser is one step in the enumeration of all combinations.
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
        sizes: list[int] = []
        for name, options in self.options.items():
            size = domains.count(options)
            if size is None:
                raise InputError(
                    f"{name!r} is continuous, so architectures cannot be listed: give it a step"
                )
            sizes.append(size)
        positions = self.positions[: len(sizes)]
        while positions and positions[-1] == sizes[len(positions) - 1] - 1:
            positions.pop()  # the last option of this choice: go on with the choice before it
        if not positions:
            return None
        positions[-1] += 1
        return positions


# --- choices that `build` has made before

MAX_QUESTIONS = 20_000  # remembered per space


@dataclass(slots=True)
class _Question:
    """A choice, and the choice that follows each of its values; None where `build` ends."""

    name: str
    options: Domain
    after: dict[tuple[type, Choice], _Question | None] = field(default_factory=dict)


class Questions:
    """A tree of choices, in which each value leads to the next choice.

    `build` depends on the choices alone, so equal values lead to the same next choice.
    """

    def __init__(self) -> None:
        self._first: dict[tuple[type, Choice], _Question | None] = {}
        self._count = 0

    def ask(self, chooser: Chooser) -> bool:
        """Ask a new chooser for the known choices; True if these are all that `build` makes.

        False if the tree has an unknown branch, or the chooser raises InputError.
        """
        after = self._first
        answer = _START
        with suppress(InputError):
            while answer in after:
                question = after[answer]
                if question is None:
                    return True
                answer = _key(chooser.answer(question.name, question.options))
                after = question.after
        return False

    def learn(self, chooser: Chooser) -> None:
        """Remember the choices of a chooser with which `build` has finished."""
        after = self._first
        answer = _START
        for name, options in chooser.options.items():
            if answer not in after:
                if self._count == MAX_QUESTIONS:
                    return
                after[answer] = _Question(name, options)
                self._count += 1
            question = after[answer]
            if question is None or question.name != name:
                return  # `build` does not depend on the choices alone
            after = question.after
            answer = _key(chooser.choices[name])
        after.setdefault(answer, None)


def _key(answer: Choice) -> tuple[type, Choice]:
    return type(answer), answer


_START = _key(None)
