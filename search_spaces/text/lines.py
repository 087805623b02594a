"""The nodes of a graph as lines, whose values count from their own: what recurs in a graph is the same object."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

from search_spaces.graph.ir import Attrs, Graph, Value
from search_spaces.text.blocks import PARAMETRIC, ItemAttrs, Ref

Label = tuple[str, str, int]
"""Operator, attributes and number of inputs."""


@dataclass(eq=False, slots=True)
class Line:
    """A node of a graph.

    Values count from the node's first output on: `inputs` are negative. `reads`: every input once, and how often it is
    read. `uses`: how often each output is read. `numbers`: the parametric values of the attributes. `label`: what the
    nodes of repeated blocks have in common.
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
        """The attributes with the ranks of their parametric numbers instead of these."""
        if not self.numbers:
            return self.attrs
        return tuple([(name, ranks[value] if name in PARAMETRIC else value) for name, value in self.attrs])


def placed_lines(graph: Graph) -> list[tuple[int, Line]]:
    """The graph's nodes as lines with their first values."""
    uses = Counter([*chain.from_iterable([node.inputs for node in graph.nodes]), *graph.outputs])
    lines = []
    for op, inputs, outputs, attrs, _ in graph.nodes:
        first = outputs[0]
        read = (inputs[0] - first,) if len(inputs) == 1 else tuple([value - first for value in inputs])
        made = (uses[first],) if len(outputs) == 1 else tuple([uses[value] for value in outputs])
        lines.append((first, _line(op, attrs, read, made)))
    return lines


@lru_cache(maxsize=16384)
def _line(op: str, attrs: Attrs, inputs: tuple[int, ...], uses: tuple[int, ...]) -> Line:
    numbers = tuple([value for name, value in attrs if name in PARAMETRIC])
    reads = tuple(Counter(inputs).items())
    return Line(op, attrs, inputs, tuple(range(len(uses))), reads, uses, numbers, _label(op, attrs, len(inputs)))


@lru_cache(maxsize=4096)
def _label(op: str, attrs: Attrs, inputs: int) -> Label:
    return (op, repr([(name, None if name in PARAMETRIC else value) for name, value in attrs]), inputs)
