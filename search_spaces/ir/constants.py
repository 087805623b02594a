"""Constants of a network that is read from a file or recorded: what is known of them, and how a
graph shows them.

Only the shape of a weight is part of an architecture. Of every other constant the numbers are: short
ones are written out, regular ones become operators, long ones are buffers.

Sizes may be open, such as the batch size N. Two different numbers are assumed for every open size.
A result that is equal for both is a constant; one that differs depends on an open size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod

import numpy as np
import onnx

from search_spaces.common.errors import InputError
from search_spaces.ir import standard
from search_spaces.ir.graph import BATCH, UNKNOWN, Attrs, Dim, Shape, Value, element_type, typed
from search_spaces.ir.standard import number, shortest

MAX_ELEMENTS = 1 << 18  # of a constant whose numbers are read
MAX_WRITTEN_NUMBERS = 64  # longest constant whose numbers the text contains
MAX_FILL = 1 << 24  # integers below are exact in float32

# Symbols of open sizes, and the sizes assumed for them: primes, so that their products are
# distinct, too.
_ASSUMED: dict[str, tuple[int, int]] = {
    BATCH: (7, 11),
    "L": (13, 17),
    "M": (19, 23),
    "K": (29, 31),
    "P": (37, 41),
    "Q": (43, 47),
    "R": (53, 59),
    "S": (61, 67),
}
LETTERS = tuple(_ASSUMED)
_MODULE_PATH = re.compile(r"(.*/)?\w+(\.\w+)+")  # 0.gate.bias
_QUANTIZED_ELEMENTS = frozenset({"int4", "int8", "uint4", "uint8"})


# --- known values


@dataclass
class Known:
    """A value that is known without running the model.

    Attributes:
        shape: its shape.
        computed: its arrays at the first and second assumed sizes, if it was computed.
        tensor: its tensor in the file, if it was not.
        learned: True if it comes from an initializer, unless that is a setting.
        placed: True if an operator reads it where weights belong, see
            `search_spaces.ir.onnx.weight_uses`.
        sources: name and number of elements of the initializers that it was computed from.
    """

    shape: Shape
    computed: tuple[np.ndarray, np.ndarray] | None = None
    tensor: onnx.TensorProto | None = None
    learned: bool = False
    placed: bool = False
    sources: frozenset[tuple[str, int]] = frozenset()

    @cached_property
    def values(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The arrays at the first and second assumed sizes.

        None for learned numbers, which are not read.
        """
        if self.tensor is None:
            return self.computed
        try:
            array = onnx.numpy_helper.to_array(self.tensor)
        except (ValueError, TypeError) as error:
            raise InputError(f"tensor {self.tensor.name!r} is damaged: {error}") from error
        return array, array

    @property
    def static(self) -> np.ndarray | None:
        """The array; None if it depends on open sizes, or was not read."""
        if self.values is None:
            return None
        first, second = self.values
        if first is second:
            return first
        equal = np.array_equal(first, second, equal_nan=first.dtype.kind == "f")
        return first if equal else None

    @property
    def is_whole(self) -> bool:
        """True if it has as many elements as the initializers that it was computed from."""
        if not self.sources:
            return True
        return prod(map(int, self.shape)) == sum(count for _, count in self.sources)


def read_tensor(tensor: onnx.TensorProto, learned: bool) -> Known:
    """A tensor of the file as a known value; numbers of large or external tensors are not read.

    Raises:
        InputError: if a dimension is negative.
    """
    dims = tuple(tensor.dims)
    shape = typed(dims, standard.element_name(tensor.data_type))
    if min(dims, default=1) < 0:
        raise InputError(f"tensor {tensor.name!r} has negative dimensions {list(dims)}")
    is_external = tensor.data_location == onnx.TensorProto.EXTERNAL
    if prod(dims) > MAX_ELEMENTS or is_external:
        return Known(shape, learned=True)
    return Known(shape, tensor=tensor, learned=learned)


def constant(array: np.ndarray, element: str) -> Known:
    """A known value that does not depend on open sizes."""
    return Known(typed(array.shape, element), (array, array))


