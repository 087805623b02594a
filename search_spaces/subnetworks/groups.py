"""What can be chosen: groups of coupled channels, attention heads, blocks, kernel sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import gcd, prod

from torch import Tensor, nn

from search_spaces.ir.ops.convolution import Convolution, convolution
from search_spaces.subnetworks.axes import Atom, Axis, atoms_of, factors_of, terms_of
from search_spaces.subnetworks.coupling import UNFOLLOWED, Coupling
from search_spaces.subnetworks.reading import Call, Reading
from search_spaces.subnetworks.resizing import Block

WIDTH, HEADS = "width", "heads"
# A residual path from a block's input to its result consists of these operators.
_RESIDUAL = frozenset(
    {
        "Add",
        "Clip",
        "Gelu",
        "Identity",
        "LayerNormalization",
        "Relu",
        "Reshape",
        "Transpose",
    }
)
# Reasons that nobody expects to be otherwise: what the network takes and returns.
_EXPECTED = frozenset(
    {
        "a kernel",
        "a number of parts",
        "an axis of the image",
        "an axis of the input",
        "an index",
        "an index into it",
        "an output of the network",
        "directions",
        "gates",
        "rows of an embedding",
        "size 1",
        "the batch",
    }
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
        sizes = {self.atom: size}
        for group in self.tied:
            sizes[group.atom] = size // group.unit
        return sizes


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
    """Names of parameters and buffers in the graph of weights, by value, in the module's order."""
    values = {id(tensor): value for value, tensor in reading.sources.items()}
    names: dict[int, str] = {}
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        value = values.get(id(tensor))
        if value is not None:
            names.setdefault(value, name)
    return names


def find_groups(
    module: nn.Module,
    reading: Reading,
    coupling: Coupling,
) -> tuple[list[Group], dict[str, str]]:
    """The groups of channels and heads in the order of the parameters, and what stays whole.

    Of a product, the slowest atom that is not fixed is offered: of heads and their channels, the
    heads.
    """
    names = source_names(module, reading)

    # 1. Atoms along which tensors can be shortened, and those inside of them.
    tensors: dict[Atom, list[str]] = {}  # names of the tensors that have an atom outermost
    units: dict[Atom, int] = {}
    inner: set[Atom] = set()
    fixed: dict[Atom, str] = {}  # with the first tensor that has the atom
    for value, name in names.items():
        terms = [term for axis in coupling.weights[value] for term in terms_of(axis)]
        for term in terms:
            if len(factors_of(term)) == 1:
                stays = [atom for atom in atoms_of(term) if atom.fixed and atom.size > 1]
                for atom in stays:
                    fixed.setdefault(atom, name)
            outer, inner_factors = _outermost(term)
            if outer is None:
                continue
            tensors.setdefault(outer, []).append(name)
            unit = prod(factor.size for factor in inner_factors)
            units[outer] = max(units.get(outer, 1), unit)
            for factor in inner_factors:
                inner.update(_open_atoms(factor))
    contracted = _all_atoms(coupling.contracted)
    normalized = _all_atoms(coupling.normalized)

    # 2. Groups, with the name of the first layer that makes the channels.
    makers = _makers(coupling, names)
    groups: list[Group] = []
    unpruned: dict[str, str] = {}
    taken: set[str] = set()
    parameters = dict(module.named_parameters())
    for atom, names_of_tensors in tensors.items():
        # Positions that only buffers have are no channels, such as rows of a table of angles.
        if atom in inner or parameters.keys().isdisjoint(names_of_tensors):
            continue
        layer = _layer_name(makers.get(atom, names_of_tensors[0]))
        if atom in contracted:
            reason = "its width is multiplied with that of another value, as of keys"
            unpruned[_unused(layer, unpruned)] = reason
            continue
        is_heads = units[atom] > 1 and _has_heads(atom, coupling, names, contracted)
        kind = HEADS if is_heads else WIDTH
        name = _unused(f"{kind}.{layer}", taken)
        taken.add(name)
        group = Group(
            name=name,
            kind=kind,
            atom=atom,
            unit=units[atom],
            exact=atom not in normalized,
            tensors=tuple(dict.fromkeys(names_of_tensors)),
        )
        groups.append(group)

    # 3. What stays whole, unless that is as expected.
    for atom, name_of_tensor in fixed.items():
        layer = makers.get(atom, "").rpartition(".")[0]
        if atom.fixed == UNFOLLOWED:
            layer = _layer_name(name_of_tensor)
        if layer and atom.fixed not in _EXPECTED:
            unpruned.setdefault(layer, atom.fixed)
    return groups, unpruned


