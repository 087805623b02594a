"""The weightless graph, the intermediate representation of an architecture.

A `Graph` is a list of nodes over numbered values. Operators that own weights (`Conv`, `Linear`,
`Param`, …) have the weights' shapes as attributes instead of tensors. `Network`, ONNX models and
PyTorch modules become graphs; texts and ONNX models are written from them.
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
    """The shape of a value with another element type than float, for example `Typed((BATCH, 16),
    "int64")`.

    A plain tuple is the shape of a float value.
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
    """

    inputs: tuple[int, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]
    shapes: tuple[Shape, ...]
