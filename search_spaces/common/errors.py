"""The project's exceptions, and helpers for one-line messages.

    NasError                    every error that this project raises on purpose
    ├── InputError              bad input: the message names the file or value and the remedy
    │   ├── Infeasible          raised by a space's `build` for choices that exclude each other
    │   └── CheckpointError     a checkpoint is damaged, or of another format or predictor
    ├── StorageError            a storage of trials cannot be read or written
    └── EvaluatorError          an evaluator broke its contract

The command line prints the message of each as one line, without its traceback, and exits with
status 2. The original exception is kept as the cause (`raise … from error`).
"""

from __future__ import annotations

import difflib
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

MAX_NAMES = 25  # an error lists all known names up to this number
NEAR_NAMES = 5  # of more names, it lists so many similar ones
_PROJECT = Path(__file__).parents[2]


class NasError(Exception):
    """An error that this project raises on purpose. Its message is one line for the user."""


class InputError(NasError, ValueError):
    """Bad input. The one-line message names the file or value and the remedy."""


class Infeasible(InputError):
    """Raised by a space's `build` for choices that exclude each other.

    Example:

        >>> import nas
        >>> def build(trial):
        ...     heads = trial.suggest_int("heads", 1, 8)
        ...     if 96 % heads:
        ...         raise nas.Infeasible(f"{heads} heads do not divide a width of 96")

    Sampling draws such choices again. A search records the trial as failed with this reason; it is
    not evaluated and does not count.
    """


class NoExampleInput(InputError):
    """A space of PyTorch modules does not say what its networks take."""


class CheckpointError(InputError):
    """A predictor's checkpoint lacks a file, is damaged, or is of another format or predictor."""


class MeasurementError(InputError):
    """A network has no value of a metric that is measured without training, such as a latency.

    A search records the network as ruled out with this reason, and does not train it.
    """


class StorageError(NasError):
    """A storage of trials cannot be read or written. This is not the fault of a trial."""


class EvaluatorError(NasError):
    """An evaluator broke its contract. This is not the fault of a network, so the search ends."""


@contextmanager
def exits_as_errors() -> Iterator[None]:
    """Turn `SystemExit` of user code into RuntimeError: the process must not end silently."""
    try:
        yield
    except SystemExit as error:
        ended = RuntimeError(f"the code ended the process: SystemExit({error.code!r})")
        raise ended.with_traceback(error.__traceback__) from error


def describe(error: BaseException) -> str:
    """One-line description of an error, with file and line if user code raised it."""
    message = " ".join(str(error).split())
    if isinstance(error, NasError):
        return message
    return f"{where(error)}{type(error).__name__}{': ' if message else ''}{message}"


@contextmanager
def user_errors_as_input() -> Iterator[None]:
    """Turn errors of user code into InputError; mistakes of this project stay as they are."""
    try:
        yield
    except NasError:
        raise
    except Exception as error:
        if not where(error):
            raise
        raise InputError(describe(error)) from error


def where(error: BaseException) -> str:
    """Prefix for a message: file and line of the innermost user code in the traceback, or ""."""
    frames = list(traceback.walk_tb(error.__traceback__))
    for frame, line in reversed(frames):
        file = frame.f_code.co_filename
        if is_users_file(file):
            return f"{file}, line {line}: "
    return ""


@lru_cache(maxsize=1024)
def is_users_file(name: str) -> bool:
    """True for files outside this project's packages, the standard library and installed ones."""
    file = Path(name)
    if not file.is_file():
        return False
    installed = {"site-packages", "dist-packages"}  # also below the user's home
    if not installed.isdisjoint(file.parts):
        return False
    folders = [_PROJECT / package for package in ("search_spaces", "predictors", "nas")]
    folders += [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")]
    return not any(file.is_relative_to(folder) for folder in folders)


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """Error for an unknown name, with the most similar known name as a suggestion.

    Args:
        kind: kind of thing that is named, for the message.
        name: the unknown name.
        known: known names; if there are many, only similar ones are listed.
    """
    names = sorted(set(known))
    near = difflib.get_close_matches(name, names, n=NEAR_NAMES, cutoff=0.4)
    hint = f"did you mean {near[0]!r}? " if near else ""
    # Of many names, only similar ones are listed, and how many others there are.
    shown = near if near and len(names) > MAX_NAMES else names
    listed = ", ".join(shown)
    others = len(names) - len(shown)
    rest = f" and {others} others" if others else ""
    return InputError(f"unknown {kind} {name!r}: {hint}known: {listed}{rest}")