def _all_atoms(axes: Iterable[Axis]) -> set[Atom]:
    return {atom for axis in axes for atom in atoms_of(axis)}


def _layer_name(parameter: str) -> str:
    """The layer of a parameter, also of one behind a parametrization."""
    layer = parameter.rpartition(".")[0] or parameter
    return layer.partition(".parametrizations.")[0]


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
        if role.value not in names:
            continue
        # Matrices come before scales, and before weights of their own, such as those of a class
        # token.
        axes = coupling.weights[role.value]
        is_of_its_own = role.owner is None and any(axis.size == 1 for axis in axes)
        comes_last = len(axes) < 2 or is_of_its_own
        candidate = (comes_last, order[role.value], names[role.value])
        for atom in _all_atoms(role.makes):
            makers[atom] = min(makers.get(atom, candidate), candidate)
    return {atom: name for atom, (*_, name) in makers.items()}


def _has_heads(
    atom: Atom,
    coupling: Coupling,
    names: dict[int, str],
    contracted: set[Atom],
) -> bool:
    """True if an axis is a product of this atom and of one that queries and keys contract."""
    for value in names:
        for axis in coupling.weights[value]:
            for term in terms_of(axis):
                outer, inner_factors = _outermost(term)
                inner_atoms = _all_atoms(inner_factors)
                if outer is atom and not inner_atoms.isdisjoint(contracted):
                    return True
    return False


def size_options(group: Group, ratios: Sequence[float], round_to: int) -> tuple[int, ...]:
    """Numbers of positions for these shares.

    Channels are multiples of `round_to`, at least one such multiple.
    """
    whole = group.atom.size
    step = round_to // gcd(round_to, group.unit)
    options = {whole}
    for ratio in ratios:
        if ratio < 1:
            number = max(step, round(whole * ratio / step) * step)
            options.add(min(number, whole))
    return tuple(sorted(options))


def tie(coupling: Coupling, groups: Sequence[Group]) -> list[Group]:
    """Groups of channels with the heads of the attentions that read them, which may work together
    where neither does alone: in `x.view(n, length, heads, channels // heads)`, the code fixes the
    width of a head by both.

    Args:
        coupling: the axes of the network.
        groups: groups with their sizes.
    """
    # 1. Which atoms a layer makes of those that it reads.
    made_of: dict[Atom, set[Atom]] = {}
    for role in coupling.roles:
        makes = _all_atoms(role.makes)
        for atom in _all_atoms(role.reads):
            made_of.setdefault(atom, set()).update(makes)

    # 2. Channels, and all heads of as many channels that are made of them.
    ties = []
    for wide in groups:
        made = made_of.get(wide.atom, set())
        heads = []
        for group in groups:
            is_as_wide = group.atom.size * group.unit == wide.atom.size
            if group.kind == HEADS and is_as_wide and group.atom in made:
                heads.append(group)
        if wide.kind != WIDTH or len({group.unit for group in heads}) != 1:
            continue
        tensors = [name for group in (wide, *heads) for name in group.tensors]
        ties.append(
            Group(
                name=wide.name,
                kind=WIDTH,
                atom=wide.atom,
                unit=wide.unit,
                exact=False,
                tensors=tuple(dict.fromkeys(tensors)),
                sizes=tuple([number * heads[0].unit for number in heads[0].sizes]),
                tied=tuple(heads),
            )
        )
    return ties


