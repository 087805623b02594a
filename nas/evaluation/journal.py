"""Files that long runs append to: journals of results, from which a build resumes, and the log of a
command.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from filelock import lock_descriptor

from search_spaces.common.errors import InputError

LOG_NAME = "nas.log"


class Journal:
    """Results by name, in memory and in a file.

    A line that a killed process left incomplete is ignored.

    Raises:
        InputError: a complete line is none of a journal.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: dict[str, Any] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            return
        data = path.read_bytes()
        for number, line in enumerate(data.decode(errors="replace").split("\n"), 1):
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if not (isinstance(row, list) and len(row) == 2 and isinstance(row[0], str)):
                raise InputError(
                    f"{path}, line {number}: {line[:40]} is not [name, value]: remove the line"
                )
            self.known[row[0]] = row[1]
        if data and not data.endswith(b"\n"):
            with path.open("a") as file:
                file.write("\n")

    def append(self, name: str, value: Any) -> None:
        """Add a result. It is in the file when this returns."""
        self.known[name] = value
        with self.path.open("a") as file:
            file.write(json.dumps([name, value]) + "\n")


# --- the log of a command, beside its results: everything that the package logs


@contextmanager
def log_to(path: Path) -> Iterator[None]:
    """Append what the package logs to a file. The first line creates the file.

    An error in writing the log is ignored, so that it does not end the command.
    """
    logger = logging.getLogger("nas")
    handler = _LogFile(path, encoding="utf-8", delay=True)
    handler.setFormatter(
        logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S")
    )
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        with suppress(OSError):
            handler.close()


class _LogFile(logging.FileHandler):
    """A log file that only one process of a search writes, the one that holds its lock."""

    def _open(self) -> TextIOWrapper:
        file = super()._open()
        try:
            is_writer = lock_descriptor(file.fileno(), blocking=False)
        except OSError:  # a file system without locks
            is_writer = True
        if not is_writer:
            file.close()
            raise BlockingIOError(f"another process writes {self.baseFilename}")
        return file

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            Path(self.baseFilename).parent.mkdir(parents=True, exist_ok=True)
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Ignore errors such as a full disk: by default, each line would print a traceback."""
