"""What can be chosen: groups of coupled channels, attention heads, blocks, kernel sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import gcd

from torch import Tensor, nn

from search_spaces.ir.graph import Node
from search_spaces.ir.ops.convolution import convolution
from search_spaces.subnetworks.axes import Atom, Axis, atoms_of, factors_of, terms_of
from search_spaces.subnetworks.coupling import Coupling
from search_spaces.subnetworks.reading import Call, Reading
from search_spaces.subnetworks.resizing import Block

WIDTH, HEADS = "width", "heads"
# A residual path from a block's input to its result consists of these operators.
_RESIDUAL = frozenset(
    {"Add", "Relu", "Clip", "LayerNormalization", "Identity", "Gelu", "Transpose", "Reshape"}
)
_MIN_KERNEL = 3


@dataclass(eq=False)
class Group:
    """Channels or heads that are kept or removed together.

    Attributes:
        name: name of the choice.
        kind: `WIDTH` or `HEADS`.
        atom: the positions.
        unit: channels of each position, such as those of one head.
        exact: True if removing positions without an influence changes nothing. A normalization over
            them, for example, makes it False.
        tensors: names of the parameters and buffers that they are part of.
        sizes: numbers of positions to choose from, ascending; the last one is all.
        tied: groups of heads that follow, because the module's code computes the width of a head as
            the number of these channels divided by the number of heads.
    """

    name: str
    kind: str
    atom: Atom
    unit: int
    exact: bool
    tensors: tuple[str, ...]
    sizes: tuple[int, ...] = ()
    tied: tuple[Group, ...] = ()

    @property
    def members(self) -> tuple[Group, ...]:
        """The group itself and those that follow it."""
        return (self, *self.tied)

    def atom_sizes(self, size: int) -> dict[Atom, int]:
        """The number of positions of each atom, if this group has that many."""
        return {self.atom: size, **{group.atom: size // group.unit for group in self.tied}}


@dataclass(eq=False)
class Kernel:
    """The kernel of a convolution, which can be cut to its centre.

    Attributes:
        name: name of the choice.
        layer: name of the layer.
        value: output value of the convolution.
        weight: the layer's weight.
        size: kernel size.
        sizes: kernel sizes to choose from, ascending; the last one is the whole kernel.
    """

    name: str
    layer: str
    value: int
    weight: Tensor
    size: tuple[int, ...]
    sizes: tuple[int, ...] = ()


@dataclass
class Choices:
    """Everything that can be chosen, and what stays whole.

    Attributes:
        groups: channels and heads.
        blocks: blocks that can be left out.
        kernels: kernels that can be cut.
        unpruned: what stays whole: name and reason.
    """

    groups: list[Group] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    unpruned: dict[str, str] = field(default_factory=dict)


def source_names(module: nn.Module, reading: Reading) -> dict[int, str]:
    """Names of the parameters and buffers in the graph of weights, by value, in the module's
    order.
    """
    names: dict[int, str] = {}
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        names.setdefault(id(tensor), name)
    values = {id(tensor): value for value, tensor in reading.sources.items()}
    return {values[i]: name for i, name in names.items() if i in values}


def find_groups(
    module: nn.Module, reading: Reading, coupling: Coupling
) -> tuple[list[Group], dict[str, str]]:
    """The groups of channels and heads, in the order of the module's parameters, and what stays
    whole.

    Of a product, the slowest atom that is not fixed is offered: of heads and their channels, the
        heads.
    """
    names = source_names(module, reading)
    # 1. Atoms along which tensors can be shortened, and those inside of them.
    outer: dict[Atom, list[str]] = {}
    inner: set[Atom] = set()
    units: dict[Atom, int] = {}
    fixed: dict[Atom, None] = {}
    for value, name in names.items():
        for axis in coupling.weights[value]:
            for term in terms_of(axis):
                chosen, rest = _outermost(term)
                for atom in atoms_of(term):
                    if atom.fixed and atom.size > 1 and len(factors_of(term)) == 1:
                        fixed[atom] = None
                if chosen is None:
                    continue
                outer.setdefault(chosen, []).append(name)
                inner.update(atom for factor in rest for atom in atoms_of(factor) if not atom.fixed)
                unit = 1
                for factor in rest:
                    unit *= factor.size
                units[chosen] = max(units.get(chosen, 1), unit)
    contracted = {atom for axis in coupling.contracted for atom in atoms_of(axis)}
    normalized = {atom for axis in coupling.normalized for atom in atoms_of(axis)}
    # 2. Names: of the first layer that makes the channels.
    makers = _makers(coupling, names)
    groups: list[Group] = []
    unpruned: dict[str, str] = {}
    taken: set[str] = set()
    for atom, tensors in outer.items():
        first = makers.get(atom, tensors[0])
        layer = (first.rpartition(".")[0] or first).partition(".parametrizations.")[0]
        if atom in inner or atom in contracted:
            if atom in contracted and atom not in inner:
                unpruned[_unused(layer, unpruned)] = (
                    "its width is multiplied with that of another value, as of keys"
                )
            continue
        is_heads = units[atom] > 1 and _has_heads(atom, coupling, names, contracted)
        kind = HEADS if is_heads else WIDTH
        name = _unused(f"{kind}.{layer}", taken)
        taken.add(name)
        ordered = tuple(dict.fromkeys(tensors))
        groups.append(Group(name, kind, atom, units[atom], atom not in normalized, ordered))
    for atom in fixed:
        layer = makers.get(atom, "").rpartition(".")[0]
        if layer and atom.fixed not in _EXPECTED:
            unpruned.setdefault(layer, atom.fixed)
    return groups, unpruned


# Reasons that nobody expects to be otherwise: what the network takes and returns.
_EXPECTED = frozenset(
    {"an axis of the input", "an output of the network", "an axis of the image", "the batch", "size 1", "gates",
     "rows of an embedding", "a kernel", "a number of parts", "an index into it", "an index"}
)  # fmt: skip


def _unused(name: str, taken: Iterable[str]) -> str:
    count, candidate = 1, name
    while candidate in taken:
        count += 1
        candidate = f"{name}-{count}"
    return candidate


def _outermost(term: Axis) -> tuple[Atom | None, Sequence[Axis]]:
    """The slowest atom of a product that is not fixed, and the factors behind it."""
    factors = factors_of(term)
    for i, factor in enumerate(factors):
        if isinstance(factor, Atom) and not factor.fixed and factor.size > 1:
            return factor, factors[i + 1 :]
    return None, ()


def _makers(coupling: Coupling, names: dict[int, str]) -> dict[Atom, str]:
    """The first tensor that makes the channels of each atom."""
    makers: dict[Atom, tuple[bool, int, str]] = {}
    order = {value: i for i, value in enumerate(names)}
    for role in coupling.roles:
        if role.value in names:
            # Matrices come before scales, and before weights of their own, such as those of a class
            # token.
            axes = coupling.weights[role.value]
            is_own = role.owner is None and any(axis.size == 1 for axis in axes)
            candidate = len(axes) < 2 or is_own, order[role.value], names[role.value]
            for atom in (atom for axis in role.makes for atom in atoms_of(axis)):
                makers[atom] = min(makers.get(atom, candidate), candidate)
    return {atom: name for atom, (*_, name) in makers.items()}


def _has_heads(
    atom: Atom, coupling: Coupling, names: dict[int, str], contracted: set[Atom]
) -> bool:
    """True if an axis is a product of this atom and of one that queries and keys are multiplied
    along.
    """
    for value in names:
        for axis in coupling.weights[value]:
            for term in terms_of(axis):
                chosen, rest = _outermost(term)
                if chosen is atom and any(
                    a in contracted for factor in rest for a in atoms_of(factor)
                ):
                    return True
    return False


def size_options(group: Group, ratios: Sequence[float], round_to: int) -> tuple[int, ...]:
    """Numbers of positions for these shares: channels are multiples of `round_to`, at least one
    such multiple.
    """
    whole = group.atom.size
    step = round_to // gcd(round_to, group.unit)
    least = min(step, whole)
    options = {
        whole if ratio >= 1 else max(least, round(whole * ratio / step) * step) for ratio in ratios
    }
    return tuple(sorted({min(option, whole) for option in options} | {whole}))


def tie(coupling: Coupling, failing: Sequence[Group]) -> list[Group]:
    """Groups of channels with the heads of the attentions that read them, which may work together
    where neither does alone: in `x.view(n, length, heads, channels // heads)`, the code fixes the
    width of a head by both.

    Args:
        coupling: the axes of the network.
        failing: groups that do not work alone, with their sizes.
    """
    reads: dict[Atom, set[Atom]] = {}
    for role in coupling.roles:
        makes = {atom for axis in role.makes for atom in atoms_of(axis)}
        for atom in {atom for axis in role.reads for atom in atoms_of(axis)}:
            reads.setdefault(atom, set()).update(makes)
    ties = []
    for wide in failing:
        heads = [
            group
            for group in failing
            if group.kind == HEADS
            and group.atom.size * group.unit == wide.atom.size
            and group.atom in reads.get(wide.atom, set())
        ]
        if wide.kind == WIDTH and heads and len({group.unit for group in heads}) == 1:
            sizes = tuple([number * heads[0].unit for number in heads[0].sizes])
            tensors = tuple(
                dict.fromkeys([*wide.tensors, *[name for group in heads for name in group.tensors]])
            )
            ties.append(
                Group(wide.name, WIDTH, wide.atom, wide.unit, False, tensors, sizes, tuple(heads))
            )
    return ties


def find_blocks(reading: Reading, coupling: Coupling, module: nn.Module) -> list[Block]:
    """The residual blocks: layers whose result is their input plus something, and may be replaced
    by the input.

    Of layers inside each other, the members of containers (`nn.Sequential`, `nn.ModuleList`) are
    preferred, and of these the smallest.
    """
    nodes = reading.graph.nodes
    made = {node.outputs[0]: node for node in nodes}
    position = {node.outputs[0]: i for i, node in enumerate(reading.recorder.nodes)}
    counts: dict[str, int] = {}
    for call in reading.recorder.calls:
        counts[call.name] = counts.get(call.name, 0) + 1
    readers: dict[int, list[int]] = {}
    for node in nodes:
        for value in node.inputs:
            readers.setdefault(value, []).append(position[node.outputs[0]])
    for value in reading.graph.outputs:
        readers.setdefault(value, []).append(len(reading.recorder.nodes))
    dynamic = _dynamic(reading)
    candidates: dict[str, Block] = {}
    for call in reading.recorder.calls:
        if counts[call.name] == 1 and call.name:
            block = _block(call, reading, coupling, made, position, readers, dynamic)
            if block is not None:
                candidates[call.name] = block
    containers = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
    members = [
        n for n in candidates if isinstance(module.get_submodule(n.rpartition(".")[0]), containers)
    ]
    chosen = [n for n in members if not any(other.startswith(f"{n}.") for other in members)]
    others = [n for n in candidates if not any(_related(n, other) for other in members)]
    chosen += [n for n in others if not any(other.startswith(f"{n}.") for other in others)]
    return [block for name, block in candidates.items() if name in set(chosen)]


def _related(name: str, other: str) -> bool:
    return name == other or name.startswith(f"{other}.") or other.startswith(f"{name}.")


def _dynamic(reading: Reading) -> set[int]:
    """The values that depend on the input."""
    values = set(reading.graph.inputs)
    for node in reading.graph.nodes:
        if not values.isdisjoint(node.inputs):
            values.update(node.outputs)
    return values


def _block(
    call: Call,
    reading: Reading,
    coupling: Coupling,
    made: dict[int, Node],
    position: dict[int, int],
    readers: dict[int, list[int]],
    dynamic: set[int],
) -> Block | None:
    """The block of a layer's call; None if its result cannot be replaced by its input."""
    source, results = call.source, [v for v in call.results if v is not None]
    if source is None or len(results) != 1 or len(call.results) != 1 or results[0] not in made:
        return None
    (result,) = results
    inside = {v for v, at in position.items() if call.start <= at < call.end}
    if result not in inside or source not in coupling.axes:
        return None
    before, after = coupling.axes[source], coupling.axes[result]
    if len(before) != len(after) or reading.graph.shapes[source] != reading.graph.shapes[result]:
        return None
    # 1. The input reaches the result by additions and normalizations alone.
    if not _adds(source, result, made, inside):
        return None
    # 2. The channels are the same, so that the input has the result's width in every sub-network.
    if any(_open_atoms(a) != _open_atoms(b) for a, b in zip(before, after, strict=True)):
        return None
    # 3. Nothing else from inside is read outside, but constants.
    for value in inside & dynamic:
        if value != result and any(
            not call.start <= at < call.end for at in readers.get(value, ())
        ):
            return None
    own = {v for v in inside if v in dynamic}
    # Constants and weights of the block go with it, unless others read them, too.
    static = [v for v in sorted(inside - own, key=position.__getitem__, reverse=True) if v in made]
    for value in static:
        if all(
            at < len(reading.recorder.nodes) and reading.recorder.nodes[at].outputs[0] in own
            for at in readers.get(value, ())
        ):
            own.add(value)
    return Block(call.name, source, result, frozenset(own))


