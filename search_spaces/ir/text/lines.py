"""The nodes of a graph as lines with relative value numbers, so that recurring nodes are the same
object.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

from search_spaces.ir.graph import Attrs, Graph, Value
from search_spaces.ir.text.blocks import PARAMETRIC, ItemAttrs, Ref

Label = tuple[str, str, int]
"""Operator, attributes and number of inputs."""


@dataclass(eq=False, slots=True)
class Line:
    """A node of a graph. Value numbers are relative to the first output of the node, so `inputs`
    are negative.

    Attributes:
        reads: each distinct input, and how often the node reads it.
        uses: how often each output is read.
        numbers: values of the attributes that may be parameters of a function.
        label: equal for nodes that may correspond in two calls of a function.
        size: number of nodes.
    """

    op: str
    attrs: Attrs
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    reads: tuple[tuple[int, int], ...]
    uses: tuple[int, ...]
    numbers: tuple[Value, ...]
    label: Label
    size = 1

    def ranked(self, ranks: Mapping[Value, Ref]) -> ItemAttrs:
        """The attributes, with the values that may be parameters replaced by their `ranks`."""
        if not self.numbers:
            return self.attrs
        return tuple(
            [(name, ranks[value] if name in PARAMETRIC else value) for name, value in self.attrs]
        )


def placed_lines(graph: Graph) -> list[tuple[int, Line]]:
    """The nodes of the graph as lines, each with the number of its first output."""
    uses = Counter([*chain.from_iterable([node.inputs for node in graph.nodes]), *graph.outputs])
    lines = []
    for op, inputs, outputs, attrs, _ in graph.nodes:
        first = outputs[0]
        read = (
            (inputs[0] - first,) if len(inputs) == 1 else tuple([value - first for value in inputs])
        )
        made = (uses[first],) if len(outputs) == 1 else tuple([uses[value] for value in outputs])
        lines.append((first, _line(op, attrs, read, made)))
    return lines


@lru_cache(maxsize=16384)
def _line(op: str, attrs: Attrs, inputs: tuple[int, ...], uses: tuple[int, ...]) -> Line:
    numbers = tuple([value for name, value in attrs if name in PARAMETRIC])
    reads = tuple(Counter(inputs).items())
    return Line(
        op,
        attrs,
        inputs,
        tuple(range(len(uses))),
        reads,
        uses,
        numbers,
        _label(op, attrs, len(inputs)),
    )


@lru_cache(maxsize=4096)
def _label(op: str, attrs: Attrs, inputs: int) -> Label:
    return (
        op,
        repr([(name, None if name in PARAMETRIC else value) for name, value in attrs]),
        inputs,
    )
