"""The one exception that tells a user what is wrong with their input."""

from __future__ import annotations

import difflib
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

MAX_NAMES = 25  # that an error lists, if some are near what was meant
NEAR_NAMES = 5  # that it lists otherwise
_PROJECT = Path(__file__).parents[2]


class InputError(ValueError):
    """Bad input: the message names the file or value and the remedy, and fits on one line.

    The command line prints it without a traceback and exits with status 2.
    """


class Infeasible(InputError):
    """Raised by a space's `build` for choices that do not go together: such architectures are drawn again.

    In a search, a trial that proposes them fails, and its reason is kept. They are not evaluated and do not count.
    """


@contextmanager
def exits_as_errors() -> Iterator[None]:
    """Turns an exit of a user's code into an error, so that no process ends silently."""
    try:
        yield
    except SystemExit as error:
        ended = RuntimeError(f"the code ended the process: SystemExit({error.code!r})")
        raise ended.with_traceback(error.__traceback__) from None


def describe(error: BaseException) -> str:
    """What went wrong, on one line; with file and line of the user's own code where that raised it."""
    message = " ".join(str(error).split())
    if isinstance(error, InputError):
        return message
    return f"{where(error)}{type(error).__name__}{': ' if message else ''}{message}"


def where(error: BaseException) -> str:
    """File and line of the user's own code in which an error was raised, to begin its message; empty where in none."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = next(((file, line) for file, line in reversed(frames) if _is_users(file)), None)
    return f"{own[0]}, line {own[1]}: " if own else ""


@lru_cache(maxsize=1024)
def _is_users(name: str) -> bool:
    """False for files of this project's packages, of Python and of installed packages."""
    file = Path(name)
    places = [_PROJECT / name for name in ("search_spaces", "predictors", "nas")]
    places += [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")]
    return file.is_file() and not any(file.is_relative_to(place) for place in places)


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """Error for a name that is not among `known`, suggesting the nearest one; of many, it lists the near ones."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=NEAR_NAMES, cutoff=0.4)
    hint = f"did you mean {near[0]!r}? " if near else ""
    shown = names if len(names) <= MAX_NAMES or not near else near
    rest = f" and {len(names) - len(shown)} others" if len(shown) < len(names) else ""
    return InputError(f"unknown {kind} {name!r}: {hint}known: {', '.join(shown)}{rest}")
