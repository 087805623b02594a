"""The one exception that tells a user what is wrong with their input."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Bad input: the message names the file or value and the remedy, and fits on one line.

    The command line prints it without a traceback and exits with status 2.
    """


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """Error for a name that is not among `known`, suggesting the nearest one."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return InputError(f"unknown {kind} {name!r}: {hint}known: {', '.join(names)}")
