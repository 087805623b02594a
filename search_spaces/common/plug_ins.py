"""Classes and functions of other people: in a file that a user names, or in an installed package that announces them.

Both run their code. A file is run where a user names it (a search keeps its space's name), and never because a
checkpoint names it.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from search_spaces.common.errors import InputError, unknown


def is_file(reference: str) -> bool:
    """Whether it is `file.py:Class`, or `file.py` alone, and not a name."""
    return ".py:" in reference or reference.endswith(".py")


def from_file(reference: str, base: type, what: str) -> type[Any]:
    """The subclass of `base` that `file.py:Class` names; `:Class` may be left out where the file has one only.

    what: what such a class is, for errors.
    """
    return pick(reference, what, lambda value: _is_a(base, value))


def function_from_file(reference: str, what: str) -> Callable[..., Any]:
    """The function that `file.py:function` names; `:function` may be left out where the file has one only."""
    if not is_file(reference):
        raise InputError(f"{what} {reference!r}: write FILE.py:FUNCTION")
    return pick(reference, what, inspect.isfunction)


def pick(reference: str, what: str, fits: Callable[[object], bool]) -> Any:
    """What `file.py:name` names among the file's own values that fit; the only one without a name."""
    path, _, name = reference.partition(":")
    module = _run(path)
    found = {key: value for key, value in vars(module).items() if fits(value) and value.__module__ == module.__name__}
    if not name and len(found) == 1:
        name = next(iter(found))
    if name not in found:
        raise unknown(f"{what} in {path}:", name, found)
    return found[name]


def _run(path: str) -> ModuleType:
    """The module that a file makes; it is run anew each time."""
    spec = importlib.util.spec_from_file_location(f"user_{Path(path).stem}", path)
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise InputError(f"{path}: no such Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(f"{path}: {type(error).__name__} on import: {error}") from error
    return module


def installed(group: str) -> list[str]:
    """Names that installed packages announce in a group of entry points."""
    return [point.name for point in entry_points(group=group)]


def from_package(group: str, name: str, base: type) -> type[Any] | None:
    """The subclass of `base` that an installed package announces by that name; None where none does."""
    for point in entry_points(group=group, name=name):
        where = f"entry point {name!r} of {group}"
        try:
            found = point.load()
        except Exception as error:
            raise InputError(f"{where}: {type(error).__name__} on import: {error}") from error
        if not _is_a(base, found):
            raise InputError(f"{where}: {point.value} is no {base.__name__}")
        return found
    return None


def _is_a(base: type, value: object) -> bool:
    return isinstance(value, type) and issubclass(value, base)