# --- blocks


def find_blocks(reading: Reading, coupling: Coupling, module: nn.Module) -> list[Block]:
    """The residual blocks: layers whose result is their input plus something.

    Their input may replace them. Of layers inside each other, the members of containers
    (`nn.Sequential`, `nn.ModuleList`) are preferred, and of these the smallest.
    """
    # 1. All layers that may be left out.
    search = _BlockSearch(reading, coupling)
    times_called = Counter(call.name for call in reading.recorder.calls)
    candidates: dict[str, Block] = {}
    for call in reading.recorder.calls:
        if call.name and times_called[call.name] == 1:
            block = search.block(call)
            if block is not None:
                candidates[call.name] = block

    # 2. Members of containers, and layers that are neither inside nor around one of these.
    containers = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
    members = []
    for name in candidates:
        parent = module.get_submodule(name.rpartition(".")[0])
        if isinstance(parent, containers):
            members.append(name)
    others = []
    for name in candidates:
        if not any(_are_nested(name, member) for member in members):
            others.append(name)

    # 3. The smallest of each.
    chosen = {*_innermost(members), *_innermost(others)}
    return [block for name, block in candidates.items() if name in chosen]


def _innermost(names: Sequence[str]) -> list[str]:
    """The layers that have no other one of these inside."""
    innermost = []
    for name in names:
        has_others_inside = any(other.startswith(f"{name}.") for other in names)
        if not has_others_inside:
            innermost.append(name)
    return innermost


def _are_nested(name: str, other: str) -> bool:
    """True for a layer and itself, or one inside of it, or around it."""
    return name == other or name.startswith(f"{other}.") or other.startswith(f"{name}.")


class _BlockSearch:
    """Decides which calls of layers are blocks.

    Attributes:
        makers: by value, the operator that makes it.
        position: by value, the number of its operator in the order of the recording.
        readers: by value, the positions of the operators that read it; behind the last one for the
            network's outputs.
        dynamic: values that depend on the input.
    """

    def __init__(self, reading: Reading, coupling: Coupling) -> None:
        self.reading = reading
        self.coupling = coupling
        recorded = reading.recorder.nodes
        graph = reading.graph
        self.makers = {node.outputs[0]: node for node in graph.nodes}
        self.position = {node.outputs[0]: i for i, node in enumerate(recorded)}
        self.readers: dict[int, list[int]] = {}
        self.dynamic = set(graph.inputs)
        for node in graph.nodes:
            for value in node.inputs:
                self.readers.setdefault(value, []).append(self.position[node.outputs[0]])
            if not self.dynamic.isdisjoint(node.inputs):
                self.dynamic.update(node.outputs)
        for value in graph.outputs:
            self.readers.setdefault(value, []).append(len(recorded))

    def block(self, call: Call) -> Block | None:
        """The block of a layer's call; None if its result cannot be replaced by its input."""
        # 1. What it returns is computed inside of it, or given to it, such as positions that all
        #    attentions share. The first value counts: others, such as the shares of an attention,
        #    are returned for users.
        source = call.source
        inside = {v for v, at in self.position.items() if call.start <= at < call.end}
        made = [v for v, is_passed in zip(call.results, call.passed, strict=True) if not is_passed]
        is_made = made and made[0] == call.results[0] and inside.issuperset(made)
        if source is None or not is_made or source not in self.coupling.axes:
            return None
        result = call.results[0]
        if result not in self.makers:
            return None

        # 2. The input reaches the result by additions and normalizations alone.
        shapes = self.reading.graph.shapes
        if shapes[source] != shapes[result] or not self._adds(source, result, inside):
            return None

        # 3. The channels are the same, so that the input has the result's width in every
        #    sub-network.
        before, after = self.coupling.axes[source], self.coupling.axes[result]
        for a, b in zip(before, after, strict=True):
            if _open_atoms(a) != _open_atoms(b):
                return None

        # 4. Nothing else from inside is read outside, but constants.
        left_out = inside & self.dynamic
        for value in left_out:
            if value != result and not self._is_read_within(value, call):
                return None

        # 5. Constants and weights of the block go with it, unless others read them, too. The last
        #    ones come first, since they may be the only readers of those before them.
        constants = [v for v in inside - left_out if v in self.makers]
        recorded = self.reading.recorder.nodes
        for value in sorted(constants, key=self.position.__getitem__, reverse=True):
            readers = self.readers.get(value, ())
            if all(at < len(recorded) and recorded[at].outputs[0] in left_out for at in readers):
                left_out.add(value)
        return Block(call.name, source, result, frozenset(left_out))

    def _is_read_within(self, value: int, call: Call) -> bool:
        return all(call.start <= at < call.end for at in self.readers.get(value, ()))

    def _adds(self, source: int, result: int, inside: set[int]) -> bool:
        """True if a path from one value to another has residual operators and an addition."""
        waiting = [(result, False)]  # values, and whether an addition was passed on the way back
        seen = set()
        while waiting:
            value, has_sum = waiting.pop()
            if value == source and has_sum:
                return True
            if value == source or (value, has_sum) in seen:
                continue
            seen.add((value, has_sum))
            node = self.makers.get(value) if value in inside else None
            if node is None or node.op not in _RESIDUAL:
                continue
            is_sum = node.op == "Add" and len(node.inputs) == 2
            waiting += [(v, has_sum or is_sum) for v in node.inputs]
        return False


