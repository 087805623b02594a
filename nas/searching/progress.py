"""The progress of a search: evaluations, the front, and its hypervolume."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from nas.searching.pareto import hypervolume, joined

FRAME_POINTS = 10
Progress = Callable[[str, int, int], None]
"""Called with what is done, how far, of how much."""


class SearchProgress(NamedTuple):
    """Evaluations done and wanted, networks on the front so far, and its hypervolume as of `GrowingFront`.

    best: the best value of each objective on the front, in its own unit; empty while nothing is on it.
    """

    done: int
    wanted: int
    front: int
    hypervolume: float
    best: dict[str, float]

    def __str__(self) -> str:
        best = ", ".join(f"{metric} {value:.5g}" for metric, value in self.best.items())
        return f"{self.front} on the front, hypervolume {self.hypervolume:.3f}{', best ' if best else ''}{best}"


def labelled(
    progress: Progress | None, label: str, number: int = 0, count: int = 1
) -> Callable[[SearchProgress], None] | None:
    """A callback for the search of this number of `count` searches: it passes on how far all of them are."""
    if progress is None:
        return None
    return lambda now: progress(f"{label}: {now}", number * now.wanted + now.done, count * now.wanted)


class GrowingFront:
    """The front of m losses that come one by one, and its hypervolume.

    The hypervolume's unit is the box that the first `FRAME_POINTS` points span, up to its worst corner: where no truth
    is known, this says how far a search has come from a random start, and it never falls once these points are there.
    """

    def __init__(self, m: int) -> None:
        self.points = np.empty((0, m))
        self.hypervolume = 0.0
        self._first: list[np.ndarray] = []

    def add(self, losses: np.ndarray) -> bool:
        """Add a finite point (m,). False if the front dominates it."""
        before, better = self.points, joined(self.points, losses)
        if better is not None:
            self.points = better
        if len(self._first) < FRAME_POINTS:
            self._first.append(losses)
            self.hypervolume = hypervolume(*self._framed(self.points))
        elif better is not None:
            self.hypervolume += self._added(before, losses)
        return better is not None

    def _added(self, front: np.ndarray, point: np.ndarray) -> float:
        """The volume of the point's box but for what the front (k, m) dominates of it: a front cut off at the point.

        Most of a front is dominated when it is cut off, so this takes far less time than the whole front's volume.
        """
        inside, corner = self._framed(np.maximum(front, point))
        alone, _ = self._framed(point[None])
        return hypervolume(alone, corner) - hypervolume(inside, corner)

    def _framed(self, losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Losses (n, m) and the worst corner (m,) in spans of the first points."""
        best, worst = np.min(self._first, axis=0), np.max(self._first, axis=0)
        span = np.where(worst > best, worst - best, 1.0)
        return (losses - best) / span, (worst - best) / span
