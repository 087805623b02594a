"""Interrupts and terminations: when they take effect. It imports nothing heavy, since the command
line loads it first.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """A context in which SIGTERM raises KeyboardInterrupt.

    `kill`, job schedulers and containers send this signal. A further one within the same clean-up
    is as a second Ctrl-C. Other threads than the main one cannot set this.
    """
    before = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or before != signal.SIG_DFL:
        yield  # somebody else handles or ignores it
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """A context that delays an interrupt or termination of the main thread until its end.

    A second signal takes effect at once.
    """
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    callables: dict[int, Callable[..., Any]] = {
        n: handler for n, handler in handlers.items() if callable(handler)
    }
    if threading.current_thread() is not threading.main_thread() or not callables:
        yield
        return
    waiting: list[tuple[int, FrameType | None]] = []

    def wait(number: int, frame: FrameType | None) -> None:
        if waiting:
            callables[number](number, frame)
        waiting.append((number, frame))

    for number in callables:
        signal.signal(number, wait)
    try:
        yield
    finally:
        for number, handler in callables.items():
            signal.signal(number, handler)
        if waiting:
            number, frame = waiting[0]
            callables[number](number, frame)
