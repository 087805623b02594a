"""Domains of choices: a list of options or a range of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, floor, inf, isfinite, log
from typing import Any, overload

import numpy as np

from search_spaces.common.errors import InputError

Choice = Any
"""A chosen value: str, int, float, bool or None."""
MISSING: Any = object()
"""Result of `find` for a value that is not an option; `None` may be an option."""
# Types that an Optuna study stores and restores unchanged
_PLAIN = (str, int, float, bool, type(None))
_KINDS = frozenset(_PLAIN)
_TOLERANCE = 1e-8  # relative to a step, as in Optuna
_MAX_SHOWN = 20
_MAX_DRAWS = 100


@dataclass(frozen=True)
class Steps(Sequence[float]):
    """low, low + step, … up to high."""

    low: float
    high: float
    step: float

    def __len__(self) -> int:
        steps = (self.high - self.low) / self.step
        return floor(steps + _TOLERANCE) + 1

    @overload
    def __getitem__(self, index: int) -> float: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[float]: ...
    def __getitem__(self, index: int | slice) -> float | Sequence[float]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        value = self.low + index % len(self) * self.step
        return float(f"{value:.12g}")  # 0.3, not 0.30000000000000004

    def find(self, value: Choice) -> Choice:
        """The step equal to a value within `_TOLERANCE`; `MISSING` if there is none."""
        place = (value - self.low) / self.step if _is_number(value) else inf
        if not isfinite(place):
            return MISSING
        index = round(place)
        if 0 <= index < len(self) and abs(place - index) < _TOLERANCE:
            return self[index]
        return MISSING


@dataclass(frozen=True)
class Interval:
    """Numbers from low to high.

    Attributes:
        low: smallest number.
        high: largest number.
        log: draw uniformly in the logarithm.
        whole: integers only.
    """

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def draw(self, rng: np.random.Generator) -> float:
        """A random number of the range."""
        # Each integer is as likely as the unit interval around it.
        margin = 0.5 if self.whole else 0.0
        low = self.low - margin
        high = self.high + margin
        if self.log:
            low, high = log(low), log(high)
        value = rng.uniform(low, high)
        if self.log:
            value = exp(value)
        if self.whole:
            value = round(value)
        value = min(max(value, self.low), self.high)
        return int(value) if self.whole else float(value)

    def find(self, value: Choice) -> Choice:
        """The value in the type of the range, or `MISSING`.

        `MISSING` stands for a value outside, or not an integer where only these count.
        """
        if not _is_number(value) or not self.low <= value <= self.high:
            return MISSING
        if not self.whole:
            return float(value)
        return int(value) if value == int(value) else MISSING


Domain = Sequence[Choice] | Interval


def categories(name: str, choices: Sequence[Choice]) -> Domain:
    """The domain of `suggest_categorical`.

    Raises:
        InputError: if it is empty or has options of other types than `Choice`.
    """
    if not len(choices):
        raise InputError(f"{name!r} has no options: give at least one")
    if not _KINDS.issuperset(map(type, choices)):  # most often, they are plain
        for choice in choices:
            if not isinstance(choice, _PLAIN):
                raise InputError(
                    f"{name!r} has the option {choice!r}: give strings or numbers that stand for it"
                )
    return choices if isinstance(choices, range) else tuple(choices)


def integers(
    name: str,
    low: int,
    high: int,
    step: int,
    log: bool,
) -> Domain:
    """The domain of `suggest_int`; InputError for bad bounds or steps."""
    _check(name, low, high, step, log and step != 1, log and low < 1)
    return Interval(low, high, log=True, whole=True) if log else range(low, high + 1, step)


def floats(
    name: str,
    low: float,
    high: float,
    step: float | None,
    log: bool,
) -> Domain:
    """The domain of `suggest_float`; InputError for bad bounds or steps."""
    _check(name, low, high, step, log and step is not None, log and low <= 0)
    if step is None:
        return Interval(float(low), float(high), log)
    return Steps(float(low), float(high), float(step))


def _check(
    name: str,
    low: float,
    high: float,
    step: float | None,
    both: bool,
    below: bool,
) -> None:
    """Raise InputError for bad bounds or steps.

    Args:
        both: True if there are both a step and `log`.
        below: True if `log` is combined with a range that begins too low.
    """
    if not low <= high or not isfinite(low) or not isfinite(high):
        raise InputError(
            f"{name!r} from {low} to {high}: bounds must be finite, and the first not above the "
            "second"
        )
    if step is not None and not 0 < step < inf:
        raise InputError(f"{name!r} has step = {step}: it must be positive")
    if both:
        raise InputError(f"{name!r} has both a step and log=True: give one of them")
    if below:
        raise InputError(f"{name!r} has log=True from {low}: the range must begin above 0")


def count(domain: Domain) -> int | None:
    """Number of options; None for a continuous range."""
    if not isinstance(domain, Interval):
        return len(domain)
    if domain.low == domain.high:
        return 1
    return int(domain.high - domain.low) + 1 if domain.whole else None


def option(domain: Domain, index: int) -> Choice:
    """The option at an index of a domain that is not continuous."""
    return int(domain.low) + index if isinstance(domain, Interval) else domain[index]


def find(domain: Domain, value: Choice) -> Choice:
    """The option equal to a value, in the type of the domain; `MISSING` if there is none."""
    if isinstance(domain, Interval | Steps):
        return domain.find(value)
    return value if value in domain else MISSING


def draw(domain: Domain, rng: np.random.Generator) -> Choice:
    """A random option."""
    if isinstance(domain, Interval):
        return domain.draw(rng)
    return domain[int(rng.integers(len(domain)))]


def draw_other(domain: Domain, value: Choice, rng: np.random.Generator) -> Choice:
    """A random option other than `value`; the domain must have one."""
    if not isinstance(domain, Interval):
        others = [other for other in domain if other != value]
        return draw(others, rng)
    for _ in range(_MAX_DRAWS):
        drawn = domain.draw(rng)
        if drawn != value:
            return drawn
    if not domain.whole:
        return domain.low
    return int(domain.high if value == domain.low else domain.low)


def shown(domain: Domain) -> str:
    """The options as text for messages."""
    if isinstance(domain, Interval):
        return f"{domain.low} to {domain.high}"
    names = [str(choice) for choice in domain[:_MAX_SHOWN]]
    if len(domain) > _MAX_SHOWN:
        names.append("…")
    return ", ".join(names)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
