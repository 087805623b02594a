"""Runs a program that may hang or start others."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO, NamedTuple

from search_spaces.common.errors import InputError

TIMEOUT = "NAS_RUNTIME_TIMEOUT"  # environment variable: seconds that a measurement may take
TIMEOUT_S = 600.0  # by default: a compiler on a busy core takes minutes
MAX_SHOWN = 200  # characters of what a program printed in an error message
# A line on its standard input dismisses the watcher; the end of the input without one comes from
# the death of the process that holds the other end of the pipe.
_WATCHER = 'read line || kill -s KILL -- "-$1"'


def default_timeout() -> float:
    """Seconds that a measurement on this machine may take: `$NAS_RUNTIME_TIMEOUT` or `TIMEOUT_S`.

    Raises:
        InputError: the variable is no positive number.
    """
    text = os.environ.get(TIMEOUT)
    if not text:
        return TIMEOUT_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InputError(f"{TIMEOUT}={text}: it must be a positive number of seconds")
    return seconds


class TooSlow(Exception):
    """A program exceeded its timeout and was killed."""


class Finished(NamedTuple):
    """Exit status of a program (negative: the signal that ended it), and what it printed."""

    status: int
    output: str
    errors: str

    @property
    def failure(self) -> str:
        """How it failed, to follow the program's name; "" if it did not.

        For example: `crashed (SIGSEGV)`, or `failed with exit status 1: LAST LINE`.
        """
        if not self.status:
            return ""
        if self.status < 0:
            names = {number.value: number.name for number in signal.Signals}
            return f"crashed ({names.get(-self.status, f'signal {-self.status}')})"
        return f"failed with exit status {self.status}{last_line(self.errors or self.output)}"


def run_killable(
    command: str | Sequence[str], timeout: float, environment: Mapping[str, str] | None = None
) -> Finished:
    """Run a program. A timeout, an interrupt or the death of this process kills it.

    Its child processes are killed with it, except those that it has detached. It prints into files:
    a detached server would keep pipes open.

    Args:
        command: a line for the shell, or a program with its arguments.
        timeout: in seconds.
        environment: of the program; this process's by default.

    Raises:
        TooSlow: the timeout was exceeded.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            shell=isinstance(command, str),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
            env=environment,
        )
        try:
            with _killed_with_this_process(process.pid):
                process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise TooSlow from error
        finally:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return Finished(process.returncode, _content(output), _content(errors))


@contextmanager
def _killed_with_this_process(group: int) -> Iterator[None]:
    """Let a process group end if this process dies meanwhile, also by SIGKILL.

    A watcher waits for the end of a pipe from this process. Unlike Linux's `PR_SET_PDEATHSIG`, it
    works on macOS and reaches what a program has started; unlike polling, it takes no time of the
    processor while a latency is measured.
    """
    watcher = subprocess.Popen(
        ["sh", "-c", _WATCHER, "sh", str(group)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a signal to this process's group leaves it alone
    )
    try:
        yield
    finally:
        watcher.communicate(b"\n")


def last_line(output: str) -> str:
    """The last line that a program printed, to end an error message: `: LINE`, or "".

    `?` replaces control characters, which would act on a terminal.
    """
    lines = output.strip().splitlines()
    shown = lines[-1].strip()[:MAX_SHOWN] if lines else ""
    return f": {printable(shown)}" if shown else ""


def printable(text: str) -> str:
    """The text with `?` for each character that would act on a terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
