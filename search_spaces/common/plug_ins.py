"""Plug-ins: classes and functions in a user's file, or in an installed package with entry points.

Loading runs their code. A file is run only because a user names it, in a command or in the settings
of a search, never because a checkpoint names it.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from importlib.metadata import entry_points
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from search_spaces.common.errors import InputError, exits_as_errors, unknown, where
from search_spaces.common.torchvision import lacks_operators, prepare_torchvision

_MODULES: dict[tuple[Path, bytes], ModuleType] = {}  # by file and content


def is_file(reference: str) -> bool:
    """True for `file.py:Class` and `file.py`, False for a plain name."""
    return ".py:" in reference or reference.endswith(".py")


def absolute(reference: str) -> str:
    """The reference with an absolute path; a plain name is returned unchanged."""
    return str(Path(reference).absolute()) if is_file(reference) else reference


def without_folder(reference: str) -> str:
    """The reference as it is displayed, `file.py:Class`; a plain name is returned unchanged."""
    return Path(reference).name if is_file(reference) else reference


def from_file(reference: str, base: type, what: str) -> type[Any]:
    """The subclass of `base` that `file.py:Class` names.

    `:Class` may be omitted if the file has only one.

    Args:
        reference: the reference.
        base: required base class.
        what: what the class is used as, for messages.

    Raises:
        InputError: if there is no such class, or the file cannot be imported.
    """
    return pick(reference, what, f"a subclass of {base.__name__}", lambda value: _is_a(base, value))


def function_from_file(reference: str, what: str) -> Callable[..., Any]:
    """The function that `file.py:function` names.

    `:function` may be omitted if the file has only one.

    Args:
        reference: the reference.
        what: what the function is used as, for messages.

    Raises:
        InputError: if there is no such function, or the file cannot be imported.
    """
    if not is_file(reference):
        raise InputError(f"{what} {reference!r}: write FILE.py:FUNCTION")
    return pick(reference, what, "a function", inspect.isfunction)


def pick(
    reference: str,
    what: str,
    expected: str,
    fits: Callable[[object], bool],
    meant: Callable[[str, object], bool] = lambda name, value: True,
) -> Any:
    """The object that `file.py:name` names, among those defined in the file.

    Args:
        reference: the reference; its name may be omitted if exactly one object fits and is meant.
        what: what the object is used as, for messages.
        expected: description of the objects that fit, for messages.
        fits: True for objects that may be named.
        meant: of name and object, True if a reference without a name may refer to it.

    Raises:
        InputError: if there is no such object, or the file cannot be imported.
    """
    path, _, name = reference.partition(":")
    module = _run(path)
    own = {}  # defined in the file, not imported there
    for key, value in vars(module).items():
        if getattr(value, "__module__", "") == module.__name__:
            own[key] = value
    fitting = {key: value for key, value in own.items() if fits(value)}
    if not name:
        likely = [key for key, value in fitting.items() if meant(key, value)]
        if len(likely) != 1:
            has = ", ".join(likely or fitting) or "nothing of the kind"
            raise InputError(
                f"{path}: name the {what}, {path}:NAME, {expected}; the file has {has}"
            )
        name = likely[0]
    if name in vars(module) and name not in fitting:
        kind = _kind(vars(module)[name], name in own)
        raise InputError(f"{reference} cannot be the {what}: it is {kind}; give {expected}")
    if name not in fitting:
        raise unknown(f"{what} in {path}:", name, fitting)
    return fitting[name]


def value_in_file(reference: str, what: str, expected: str) -> Any:
    """The value of any kind that `file.py:name` names.

    Args:
        reference: the reference, with a name.
        what: what the value is used as, for messages.
        expected: description of the values that fit, for messages.

    Raises:
        InputError: if the file has no such name, or cannot be imported.
    """
    path, _, name = reference.partition(":")
    module = _run(path)
    names = [key for key in vars(module) if not key.startswith("_")]
    if not name:
        raise InputError(
            f"{path}: name the {what}, {path}:NAME, {expected}; the file has "
            f"{', '.join(names) or 'none'}"
        )
    if name not in vars(module):
        raise unknown(f"{what} in {path}:", name, names)
    return vars(module)[name]


def _kind(value: object, is_own: bool) -> str:
    if isinstance(value, type) or inspect.isfunction(value):
        kind = "a class" if isinstance(value, type) else "a function"
        return kind if is_own else f"{kind} of another file"
    return f"a value of type {type(value).__name__}"


class _SourceLoader(SourceFileLoader):
    """Compiles a file at every import: Python's cached bytecode misses an edit within a second."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _run(path: str) -> ModuleType:
    """Import a file as a module, once per process and content; it may import files beside it."""
    name = f"user_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, path, loader=_SourceLoader(name, path))
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise InputError(f"{path}: no such Python file")
    key = Path(path).resolve(), Path(path).read_bytes()
    if key in _MODULES:
        return _MODULES[key]
    folder = str(Path(path).absolute().parent)
    if folder not in sys.path:
        sys.path.append(folder)  # last, so that files there do not hide installed packages
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        with exits_as_errors():
            spec.loader.exec_module(module)
    except Exception as error:
        if lacks_operators(error) and prepare_torchvision():
            return _run(path)
        raise InputError(
            f"{where(error) or f'{path}: '}{type(error).__name__} on import: {error}"
        ) from error
    _MODULES[key] = module
    return module


def installed(group: str) -> list[str]:
    """Names of the entry points of a group in installed packages."""
    return [point.name for point in entry_points(group=group)]


def from_package(group: str, name: str, base: type) -> type[Any] | None:
    """The subclass of `base` behind an installed package's entry point; None without such a point.

    Raises:
        InputError: if it cannot be imported, or is not a subclass of `base`.
    """
    for point in entry_points(group=group, name=name):
        where = f"entry point {name!r} of {group}"
        try:
            loaded = point.load()
        except Exception as error:
            raise InputError(f"{where}: {type(error).__name__} on import: {error}") from error
        if not _is_a(base, loaded):
            raise InputError(f"{where}: {point.value} is not a {base.__name__}")
        return loaded
    return None


def _is_a(base: type, value: object) -> bool:
    return isinstance(value, type) and issubclass(value, base)
