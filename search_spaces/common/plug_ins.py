"""Classes of other people: in a file that a user names, or in an installed package that announces them.

Both run their code. A file is run where a user names it (a search keeps its space's name), and never because a
checkpoint names it.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from search_spaces.common.errors import InputError, unknown


def is_file(reference: str) -> bool:
    """Whether it is `file.py:Class`, or `file.py` alone, and not a name."""
    return ".py:" in reference or reference.endswith(".py")


def from_file(reference: str, base: type, what: str) -> type[Any]:
    """The subclass of `base` that `file.py:Class` names; `:Class` may be left out where the file has one only.

    what: what such a class is, for errors.
    """
    path, _, class_name = reference.partition(":")
    spec = importlib.util.spec_from_file_location(f"user_{Path(path).stem}", path)
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise InputError(f"{path}: no such Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(f"{path}: {type(error).__name__} on import: {error}") from error
    found = {name: value for name, value in vars(module).items() if _is_a(base, value)}
    found = {name: value for name, value in found.items() if value.__module__ == spec.name}
    if not class_name and len(found) == 1:
        class_name = next(iter(found))
    if class_name not in found:
        raise unknown(f"{what} in {path}:", class_name, found)
    return found[class_name]


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