def is_weight(known: Known) -> bool:
    """True for a learned tensor, of which only the shape is part of the architecture.

    The numbers of scalars and integers are part of the architecture, unless they are in the place
    of weights, or a scalar is a module's parameter.
    """
    if not known.learned:
        return False
    if known.placed:
        return True
    if is_learnable(known) and (prod(map(int, known.shape)) > 1 or _is_parameter(known)):
        return True
    return known.values is None  # too large to be read


def _is_parameter(known: Known) -> bool:
    """True for a parameter's name in torch's exports (`0.gate.bias`) or ours (`F1/Linear.bias`)."""
    name = known.tensor.name if known.tensor is not None else ""
    is_constant = "constant" in name.split(".")  # Paddle: helper.constant.0
    return bool(_MODULE_PATH.fullmatch(name)) and not is_constant


def is_learnable(known: Known) -> bool:
    """True if the value has an element type of weights: a float or a quantized one."""
    if known.placed:
        return True
    element = element_type(known.shape)
    return "float" in element or element == "double" or element in _QUANTIZED_ELEMENTS


def uniform_number(known: Known) -> float | None:
    """The number of which a tensor consists; None if there are several, or they are not read."""
    array = known.static
    if array is None or array.size == 0:
        return None
    first = array.flat[0]
    return float(first) if bool((array == first).all()) else None


# --- open sizes


def assumed(shape: Shape) -> list[tuple[int, int]] | None:
    """Every dimension at the first and second assumed sizes.

    None if a dimension depends on the data.
    """
    return None if UNKNOWN in shape else [_assumed_sizes(dim) for dim in shape]


@cache
def _assumed_sizes(dim: Dim) -> tuple[int, int]:
    first = second = 1
    for factor in str(dim).split("_"):
        if factor.isdecimal():
            a = b = int(factor)
        else:
            a, b = _ASSUMED[factor]
        first *= a
        second *= b
    return first, second


def from_assumed(first: np.ndarray, second: np.ndarray, element: str) -> Known:
    """A known value with these arrays at the first and second assumed sizes."""
    dims = [_open_dim(a, b) for a, b in zip(first.shape, second.shape, strict=True)]
    return Known(typed(dims, element), (first, second))


def _open_dim(first: int, second: int) -> Dim:
    """The dimension with these numbers at the first and second assumed sizes."""
    if first == second:
        return first
    for letter, (a, b) in _ASSUMED.items():
        factor, rest = divmod(first, a)
        if rest == 0 and second == factor * b:
            return letter if factor == 1 else f"{letter}_{factor}"
    return UNKNOWN


def sizes(known: Known) -> tuple[int, ...] | None:
    """The numbers of a known list of sizes, with 0 for the batch size.

    None if it has other open sizes.
    """
    if known.values is None or len(known.shape) != 1:
        return None
    first, second = known.values
    return _with_batch(first.tolist(), second.tolist())


def open_sizes(known: Known) -> tuple[int, ...] | None:
    """The shape of a known value, with 0 for the batch size; None if it has other open sizes."""
    if known.values is None:
        return None
    first, second = known.values
    return _with_batch(first.shape, second.shape)


def _with_batch(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...] | None:
    dims = []
    for a, b in zip(first, second, strict=True):
        if a == b:
            dims.append(a)
        elif (a, b) == _ASSUMED[BATCH]:
            dims.append(0)
        else:
            return None
    return tuple(dims)


# --- constants as nodes

Emit = Callable[[str, tuple[int, ...], Attrs], int]
"""Adds an operator with inputs and attributes to a graph; returns the number of its value."""


def add_constant(emit: Emit, known: Known) -> int | None:
    """Add a known value to a graph.

    Returns:
        The number of the value; None if it is too long to be written, and not regular.
    """
    if is_weight(known):
        return add_param(emit, known)
    element = element_type(known.shape)
    array = known.static
    # 1. Short constants are written out.
    if array is not None and array.size <= MAX_WRITTEN_NUMBERS:
        return _add_numbers(emit, array, element)
    # 2. One number that fills a shape is an Expand, also of an open batch size.
    target = open_sizes(known)
    if known.values is not None and target is not None and _is_filled(known.values):
        fill = known.values[0].flat[0].item()
        if can_fill(fill, element):
            return add_filled(emit, fill, target, element)
    # 3. Positions are a Range, the masks of causal attention a Trilu.
    if array is None:
        return None
    return _add_range(emit, array, element) or _add_triangle(emit, array, element)


