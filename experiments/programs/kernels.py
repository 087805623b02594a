"""What programs are put together from: functions in Python, C and C++ that do some work and return a whole number."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Kernel:
    """A function `$f` of one size, in one language.

    family: the kind of work. low, high: bounds of its size, which is log-uniform between them. source: its text, where
    `$f` is its name and `$NAME` one of the options of that name; `rand(bound)`, in C and C++ `rand_below(bound)`, is a
    pseudo-random number below the bound. uses: modules or headers that it needs.
    """

    family: str
    low: int
    high: int
    source: str
    options: dict[str, tuple[str, ...]] = field(default_factory=dict)
    uses: tuple[str, ...] = ()
