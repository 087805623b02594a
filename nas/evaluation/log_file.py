"""The log file of a command, beside its results: everything that the package logs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path

from filelock import lock_descriptor

LOG_NAME = "nas.log"


@contextmanager
def log_to(path: Path) -> Iterator[None]:
    """Append what the package logs to a file. The first line creates the file.

    An error in writing the log is ignored, so that it does not end the command.
    """
    logger, handler = logging.getLogger("nas"), _LogFile(path, encoding="utf-8", delay=True)
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
    """A log file that only one process writes, the one that holds its lock; other processes of a
    search do not.
    """

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
