"""The weightless graph: what an architecture computes, without the numbers it has learned.

A `Graph` is a list of nodes over numbered values. Operators that own weights (`Conv`, `Linear`, `Param`, …) carry the
weights' shape as attributes instead of tensors. It is what a `Network` builds, what an ONNX model is read into, and
what text is printed from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

Dim = int | str
Shape = tuple[Dim, ...]
Value = int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]
Attrs = tuple[tuple[str, Value], ...]

BATCH = "N"
UNKNOWN = "?"  # a dimension that depends on the data


class Typed(tuple[Dim, ...]):
    """The shape of a value whose elements are not float: `Typed((BATCH, 16), "int64")`.

    A shape without it is float's, so float networks need not speak of types.
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
    """Name of the element type as ONNX text writes it: float, int64, bool, …"""
    return shape.element if isinstance(shape, Typed) else "float"


def typed(dims: Iterable[Dim], element: str) -> Shape:
    """The shape of a value with these dimensions and elements."""
    return tuple(dims) if element == "float" else Typed(dims, element)


class Node(NamedTuple):
    """One operator. `inputs` and `outputs` are value numbers; `scope` is what the node's name in a file begins with."""

    op: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attrs: Attrs = ()
    scope: tuple[str, ...] = ()


node: Callable[[tuple[str, tuple[int, ...], tuple[int, ...], Attrs, tuple[str, ...]]], Node] = partial(
    tuple.__new__, Node
)
"""A node of its fields, in a third of the time of `Node`: networks have hundreds."""


@dataclass(frozen=True)
class Graph:
    """Nodes in topological order. Values 0..len(inputs)-1 are the graph's inputs; the nodes' outputs follow in order.

    `shapes[v]` is the shape of value `v`, batch dimension `"N"` included. Other dimensions that are not known are
    letters (`"L"`), products (`"N_8"`), or `"?"` where they depend on the data.
    """

    inputs: tuple[int, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]
    shapes: tuple[Shape, ...]
