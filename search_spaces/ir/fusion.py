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
from typing import Any, NamedTuple

from search_spaces.ir.graph import Attrs, Graph, Node, Shape
from search_spaces.ir.ops import canonical_attrs
from search_spaces.ir.precision import precision_of
from search_spaces.ir.standard import shortest


def fuse(graph: Graph) -> Graph:
    """The graph after fusion; the result does not depend on the order of the nodes."""
    ops = {node.op for node in graph.nodes}
    rules = {}
    for op, (rule, beginnings) in _RULES.items():
        if op in ops and not ops.isdisjoint(beginnings):
            rules[op] = rule
    if not rules:
        return _renumbered(graph, graph.nodes)
    return _Fusion(graph, rules).run()


class _Shapes(NamedTuple):
    """Shapes before a Reshape, after it, and behind the last node of a pattern."""

    before: Shape
    split: Shape
    after: Shape


class _Fusion:
    """Applies rules to the nodes of a graph in order.

    Attributes:
        makers: the node that produces each value, after fusion.
        swallowed: values of nodes that others replace.
    """

    def __init__(self, graph: Graph, rules: dict[str, Rule]) -> None:
        self.graph = graph
        self.rules = rules
        self.makers = {value: node for node in graph.nodes for value in node.outputs}
        self.swallowed: set[int] = set()

    @cached_property
    def uses(self) -> Counter[int]:
        """How often each value is read. Most networks that might be fused never get here."""
        inputs = chain.from_iterable([node.inputs for node in self.graph.nodes])
        return Counter([*inputs, *self.graph.outputs])

    def run(self) -> Graph:
        nodes = []
        for node in self.graph.nodes:
            nodes.append(self._fused(node) if node.op in self.rules else node)
        if self.swallowed:
            nodes = [node for node in nodes if self.swallowed.isdisjoint(node.outputs)]
        return _renumbered(self.graph, nodes)

    def _fused(self, node: Node) -> Node:
        """The node that replaces a node and those before it.

        The result of one rule may end another pattern: Conv, BatchNorm, Clip.
        """
        fused = node
        while fused.op in self.rules:
            before = fused
            fused = self.rules[before.op](self, before)
            if fused.op == before.op:
                break
        if fused is not node:
            self.makers.update(dict.fromkeys(fused.outputs, fused))
        return fused

    def _replaced(
        self,
        inner: tuple[Node, ...],
        last: Node,
        op: str,
        inputs: tuple[int, ...],
        attrs: Attrs,
    ) -> Node:
        """One node that replaces `last` and the `inner` nodes, which only `last` depends on."""
        self.swallowed.update(node.outputs[0] for node in inner)
        return Node(op, inputs, last.outputs, attrs, last.scope)

    # --- what is before a node

    def _private(self, value: int, op: str) -> Node | None:
        """The node that produces a value, if it is of operator `op` and the value is read once."""
        node = self.makers.get(value)
        if node is None or node.op != op or self.uses[value] != 1:
            return None
        return node

    def _only_input(self, node: Node | None, op: str) -> Node | None:
        """The node before a node with one input, under the same conditions."""
        if node is None or len(node.inputs) != 1:
            return None
        return self._private(node.inputs[0], op)

    def _operands(self, node: Node | None, op: str, other: str) -> tuple[Node, Node] | None:
        """The nodes of operators `op` and `other` that produce the operands of a commutative node.

        They may stand in either order.
        """
        if node is None or len(node.inputs) != 2:
            return None
        for left, right in (node.inputs, node.inputs[::-1]):
            first = self._private(left, op)
            second = self._private(right, other)
            if first is not None and second is not None:
                return first, second
        return None

    def _input_shapes(self, node: Node) -> tuple[Shape, ...]:
        return tuple([self.graph.shapes[value] for value in node.inputs])

    def _shapes_around(self, first: Node, last: Node) -> _Shapes:
        """The shapes of a pattern that begins with a Reshape."""
        shapes = self.graph.shapes
        return _Shapes(
            before=shapes[first.inputs[0]],
            split=shapes[first.outputs[0]],
            after=shapes[last.outputs[0]],
        )

    # --- rules: they return the last node of a pattern, or what replaces it

    def _conv_bn(self, norm: Node) -> Node:
        """Conv, BatchNorm"""
        conv = self._private(norm.inputs[0], "Conv")
        if conv is None or len(conv.inputs) > 1:  # a kernel that other operators read, too
            return norm
        attrs = canonical_attrs("ConvBn", (*conv.attrs, *norm.attrs), self._input_shapes(conv))
        return self._replaced((conv,), norm, "ConvBn", conv.inputs, attrs)

    def _relu6(self, clip: Node) -> Node:
        """ConvBn, Clip from 0 to 6"""
        conv = self._private(clip.inputs[0], "ConvBn")
        if conv is None or clip.attrs != _RELU6:
            return clip
        return self._replaced((conv,), clip, "ConvBnRelu6", conv.inputs, conv.attrs)

    def _sum(self, add: Node) -> Node:
        """A bias, or the shift of a group normalization"""
        if operands := self._operands(add, "Linear", "Param"):
            linear, param = operands
            attrs = dict(linear.attrs)
            features = attrs["features"]
            has_bias = attrs.get("bias", 1)
            is_vector = dict(param.attrs)["shape"] == (features,)
            if is_vector and not has_bias:
                with_bias: Attrs = (("features", features), *precision_of(linear.attrs))
                return self._replaced(operands, add, "Linear", linear.inputs, with_bias)
        if operands := self._operands(add, "Mul", "Param"):
            return self._group_norm(add, *operands)
        return add

    def _group_norm(self, add: Node, product: Node, shift: Node) -> Node:
        """Group normalization as exporters write it.

        InstanceNormalization of groups, then scale and shift.
        """
        # 1. Reshape to (N, groups, -1), InstanceNormalization, Reshape back, Mul, Add.
        operands = self._operands(product, "Reshape", "Param")
        if operands is None:
            return add
        joined, scale = operands
        norm = self._private(joined.inputs[0], "InstanceNormalization")
        groups = self._private(norm.inputs[0], "Reshape") if norm else None
        if norm is None or groups is None or len(groups.inputs) != 1:
            return add
        before, split, after = self._shapes_around(groups, add)
        if before != after or len(split) != 3:
            return add

        # 2. Scale and shift have one number per channel: (channels, 1, 1).
        channels = before[1:2]
        ones = [1] * len(before[2:])
        per_channel: Attrs = (("shape", (*channels, *ones)),)  # type: ignore[assignment]
        if not scale.attrs == shift.attrs == per_channel:
            return add

        # 3. One node.
        epsilon = [(name, value) for name, value in norm.attrs if name == "epsilon"]
        attrs: Attrs = (*epsilon, ("num_groups", int(split[1])))
        inner = (groups, norm, joined, scale, product, shift)
        return self._replaced(inner, add, "GroupNormalization", groups.inputs, attrs)

    def _channel_shuffle(self, last: Node) -> Node:
        """Reshape, Transpose, Reshape"""
        swap = self._only_input(last, "Transpose")
        first = self._private(swap.inputs[0], "Reshape") if swap else None
        if swap is None or first is None or len(first.inputs) != 1:
            return last
        perm = dict(swap.attrs).get("perm")
        op, attrs = _swapped(self._shapes_around(first, last), perm)
        if not op:
            return last
        return self._replaced((first, swap), last, op, first.inputs, attrs)

    def _transpose(self, last: Node) -> Node:
        """Transpose, Transpose"""
        first = self._private(last.inputs[0], "Transpose")
        if first is None:
            return last
        rank = len(self.graph.shapes[last.outputs[0]])
        axes = tuple(range(rank))
        reverse = axes[::-1]  # what Transpose does without an order
        inner: Any = dict(first.attrs).get("perm", reverse)
        outer: Any = dict(last.attrs).get("perm", reverse)
        perm = tuple([inner[axis] for axis in outer])
        if perm == axes:
            return last
        attrs = canonical_attrs("Transpose", (("perm", perm),), self._input_shapes(first))
        return self._replaced((first,), last, "Transpose", first.inputs, attrs)

    def _gelu(self, last: Node) -> Node:
        """x · ½ · (1 + erf(x / √2))"""
        if last.attrs != _HALF:
            return last
        product = self._only_input(last, "Mul")
        if product is None:
            return last
        # The operands of the product are x and 1 + erf(x / √2), in either order.
        for x, other in zip(product.inputs, product.inputs[::-1], strict=True):
            add = self._private(other, "Add")
            if add is None or add.attrs != _ONE:
                continue
            erf = self._private(add.inputs[0], "Erf")
            ratio = self._private(erf.inputs[0], "Div") if erf else None
            if erf is None or ratio is None:
                continue
            if ratio.attrs == _ROOT and ratio.inputs == (x,):
                return self._replaced((ratio, erf, add, product), last, "Gelu", (x,), ())
        return last