def _open_atoms(axis: Axis) -> list[Atom]:
    return [atom for atom in atoms_of(axis) if not atom.fixed]


# --- kernels


def find_kernels(module: nn.Module, reading: Reading, names: dict[int, str]) -> list[Kernel]:
    """The convolutions with odd kernels above 3 that are padded on both sides."""
    uses = Counter(value for weights in reading.owned.values() for value in weights)
    kernels = []
    for node in reading.graph.nodes:
        if node.op != "Conv" or len(node.inputs) != 1:
            continue
        owned = reading.owned.get(node.outputs[0])
        value = owned[0] if owned else None
        if value is None or uses[value] > 1:
            continue
        if not names.get(value, "").endswith("weight"):
            continue
        conv = convolution(node.attrs, reading.graph.shapes[node.inputs[0]])
        if not _can_be_cut(conv):
            continue
        layer = names[value].rpartition(".")[0]
        kernel = Kernel(
            name=f"kernel.{layer}",
            layer=layer,
            value=node.outputs[0],
            weight=reading.sources[value],
            size=conv.kernel,
        )
        kernels.append(kernel)
    return kernels


def _can_be_cut(conv: Convolution) -> bool:
    """True if a kernel is odd, equal along all axes, and padded enough to become the smallest."""
    size = conv.kernel[0]
    if size % 2 == 0 or size <= _MIN_KERNEL or len(set(conv.kernel)) > 1:
        return False
    rank = len(conv.kernel)
    before, behind = conv.pads[:rank], conv.pads[rank:]
    if before != behind:
        return False
    for pad, dilation in zip(before, conv.dilations, strict=True):
        removed = dilation * (size - _MIN_KERNEL)
        if 2 * pad < removed:
            return False
    return True


def kernel_options(kernel: Kernel, sizes: Sequence[int] | bool) -> tuple[int, ...]:
    """Kernel sizes to choose from.

    Args:
        kernel: the kernel, whose own size is always one of them.
        sizes: sizes to offer, of which odd ones below the kernel's are taken; True for all of these
            from 3, False for none.
    """
    whole = kernel.size[0]
    if sizes is True:
        smaller = list(range(_MIN_KERNEL, whole, 2))
    else:
        smaller = [size for size in sizes or () if size % 2 and size < whole]
    return tuple(sorted({*smaller, whole}))
