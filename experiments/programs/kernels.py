"""Building blocks of generated programs: functions in Python, C and C++ that take a size and return
an integer.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Kernel:
    """Template of a function of one size, in one language.

    Attributes:
        family: the kind of work.
        low, high: bounds of the size, which is drawn log-uniformly.
        source: the text, with `$f` for the function's name and `$NAME` for one of the options of
            that name. It may call `rand(bound)` (C and C++: `rand_below(bound)`) for a
            pseudo-random integer below the bound.
        options: alternatives by name.
        uses: modules or headers to import.
    """

    family: str
    low: int
    high: int
    source: str
    options: dict[str, tuple[str, ...]] = field(default_factory=dict)
    uses: tuple[str, ...] = ()
