"""The graph of a sub-network, from the graph that was read: new sizes, blocks left out, smaller
kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from search_spaces.ir.graph import BATCH, Attrs, Graph, Node, Shape, element_type, typed
from search_spaces.ir.ops import canonical_attrs
from search_spaces.ir.ops.convolution import convolution
from search_spaces.ir.pytorch import recording
from search_spaces.ir.pytorch.recorder import BATCH_SIZE
from search_spaces.subnetworks.axes import Atom, Axis, atoms_of, resolve, size_of
from search_spaces.subnetworks.coupling import Coupling

Sizes = Mapping[Atom, int]
Kernels = Mapping[int, tuple[int, ...]]
"""New kernel sizes of convolutions by their output value."""


class Block:
    """A part of the network that can be left out, because its result may be replaced by its input.

    Attributes:
        name: name of the layer.
        source: value that it reads.
        result: value that it returns.
        nodes: output values of the operators that are left out with it.
    """

    def __init__(self, name: str, source: int, result: int, nodes: frozenset[int]) -> None:
        self.name, self.source, self.result, self.nodes = name, source, result, nodes


class Resizer:
    """Makes the graphs of sub-networks.

    Args:
        graph: the graph that was read, before fusion.
        coupling: its axes.
        atoms: the atoms whose sizes may change.
    """

    def __init__(self, graph: Graph, coupling: Coupling, atoms: Iterable[Atom]) -> None:
        self.graph, self.coupling = graph, coupling
        changing = set(atoms)
        self.axes = {
            value: tuple([resolve(axis) for axis in axes]) for value, axes in coupling.axes.items()
        }
        self.open = {  # axes of values that may change, by value and place
            value: [i for i, axis in enumerate(axes) if not changing.isdisjoint(atoms_of(axis))]
            for value, axes in self.axes.items()
        }

    def __call__(
        self, sizes: Sizes, skipped: Iterable[Block] = (), kernels: Kernels | None = None
    ) -> Graph:
        """The graph before fusion.

        Args:
            sizes: new sizes of atoms.
            skipped: blocks that are left out.
            kernels: new kernel sizes.
        """
        # 1. Shapes: those of the graph that was read, with the new sizes of the axes that change.
        measured: dict[Axis, int] = {}
        shapes: list[Shape] = list(self.graph.shapes)
        for value, places in self.open.items():
            if places:
                shapes[value] = self._shape(value, places, sizes, measured)
        # 2. Left out: the operators of skipped blocks; who reads their result reads their input.
        replaced = {block.result: block.source for block in skipped}
        dropped = frozenset().union(*[block.nodes for block in skipped])
        nodes: list[Node] = []
        for node in self.graph.nodes:
            if node.outputs[0] in dropped:
                continue
            inputs = (
                tuple([_followed(v, replaced) for v in node.inputs]) if replaced else node.inputs
            )
            if (
                node.op == "Reshape"
                and self.open[node.outputs[0]]
                and shapes[inputs[0]] == shapes[node.outputs[0]]
            ):
                # Such as to one head: what would not change the shape is not recorded, either.
                replaced[node.outputs[0]] = inputs[0]
                continue
            attrs = self._attrs(node, shapes, sizes, (kernels or {}).get(node.outputs[0]))
            same = attrs is node.attrs and inputs is node.inputs
            nodes.append(node if same else Node(node.op, inputs, node.outputs, attrs, node.scope))
        outputs = tuple([_followed(v, replaced) for v in self.graph.outputs])
        # A mask that only blocks read goes with them.
        live = recording.live(nodes, list(outputs)) if dropped else tuple(nodes)
        return Graph(self.graph.inputs, live, outputs, tuple(shapes))

    def _shape(
        self, value: int, places: list[int], sizes: Sizes, measured: dict[Axis, int]
    ) -> Shape:
        old = self.graph.shapes[value]
        dims = list(old)
        for place in places:
            axis = self.axes[value][place]
            size = measured.get(axis)
            if size is None:
                size = measured[axis] = size_of(axis, sizes)
            if isinstance(dims[place], str):
                number = size // BATCH_SIZE
                dims[place] = BATCH if number == 1 else f"{BATCH}_{number}"
            else:
                dims[place] = size
        return typed(dims, element_type(old))

    def _attrs(
        self, node: Node, shapes: list[Shape], sizes: Sizes, kernel: tuple[int, ...] | None
    ) -> Attrs:
        value = node.outputs[0]
        rule = _SIZES.get(node.op)
        changes = self.open[value] or any(self.open[v] for v in node.inputs)
        if rule is None or not (changes or kernel):
            return node.attrs
        inputs = tuple([shapes[v] for v in node.inputs])
        old = tuple([self.graph.shapes[v] for v in node.inputs])
        return rule(self, node, old, inputs, shapes[value], sizes, kernel)

    def groups(self, value: int, sizes: Sizes) -> int:
        """Number of groups (or of hidden units) of an operator."""
        return size_of(self.coupling.groups[value], sizes)


def _followed(value: int, replaced: Mapping[int, int]) -> int:
    while value in replaced:
        value = replaced[value]
    return value


def _set(node: Node, inputs: tuple[Shape, ...], **new: Any) -> Attrs:
    return canonical_attrs(node.op, tuple(sorted({**dict(node.attrs), **new}.items())), inputs)


def _conv(
    r: Resizer, node: Node, old: tuple[Shape, ...], inputs: tuple[Shape, ...], shape: Shape, sizes: Sizes,
    kernel: tuple[int, ...] | None,
) -> Attrs:  # fmt: skip
    value = node.outputs[0]
    if len(inputs) > 1:
        group = r.groups(value, sizes) if value in r.coupling.groups else 1
        return (
            node.attrs
            if group == dict(node.attrs).get("group", 1)
            else _set(node, inputs, group=group)
        )
    conv = convolution(node.attrs, old[0])
    group = r.groups(value, sizes) if value in r.coupling.groups else conv.group
    conv = conv._replace(in_channels=int(inputs[0][1]), channels=int(shape[1]), group=group)
    if kernel:
        rank = len(kernel)
        less = [
            d * (k - n) // 2 for d, k, n in zip(conv.dilations, conv.kernel, kernel, strict=True)
        ]
        pads = tuple([pad - less[i % rank] for i, pad in enumerate(conv.pads)])
        conv = conv._replace(kernel=kernel, pads=pads)
    return conv.attrs


def _conv_transpose(
    r: Resizer,
    node: Node,
    old: tuple[Shape, ...],
    inputs: tuple[Shape, ...],
    shape: Shape,
    sizes: Sizes,
    _: Any,
) -> Attrs:
    new: dict[str, Any] = {"channels": int(shape[1])}
    if node.outputs[0] in r.coupling.groups:
        new["group"] = r.groups(node.outputs[0], sizes)
    return _set(node, inputs, **new)


def _features(
    r: Resizer,
    node: Node,
    old: tuple[Shape, ...],
    inputs: tuple[Shape, ...],
    shape: Shape,
    sizes: Sizes,
    _: Any,
) -> Attrs:
    return tuple(
        [(name, int(shape[-1])) if name == "features" else (name, v) for name, v in node.attrs]
    )


def _group_norm(
    r: Resizer,
    node: Node,
    old: tuple[Shape, ...],
    inputs: tuple[Shape, ...],
    shape: Shape,
    sizes: Sizes,
    _: Any,
) -> Attrs:
    return _set(node, inputs, num_groups=r.groups(node.outputs[0], sizes))


def _recurrent(
    r: Resizer,
    node: Node,
    old: tuple[Shape, ...],
    inputs: tuple[Shape, ...],
    shape: Shape,
    sizes: Sizes,
    _: Any,
) -> Attrs:
    return _set(node, inputs, hidden_size=r.groups(node.outputs[0], sizes))


def _constant(
    r: Resizer,
    node: Node,
    old: tuple[Shape, ...],
    inputs: tuple[Shape, ...],
    shape: Shape,
    sizes: Sizes,
    _: Any,
) -> Attrs:
    return tuple([(name, tuple(shape)) if name == "shape" else (name, v) for name, v in node.attrs])  # type: ignore[misc]


def _reshape(
    r: Resizer,
    node: Node,
    old: tuple[Shape, ...],
    inputs: tuple[Shape, ...],
    shape: Shape,
    sizes: Sizes,
    _: Any,
) -> Attrs:
    (before,) = inputs
    target = [
        0 if i < len(before) and d == before[i] else d if isinstance(d, int) else -1
        for i, d in enumerate(shape)
    ]
    return _set(node, inputs, shape=tuple(target))


def _expand(
    r: Resizer,
    node: Node,
    old: tuple[Shape, ...],
    inputs: tuple[Shape, ...],
    shape: Shape,
    sizes: Sizes,
    _: Any,
) -> Attrs:
    # An axis that is not expanded is written as 1, unless the constant has no input.
    written: Any = dict(node.attrs)["shape"]
    target = [
        d if isinstance(d, int) and w not in (0, 1) else w
        for d, w in zip(shape, written, strict=True)
    ]
    return _set(node, inputs, shape=tuple(target))


def _slice(
    r: Resizer,
    node: Node,
    old: tuple[Shape, ...],
    inputs: tuple[Shape, ...],
    shape: Shape,
    sizes: Sizes,
    _: Any,
) -> Attrs:
    attrs: dict[str, Any] = dict(node.attrs)
    starts, ends = list(attrs["starts"]), list(attrs["ends"])
    cuts = r.coupling.cuts[node.outputs[0]]
    for i, axis in enumerate(attrs["axes"]):
        if axis in cuts and isinstance(shape[axis], int):
            before, middle = cuts[axis]
            starts[i] = 0 if before is None else size_of(before, sizes)
            ends[i] = starts[i] + size_of(middle, sizes)
    return _set(node, inputs, starts=tuple(starts), ends=tuple(ends))


_SIZES: dict[str, Callable[..., Attrs]] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Linear": _features,
    "Embedding": _features,
    "GroupNormalization": _group_norm,
    **dict.fromkeys(["RNN", "GRU", "LSTM"], _recurrent),
    **dict.fromkeys(["Param", "Buffer"], _constant),
    "Reshape": _reshape,
    "Expand": _expand,
    "Slice": _slice,
}
