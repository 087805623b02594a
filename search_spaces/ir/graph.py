"""The weightless graph, the intermediate representation of an architecture.

A `Graph` is a list of nodes over numbered values. Operators that own weights (`Conv`, `Linear`,
`Param`, …) have the weights' shapes as attributes instead of tensors. `Network`, ONNX models and
PyTorch modules become graphs; texts and ONNX models are written from them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from search_spaces.common.errors import InputError

Dim = int | str
Shape = tuple[Dim, ...]
Value = int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]
Attrs = tuple[tuple[str, Value], ...]

BATCH = "N"
UNKNOWN = "?"  # a dimension that depends on the data
MAX_DEPTH = 32  # functions that call each other, and subgraphs in each other, of texts and models
MAX_NODES = 10_000  # of a network from a file, with functions and control flow written out


class Typed(tuple[Dim, ...]):
    """The shape of a value with another element type than float.

    An example is `Typed((BATCH, 16), "int64")`. A plain tuple is the shape of a float value.
    """

    element: str

    def __new__(cls, dims: Iterable[Dim], element: str) -> Typed:
        self = super().__new__(cls, dims)
        self.element = element
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Typed) and self.element == other.element and super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((self.element, tuple(self)))


def element_type(shape: Shape) -> str:
    """Name of the element type in ONNX text: float, int64, bool, …"""
    return shape.element if isinstance(shape, Typed) else "float"


def typed(dims: Iterable[Dim], element: str) -> Shape:
    """The shape of a value with these dimensions and this element type."""
    return tuple(dims) if element == "float" else Typed(dims, element)


def like(shape: Shape, dims: Iterable[Dim]) -> Shape:
    """The shape of a value with these dimensions and the element type of another value."""
    return typed(dims, element_type(shape))


class Node(NamedTuple):
    """One operator.

    Attributes:
        op: name of the operator.
        inputs: numbers of the values that it reads.
        outputs: numbers of the values that it produces.
        attrs: attributes, sorted by name.
        scope: names of the blocks around it, a prefix of its name in ONNX files.
    """

    op: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attrs: Attrs = ()
    scope: tuple[str, ...] = ()


node: Callable[[tuple[str, tuple[int, ...], tuple[int, ...], Attrs, tuple[str, ...]]], Node] = (
    partial(tuple.__new__, Node)
)
"""Create a node from a tuple of its fields; takes a third of the time of `Node`."""


@dataclass(frozen=True)
class Graph:
    """A network without weights.

    Attributes:
        inputs: numbers of the graph's inputs, 0 to len(inputs) - 1; the nodes' outputs follow in
            order.
        nodes: nodes in topological order.
        outputs: numbers of the graph's outputs.
        shapes: shape of every value, including the batch dimension `"N"`. Other unknown dimensions
            are symbols (`"L"`), products (`"N_8"`), or `"?"` if they depend on the data.
        output_names: of the outputs in ONNX files: the keys of the dictionary that a module
            returned; () for numbers. No part of the text, and of no comparison.
    """

    inputs: tuple[int, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]
    shapes: tuple[Shape, ...]
    output_names: tuple[str, ...] = field(default=(), compare=False)


# --- dimensions: numbers, symbols such as N and L, and products such as N_8 (8 · N) and N_L


def known_size(size: Dim) -> int:
    """The dimension as a number; InputError if it is symbolic."""
    if isinstance(size, str):
        raise InputError(
            f"a size that must be a number is {size!r}: export the model with that dimension fixed"
        )
    return size


def monomial(shape: Shape) -> tuple[int, Counter[str]]:
    """The product of the dimensions: its numerical factor, and the multiplicity of each symbol."""
    number = 1
    symbols = Counter[str]()
    for dim in shape:
        for factor in str(dim).split("_"):
            if factor.isdecimal():
                number *= int(factor)
            else:
                symbols[factor] += 1
    return number, symbols


def size_product(shape: Shape, divisor: int = 1, without: Counter[str] | None = None) -> Dim:
    """The product of the dimensions, divided by a number and by symbols.

    It is unknown if a dimension is.
    """
    if UNKNOWN in shape:
        return UNKNOWN
    number, symbols = monomial(shape)
    number //= divisor
    symbols -= without or Counter()
    if not symbols:
        return number
    # The batch size comes first, the number last: N_L_8.
    names = sorted(symbols.elements(), key=lambda symbol: (symbol != BATCH, symbol))
    if number != 1:
        names.append(str(number))
    return "_".join(names)


def size_quotient(shape: Shape, others: Shape) -> Dim:
    """The missing dimension of a reshape: elements of `shape` divided by the product of `others`.

    Raises:
        InputError: if the others do not divide the number of elements.
    """
    if UNKNOWN in (*shape, *others):
        return UNKNOWN
    total, symbols = monomial(shape)
    divisor, divided = monomial(others)
    if divisor == 0 or total % divisor or divided - symbols:
        raise InputError(f"Reshape from {shape} by {others} changes the number of values")
    return size_product(shape, divisor, divided)


def count(shape: Shape) -> int:
    """Number of elements for a batch of one; InputError if another dimension is not a number."""
    number, symbols = monomial(shape)
    symbols.pop(BATCH, None)
    if symbols:
        raise InputError(
            f"costs need numbers, but a shape is {list(shape)}: export the model with fixed sizes"
        )
    return number
