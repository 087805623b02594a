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

from search_spaces.common.errors import InputError, exits_as_errors, unknown, where
from search_spaces.common.torchvision import lacks_operators, prepare_torchvision

_MODULES: dict[tuple[Path, bytes], ModuleType] = {}  # by file and content


def is_file(reference: str) -> bool:
    """Whether it is `file.py:Class`, or `file.py` alone, and not a name."""
    return ".py:" in reference or reference.endswith(".py")


def absolute(reference: str) -> str:
    """`file.py:Class` with the file's whole path, which holds in any folder; a name as it is."""
    return str(Path(reference).absolute()) if is_file(reference) else reference


def from_file(reference: str, base: type, what: str) -> type[Any]:
    """The subclass of `base` that `file.py:Class` names; `:Class` may be left out where the file has one only.

    what: what such a class is, for errors.
    """
    return pick(reference, what, f"a subclass of {base.__name__}", lambda value: _is_a(base, value))


def function_from_file(reference: str, what: str) -> Callable[..., Any]:
    """The function that `file.py:function` names; `:function` may be left out where the file has one only."""
    if not is_file(reference):
        raise InputError(f"{what} {reference!r}: write FILE.py:FUNCTION")
    return pick(reference, what, "a function", inspect.isfunction)


def pick(
    reference: str,
    what: str,
    wanted: str,
    fits: Callable[[object], bool],
    meant: Callable[[str, object], bool] = lambda name, value: True,
) -> Any:
    """What `file.py:name` names among the file's own values that fit; without a name, the only one that is meant.

    what, wanted: what the reference is for, and what fits, for errors.
    """
    path, _, name = reference.partition(":")
    module = _run(path)
    own = {key: value for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__}
    found = {key: value for key, value in own.items() if fits(value)}
    if not name:
        likely = [key for key, value in found.items() if meant(key, value)]
        if len(likely) != 1:
            has = ", ".join(likely or found) or "nothing of the kind"
            raise InputError(f"{path}: name the {what}, {path}:NAME, {wanted}; the file has {has}")
        name = likely[0]
    if name in vars(module) and name not in found:
        raise InputError(f"{reference} is {_kind(vars(module)[name], name in own)}, no {what}: give {wanted}")
    if name not in found:
        raise unknown(f"{what} in {path}:", name, found)
    return found[name]


def _kind(value: object, is_own: bool) -> str:
    if isinstance(value, type) or inspect.isfunction(value):
        kind = "a class" if isinstance(value, type) else "a function"
        return kind if is_own else f"{kind} of another file"
    return f"a value of type {type(value).__name__}"


def _run(path: str) -> ModuleType:
    """The module that a file makes; it imports the files beside it.

    It is run once in a process, whatever is named in it, and again when it was edited.
    """
    spec = importlib.util.spec_from_file_location(f"user_{Path(path).stem}", path)
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise InputError(f"{path}: no such Python file")
    key = Path(path).resolve(), Path(path).read_bytes()
    if key in _MODULES:
        return _MODULES[key]
    folder = str(Path(path).absolute().parent)
    if folder not in sys.path:
        sys.path.append(folder)  # last: a file there hides no installed package
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        with exits_as_errors():
            spec.loader.exec_module(module)
    except Exception as error:
        if lacks_operators(error) and prepare_torchvision():
            return _run(path)
        raise InputError(f"{where(error) or f'{path}: '}{type(error).__name__} on import: {error}") from error
    _MODULES[key] = module
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