Rule = Callable[[_Fusion, Node], Node]
# Per operator, the rule for a pattern that ends with it, and operators of which the graph must have
# at least one
_RULES: dict[str, tuple[Rule, tuple[str, ...]]] = {
    "Add": (_Fusion._sum, ("Param",)),
    "BatchNorm": (_Fusion._conv_bn, ("Conv",)),
    "Clip": (_Fusion._relu6, ("Conv", "ConvBn")),
    "Mul": (_Fusion._gelu, ("Erf",)),
    "Reshape": (_Fusion._channel_shuffle, ("Transpose",)),
    "Transpose": (_Fusion._transpose, ("Transpose",)),
}
_RELU6: Attrs = (("max", 6), ("min", 0))
_HALF: Attrs = (("B", 0.5),)
_ONE: Attrs = (("B", 1),)
_ROOT: Attrs = (("B", shortest(2**0.5)),)


def _swapped(shapes: _Shapes, perm: Any) -> tuple[str, Attrs]:
    """The operator equal to a Reshape, a Transpose and a Reshape.

    Args:
        shapes: shapes of the pattern.
        perm: order of the axes in Transpose.

    Returns:
        The operator, and its attributes; "" if there is none.
    """
    before, split, after = shapes

    # 1. (N, C, H, W) → (N, groups, C / groups, H, W) → swapped → (N, C, H, W)
    if perm == (0, 2, 1, 3, 4) and len(before) == 4 and before == after:
        batch, _, *positions = before
        split_batch, groups, _, *split_positions = split
        if (split_batch, split_positions) == (batch, positions):
            return "ChannelShuffle", (("groups", groups),)

    # 2. (N, heads, H, W) → (N · heads, H, W) → swapped → (N, heads, W, H)
    if perm == (0, 2, 1) and len(before) == 4:
        batch, heads, height, width = before
        keeps_positions = split[1:] == (height, width)
        if keeps_positions and tuple(after) == (batch, heads, width, height):
            return "Transpose", (("perm", (0, 1, 3, 2)),)
    return "", ()


def _renumbered(graph: Graph, nodes: Sequence[Node]) -> Graph:
    """The graph reduced to these nodes, with values renumbered."""
    outputs_of_nodes = chain.from_iterable([node.outputs for node in nodes])
    values = [*graph.inputs, *outputs_of_nodes]
    if values == list(range(len(graph.shapes))):  # nothing was fused
        return graph
    number = {value: i for i, value in enumerate(values)}
    renamed = []
    for node in nodes:
        inputs = tuple([number[value] for value in node.inputs])
        outputs = tuple([number[value] for value in node.outputs])
        renamed.append(node._replace(inputs=inputs, outputs=outputs))
    return Graph(
        inputs=graph.inputs,
        nodes=tuple(renamed),
        outputs=tuple([number[value] for value in graph.outputs]),
        shapes=tuple([graph.shapes[value] for value in values]),
        output_names=graph.output_names,
    )
