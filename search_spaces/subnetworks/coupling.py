"""Which positions of which tensors belong together: every operator states the equalities of its
axes.

`couple` gives every value of a graph its axes as expressions over atoms (`axes`). Afterwards an
atom that is not fixed may be shortened everywhere at once. Operators without a rule fix all atoms
that they read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

from search_spaces.ir.graph import BATCH, Dim, Graph, Node, Shape
from search_spaces.ir.ops.convolution import convolution
from search_spaces.ir.ops.recurrent import RECURRENT
from search_spaces.ir.pytorch.recorder import BATCH_SIZE
from search_spaces.subnetworks.axes import (
    Atom,
    Axis,
    concat,
    cut,
    fix,
    is_fixed,
    product,
    unify,
)
from search_spaces.subnetworks.reading import Reading

Axes = tuple[Axis, ...]

# Operators that treat all elements alike.
_ELEMENTWISE = frozenset(
    {"Abs", "Acos", "Asin", "Atan", "Cast", "Ceil", "Celu", "Clip", "Cos", "Cosh", "Elu", "Erf", "Exp", "Floor", "Gelu",
     "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN", "LeakyRelu", "Log", "Mish", "Neg", "Not", "Reciprocal",
     "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Swish",
     "Tan", "Tanh", "ThresholdedRelu", "Zero"}
)  # fmt: skip
_BROADCASTING = frozenset(
    {"Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod",
     "Mul", "Or", "PRelu", "Pow", "Sub", "Sum", "Where", "Xor"}
)  # fmt: skip
_SPATIAL = frozenset(
    {"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "LpPool", "GlobalLpPool"}
)


class Role(NamedTuple):
    """What a weight does.

    Attributes:
        value: the weight in the graph of weights.
        makes: its axes along which it makes channels.
        reads: its axes along which it reads channels.
        owner: output value of the operator that owns it; None for a weight that is a value of its
            own.
    """

    value: int
    makes: tuple[Axis, ...]
    reads: tuple[Axis, ...] = ()
    owner: int | None = None


@dataclass
class Coupling:
    """The axes of a network.

    Attributes:
        axes: of every value of the graph, by its number.
        weights: of every value of the graph of weights, by its number.
        groups: number of groups of convolutions and group normalizations, by the operator's output
            value.
        cuts: for every Slice, by output value, and axis: what stands before the slice, and the
            slice.
        normalized: atoms over which an operator computes a statistic: removing even zeros changes
            its result.
        contracted: atoms that two values of the graph are multiplied along, such as queries and
            keys.
        roles: what each weight does.
    """

    axes: dict[int, Axes] = field(default_factory=dict)
    weights: dict[int, Axes] = field(default_factory=dict)
    groups: dict[int, Axis] = field(default_factory=dict)
    cuts: dict[int, dict[int, tuple[Axis | None, Axis]]] = field(default_factory=dict)
    normalized: list[Axis] = field(default_factory=list)
    contracted: list[Axis] = field(default_factory=list)
    roles: list[Role] = field(default_factory=list)


def couple(reading: Reading) -> Coupling:
    """The axes of all values of a network that was read."""
    coupling = Coupling()
    _Walk(reading.weight_graph, coupling, coupling.weights, reading, weights=True).run()
    _Walk(reading.graph, coupling, coupling.axes, reading, weights=False).run()
    return coupling


def fixed(size: int, reason: str) -> Axis:
    """A new axis that stays whole."""
    return Atom(size, reason)


def fresh(dim: Dim, reason: str = "") -> Axis:
    """A new axis for a dimension of a shape; the batch is a factor that stays."""
    parts = [BATCH_SIZE if part == BATCH else int(part) for part in str(dim).split("_")]
    return product(
        [Atom(part, reason or ("the batch" if part == BATCH_SIZE else "")) for part in parts]
    )


class _Walk:
    """Applies the rules to the nodes of a graph in order."""

    def __init__(
        self,
        graph: Graph,
        coupling: Coupling,
        axes: dict[int, Axes],
        reading: Reading,
        weights: bool,
    ) -> None:
        self.graph, self.coupling, self.axes, self.reading, self.weights = (
            graph,
            coupling,
            axes,
            reading,
            weights,
        )
        self.dynamic = set(graph.inputs)  # values that depend on the input

    def run(self) -> None:
        for value in self.graph.inputs:
            self.axes[value] = tuple(
                [fresh(dim, "an axis of the input") for dim in self.graph.shapes[value]]
            )
        for node in self.graph.nodes:
            number = node.outputs[0]
            if not self.dynamic.isdisjoint(node.inputs):
                self.dynamic.add(number)
            self.axes[number] = self._made(node)
            shape = tuple([_number(dim) for dim in self.graph.shapes[number]])
            made = tuple([axis.size for axis in self.axes[number]])
            assert made == shape, f"{node.op}: axes {made}, but shape {shape}"
        for value in self.graph.outputs:
            for axis in self.axes[value]:
                fix(axis, "an output of the network")

    def _made(self, node: Node) -> Axes:
        rule = _RULES.get(node.op)
        if node.op in _ELEMENTWISE and len(node.inputs) == 1:
            rule = _elementwise
        elif node.op in _BROADCASTING:
            rule = _broadcasting
        elif node.op in _SPATIAL and not any(name == "output" for name, _ in node.attrs):
            rule = _pooling
        return (rule or _unknown)(self, node)

    def shape(self, value: int) -> Shape:
        return self.graph.shapes[value]

    def new_axes(self, node: Node, reason: str) -> Axes:
        return tuple([fresh(dim, reason) for dim in self.shape(node.outputs[0])])

    def unify(self, a: Axis, b: Axis, node: Node) -> None:
        unify(a, b, f"{node.op} arranges it in another way")

    def owned(self, node: Node) -> list[Axes | None]:
        """Axes of the weights that a node owns; None for a weight that is not followed to
        parameters.
        """
        values = self.reading.owned.get(node.outputs[0])
        return [None if value is None else self.coupling.weights[value] for value in values or ()]

    def note(
        self, node: Node, index: int, makes: Sequence[Axis], reads: Sequence[Axis] = ()
    ) -> None:
        """Note the role of a weight that a node owns."""
        value = self.reading.owned[node.outputs[0]][index]
        if value is not None:
            self.coupling.roles.append(Role(value, tuple(makes), tuple(reads), node.outputs[0]))


Rule = Callable[[_Walk, Node], Axes]


def _number(dim: Dim) -> int:
    return prod(BATCH_SIZE if part == BATCH else int(part) for part in str(dim).split("_"))


def _unknown(walk: _Walk, node: Node) -> Axes:
    for value in node.inputs:
        for axis in walk.axes[value]:
            fix(axis, f"an operator {node.op} reads it")
    return walk.new_axes(node, f"an operator {node.op} makes it")


# --- operators without weights
# ---------------------------------------------------------------------------------------


def _elementwise(walk: _Walk, node: Node) -> Axes:
    axes = walk.axes[node.inputs[0]]
    if walk.weights and node.outputs[0] in walk.reading.standardized:
        walk.coupling.normalized += axes[1:]
    return axes


def _broadcasting(walk: _Walk, node: Node) -> Axes:
    """Equal axes are one; an axis of size 1 is repeated. Numbers that are written for each position
    fix it.
    """
    shape = walk.shape(node.outputs[0])
    written = any(isinstance(value, tuple) and len(value) > 1 for _, value in node.attrs)
    made: list[Axis] = []
    for place, dim in enumerate(shape):
        axes = []
        for value in node.inputs:
            own = walk.axes[value]
            at = place - (len(shape) - len(own))
            if at >= 0 and own[at].size != 1:
                axes.append(own[at])
        for axis in axes[1:]:
            walk.unify(axes[0], axis, node)
        axis = axes[0] if axes else fresh(dim, "" if dim == 1 else "constant numbers")
        if written and place == len(shape) - 1:
            fix(axis, "constant numbers")
        if written and axis.size > 1 and place != len(shape) - 1:
            fix(axis, "constant numbers")
        made.append(axis)
    return tuple(made)


def _pooling(walk: _Walk, node: Node) -> Axes:
    own, shape = walk.axes[node.inputs[0]], walk.shape(node.outputs[0])
    for axis in own[2:]:
        if node.op.startswith("Global"):  # it may be a mean over channels, which stand last
            walk.coupling.normalized.append(axis)
        else:
            fix(axis, f"an operator {node.op} reads windows of it")
    return (*own[:2], *[fixed(_number(d), "an axis of the image") for d in shape[2:]])


def _reducing(walk: _Walk, node: Node) -> Axes:
    attrs = dict(node.attrs)
    own = walk.axes[node.inputs[0]]
    if len(node.inputs) > 1:
        return _unknown(walk, node)
    chosen: Any = attrs.get("axes", attrs.get("axis", tuple(range(len(own)))))
    axes = {axis % len(own) for axis in ((chosen,) if isinstance(chosen, int) else chosen)}
    keeps = bool(attrs.get("keepdims", 1))
    walk.coupling.normalized += [own[axis] for axis in axes]
    if node.op in ("ArgMax", "ArgMin"):
        for axis in axes:
            fix(own[axis], f"an operator {node.op} reads its positions")
    return tuple(
        [
            fixed(1, "size 1") if i in axes else axis
            for i, axis in enumerate(own)
            if keeps or i not in axes
        ]
    )


def _softmax(walk: _Walk, node: Node) -> Axes:
    own = walk.axes[node.inputs[0]]
    at = int(dict(node.attrs).get("axis", -1))  # type: ignore[arg-type]
    fix(own[at], f"a {node.op} along it")
    return own


def _transpose(walk: _Walk, node: Node) -> Axes:
    own = walk.axes[node.inputs[0]]
    perm: Any = dict(node.attrs).get("perm", range(len(own))[::-1])
    return tuple([own[axis] for axis in perm])


def _reshape(walk: _Walk, node: Node) -> Axes:
    """Blocks of axes before and after with the same number of elements are equal products."""
    before = list(walk.axes[node.inputs[0]])
    dims = walk.shape(node.outputs[0])
    made: list[Axis] = []
    i = j = 0
    while j < len(dims) or i < len(before):
        # 1. Axes of size 1 have no partner.
        if j < len(dims) and dims[j] == 1:
            made.append(fixed(1, "size 1"))
            j += 1
            continue
        if i < len(before) and before[i].size == 1:
            i += 1
            continue
        # 2. The smallest block with as many elements before as after.
        first, last = i + 1, j + 1
        left, right = before[i].size, _number(dims[j])
        while left != right:
            if left < right:
                left *= before[first].size
                first += 1
            else:
                right *= _number(dims[last])
                last += 1
        # 3. Its products are equal.
        if first - i == last - j == 1:
            made.append(before[i])
        else:
            whole = product(before[i:first])
            reason = "an axis of the input" if is_fixed(whole) else ""
            block = [fresh(dim, reason) for dim in dims[j:last]]
            walk.unify(product(block), whole, node)
            made += block
        i, j = first, last
    return tuple(made)


def _squeeze(walk: _Walk, node: Node) -> Axes:
    own = walk.axes[node.inputs[0]]
    chosen: Any = dict(node.attrs).get(
        "axes", tuple([i for i, axis in enumerate(own) if axis.size == 1])
    )
    axes = {axis % len(own) for axis in chosen}
    return tuple([axis for i, axis in enumerate(own) if i not in axes])


def _unsqueeze(walk: _Walk, node: Node) -> Axes:
    own = list(walk.axes[node.inputs[0]])
    rank = len(walk.shape(node.outputs[0]))
    chosen: Any = dict(node.attrs)["axes"]
    for axis in sorted(axis % rank for axis in chosen):
        own.insert(axis, fixed(1, "size 1"))
    return tuple(own)


def _concat(walk: _Walk, node: Node) -> Axes:
    rank = len(walk.shape(node.outputs[0]))
    at = int(dict(node.attrs)["axis"]) % rank  # type: ignore[arg-type]
    parts = [walk.axes[value] for value in node.inputs]
    for place in range(rank):
        for other in parts[1:]:
            if place != at:
                walk.unify(parts[0][place], other[place], node)
    joined = concat([part[at] for part in parts])
    return tuple([joined if place == at else axis for place, axis in enumerate(parts[0])])


def _slice(walk: _Walk, node: Node) -> Axes:
    attrs: dict[str, Any] = dict(node.attrs)
    own = list(walk.axes[node.inputs[0]])
    shape = walk.shape(node.outputs[0])
    steps = attrs.get("steps", (1,) * len(attrs["axes"]))
    cuts: dict[int, tuple[Axis | None, Axis]] = {}
    for axis, start, end, step in zip(
        attrs["axes"], attrs["starts"], attrs["ends"], steps, strict=True
    ):
        whole, size = own[axis], _number(shape[axis])
        if step != 1:
            fix(whole, "a slice with a step")
            own[axis] = fixed(size, "a slice with a step")
            continue
        parts = _middle(whole, start, min(end, whole.size))
        if parts is None:
            fix(whole, "a slice inside of a group")
            own[axis] = fixed(size, "a slice inside of a group")
            continue
        cuts[axis] = parts
        own[axis] = parts[1]
    walk.coupling.cuts[node.outputs[0]] = cuts
    return tuple(own)


def _middle(axis: Axis, start: int, end: int) -> tuple[Axis | None, Axis] | None:
    """What stands before positions start to end - 1 (None: nothing), and these positions."""
    before, rest = (None, axis) if start == 0 else cut(axis, start) or (None, None)
    if rest is None:
        return None
    if end == axis.size:
        return before, rest
    parts = cut(rest, end - start)
    return None if parts is None else (before, parts[0])


def _gather(walk: _Walk, node: Node) -> Axes:
    attrs = dict(node.attrs)
    data = walk.axes[node.inputs[0]]
    at = int(attrs.get("axis", 0)) % len(data)  # type: ignore[arg-type]
    fix(data[at], "an index into it")
    rank = len(walk.shape(node.outputs[0])) - len(data) + 1
    shape = walk.shape(node.outputs[0])
    if len(node.inputs) > 1:
        index = walk.axes[node.inputs[1]]
    else:
        index = tuple([fresh(dim, "an index") for dim in shape[at : at + rank]])
    return (*data[:at], *index, *data[at + 1 :])


def _expand(walk: _Walk, node: Node) -> Axes:
    shape = walk.shape(node.outputs[0])
    own = walk.axes[node.inputs[0]] if node.inputs else ()
    made = []
    for place, dim in enumerate(shape):
        at = place - (len(shape) - len(own))
        stays = at >= 0 and own[at].size == _number(dim)
        # Repeated numbers are equal: their positions can be removed as those that they meet.
        made.append(own[at] if stays else fresh(dim))
    return tuple(made)


def _tile(walk: _Walk, node: Node) -> Axes:
    repeats: Any = dict(node.attrs).get("repeats")
    if repeats is None:
        return _unknown(walk, node)
    own = walk.axes[node.inputs[0]]
    return tuple(
        [product([fixed(n, "repetitions"), axis]) for n, axis in zip(repeats, own, strict=True)]
    )


def _pad(walk: _Walk, node: Node) -> Axes:
    pads: Any = dict(node.attrs).get("pads")
    if pads is None or len(node.inputs) > 1:
        return _unknown(walk, node)
    own, shape = walk.axes[node.inputs[0]], walk.shape(node.outputs[0])
    made = []
    for place, axis in enumerate(own):
        if pads[place] or pads[place + len(own)]:
            fix(axis, "padding along it")
            axis = fixed(_number(shape[place]), "padding along it")
        made.append(axis)
    return tuple(made)


def _resize(walk: _Walk, node: Node) -> Axes:
    attrs: dict[str, Any] = dict(node.attrs)
    own, shape = walk.axes[node.inputs[0]], walk.shape(node.outputs[0])
    if len(node.inputs) > 1 or "axes" not in attrs:
        return _unknown(walk, node)
    return tuple(
        [
            fixed(_number(shape[i]), "an axis of the image") if i in attrs["axes"] else axis
            for i, axis in enumerate(own)
        ]
    )


def _matmul(walk: _Walk, node: Node) -> Axes:
    left, right = (walk.axes[value] for value in node.inputs)
    if len(left) < 2 or len(right) < 2:
        return _unknown(walk, node)
    walk.unify(left[-1], right[-2], node)
    if not walk.weights and walk.dynamic.issuperset(node.inputs):
        walk.coupling.contracted.append(left[-1])
    rank = max(len(left), len(right))
    batch: list[Axis] = []
    for place in range(rank - 2):
        pair = [axes[place - rank] for axes in (left, right) if len(axes) >= rank - place]
        wide = [axis for axis in pair if axis.size != 1]
        if len(wide) == 2:
            walk.unify(wide[0], wide[1], node)
        batch.append(wide[0] if wide else fixed(1, "size 1"))
    return (*batch, left[-2], right[-1])


def _einsum(walk: _Walk, node: Node) -> Axes:
    equation = str(dict(node.attrs)["equation"]).replace(" ", "")
    inputs, _, output = equation.partition("->")
    terms = inputs.split(",")
    if "..." in equation or not output or any(len(set(term)) < len(term) for term in terms):
        return _unknown(walk, node)
    known: dict[str, Axis] = {}
    for term, value in zip(terms, node.inputs, strict=True):
        for letter, axis in zip(term, walk.axes[value], strict=True):
            if letter in known:
                walk.unify(known[letter], axis, node)
            known.setdefault(letter, axis)
    if not walk.weights and walk.dynamic.issuperset(node.inputs):
        walk.coupling.contracted += [axis for letter, axis in known.items() if letter not in output]
    return tuple([known[letter] for letter in output])


def _shuffle(walk: _Walk, node: Node) -> Axes:
    own = walk.axes[node.inputs[0]]
    groups = int(dict(node.attrs)["groups"])  # type: ignore[arg-type]
    slow, fast = fixed(groups, "groups of a channel shuffle"), Atom(own[1].size // groups)
    walk.unify(own[1], product([slow, fast]), node)
    return (own[0], product([fast, slow]), *own[2:])


def _depth_to_space(walk: _Walk, node: Node) -> Axes:
    attrs = dict(node.attrs)
    own, shape = walk.axes[node.inputs[0]], walk.shape(node.outputs[0])
    block = int(attrs["blocksize"])  # type: ignore[arg-type]
    if attrs.get("mode") != "CRD":
        return _unknown(walk, node)
    channels = Atom(own[1].size // block**2)
    walk.unify(own[1], product([channels, fixed(block**2, "pixels of a block")]), node)
    return (own[0], channels, *[fixed(_number(d), "an axis of the image") for d in shape[2:]])


def _filled(walk: _Walk, node: Node) -> Axes:
    return walk.new_axes(node, "constant numbers")


# --- operators with weights
# ------------------------------------------------------------------------------------------


def _param(walk: _Walk, node: Node) -> Axes:
    """In the graph of weights a parameter; in the network a weight that is a value of its own."""
    shape = walk.shape(node.outputs[0])
    if walk.weights:
        return tuple([fresh(dim) for dim in shape])
    value = walk.reading.params.get(node.outputs[0])
    if value is None:
        return walk.new_axes(node, "a weight that cannot be followed")
    axes = walk.coupling.weights[value]
    walk.coupling.roles.append(Role(value, axes))
    return axes if len(axes) == len(shape) else walk.new_axes(node, "")


def _buffer(walk: _Walk, node: Node) -> Axes:
    known = node.outputs[0] in (walk.reading.sources if walk.weights else walk.reading.buffers)
    return walk.new_axes(node, "" if known else "constant numbers")


def _constant(walk: _Walk, node: Node) -> Axes:
    """Written numbers stay, unless they are a buffer of which only weights are computed."""
    return walk.new_axes(
        node, "" if walk.weights and node.outputs[0] in walk.reading.sources else "constant numbers"
    )


def _conv(walk: _Walk, node: Node) -> Axes:
    x, shape = walk.axes[node.inputs[0]], walk.shape(node.outputs[0])
    image = [fixed(_number(d), "an axis of the image") for d in shape[2:]]
    if len(node.inputs) == 1:
        conv = convolution(node.attrs, walk.shape(node.inputs[0]))
        weight, *bias = walk.owned(node) or [None]
        group = conv.group
    else:
        weight, bias = walk.axes[node.inputs[1]], [walk.axes[v] for v in node.inputs[2:]]
        group = int(dict(node.attrs).get("group", 1))  # type: ignore[arg-type]
    if weight is None:
        return _unknown(walk, node)
    for axis in weight[2:]:
        fix(axis, "a kernel")
    groups = Atom(group)
    made: Axis = weight[0]
    if group > 1:
        walk.unify(x[1], product([groups, weight[1]]), node)
        walk.unify(made, product([groups, Atom(made.size // group)]), node)
        walk.coupling.groups[node.outputs[0]] = groups
    else:
        walk.unify(x[1], weight[1], node)
    for one in bias:
        if one is None:
            fix(made, "a weight that cannot be followed")
        else:
            walk.unify(made, one[0], node)
    if len(node.inputs) == 1:
        walk.note(node, 0, [made], [x[1]] if group == 1 else [weight[1]])
        for i in range(len(bias)):
            walk.note(node, 1 + i, [made])
    return (x[0], made, *image)


def _conv_transpose(walk: _Walk, node: Node) -> Axes:
    x, shape = walk.axes[node.inputs[0]], walk.shape(node.outputs[0])
    image = [fixed(_number(d), "an axis of the image") for d in shape[2:]]
    weight, *bias = walk.owned(node) or [None]
    if len(node.inputs) > 1 or weight is None:
        return _unknown(walk, node)
    group = int(dict(node.attrs).get("group", 1))  # type: ignore[arg-type]
    for axis in weight[2:]:
        fix(axis, "a kernel")
    walk.unify(x[1], weight[0], node)
    made = weight[1]
    if group > 1:
        groups = Atom(group)
        walk.unify(weight[0], product([groups, Atom(weight[0].size // group)]), node)
        made = product([groups, weight[1]])
        walk.coupling.groups[node.outputs[0]] = groups
    for one in bias:
        if one is None:
            fix(made, "a weight that cannot be followed")
        else:
            walk.unify(made, one[0], node)
    walk.note(node, 0, [made], [x[1]])
    for i in range(len(bias)):
        walk.note(node, 1 + i, [made])
    return (x[0], made, *image)


def _linear(walk: _Walk, node: Node) -> Axes:
    x = walk.axes[node.inputs[0]]
    weight, *bias = walk.owned(node) or [None]
    if weight is None:
        return _unknown(walk, node)
    walk.unify(x[-1], weight[1], node)
    walk.note(node, 0, [weight[0]], [x[-1]])
    for i, one in enumerate(bias):
        if one is None:
            fix(weight[0], "a weight that cannot be followed")
        else:
            walk.unify(weight[0], one[0], node)
            walk.note(node, 1 + i, [weight[0]])
    return (*x[:-1], weight[0])


def _embedding(walk: _Walk, node: Node) -> Axes:
    weights = walk.owned(node)
    if not weights or weights[0] is None:
        return _unknown(walk, node)
    rows, features = weights[0]
    fix(rows, "rows of an embedding")
    walk.note(node, 0, [features])
    return (*walk.axes[node.inputs[0]], features)


def _per_channel(walk: _Walk, node: Node) -> Axes:
    """Batch and instance normalization."""
    x = walk.axes[node.inputs[0]]
    if len(node.inputs) > 1:
        return _unknown(walk, node)
    for i, one in enumerate(walk.owned(node)):
        if one is None:
            fix(x[1], "a weight that cannot be followed")
        else:
            walk.unify(x[1], one[0], node)
            if i == 0 or node.op != "BatchNorm":
                walk.note(node, i, [x[1]])
    return x


def _group_norm(walk: _Walk, node: Node) -> Axes:
    x = walk.axes[node.inputs[0]]
    if len(node.inputs) > 1:
        return _unknown(walk, node)
    number = int(dict(node.attrs)["num_groups"])  # type: ignore[arg-type]
    groups, inner = (
        Atom(number, "the one group of a normalization" if number == 1 else ""),
        Atom(x[1].size // number),
    )
    walk.unify(x[1], product([groups, inner]), node)
    walk.coupling.groups[node.outputs[0]] = groups
    walk.coupling.normalized.append(inner)
    for i, one in enumerate(walk.owned(node)):
        if one is not None:
            walk.unify(x[1], one[0], node)
            walk.note(node, i, [x[1]])
    return x


def _layer_norm(walk: _Walk, node: Node) -> Axes:
    x = walk.axes[node.inputs[0]]
    if len(node.inputs) > 1:
        return _unknown(walk, node)
    last = x[int(dict(node.attrs).get("axis", -1)) :]  # type: ignore[arg-type]
    walk.coupling.normalized += last
    for i, one in enumerate(walk.owned(node)):
        if one is None:
            for axis in last:
                fix(axis, "a weight that cannot be followed")
            continue
        for axis, own in zip(last, one, strict=True):
            walk.unify(axis, own, node)
        walk.note(node, i, last)
    return x


def _recurrent(walk: _Walk, node: Node) -> Axes:
    """Weights in torch's order: of the input, of the state, and their biases; for each
    direction.
    """
    weights = walk.owned(node)
    x, shape = walk.axes[node.inputs[0]], walk.shape(node.outputs[0])
    if len(node.inputs) > 1 or not weights or any(one is None for one in weights):
        return _unknown(walk, node)
    attrs = dict(node.attrs)
    hidden = Atom(int(attrs["hidden_size"]))  # type: ignore[arg-type]
    gates = RECURRENT[node.op]
    for i, one in enumerate(weights):
        assert one is not None
        rows = product([Atom(gates, "gates"), hidden])
        walk.unify(one[0], rows, node)
        if len(one) == 2:
            walk.unify(one[1], hidden if _is_of_state(weights, i) else x[-1], node)
        walk.note(node, i, [one[0]], [one[1]] if len(one) == 2 else [])
    walk.coupling.groups[node.outputs[0]] = hidden
    # All layers of a module have one number of hidden units.
    for value, other in walk.coupling.groups.items():
        if (
            walk.reading.recorder.recurrent_calls.get(value)
            == walk.reading.recorder.recurrent_calls[node.outputs[0]]
        ):
            walk.unify(hidden, other, node)
    made = [fresh(dim, "an axis of the input") for dim in shape[:-1]]
    if len(made) == 3:  # all states: time, directions, batch, hidden
        made[0], made[2] = x[0], x[1]
    else:  # the last states: directions, batch, hidden
        made[1] = x[1]
    return (*made, hidden)


def _is_of_state(weights: list[Axes | None], index: int) -> bool:
    """True for the second matrix of a direction."""
    matrices = [i for i, one in enumerate(weights) if one is not None and len(one) == 2]
    return matrices.index(index) % 2 == 1


_RULES: dict[str, Rule] = {
    **dict.fromkeys(["Softmax", "LogSoftmax", "Hardmax", "CumSum"], _softmax),
    **dict.fromkeys(["RNN", "GRU", "LSTM"], _recurrent),
    **dict.fromkeys(["BatchNorm", "InstanceNormalization"], _per_channel),
    **dict.fromkeys(["LayerNormalization", "RMSNormalization"], _layer_norm),
    **dict.fromkeys(
        ["ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceProd",
         "ReduceSumSquare", "ArgMax", "ArgMin"],
        _reducing,
    ),
    **dict.fromkeys(["Reshape", "Flatten"], _reshape),
    "Transpose": _transpose,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Concat": _concat,
    "Slice": _slice,
    "Gather": _gather,
    "Expand": _expand,
    "Tile": _tile,
    "Pad": _pad,
    "Resize": _resize,
    "MatMul": _matmul,
    "Einsum": _einsum,
    "ChannelShuffle": _shuffle,
    "DepthToSpace": _depth_to_space,
    "Range": _filled,
    "Constant": _constant,
    "Param": _param,
    "Buffer": _buffer,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Linear": _linear,
    "Embedding": _embedding,
    "GroupNormalization": _group_norm,
}  # fmt: skip
