"""Runs a program that may hang or start others."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, NamedTuple


class TooSlow(Exception):
    """A program exceeded its timeout and was killed."""


class Finished(NamedTuple):
    """Exit status of a program (negative: the signal that ended it), and what it printed."""

    status: int
    output: str
    errors: str


def run_killable(
    command: str | Sequence[str], timeout: float, environment: Mapping[str, str] | None = None
) -> Finished:
    """Run a program. A timeout or an interrupt kills it with all its child processes.

    It prints into files: a server that it has started and detached would keep pipes open.

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
            process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise TooSlow from error
        finally:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return Finished(process.returncode, _content(output), _content(errors))


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
