"""A worker's share of the searches that it joins: it ends after so many evaluations or at some
time.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any


@dataclass
class Share:
    """What a worker may still evaluate. It is used up by all searches that the worker joins, one
    after the other.

    Attributes:
        evaluations: number of evaluations that are left; in a search with fidelities, of training
            segments.
        until: time after which no evaluation starts, in seconds since 1970.
    """

    evaluations: float = math.inf
    until: float = math.inf

    @classmethod
    def of(cls, evaluations: float | None = None, seconds: float | None = None) -> Share:
        """A share with these limits from now on; None for no limit."""
        until = math.inf if seconds is None else time.time() + seconds
        return cls(math.inf if evaluations is None else evaluations, until)

    @property
    def is_used_up(self) -> bool:
        """True if no further evaluation may start."""
        return self.evaluations <= 0 or time.time() >= self.until

    def take(self, evaluations: float) -> Share:
        """Split a part off, for another process."""
        part = min(evaluations, self.evaluations)
        self.evaluations -= part
        return Share(part, self.until)

    @property
    def plain(self) -> dict[str, Any]:
        """The finite limits as JSON values: arguments of the class."""
        return {name: value for name, value in vars(self).items() if value < math.inf}
