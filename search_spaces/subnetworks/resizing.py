"""The graph of a sub-network, from the graph that was read: new sizes, blocks left out, smaller
kernels.

Nothing is recorded anew, so a candidate of a search costs milliseconds. Shapes follow from the axes of
all values (`coupling`); operators whose attributes hold sizes have a rule here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from search_spaces.ir.constants import MAX_WRITTEN_NUMBERS, Known, add_buffer, add_constant
from search_spaces.ir.graph import BATCH, Attrs, Graph, Node, Shape, element_type, typed
from search_spaces.ir.ops import canonical_attrs
from search_spaces.ir.ops.convolution import convolution
from search_spaces.ir.pytorch.recorder import BATCH_SIZE
from search_spaces.ir.pytorch.recording import live
from search_spaces.subnetworks.axes import Atom, Axis, atoms_of, positions_of, resolve, size_of
from search_spaces.subnetworks.coupling import Coupling

Sizes = Mapping[Atom, int]
Kernels = Mapping[int, tuple[int, ...]]
"""New kernel sizes of convolutions by their output value."""


@dataclass(frozen=True, eq=False)
class Block:
    """A part of the network that can be left out, because its result may be replaced by its input.

    Attributes:
        name: name of the layer.
        source: value that it reads.
        result: value that it returns.
        nodes: output values of the operators that are left out with it.
    """

    name: str
    source: int
    result: int
    nodes: frozenset[int]


class Resizer:
    """Makes the graphs of sub-networks.

    Args:
        graph: the graph that was read, before fusion.
        coupling: its axes.
        atoms: the atoms whose sizes may change.
        constants: numbers of constants that may change, by value.
        order: positions of each atom, in which they stay.
    """

    def __init__(
        self,
        graph: Graph,
        coupling: Coupling,
        atoms: Iterable[Atom],
        constants: Mapping[int, np.ndarray],
        order: Mapping[Atom, np.ndarray],
    ) -> None:
        self.graph = graph
        self.coupling = coupling
        self.constants = constants
        self.order = order
        changing = set(atoms)
        self.axes: dict[int, tuple[Axis, ...]] = {}
        self.open: dict[int, list[int]] = {}  # places of axes that may change, by value
        for value, axes in coupling.axes.items():
            self.axes[value] = tuple([resolve(axis) for axis in axes])
            places = []
            for place, axis in enumerate(self.axes[value]):
                if not changing.isdisjoint(atoms_of(axis)):
                    places.append(place)
            self.open[value] = places

    def __call__(
        self,
        sizes: Sizes,
        skipped: Iterable[Block] = (),
        kernels: Kernels | None = None,
    ) -> Graph:
        """The graph before fusion.

        Args:
            sizes: new sizes of atoms.
            skipped: blocks that are left out.
            kernels: new kernel sizes.
        """
        # 1. Shapes: those of the graph that was read, with the new sizes of the axes that change.
        shapes = self._shapes(sizes)

        # 2. Left out: the operators of skipped blocks; who reads their result reads their input.
        replaced = {block.result: block.source for block in skipped}
        dropped = frozenset().union(*[block.nodes for block in skipped])

        # 3. The other operators, with new attributes.
        kept = {atom: np.sort(self.order[atom][:size]) for atom, size in sizes.items()}
        has_new_constants = False
        nodes: list[Node] = []
        for node in self.graph.nodes:
            (value,) = node.outputs
            if value in dropped:
                continue
            inputs = node.inputs
            if replaced:
                inputs = tuple([_followed(v, replaced) for v in inputs])
            is_arranged = node.op in ("Reshape", "Expand") and inputs
            if is_arranged and self._keeps_shape(node, inputs, shapes):
                # Such as to one head: what would not change the shape is not recorded, either.
                replaced[value] = inputs[0]
                continue
            if value in self.constants and shapes[value] != self.graph.shapes[value]:
                numbers = self.constants[value]
                for dim, axis in enumerate(self.axes[value]):
                    numbers = numbers.take(positions_of(axis, kept), dim)
                nodes += _written(node, numbers, shapes)
                has_new_constants = True
                continue
            is_filled = node.op == "Expand" and not inputs
            if is_filled and self.open[value] and _is_short(shapes[value]):
                # A constant that has become short is written number by number.
                fill: Any = dict(node.attrs).get("input", 0)
                sizes_of_constant = tuple(map(int, shapes[value]))
                nodes += _written(node, np.full(sizes_of_constant, fill, np.float32), shapes)
                continue
            attrs = self._attrs(node, shapes, sizes, (kernels or {}).get(value))
            is_unchanged = attrs is node.attrs and inputs is node.inputs
            if is_unchanged:
                nodes.append(node)
            else:
                nodes.append(Node(node.op, inputs, node.outputs, attrs, node.scope))
        outputs = tuple([_followed(v, replaced) for v in self.graph.outputs])

        # 4. A mask that only skipped blocks read goes with them, and parts of old constants.
        is_partly_dead = bool(dropped) or has_new_constants
        live_nodes = live(nodes, list(outputs)) if is_partly_dead else tuple(nodes)
        return replace(self.graph, nodes=live_nodes, outputs=outputs, shapes=tuple(shapes))

    def _shapes(self, sizes: Sizes) -> list[Shape]:
        """The shapes of all values, with new sizes."""
        new_size: dict[Axis, int] = {}
        shapes: list[Shape] = list(self.graph.shapes)
        for value, places in self.open.items():
            if not places:
                continue
            old = self.graph.shapes[value]
            dims = list(old)
            for place in places:
                axis = self.axes[value][place]
                if axis not in new_size:
                    new_size[axis] = size_of(axis, sizes)
                if isinstance(dims[place], str):
                    times = new_size[axis] // BATCH_SIZE
                    dims[place] = BATCH if times == 1 else f"{BATCH}_{times}"
                else:
                    dims[place] = new_size[axis]
            shapes[value] = typed(dims, element_type(old))
        return shapes

    def _keeps_shape(self, node: Node, inputs: tuple[int, ...], shapes: list[Shape]) -> bool:
        """True for a function that, with the new sizes, does not change the shape any more."""
        value = node.outputs[0]
        return bool(self.open[value]) and shapes[inputs[0]] == shapes[value]

    def _attrs(
        self,
        node: Node,
        shapes: list[Shape],
        sizes: Sizes,
        kernel: tuple[int, ...] | None,
    ) -> Attrs:
        """The attributes of an operator, with new sizes."""
        value = node.outputs[0]
        rule = _RULES.get(node.op)
        changes = self.open[value] or any(self.open[v] for v in node.inputs)
        if rule is None or not (changes or kernel):
            return node.attrs
        resized = _Resized(
            node=node,
            old_inputs=tuple([self.graph.shapes[v] for v in node.inputs]),
            inputs=tuple([shapes[v] for v in node.inputs]),
            shape=shapes[value],
            sizes=sizes,
            kernel=kernel,
            coupling=self.coupling,
        )
        return rule(resized)


def _followed(value: int, replaced: Mapping[int, int]) -> int:
    while value in replaced:
        value = replaced[value]
    return value


def _is_short(shape: Shape) -> bool:
    sizes = [size for size in shape if isinstance(size, int)]
    return len(sizes) == len(shape) and prod(sizes) <= MAX_WRITTEN_NUMBERS


def _written(node: Node, numbers: np.ndarray, shapes: list[Shape]) -> list[Node]:
    """The nodes of a constant as the recorder writes it, instead of a node; their values, but the
    last one, are added to the shapes.
    """
    value = node.outputs[0]
    shape = shapes[value]
    nodes: list[Node] = []

    def emit(op: str, inputs: tuple[int, ...], attrs: Attrs) -> int:
        sizes = tuple([shapes[v] for v in inputs])
        kept = canonical_attrs(op, tuple(sorted(attrs)), sizes)
        shapes.append((numbers.size,) if op == "Constant" else shape)
        nodes.append(Node(op, inputs, (len(shapes) - 1,), kept, node.scope))
        return len(shapes) - 1

    if add_constant(emit, Known(shape, (numbers, numbers))) is None:
        add_buffer(emit, shape, numbers)
    last = nodes.pop()
    return [*nodes, Node(last.op, last.inputs, (value,), last.attrs, last.scope)]


# --- attributes that hold sizes


@dataclass(frozen=True)
class _Resized:
    """An operator and its new shapes.

    Attributes:
        node: the operator that was read.
        old_inputs: shapes of its inputs before.
        inputs: new shapes of its inputs.
        shape: new shape of its result.
        sizes: new sizes of atoms.
        kernel: new kernel size; None if it stays.
        coupling: the axes of the network.
    """

    node: Node
    old_inputs: tuple[Shape, ...]
    inputs: tuple[Shape, ...]
    shape: Shape
    sizes: Sizes
    kernel: tuple[int, ...] | None
    coupling: Coupling

    @property
    def groups(self) -> int | None:
        """The new number of groups (or of hidden units); None if it has none that may change."""
        axis = self.coupling.groups.get(self.node.outputs[0])
        return None if axis is None else size_of(axis, self.sizes)

    def with_attrs(self, **new: Any) -> Attrs:
        """The attributes with other values."""
        changed = {**dict(self.node.attrs), **new}
        return canonical_attrs(self.node.op, tuple(sorted(changed.items())), self.inputs)

    def replaced(self, name: str, new: Any) -> Attrs:
        """The attributes with another value of one that they have."""
        return tuple([(key, new if key == name else old) for key, old in self.node.attrs])


def _conv(r: _Resized) -> Attrs:
    groups = r.groups
    if len(r.inputs) > 1:  # the weight is a value
        group = 1 if groups is None else groups
        is_same = group == dict(r.node.attrs).get("group", 1)
        return r.node.attrs if is_same else r.with_attrs(group=group)

    # The layer owns its weight.
    conv = convolution(r.node.attrs, r.old_inputs[0])
    conv = conv._replace(
        in_channels=int(r.inputs[0][1]),
        channels=int(r.shape[1]),
        group=conv.group if groups is None else groups,
    )
    if r.kernel:
        # Padding shrinks with the kernel, so that the image keeps its size.
        rank = len(r.kernel)
        pads = list(conv.pads)
        for i, pad in enumerate(conv.pads):
            axis = i % rank
            removed = conv.kernel[axis] - r.kernel[axis]
            pads[i] = pad - conv.dilations[axis] * removed // 2
        conv = conv._replace(kernel=r.kernel, pads=tuple(pads))
    return conv.attrs


def _conv_transpose(r: _Resized) -> Attrs:
    new: dict[str, Any] = {"channels": int(r.shape[1])}
    if r.groups is not None:
        new["group"] = r.groups
    return r.with_attrs(**new)


def _features(r: _Resized) -> Attrs:
    return r.replaced("features", int(r.shape[-1]))


def _group_norm(r: _Resized) -> Attrs:
    return r.with_attrs(num_groups=r.groups)


def _recurrent(r: _Resized) -> Attrs:
    return r.with_attrs(hidden_size=r.groups)


def _constant(r: _Resized) -> Attrs:
    return r.replaced("shape", tuple(r.shape))


def _reshape(r: _Resized) -> Attrs:
    (before,) = r.inputs
    target = []
    for i, dim in enumerate(r.shape):
        if i < len(before) and dim == before[i]:
            target.append(0)
        else:
            target.append(dim if isinstance(dim, int) else -1)
    return r.with_attrs(shape=tuple(target))


def _expand(r: _Resized) -> Attrs:
    # An axis that is not expanded is written as 1, unless the constant has no input.
    written: Any = dict(r.node.attrs)["shape"]
    target = []
    for dim, old in zip(r.shape, written, strict=True):
        target.append(dim if isinstance(dim, int) and old not in (0, 1) else old)
    return r.with_attrs(shape=tuple(target))


def _slice(r: _Resized) -> Attrs:
    attrs: dict[str, Any] = dict(r.node.attrs)
    starts = list(attrs["starts"])
    ends = list(attrs["ends"])
    cuts = r.coupling.cuts[r.node.outputs[0]]
    for i, axis in enumerate(attrs["axes"]):
        has_cut = axis in cuts and isinstance(r.shape[axis], int)
        if not has_cut:
            continue
        before, middle = cuts[axis]
        start = 0 if before is None else size_of(before, r.sizes)
        starts[i] = start
        ends[i] = start + size_of(middle, r.sizes)
    return r.with_attrs(starts=tuple(starts), ends=tuple(ends))


_RULES: dict[str, Callable[[_Resized], Attrs]] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Linear": _features,
    "Embedding": _features,
    "GroupNormalization": _group_norm,
    "RNN": _recurrent,
    "GRU": _recurrent,
    "LSTM": _recurrent,
    "Param": _constant,
    "Buffer": _constant,
    "Reshape": _reshape,
    "Expand": _expand,
    "Slice": _slice,
}
