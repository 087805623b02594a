"""Add known values to a graph as nodes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from search_spaces.common.errors import InputError
from search_spaces.ir import standard
from search_spaces.ir.graph import Attrs, Shape, Value, element_type
from search_spaces.ir.onnx.folding import Known, is_learnable, is_weight, open_sizes
from search_spaces.ir.standard import number, shortest

Emit = Callable[
    [str, tuple[int, ...], Attrs], int
]  # adds an operator with inputs and attributes; returns its value

MAX_WRITTEN_NUMBERS = 64  # longest constant whose numbers the text contains


def add_constant(emit: Emit, known: Known) -> int | None:
    """Add a known value; return the number of the value, or None if it is too long to be written.

    Long constants of one number, ranges of integers and triangular matrices are written as
    operators.
    """
    if is_weight(known):
        return add_param(emit, known)
    element, array = element_type(known.shape), known.static
    if array is not None and array.size <= MAX_WRITTEN_NUMBERS:
        return _written(emit, array, element)
    target = open_sizes(known)
    if known.values is not None and target is not None and _is_filled(known.values):
        fill = known.values[0].flat[0].item()
        if can_fill(fill, element):
            return add_filled(emit, fill, target, element)
    return (
        None if array is None else _range(emit, array, element) or _triangle(emit, array, element)
    )


def add_param(emit: Emit, known: Known) -> int | None:
    """Add a learned tensor; None for integers, whose numbers are part of the architecture."""
    if not is_learnable(known):
        return None
    shape = tuple(map(int, known.shape)) or (1,)
    element = element_type(known.shape)
    return emit(
        "Param",
        (),
        (("shape", shape),) if element == "float" else (("element", element), ("shape", shape)),
    )


def add_buffer(emit: Emit, shape: Shape, array: np.ndarray | None) -> int:
    """Add a constant that is too long to be written: its shape, and the limit of non-negative
    integers if known.

    Raises:
        InputError: if the shape is not fixed.
    """
    if not all(isinstance(size, int) for size in shape):
        raise InputError(
            "a constant with an open size is too long to be written: export the model with fixed "
            "sizes"
        )
    attrs: dict[str, Value] = {"shape": tuple(map(int, shape))}
    if (element := element_type(shape)) != "float":
        attrs["element"] = element
    if array is not None and array.dtype.kind in "iu" and array.min() >= 0:
        attrs["limit"] = int(array.max()) + 1
    return emit("Buffer", (), tuple(sorted(attrs.items())))


def can_fill(fill: float, element: str) -> bool:
    """False for an integer that float32 cannot represent: `add_filled` writes the number as a
    float.
    """
    return element == "float" or int(np.float32(fill)) == fill


def add_filled(emit: Emit, fill: float, target: tuple[int, ...], element: str) -> int:
    """Add a constant filled with one number; `target` is its shape, with 0 for the batch size."""
    return _cast(
        emit, emit("Expand", (), (("input", number(fill)), ("shape", target))), "float", element
    )


def _cast(emit: Emit, value: int, made: str, element: str) -> int:
    return value if made == element else emit("Cast", (value,), (("to", standard.enum(element)),))


def _reshaped(emit: Emit, value: int, shape: tuple[int, ...]) -> int:
    return value if len(shape) == 1 else emit("Reshape", (value,), (("shape", shape),))


def _written(emit: Emit, array: np.ndarray, element: str) -> int:
    """Add a `Constant` with the numbers of an array."""
    whole = array.dtype.kind in "biu"
    numbers = tuple([int(v) if whole else shortest(float(v)) for v in array.ravel()])
    kind = "int" if whole else "float"
    given: Attrs = (
        ((f"value_{kind}", numbers[0]),) if array.ndim == 0 else ((f"value_{kind}s", numbers),)
    )
    value = emit("Constant", (), given)
    if array.ndim > 1:
        value = _reshaped(emit, value, array.shape)
    return _cast(emit, value, "int64" if whole else "float", element)


def _is_filled(values: tuple[np.ndarray, np.ndarray]) -> bool:
    """True if all numbers are equal, at both assumed sizes."""
    first = values[0].flat[0] if values[0].size else None
    return (
        first is not None
        and first == first
        and all(a.size > 0 and bool((a == first).all()) for a in values)
    )


def _range(emit: Emit, array: np.ndarray, element: str) -> int | None:
    """Add evenly spaced integers, such as positions; None for other arrays."""
    flat = array.ravel()
    if array.dtype.kind not in "iu" or flat.size < 2:
        return None
    start, step = int(flat[0]), int(flat[1]) - int(flat[0])
    limit = start + step * flat.size
    if (
        step == 0
        or max(abs(start), abs(limit)) >= 1 << 24
        or not np.array_equal(flat, np.arange(start, limit, step))
    ):
        return None
    value = emit("Range", (), (("delta", step), ("limit", limit), ("start", start)))
    return _cast(emit, _reshaped(emit, value, array.shape), "float", element)


def _triangle(emit: Emit, array: np.ndarray, element: str) -> int | None:
    """Add a triangular matrix of one number, such as the mask of causal attention; None for other
    arrays.
    """
    if array.ndim < 2 or array.shape[-1] * array.shape[-2] != array.size:
        return None
    if not array.any():
        return None
    fill = array.flat[np.flatnonzero(array)[0]]
    for upper in (0, 1):
        for k in (0, 1, -1):
            cut = np.triu if upper else np.tril
            if np.array_equal(array, cut(np.full_like(array, fill), k)):
                whole = emit("Expand", (), (("input", number(fill.item())), ("shape", array.shape)))
                return _cast(
                    emit, emit("Trilu", (whole,), (("k", k), ("upper", upper))), "float", element
                )
    return None
