"""Progress of a shared search while this process evaluates: a thread reports what other processes
finish.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from nas.search.progress import SearchProgress

WATCH_SECONDS = 2.0  # between two looks, at least
MAX_LOAD = 0.05  # share of the time that looks may take: reading a large study takes a while

log = logging.getLogger(__name__)
Report = Callable[[SearchProgress], None]


@contextmanager
def watched(progress: Report | None, look: Callable[[], SearchProgress]) -> Iterator[Report | None]:
    """A context whose function reports progress. In between, a thread does, as soon as other
    processes finish more.

    Args:
        progress: called with the progress, also by the thread; None to report nothing.
        look: reads the progress from the storage. The thread calls it.
    """
    if progress is None:
        yield None
        return
    ended, lock, reported = threading.Event(), threading.Lock(), [-1]

    def report(now: SearchProgress, is_look: bool = False) -> None:
        with lock:
            if is_look and (ended.is_set() or now.done <= reported[0]):
                return
            reported[0] = max(
                now.done, reported[0]
            )  # the thread may have seen more than the search has read
            progress(now._replace(done=reported[0]))

    def keep_looking() -> None:
        pause = WATCH_SECONDS
        while not ended.wait(pause):
            began = time.monotonic()
            try:
                report(look(), is_look=True)
            except (
                Exception
            ) as error:  # the storage is away for a while: the search itself waits or ends
                log.debug("progress could not be read: %s", error)
            pause = max(WATCH_SECONDS, (time.monotonic() - began) / MAX_LOAD)

    thread = threading.Thread(target=keep_looking, daemon=True)
    thread.start()
    try:
        yield report
    finally:
        ended.set()
        thread.join()
