"""Values that a function depends on besides its code: closures, defaults, bound arguments and
attributes.

They are encoded as short texts that are equal in every process, so that a search that resumes can
compare them. What has no such text, such as a data loader, a path or an open file, is listed as
unknown instead.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import sys
import textwrap
import types
from argparse import Namespace
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass
from enum import Enum
from pathlib import PurePath
from typing import Any

import numpy as np

from search_spaces.common.errors import is_users_file

MAX_DEPTH = 8  # of nested containers and objects
MAX_ITEMS = 100_000  # of one value, nested ones included
FLOATS = "float array"  # such values may differ in their last bits between processors
_DIGITS = 16  # hexadecimal digits of a digest
_PLAIN = (bool, int, float, complex, str, bytes, tuple, list, dict, set, Enum)
_BY_REPR = (
    "range",
    "slice",
    "date",
    "datetime",
    "time",
    "timedelta",
    "Decimal",
    "Fraction",
    "dtype",
    "device",
    "Size",
)


@dataclass(frozen=True)
class BoundValues:
    """Values of a function by name.

    Attributes:
        known: texts of the values, in words if they are short, else digests.
        unknown: types of values that cannot be compared.
    """

    known: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)


def bound_values(function: Callable[..., Any], with_module: bool = False) -> BoundValues:
    """The values that a function is bound to.

    Args:
        function: a function, a method, a `functools.partial`, or an object with `__call__`.
        with_module: include the code, and plain values and functions of the module that the code
            names. Leave it out if the module's file is compared as a whole.
    """
    return _encoded(_bound(function, with_module), with_module)


def attribute_values(owner: object, without: Container[str] = ()) -> BoundValues:
    """Values of an object's own attributes.

    Left out are cached properties, private attributes and those in `without`.
    """
    return _encoded(
        ((name, value) for name, value in _attributes(owner) if name not in without),
        with_module=False,
    )


def _encoded(named: Iterable[tuple[str, Any]], with_module: bool) -> BoundValues:
    values = BoundValues()
    for name, value in named:
        encoder = _Encoder(with_module)
        text = encoder.encode(value)
        values.unknown.update({f"{name}{path}": kind for path, kind in encoder.unknown.items()})
        if "" not in encoder.unknown:
            values.known[name] = _short(value, text, encoder.has_float_arrays)
    return values


def _bound(function: Any, with_module: bool) -> Iterator[tuple[str, Any]]:
    """Names and values that a function is bound to."""
    if isinstance(function, functools.partial):
        yield from ((f"argument {i}", value) for i, value in enumerate(function.args, 1))
        yield from function.keywords.items()
        yield from _bound(function.func, with_module)
    elif inspect.ismethod(function):
        yield from ((f"self.{name}", value) for name, value in _attributes(function.__self__))
        yield from _bound(function.__func__, with_module)
    elif inspect.isfunction(function):
        if with_module:
            yield "code", _code(function)
        yield from _closure(function)
        signature = inspect.signature(function, follow_wrapped=False)
        for parameter in signature.parameters.values():
            if parameter.default is not parameter.empty:
                yield f"default of {parameter.name}", parameter.default
        if with_module:
            yield from _module_values(function)
    elif hasattr(function, "__dict__") and not isinstance(function, type):
        yield from _bound(types.MethodType(type(function).__call__, function), with_module)


def _closure(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Variables of enclosing functions that a function uses."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        if value is not function:
            yield name, value


def _module_values(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Names and values of what a function's code uses from its module.

    Only plain values and the user's own functions and classes count.
    """
    for name in sorted(_names(function.__code__)):
        value = function.__globals__.get(name)
        is_code = isinstance(value, types.FunctionType | type) and _is_users(value)
        if isinstance(value, _PLAIN) or (is_code and value is not function):
            yield f"{name} of the module", value


