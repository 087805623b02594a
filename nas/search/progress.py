"""The progress of a search: evaluations, the front, and its hypervolume.

In a shared search, a thread reports what other processes finish while this one evaluates.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from nas.search.pareto import hypervolume, joined
from search_spaces.common.progress import Progress

FRAME_POINTS = 10


class SearchProgress(NamedTuple):
    """The progress of a search.

    Attributes:
        done, total: evaluations so far and in all; of a search with fidelities, cost so far and
            budget.
        front: networks on the front.
        hypervolume: of the front, in the unit of `GrowingFront`; None before there is one.
        best: best value of each objective on the front, in its own unit; empty for an empty front.
    """

    done: int
    total: int
    front: int
    hypervolume: float | None
    best: dict[str, float]

    def __str__(self) -> str:
        parts = [f"{self.front} on the front"]
        if self.hypervolume is not None:
            parts.append(f"hypervolume {self.hypervolume:.3f}")
        if self.best:
            best = ", ".join(f"{metric} {value:.5g}" for metric, value in self.best.items())
            parts.append(f"best {best}")
        return ", ".join(parts)


def labelled(
    progress: Progress | None, label: str, number: int = 0, count: int = 1
) -> Callable[[SearchProgress], None] | None:
    """A callback for search `number` (from 0) of `count` equal searches.

    It reports the progress of all of them. None if `progress` is None.
    """
    if progress is None:
        return None

    def report(now: SearchProgress) -> None:
        done_before = number * now.total
        progress(f"{label}: {now}", done_before + now.done, count * now.total)

    return report


class GrowingFront:
    """A front of m losses that grows point by point, and its hypervolume.

    The first `FRAME_POINTS` points span a box. Its worst corner is the reference point, its volume
    the unit of the hypervolume. No true front is needed: the number shows the progress since the
    start. It never falls after these points; before, while the box grows, it means nothing.
    """

    def __init__(self, m: int) -> None:
        self.points = np.empty((0, m))
        self.hypervolume = 0.0
        self._first: list[np.ndarray] = []

    @property
    def has_unit(self) -> bool:
        """True once the box is complete."""
        return len(self._first) == FRAME_POINTS

    def add(self, losses: np.ndarray) -> bool:
        """Add a finite point (m,). False if the front weakly dominates it."""
        before = self.points
        better = joined(self.points, losses)
        if better is not None:
            self.points = better
        if len(self._first) < FRAME_POINTS:
            self._first.append(losses)
            self.hypervolume = hypervolume(*self._framed(self.points))
        elif better is not None:
            self.hypervolume += self._added(before, losses)
        return better is not None

    def _added(self, front: np.ndarray, point: np.ndarray) -> float:
        """Hypervolume that a point (m,) adds to a front (k, m).

        It is the point's own hypervolume, less the part that the front dominates. That part is the
        hypervolume of the front clipped at the point. Clipping makes most of its points dominated,
        so this is much faster than the hypervolume of the whole front.
        """
        inside, corner = self._framed(np.maximum(front, point))
        alone, _ = self._framed(point[None])
        return hypervolume(alone, corner) - hypervolume(inside, corner)

    def _framed(self, losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Losses (n, m) and the worst corner (m,), in units of the box of the first points."""
        best = np.min(self._first, axis=0)
        worst = np.max(self._first, axis=0)
        span = np.where(worst > best, worst - best, 1.0)
        return (losses - best) / span, (worst - best) / span


# --- watching other processes

WATCH_SECONDS = 2.0  # between two looks, at least
MAX_LOAD = 0.05  # share of the time that looks may take: reading a large study takes a while

log = logging.getLogger(__name__)
Report = Callable[[SearchProgress], None]


@contextmanager
def watched(progress: Report | None, look: Callable[[], SearchProgress]) -> Iterator[Report | None]:
    """A context whose function reports progress.

    In between, a thread does, as soon as other processes finish more.

    Args:
        progress: called with the progress, also by the thread; None to report nothing.
        look: reads the progress from the storage. The thread calls it.
    """
    if progress is None:
        yield None
        return
    ended = threading.Event()
    lock = threading.Lock()
    reported = [-1]

    def report(now: SearchProgress, is_look: bool = False) -> None:
        with lock:
            if is_look and (ended.is_set() or now.done <= reported[0]):
                return
            # The thread may have seen more than the search has read
            reported[0] = max(now.done, reported[0])
            progress(now._replace(done=reported[0]))

    def keep_looking() -> None:
        pause = WATCH_SECONDS
        while not ended.wait(pause):
            began = time.monotonic()
            try:
                report(look(), is_look=True)
            except Exception as error:
                # The storage is away for a while: the search itself waits or ends
                log.debug("progress could not be read: %s", error)
            pause = max(WATCH_SECONDS, (time.monotonic() - began) / MAX_LOAD)

    thread = threading.Thread(target=keep_looking, daemon=True)
    thread.start()
    try:
        yield report
    finally:
        ended.set()
        thread.join()
