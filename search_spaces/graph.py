"""The weightless graph: what an architecture computes, without the numbers it has learned.

A `Graph` is a list of nodes over numbered values. Operators that own weights (`Conv`, `ConvBn`, `Linear`,
`BatchNorm`, `Param`) carry the weights' shape as attributes instead of tensors. It is what a `Network` builds, what an
ONNX model is read into, and what text is printed from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

Dim = int | str
Shape = tuple[Dim, ...]
Value = int | float | str | tuple[int, ...] | tuple[float, ...]
Attrs = tuple[tuple[str, Value], ...]

BATCH = "N"


class Node(NamedTuple):
    """One operator. `inputs` and `outputs` are value numbers; `scope` names the nested blocks the node stands in."""

    op: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attrs: Attrs = ()
    scope: tuple[str, ...] = ()


@dataclass(frozen=True)
class Graph:
    """Nodes in topological order. Values 0..len(inputs)-1 are the graph's inputs.

    `shapes[v]` is the shape of value `v`, batch dimension `"N"` included.
    """

    inputs: tuple[int, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]
    shapes: tuple[Shape, ...]