def add_param(emit: Emit, known: Known) -> int | None:
    """Add a learned tensor; None for integers, whose numbers are part of the architecture."""
    if not is_learnable(known):
        return None
    attrs: Attrs = (("shape", tuple(map(int, known.shape)) or (1,)),)
    element = element_type(known.shape)
    if element != "float":
        attrs = (("element", element), *attrs)
    return emit("Param", (), attrs)


def add_buffer(emit: Emit, shape: Shape, array: np.ndarray | None) -> int:
    """Add a constant that is too long to be written.

    The graph has its shape, and the limit of non-negative integers if they are known.

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
    """False for an integer that float32 cannot hold: `add_filled` writes a number as a float."""
    return element == "float" or int(np.float32(fill)) == fill


def add_filled(
    emit: Emit,
    fill: float,
    target: tuple[int, ...],
    element: str,
) -> int:
    """Add a constant filled with one number; `target` is its shape, with 0 for the batch size."""
    filled = emit("Expand", (), (("input", number(fill)), ("shape", target)))
    return _cast(emit, filled, "float", element)


def _add_numbers(emit: Emit, array: np.ndarray, element: str) -> int:
    """Add a `Constant` with the numbers of an array."""
    numbers: tuple[int, ...] | tuple[float, ...]
    if array.dtype.kind in "biu":
        kind, written_as = "int", "int64"
        numbers = tuple([int(item) for item in array.ravel()])
    else:
        kind = written_as = "float"
        numbers = tuple([shortest(float(item)) for item in array.ravel()])
    if array.ndim == 0:
        value = emit("Constant", (), ((f"value_{kind}", numbers[0]),))
    else:
        value = emit("Constant", (), ((f"value_{kind}s", numbers),))
    if array.ndim > 1:
        value = _reshape(emit, value, array.shape)
    return _cast(emit, value, written_as, element)


def _is_filled(values: tuple[np.ndarray, np.ndarray]) -> bool:
    """True if all numbers are equal, at both assumed sizes."""
    if not values[0].size:
        return False
    first = values[0].flat[0]
    if first != first:  # NaN
        return False
    return all(array.size > 0 and bool((array == first).all()) for array in values)


def _add_range(emit: Emit, array: np.ndarray, element: str) -> int | None:
    """Add evenly spaced integers, such as positions; None for other arrays."""
    flat = array.ravel()
    if array.dtype.kind not in "iu" or flat.size < 2:
        return None
    start, second = int(flat[0]), int(flat[1])
    step = second - start
    limit = start + step * flat.size
    if step == 0 or max(abs(start), abs(limit)) >= MAX_FILL:
        return None
    if not np.array_equal(flat, np.arange(start, limit, step)):
        return None
    value = emit("Range", (), (("delta", step), ("limit", limit), ("start", start)))
    value = _reshape(emit, value, array.shape)
    return _cast(emit, value, "float", element)


def _add_triangle(emit: Emit, array: np.ndarray, element: str) -> int | None:
    """Add a triangular matrix of one number, such as the mask of causal attention.

    None for other arrays.
    """
    # 1. One matrix, perhaps with further dimensions of 1 before it, that is not zero.
    is_one_matrix = array.ndim >= 2 and array.shape[-2] * array.shape[-1] == array.size
    if not is_one_matrix or not array.any():
        return None

    # 2. Its triangle: a matrix of its first number that is not zero, cut in six ways.
    first = np.flatnonzero(array)[0]
    fill = array.flat[first]
    filled = np.full_like(array, fill)
    for upper, cut in enumerate((np.tril, np.triu)):
        for diagonal in (0, 1, -1):
            if np.array_equal(array, cut(filled, diagonal)):
                attrs: Attrs = (("input", number(fill.item())), ("shape", array.shape))
                whole = emit("Expand", (), attrs)
                triangle = emit("Trilu", (whole,), (("k", diagonal), ("upper", upper)))
                return _cast(emit, triangle, "float", element)
    return None


def _cast(
    emit: Emit,
    value: int,
    source: str,
    target: str,
) -> int:
    """The value with another element type."""
    if source == target:
        return value
    return emit("Cast", (value,), (("to", standard.enum(target)),))


def _reshape(emit: Emit, value: int, shape: tuple[int, ...]) -> int:
    return value if len(shape) == 1 else emit("Reshape", (value,), (("shape", shape),))
