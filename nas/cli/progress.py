"""Progress of commands: a bar on a terminal, else a line every 30 s. The log has the same lines."""

from __future__ import annotations

import datetime
import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from search_spaces.common.progress import Progress

LINE_SECONDS = 30.0  # between two lines
MAX_LABEL = 30  # characters of a label beside the bar; 80 columns have room for the rest

log = logging.getLogger(__name__)


class _State:
    """Current step, amount done, total, and start time."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.what, self.done, self.total, self.updates = "", 0, 0, 0
        self._first = 0
        self._began = time.monotonic()
        self._changed = self._began  # when the amount done last changed

    def update(self, what: str, done: int, total: int) -> None:
        if not self.updates or done < self.done or total != self.total:  # a new step has begun
            self._first = done
            self._began = time.monotonic()
        if done != self.done or self._changed < self._began:
            self._changed = time.monotonic()
        self.what, self.done, self.total = what, done, total
        self.updates += 1

    @property
    def elapsed(self) -> str:
        return _clock(time.monotonic() - self._began)

    @property
    def left(self) -> str:
        """Time left, from the mean duration of all units so far.

        Single units of a search differ greatly. Between two units the time counts down. If a unit
        takes longer than the mean, the mean counts it as well, so that the estimate does not jump
        when it ends.
        """
        steps = self.done - self._first
        remaining = self.total - self.done
        now = time.monotonic()
        if not steps or remaining <= 0:
            return ""
        mean = max((self._changed - self._began) / steps, (now - self._began) / (steps + 1))
        return (
            f"{_clock(max(mean * remaining - (now - self._changed), mean * (remaining - 1)))} left"
        )

    def line(self) -> str:
        parts = (f"{self.done}/{self.total}", self.what, self.elapsed, self.left)
        return f"{self.label}: {', '.join(part for part in parts if part)}"


def _clock(seconds: float) -> str:
    return str(datetime.timedelta(seconds=round(seconds)))


@contextmanager
def progress_bar(label: str, quiet: bool = False) -> Iterator[Progress]:
    """Show progress on standard error.

    It is a bar on a terminal, else lines at the start, at the end and in between.

    Args:
        label: name of the task.
        quiet: show nothing. The lines are logged in any case.

    Yields:
        A function to call with the current step, the amount done and the total.
    """
    state = _State(label)
    stopped = threading.Event()
    terminal = sys.stderr.isatty()

    def write_line() -> None:
        log.info("%s", state.line())
        if not quiet and not terminal:
            print(f"{time.strftime('%H:%M:%S')} {state.line()}", file=sys.stderr, flush=True)

    def write_lines() -> None:
        while not stopped.wait(LINE_SECONDS):
            if state.updates:
                write_line()

    def update(what: str, done: int, total: int) -> None:
        state.update(what, done, total)
        if state.updates == 1:
            write_line()

    # A thread writes lines even during a step of several minutes.
    threading.Thread(target=write_lines, daemon=True).start()
    try:
        if quiet or not terminal:
            yield update
        else:
            with _bar(state):
                yield update
        if state.updates:
            write_line()
    finally:
        stopped.set()


@contextmanager
def _bar(state: _State) -> Iterator[None]:
    """Show the state on the terminal: a bar with its numbers, and below it the current step."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    def draw() -> Group:
        label = state.label if len(state.label) <= MAX_LABEL else f"{state.label[: MAX_LABEL - 1]}…"
        row = Table.grid(padding=(0, 1), expand=True)
        row.add_column(no_wrap=True)
        row.add_column(ratio=1)
        row.add_column(no_wrap=True)
        bar = ProgressBar(total=state.total or None, completed=state.done, pulse=not state.total)
        row.add_row(
            label, bar, f"{state.done}/{state.total}  {state.elapsed}  {state.left}".rstrip()
        )
        return Group(row, Text(state.what, style="dim")) if state.what else Group(row)

    console = Console(stderr=True, markup=False, emoji=False)
    with Live(get_renderable=draw, console=console, transient=True, refresh_per_second=4):
        yield