def _names(code: types.CodeType) -> set[str]:
    """Global names in the code of a function and of the functions inside it."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _attributes(owner: object) -> Iterator[tuple[str, Any]]:
    for name, value in getattr(owner, "__dict__", {}).items():
        cached = isinstance(
            inspect.getattr_static(type(owner), name, None), functools.cached_property
        )
        if not cached and not name.startswith("_"):
            yield name, value


def _short(value: Any, text: str, has_float_arrays: bool) -> str:
    """A number as it is; of anything else, which may be long or secret, a digest."""
    if value is None or isinstance(value, bool | int | float):
        return text
    kind = FLOATS if has_float_arrays else type(value).__name__
    return f"{kind} {_digest(text.encode())}"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:_DIGITS]


class _Encoder:
    """Encodes one value.

    Attributes:
        unknown: types of the parts that cannot be encoded, by their path such as `.loader` or
            `['data']`.
        has_float_arrays: the value has an array of floating-point numbers.
    """

    def __init__(self, with_module: bool) -> None:
        self.with_module = with_module
        self.unknown: dict[str, str] = {}
        self.has_float_arrays = False
        self._inside: set[int] = set()  # ids of the containers around the present part
        self._items = 0

    def encode(self, value: Any, path: str = "") -> str:
        """A text that is equal for equal values. `path` leads from the whole value to this part."""
        self._items += 1
        if self._items > MAX_ITEMS or len(self._inside) > MAX_DEPTH:
            return self._give_up(path, value)
        is_plain = value is None or isinstance(value, bool | int | str | bytes | complex)
        if is_plain and not isinstance(value, Enum):
            return repr(value)
        if isinstance(value, float):
            return f"{value:.12g}"
        if id(value) in self._inside:
            return "itself"
        self._inside.add(id(value))
        try:
            return self._encode_compound(value, path)
        finally:
            self._inside.remove(id(value))

    def _encode_compound(self, value: Any, path: str) -> str:
        kind = type(value).__name__
        if isinstance(value, Enum):
            return f"{type(value).__qualname__}.{value.name}"
        if isinstance(value, Mapping):
            pairs = {
                self.encode(key, path): self.encode(item, f"{path}[{key!r}]")
                for key, item in value.items()
            }
            entries = ", ".join(f"{key}: {pairs[key]}" for key in sorted(pairs))
            return f"{{{entries}}}"
        if isinstance(value, tuple | list):
            items = [self.encode(item, f"{path}[{i}]") for i, item in enumerate(value)]
            return f"{kind}({', '.join(items)})"
        if isinstance(value, set | frozenset):
            items = sorted(self.encode(item, path) for item in value)  # sets have no order
            return f"{kind}({', '.join(items)})"
        if isinstance(value, np.generic):
            return self.encode(value.item(), path)
        if isinstance(value, np.ndarray) and value.dtype != object:
            return self._encode_array(value)
        if (torch := sys.modules.get("torch")) and isinstance(value, torch.Tensor):
            return self._encode_tensor(value)
        if kind in _BY_REPR:
            return repr(value)
        if isinstance(value, types.ModuleType | types.BuiltinFunctionType | np.ufunc):
            return f"{kind} {value.__name__}"
        if isinstance(value, types.FunctionType | types.MethodType | functools.partial):
            return self._encode_function(value, path)
        if isinstance(value, type):
            code = _code(value) if _is_users(value) else ""
            return f"{value.__module__}.{value.__qualname__} {code}"
        if isinstance(value, PurePath) or not self._is_plain_object(value):
            return self._give_up(path, value)
        parts = [
            f"{name}={self.encode(item, f'{path}.{name}')}" for name, item in _attributes(value)
        ]
        return f"{type(value).__qualname__}({', '.join(parts)})"

    def _encode_array(self, array: np.ndarray) -> str:
        self.has_float_arrays |= array.dtype.kind in "fc"
        return f"{array.dtype}{list(array.shape)} {_digest(np.ascontiguousarray(array).tobytes())}"

    def _encode_tensor(self, tensor: Any) -> str:
        import torch

        self.has_float_arrays |= tensor.is_floating_point()
        content = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        return f"{tensor.dtype}{list(tensor.shape)} {_digest(content)}"

    def _encode_function(self, function: Any, path: str) -> str:
        parts = [
            f"{name}={self.encode(value, f'{path}.{name}')}"
            for name, value in _bound(function, self.with_module)
        ]
        inner = function.func if isinstance(function, functools.partial) else function
        name = getattr(inner, "__qualname__", type(inner).__name__)
        is_users = isinstance(inner, types.FunctionType | types.MethodType) and _is_users(inner)
        return f"{name} {_code(inner) if is_users else ''}({', '.join(parts)})"

    def _is_plain_object(self, value: object) -> bool:
        """True if a value's state is in its attributes.

        That holds for objects of the user's classes and for simple containers.
        """
        simple = isinstance(value, Namespace | types.SimpleNamespace) or is_dataclass(value)
        return hasattr(value, "__dict__") and (simple or _is_users(type(value)))

    def _give_up(self, path: str, value: object) -> str:
        self.unknown[path] = type(value).__name__
        return type(value).__name__


def _is_users(code: Any) -> bool:
    """True for a function or class that is neither installed nor part of this project."""
    try:
        return is_users_file(inspect.getfile(inspect.unwrap(code)))
    except (TypeError, OSError, ValueError):  # built in, or typed at a prompt
        return getattr(code, "__module__", "") == "__main__"


def _code(code: Any) -> str:
    """Digest of the code of a function or class, without comments and layout."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
        return _digest(ast.dump(tree).encode())
    except (OSError, TypeError, SyntaxError, ValueError):  # a part of a line, or typed at a prompt
        return _digest(repr(_instructions(getattr(code, "__code__", None))).encode())


def _instructions(code: types.CodeType | None) -> object:
    """Instructions, names and constants of compiled code."""
    if code is None:
        return None
    constants: list[object] = []
    for constant in code.co_consts:
        is_code = isinstance(constant, types.CodeType)
        constants.append(_instructions(constant) if is_code else constant)
    return code.co_code, code.co_names, code.co_varnames, constants
