"""Fusion: neighbouring nodes that are one operator of the text's dialect become that operator.

Conv, BatchNorm                → ConvBn
Reshape, Transpose, Reshape    → ChannelShuffle
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from search_spaces.graph import Graph, Node, Shape
from search_spaces.operators import canonical_attrs


def fuse(graph: Graph) -> Graph:
    """The graph with fused nodes; independent of the order in which its nodes stand."""
    return _Fusion(graph).run()


class _Fusion:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.made: dict[int, Node] = {}
        self.uses = Counter(v for node in graph.nodes for v in node.inputs)
        self.uses.update(graph.outputs)
        self.swallowed: set[int] = set()

    def run(self) -> Graph:
        for node in self.graph.nodes:
            fused = self._fused(node)
            for value in fused.outputs:
                self.made[value] = fused
        kept = [node for node in dict.fromkeys(self.made.values()) if not self.swallowed & set(node.outputs)]
        return _renumbered(self.graph, kept)

    def _fused(self, node: Node) -> Node:
        if node.op == "BatchNorm":
            return self._conv_bn(node)
        if node.op == "Reshape":
            return self._channel_shuffle(node)
        return node

    def _private(self, value: int, op: str) -> Node | None:
        """The node that makes a value which nobody else reads, if it is of that operator."""
        node = self.made.get(value)
        return node if node is not None and node.op == op and self.uses[value] == 1 else None

    def _shapes(self, node: Node) -> tuple[Shape, ...]:
        return tuple(self.graph.shapes[v] for v in node.inputs)

    def _conv_bn(self, norm: Node) -> Node:
        conv = self._private(norm.inputs[0], "Conv")
        if conv is None or dict(conv.attrs).get("bias"):
            return norm
        self.swallowed.add(conv.outputs[0])
        attrs = canonical_attrs("ConvBn", (*conv.attrs, *norm.attrs), self._shapes(conv))
        return Node("ConvBn", conv.inputs, norm.outputs, attrs, _common(conv.scope, norm.scope))

    def _channel_shuffle(self, last: Node) -> Node:
        swap = self._private(last.inputs[0], "Transpose")
        first = self._private(swap.inputs[0], "Reshape") if swap else None
        if swap is None or first is None or dict(swap.attrs).get("perm") != (0, 2, 1, 3, 4):
            return last
        before, split = self.graph.shapes[first.inputs[0]], self.graph.shapes[first.outputs[0]]
        halves: tuple[Any, ...] = split[1:3]
        grouped = (*before[:1], halves[0] * halves[1], *split[3:])
        if not (before == grouped == self.graph.shapes[last.outputs[0]]):
            return last
        self.swallowed |= {first.outputs[0], swap.outputs[0]}
        scope = _common(_common(first.scope, swap.scope), last.scope)
        return Node("ChannelShuffle", first.inputs, last.outputs, (("groups", halves[0]),), scope)


def _common(a: tuple[str, ...], b: tuple[str, ...]) -> tuple[str, ...]:
    """The scope that holds both."""
    count = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return a[:count]


def _renumbered(graph: Graph, nodes: list[Node]) -> Graph:
    """A graph of these nodes alone, values numbered anew."""
    number = {value: i for i, value in enumerate(graph.inputs)}
    for node in nodes:
        for value in node.outputs:
            number[value] = len(number)
    shapes = [graph.shapes[value] for value in number]
    renamed = tuple(
        node._replace(inputs=tuple(number[v] for v in node.inputs), outputs=tuple(number[v] for v in node.outputs))
        for node in nodes
    )
    return Graph(graph.inputs, renamed, tuple(number[v] for v in graph.outputs), tuple(shapes))
