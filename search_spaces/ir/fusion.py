"""Fusion: replace neighbouring nodes by one operator of the text's dialect.

Conv, BatchNorm                → ConvBn
ConvBn, Clip from 0 to 6       → ConvBnRelu6
Linear, Add of a Param         → Linear with bias
Reshape, InstanceNormalization, Reshape, Mul, Add of Params    → GroupNormalization
Reshape, Transpose, Reshape    → ChannelShuffle, or Transpose of the last two dimensions
Transpose, Transpose           → Transpose
x / √2, Erf, + 1, · x, · ½     → Gelu
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

from search_spaces.ir.graph import Attrs, Graph, Node, Shape
from search_spaces.ir.ops import canonical_attrs
from search_spaces.ir.standard import shortest


def fuse(graph: Graph) -> Graph:
    """The graph after fusion; the result does not depend on the order of the nodes."""
    ops = {node.op for node in graph.nodes}
    rules = {
        op: rule for op, (rule, first) in _RULES.items() if op in ops and not ops.isdisjoint(first)
    }
    return _Fusion(graph, rules).run() if rules else _renumbered(graph, graph.nodes)


class _Fusion:
    """Applies rules to the nodes of a graph in order."""

    def __init__(self, graph: Graph, rules: dict[str, Rule]) -> None:
        self.graph, self.rules = graph, rules
        self.made = {value: node for node in graph.nodes for value in node.outputs}
        self.swallowed: set[int] = set()

    @cached_property
    def uses(self) -> Counter[int]:
        """How often each value is read. Most networks that might be fused never get here."""
        return Counter(
            [*chain.from_iterable([node.inputs for node in self.graph.nodes]), *self.graph.outputs]
        )

    def run(self) -> Graph:
        nodes = [self._made(node) if node.op in self.rules else node for node in self.graph.nodes]
        if self.swallowed:
            nodes = [node for node in nodes if self.swallowed.isdisjoint(node.outputs)]
        return _renumbered(self.graph, nodes)

    def _made(self, node: Node) -> Node:
        fused = self._fused(node)
        if fused is not node:
            self.made.update(dict.fromkeys(fused.outputs, fused))
        return fused

    def _fused(self, node: Node) -> Node:
        fused = self.rules[node.op](self, node) if node.op in self.rules else node
        return fused if fused.op == node.op else self._fused(fused)

    def _private(self, value: int, op: str) -> Node | None:
        """The node that produces a value, if it is of operator `op` and the value is read once."""
        node = self.made.get(value)
        return node if node is not None and node.op == op and self.uses[value] == 1 else None

    def _shapes(self, node: Node) -> tuple[Shape, ...]:
        return tuple(self.graph.shapes[v] for v in node.inputs)

    def _conv_bn(self, norm: Node) -> Node:
        conv = self._private(norm.inputs[0], "Conv")
        if conv is None or len(conv.inputs) > 1:  # a kernel that other operators read, too
            return norm
        attrs = canonical_attrs("ConvBn", (*conv.attrs, *norm.attrs), self._shapes(conv))
        return self._replace((conv,), norm, "ConvBn", conv.inputs, attrs)

    def _relu6(self, clip: Node) -> Node:
        conv = self._private(clip.inputs[0], "ConvBn")
        if conv is None or clip.attrs != _RELU6:
            return clip
        return self._replace((conv,), clip, "ConvBnRelu6", conv.inputs, conv.attrs)

    def _operands(self, node: Node | None, op: str, other: str) -> tuple[Node, Node] | None:
        """The nodes of operators `op` and `other` that produce the operands of a commutative node,
        in either order.
        """
        if node is None or len(node.inputs) != 2:
            return None
        for left, right in (node.inputs, node.inputs[::-1]):
            found = self._private(left, op), self._private(right, other)
            if found[0] is not None and found[1] is not None:
                return found[0], found[1]
        return None

    def _replace(
        self, inner: tuple[Node, ...], last: Node, op: str, inputs: tuple[int, ...], attrs: Attrs
    ) -> Node:
        """One node that replaces `last` and the `inner` nodes, which only `last` depends on."""
        self.swallowed.update(node.outputs[0] for node in inner)
        return Node(op, inputs, last.outputs, attrs, last.scope)

    def _sum(self, add: Node) -> Node:
        if found := self._operands(add, "Linear", "Param"):
            linear, param = found
            features = dict(linear.attrs)["features"]
            if not dict(linear.attrs).get("bias", 1) and dict(param.attrs)["shape"] == (features,):
                return self._replace(found, add, "Linear", linear.inputs, (("features", features),))
        if found := self._operands(add, "Mul", "Param"):
            return self._group_norm(add, *found)
        return add

    def _group_norm(self, add: Node, product: Node, shift: Node) -> Node:
        """Group normalization as exporters write it: InstanceNormalization of groups, then scale
        and shift.
        """
        found = self._operands(product, "Reshape", "Param")
        norm = self._private(found[0].inputs[0], "InstanceNormalization") if found else None
        groups = self._private(norm.inputs[0], "Reshape") if norm else None
        if not found or not norm or not groups or len(groups.inputs) != 1:
            return add
        before, split, after = (
            self.graph.shapes[n] for n in (groups.inputs[0], groups.outputs[0], add.outputs[0])
        )
        weight: Attrs = (("shape", (*before[1:2], *[1 for _ in before[2:]])),)  # type: ignore[assignment]
        if before != after or len(split) != 3 or not found[1].attrs == shift.attrs == weight:
            return add
        attrs = tuple([(name, value) for name, value in norm.attrs if name == "epsilon"])
        inner = (groups, norm, *found, product, shift)
        return self._replace(
            inner, add, "GroupNormalization", groups.inputs, (*attrs, ("num_groups", int(split[1])))
        )

    def _channel_shuffle(self, last: Node) -> Node:
        swap = self._private(last.inputs[0], "Transpose") if len(last.inputs) == 1 else None
        first = self._private(swap.inputs[0], "Reshape") if swap else None
        if swap is None or first is None or len(first.inputs) != 1:
            return last
        before, split, after = (
            self.graph.shapes[v] for v in (first.inputs[0], first.outputs[0], last.outputs[0])
        )
        op, attrs = _swapped(before, split, dict(swap.attrs).get("perm"), after)
        if not op:
            return last
        return self._replace((first, swap), last, op, first.inputs, attrs)

    def _transpose(self, last: Node) -> Node:
        first = self._private(last.inputs[0], "Transpose")
        if first is None:
            return last
        rank = len(self.graph.shapes[last.outputs[0]])
        inner, outer = (
            dict(node.attrs).get("perm", tuple(range(rank))[::-1]) for node in (first, last)
        )
        perm = tuple([inner[axis] for axis in outer])  # type: ignore[index, union-attr]
        if perm == tuple(range(rank)):
            return last
        attrs = canonical_attrs("Transpose", (("perm", perm),), self._shapes(first))
        return self._replace((first,), last, "Transpose", first.inputs, attrs)

    def _gelu(self, last: Node) -> Node:
        """x · ½ · (1 + erf(x / √2))"""
        product = (
            self._private(last.inputs[0], "Mul")
            if last.attrs == _HALF and len(last.inputs) == 1
            else None
        )
        for x, other in zip(product.inputs, product.inputs[::-1], strict=True) if product else ():
            add = self._private(other, "Add")
            erf = self._private(add.inputs[0], "Erf") if add and add.attrs == _ONE else None
            ratio = self._private(erf.inputs[0], "Div") if erf else None
            if product and add and erf and ratio and ratio.attrs == _ROOT and ratio.inputs == (x,):
                return self._replace((ratio, erf, add, product), last, "Gelu", (x,), ())
        return last


Rule = Callable[[_Fusion, Node], Node]
_RULES: dict[str, tuple[Rule, tuple[str, ...]]] = {
    "Add": (_Fusion._sum, ("Param",)),
    "BatchNorm": (_Fusion._conv_bn, ("Conv",)),
    "Clip": (_Fusion._relu6, ("Conv", "ConvBn")),
    "Mul": (_Fusion._gelu, ("Erf",)),
    "Reshape": (_Fusion._channel_shuffle, ("Transpose",)),
    "Transpose": (_Fusion._transpose, ("Transpose",)),
}
"""Per operator, the rule for a pattern that ends with it, and operators of which the graph must have at least one."""
_RELU6: Attrs = (("max", 6), ("min", 0))
_HALF: Attrs = (("B", 0.5),)
_ONE: Attrs = (("B", 1),)
_ROOT: Attrs = (("B", shortest(2**0.5)),)


def _swapped(before: Shape, split: Shape, perm: Any, after: Shape) -> tuple[str, Attrs]:
    """The operator equal to a Reshape, a Transpose and a Reshape, and its attributes; "" if there
    is none.
    """
    if (
        perm == (0, 2, 1, 3, 4)
        and before == after
        and split[:1] + split[3:] == before[:1] + before[2:]
    ):
        return "ChannelShuffle", (("groups", split[1]),)
    if (
        perm == (0, 2, 1)
        and len(before) == 4
        and split[1:] == before[2:] == after[:1:-1]
        and before[:2] == after[:2]
    ):
        return "Transpose", (("perm", (0, 1, 3, 2)),)
    return "", ()


def _renumbered(graph: Graph, nodes: Sequence[Node]) -> Graph:
    """The graph reduced to these nodes, with values renumbered."""
    values = [*graph.inputs, *chain.from_iterable([node.outputs for node in nodes])]
    if values == list(range(len(graph.shapes))):  # nothing was fused
        return graph
    number = {value: i for i, value in enumerate(values)}
    renamed = [
        node._replace(
            inputs=tuple([number[v] for v in node.inputs]),
            outputs=tuple([number[v] for v in node.outputs]),
        )
        for node in nodes
    ]
    shapes = tuple([graph.shapes[value] for value in number])
    return Graph(graph.inputs, tuple(renamed), tuple([number[v] for v in graph.outputs]), shapes)
