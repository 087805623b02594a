"""Interrupts that wait for the end of a storage call.

If Ctrl-C interrupted a database driver, its open cursor would keep the lock of an SQLite file. Then neither this
process could give back its trial nor could any other one write.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """A context in which an interrupt of the main thread takes effect at the end; a second one at once."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    waiting: list[tuple[int, FrameType | None]] = []

    def wait(number: int, frame: FrameType | None) -> None:
        if waiting:
            handler(number, frame)
        waiting.append((number, frame))

    signal.signal(signal.SIGINT, wait)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if waiting:
            handler(*waiting[0])
