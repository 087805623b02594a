"""The progress of a search: evaluations, the front, and its hypervolume."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from nas.search.pareto import hypervolume, joined

FRAME_POINTS = 10
Progress = Callable[[str, int, int], None]
"""Called with a label, the steps done and the steps in total."""


class SearchProgress(NamedTuple):
    """The progress of a search.

    Attributes:
        done, wanted: evaluations so far and in total.
        front: networks on the front.
        hypervolume: of the front, in the unit of `GrowingFront`.
        best: best value of each objective on the front, in its own unit; empty for an empty front.
    """

    done: int
    wanted: int
    front: int
    hypervolume: float
    best: dict[str, float]

    def __str__(self) -> str:
        best = ", ".join(f"{metric} {value:.5g}" for metric, value in self.best.items())
        return (
            f"{self.front} on the front, hypervolume "
            f"{self.hypervolume:.3f}{', best ' if best else ''}{best}"
        )


def labelled(
    progress: Progress | None, label: str, number: int = 0, count: int = 1
) -> Callable[[SearchProgress], None] | None:
    """A callback for search `number` (from 0) of `count` equal searches. It reports the progress of
    all of them.
    """
    if progress is None:
        return None
    return lambda now: progress(
        f"{label}: {now}", number * now.wanted + now.done, count * now.wanted
    )


class GrowingFront:
    """A front of m losses that grows point by point, and its hypervolume.

    The first `FRAME_POINTS` points span a box. Its worst corner is the reference point, its volume
    the unit of the hypervolume. No true front is needed: the number shows the progress since the
    start. It never falls after these points.
    """

    def __init__(self, m: int) -> None:
        self.points = np.empty((0, m))
        self.hypervolume = 0.0
        self._first: list[np.ndarray] = []

    def add(self, losses: np.ndarray) -> bool:
        """Add a finite point (m,). False if the front weakly dominates it."""
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
        """Hypervolume that a point (m,) adds to a front (k, m): its own, less the part that the
        front dominates.

        That part is the hypervolume of the front clipped at the point. Clipping makes most of its
        points dominated, so this is much faster than the hypervolume of the whole front.
        """
        inside, corner = self._framed(np.maximum(front, point))
        alone, _ = self._framed(point[None])
        return hypervolume(alone, corner) - hypervolume(inside, corner)

    def _framed(self, losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Losses (n, m) and the worst corner (m,), in units of the box of the first points."""
        best, worst = np.min(self._first, axis=0), np.max(self._first, axis=0)
        span = np.where(worst > best, worst - best, 1.0)
        return (losses - best) / span, (worst - best) / span