def _open_atoms(axis: Axis) -> list[Atom]:
    return [atom for atom in atoms_of(axis) if not atom.fixed]


def _adds(source: int, result: int, made: dict[int, Node], inside: set[int]) -> bool:
    """True if a path of residual operators with at least one addition leads from one value to
    another.
    """
    todo, seen = [(result, False)], set()
    while todo:
        value, added = todo.pop()
        if value == source:
            if added:
                return True
            continue
        if (
            (value, added) in seen
            or value not in inside
            or value not in made
            or made[value].op not in _RESIDUAL
        ):
            continue
        seen.add((value, added))
        node = made[value]
        todo += [(v, added or (node.op == "Add" and len(node.inputs) == 2)) for v in node.inputs]
    return False


def find_kernels(module: nn.Module, reading: Reading, names: dict[int, str]) -> list[Kernel]:
    """The convolutions with odd kernels above 3 that are padded on both sides."""
    kernels = []
    for node in reading.graph.nodes:
        if node.op != "Conv" or len(node.inputs) != 1:
            continue
        owned = reading.owned.get(node.outputs[0])
        value = owned[0] if owned else None
        if value is None or value not in names or not names[value].endswith("weight"):
            continue
        conv = convolution(node.attrs, reading.graph.shapes[node.inputs[0]])
        layer = names[value].rpartition(".")[0]
        rank = len(conv.kernel)
        room = all(
            2 * conv.pads[i] >= d * (k - _MIN_KERNEL) for i, (k, d) in enumerate(_pairs(conv))
        )
        equal = conv.pads[:rank] == conv.pads[rank:] and len(set(conv.kernel)) == 1
        single = sum(v == value for weights in reading.owned.values() for v in weights) == 1
        if equal and room and single and conv.kernel[0] % 2 == 1 and conv.kernel[0] > _MIN_KERNEL:
            kernels.append(
                Kernel(
                    f"kernel.{layer}", layer, node.outputs[0], reading.sources[value], conv.kernel
                )
            )
    return kernels


def _pairs(conv: object) -> Iterator[tuple[int, int]]:
    return zip(conv.kernel, conv.dilations, strict=True)  # type: ignore[attr-defined]


def kernel_options(kernel: Kernel, chosen: Sequence[int] | bool) -> tuple[int, ...]:
    """Kernel sizes: all odd ones from 3 for True, or the given ones up to the kernel's."""
    (whole, *_) = kernel.size
    options = (
        range(_MIN_KERNEL, whole + 1, 2)
        if chosen is True
        else [k for k in chosen or () if k % 2 and k < whole]
    )
    return tuple(sorted({*options, whole}))
