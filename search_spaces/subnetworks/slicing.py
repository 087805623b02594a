"""The module of a sub-network: a copy of the user's module with sliced weights and sizes set right.

1. Each parameter and buffer keeps the positions that stay, along all of its axes.
2. The module is copied with these instead of its own.
3. torch's layers get the sizes of their weights (`in_channels`, `num_features`, …).
4. Other layers, such as an attention of timm or transformers, hold sizes in attributes of any name.
   Each number is the size of an axis near the layer. Where several axes have that size, names decide,
   and `prunable` tries other assignments if the module does not run.
5. Blocks that are left out return their input.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized
from torch.utils._pytree import tree_leaves, tree_map

from search_spaces.common.errors import InputError
from search_spaces.ir.pytorch.modules import Attributes, set_plain_attributes, unchanged_attributes
from search_spaces.subnetworks.attention import NarrowMultiheadAttention
from search_spaces.subnetworks.axes import (
    Atom,
    Axis,
    Kept,
    atoms_of,
    factors_of,
    positions_of,
    product,
    resolve,
    size_of,
    terms_of,
)
from search_spaces.subnetworks.coupling import Coupling
from search_spaces.subnetworks.groups import HEADS, Group, Kernel, source_names
from search_spaces.subnetworks.reading import Call, Passed, Reading
from search_spaces.subnetworks.resizing import Block


class Skipped(nn.Module):
    """Stands for a block that is left out: returns its first tensor, nested as the block's result.

    It has the block's plain attributes, such as `self_attn.batch_first`, since a network's code may
    read these, and no parameters.

    Args:
        block: the block.
        returned: what a call of it returned; see `Call`.
    """

    def __init__(self, block: nn.Module, returned: Any = ...) -> None:
        super().__init__()
        self._returned = returned
        for name, value in vars(block).items():
            is_plain = isinstance(value, str | int | float | None)
            if is_plain and not name.startswith("_"):
                setattr(self, name, value)
        for name, child in block.named_children():
            self.add_module(name, Skipped(child))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]

        def result(leaf: Any) -> Any:
            if leaf is ...:
                return tensors[0]
            return tensors[leaf.place] if isinstance(leaf, Passed) else leaf

        return tree_map(result, self._returned)


# Attributes with these words hold other numbers, which may equal a number of channels by chance.
_NO_SIZES = (
    "block",
    "class",
    "depth",
    "dilat",
    "grid",
    "image",
    "img",
    "kernel",
    "layer",
    "max_",
    "pad",
    "patch",
    "position",
    "shift",
    "stride",
    "vocab",
    "window",
)
# Attribute of a layer that holds the number of groups, by operator
_GROUPS_ATTRIBUTE = {
    "Conv": "groups",
    "ConvTranspose": "groups",
    "GroupNormalization": "num_groups",
}
MAX_ALIKE = 3  # axes of a size and kind that an attribute may be the size of
_NO_CHANNELS = ("an axis of the input", "an axis of the image", "the batch", "size 1")


class Candidate(NamedTuple):
    """An axis whose size an attribute may hold.

    Attributes:
        axis: the axis.
        kind: "heads" for a number of heads, "product" for all their channels, or "width"; in layers
            without others inside, "source" for what they read and "result" for what they return.
            Of several axes of a kind, the nearest one; the others are "width 2", "width 3", ….
    """

    axis: Axis
    kind: str


Assignment = Mapping[tuple[type, str], str]
"""Kind of the axis that an attribute of a class holds the size of, where several have that size; "" for none."""


class Slicer:
    """Makes the modules of sub-networks.

    Args:
        module: the user's module.
        reading: what was read from it.
        coupling: the axes of its tensors.
        groups: the groups that may be shortened.
        attributes: plain attributes of the module's layers, as they were before it was called.

    Attributes:
        assignment: what attributes mean, where their names do not say it.
    """

    def __init__(
        self,
        module: nn.Module,
        reading: Reading,
        coupling: Coupling,
        groups: Iterable[Group],
        attributes: Attributes,
    ) -> None:
        self.module = module
        self._attributes = attributes
        self.reading = reading
        self.coupling = coupling
        groups = list(groups)
        self.changing = {group.atom for group in groups}
        self.heads = {group.atom for group in groups if group.kind == HEADS}
        self.assignment: Assignment = {}
        # Axes of the module's tensors by their identity.
        self.names = source_names(module, reading)
        self.axes = {id(reading.sources[value]): coupling.weights[value] for value in self.names}
        for value, tensor in reading.buffers.items():
            self.axes[id(tensor)] = coupling.axes[value]
        # The first call of each layer.
        self.calls: dict[str, Call] = {}
        for call in reading.recorder.calls:
            self.calls.setdefault(call.name, call)

    def __call__(
        self,
        kept: Kept,
        skipped: Iterable[Block] = (),
        kernels: Mapping[str, tuple[Kernel, int]] | None = None,
        meta: bool = False,
    ) -> nn.Module:
        """The module of a sub-network.

        Args:
            kept: sorted positions that stay, by atom.
            skipped: blocks that are left out.
            kernels: by layer, its kernel and the new size.
            meta: make parameters without data.

        Raises:
            InputError: if the module cannot be copied.
        """
        # 1. The parameters and buffers, without what is removed.
        kernels = kernels or {}
        kernel_of_weight = {}
        for kernel, size in kernels.values():
            kernel_of_weight[id(kernel.weight)] = (kernel, size)
        sliced: dict[int, Any] = {}  # by identity: what `deepcopy` takes instead of a tensor
        for tensor in (*self.module.parameters(), *self.module.buffers()):
            cut = kernel_of_weight.get(id(tensor))
            sliced[id(tensor)] = self._sliced(tensor, kept, cut, meta)

        for _, attributes in self._attributes:
            for value in attributes.values():
                if isinstance(value, Tensor) and not value.is_leaf:  # torch copies leaves alone
                    sliced[id(value)] = value.detach()

        # 2. A copy of the module with these, and without what calls left in it.
        try:
            with unchanged_attributes(self.module):
                set_plain_attributes(self._attributes)
                module = copy.deepcopy(self.module, sliced)
        except Exception as error:  # the module's own __deepcopy__ may raise any
            reason = f"{type(error).__name__}: {error}"
            raise InputError(f"the module cannot be copied ({reason})") from error

        # 3. and 4. The sizes that its layers hold.
        sizes = {atom: len(positions) for atom, positions in kept.items()}
        self._set_sizes(module, sizes)
        for name, (kernel, size) in kernels.items():
            _set_kernel(module.get_submodule(name), kernel, size)

        # 5. Blocks that are left out.
        for block in skipped:
            parent, _, name = block.name.rpartition(".")
            returned = self.calls[block.name].returned
            stand_in = Skipped(module.get_submodule(block.name), returned)
            setattr(module.get_submodule(parent), name, stand_in)
        return module

    def _sliced(
        self,
        tensor: Tensor,
        kept: Kept,
        cut: tuple[Kernel, int] | None,
        meta: bool,
    ) -> Tensor:
        """A parameter or buffer without what is removed, in memory of its own."""
        is_parameter = isinstance(tensor, nn.Parameter)
        data = tensor.detach()
        if meta and is_parameter and not data.is_meta:
            data = torch.empty_like(data, device="meta")

        # 1. The positions that stay, along each axis.
        is_new = False
        for dim, axis in enumerate(self.axes.get(id(tensor), ())):
            has_axis = data.shape[dim : dim + 1].numel() == axis.size
            if has_axis and any(atom in kept for atom in atoms_of(axis)):
                positions = torch.from_numpy(positions_of(axis, kept)).to(data.device)
                data = data.index_select(dim, positions)
                is_new = True

        # 2. The centre of a kernel: (channels, inputs of a group, *kernel)
        if cut is not None:
            kernel, size = cut
            for i, whole_size in enumerate(kernel.size):
                margin = (whole_size - size) // 2
                data = data.narrow(2 + i, margin, size)
        data = data.contiguous() if is_new else data.clone()
        return nn.Parameter(data, requires_grad=tensor.requires_grad) if is_parameter else data

    # --- sizes of layers

    def _set_sizes(self, module: nn.Module, sizes: Mapping[Atom, int]) -> None:
        """Set the sizes that the layers of the copied module hold in attributes."""
        for name, layer in module.named_modules():
            if isinstance(layer, nn.MultiheadAttention):
                self._set_attention(name, layer, sizes)
            elif not _set_known(layer, _with_shapes(layer)):
                self._set_others(name, layer, sizes)
            if hasattr(layer, "groups") or isinstance(layer, nn.GroupNorm):
                self._set_groups(name, layer, sizes)

    def _set_groups(self, name: str, layer: Any, sizes: Mapping[Atom, int]) -> None:
        """Set the number of groups of a convolution or group normalization."""
        call = self.calls.get(name)
        is_convolution = isinstance(layer, nn.modules.conv._ConvNd)
        is_leaf = next(layer.children(), None) is None
        if call is None or not (is_convolution or isinstance(layer, nn.GroupNorm) or is_leaf):
            return

        # 1. The groups of the operators that the layer calls.
        for node in self.reading.recorder.nodes[call.start : call.end]:
            groups = self.coupling.groups.get(node.outputs[0])
            attribute = _GROUPS_ATTRIBUTE.get(node.op)
            if groups is None or attribute is None:
                continue
            if getattr(layer, attribute, None) == groups.size:
                setattr(layer, attribute, size_of(groups, sizes))

        # 2. torch's convolutions have all channels as attributes, but weights per group.
        if is_convolution:
            rows, columns, *_ = _with_shapes(layer).weight.shape
            if layer.transposed:
                layer.in_channels = rows
                layer.out_channels = columns * layer.groups
            else:
                layer.in_channels = columns * layer.groups
                layer.out_channels = rows

    def _set_attention(
        self,
        name: str,
        layer: nn.MultiheadAttention,
        sizes: Mapping[Atom, int],
    ) -> None:
        """Heads and width of torch's attention; its own code allows no other number of heads."""
        whole: Any = self.module.get_submodule(name)
        weight = whole.in_proj_weight if whole._qkv_same_embed_dim else whole.q_proj_weight
        axes = self.axes.get(id(weight))
        if axes is None:
            return
        rows, columns = axes
        heads = [atom for atom in atoms_of(rows) if atom in self.heads]
        count = size_of(heads[0], sizes) if heads else whole.num_heads
        width = size_of(columns, sizes)
        if (count, width) != (whole.num_heads, whole.embed_dim):
            NarrowMultiheadAttention.adopt(layer, count, width)

    def _set_others(self, name: str, layer: nn.Module, sizes: Mapping[Atom, int]) -> None:
        """Set the attributes of a layer that is not torch's."""
        for attribute, candidates in self.attributes[name].items():
            likely = _likely_kind(attribute, candidates)
            kind = self.assignment.get((type(layer), attribute), likely)
            if kind not in ("", *[candidate.kind for candidate in candidates]):
                kind = likely  # other layers of the class have further axes of this size
            axes = [candidate.axis for candidate in candidates if candidate.kind == kind]
            if axes:
                _set_number(layer, attribute, size_of(axes[0], sizes))

    # --- what attributes mean

    @cached_property
    def attributes(self) -> dict[str, dict[str, list[Candidate]]]:
        """For each layer that is not torch's, its attributes that may hold sizes."""
        layers = self.module.named_modules(remove_duplicate=False)
        return {name: self._attributes_of(name, layer) for name, layer in layers}

    def ambiguous(self, touched: set[Atom]) -> list[tuple[tuple[type, str], list[str]]]:
        """The attributes of classes that may be several things: key, and the other kinds to try.

        Args:
            touched: atoms, of which an attribute's size must contain one.
        """
        keys: dict[tuple[type, str], list[str]] = {}
        for name, attributes in self.attributes.items():
            kind_of_layer = type(self.module.get_submodule(name))
            for attribute, candidates in attributes.items():
                atoms = {atom for candidate in candidates for atom in atoms_of(candidate.axis)}
                if touched.isdisjoint(atoms):
                    continue
                likely = _likely_kind(attribute, candidates)
                kinds = [*dict.fromkeys(candidate.kind for candidate in candidates), ""]
                others = keys.setdefault((kind_of_layer, attribute), [])
                others += [kind for kind in kinds if kind not in (likely, *others)]
        return [(key, others) for key, others in keys.items() if others]

    def _attributes_of(self, name: str, layer: nn.Module) -> dict[str, list[Candidate]]:
        """By attribute, the axes near the layer that have its size.

        Attributes of which none may change are left out.
        """
        numbers = {key: value for key, value in _numbers(layer) if value > 1}
        if not numbers or _is_known(layer):
            return {}
        # 1. Axes by size, of each kind the nearest ones.
        by_size: dict[int, list[Candidate]] = {}
        is_leaf = next(layer.children(), None) is None
        for axis, side in self._axes_near(name, layer):
            for candidate in self._parts(axis):
                if is_leaf:  # a layer with weights of its own: what it reads, and what it returns
                    candidate = candidate._replace(kind=side)
                of_size = by_size.setdefault(candidate.axis.size, [])
                alike = [other for other in of_size if other.kind.split()[0] == candidate.kind]
                own = list(atoms_of(candidate.axis))
                is_known = any(list(atoms_of(other.axis)) == own for other in alike)
                if is_known or len(alike) == MAX_ALIKE:
                    continue
                if alike:
                    numbered = f"{candidate.kind} {len(alike) + 1}"
                    candidate = candidate._replace(kind=numbered)
                of_size.append(candidate)

        # 2. Attributes of such a size.
        attributes = {}
        for key, value in numbers.items():
            candidates = by_size.get(value, [])
            atoms = {atom for candidate in candidates for atom in atoms_of(candidate.axis)}
            if not self.changing.isdisjoint(atoms):
                attributes[key] = candidates
        return attributes

    def _axes_near(self, name: str, layer: nn.Module) -> Iterator[tuple[Axis, str]]:
        """Axes of what a layer reads and returns, of its tensors, and of the layers inside of it.

        With each axis, "source" if the layer reads it, else "result".
        """
        # 1. Calls of the layer, then of those inside.
        prefix = f"{name}." if name else ""
        calls = []
        for inner, call in self.calls.items():
            if inner == name or inner.startswith(prefix):
                calls.append(call)
        for call in sorted(calls, key=lambda call: (call.name != name, call.start)):
            for value in (call.source, *call.results):
                if value is None or value not in self.coupling.axes:
                    continue
                side = "source" if value == call.source else "result"
                for axis in self.coupling.axes[value]:
                    if not all(atom.fixed in _NO_CHANNELS for atom in atoms_of(axis)):
                        yield axis, side

        # 2. Its tensors.
        for tensor in (*layer.parameters(), *layer.buffers()):
            for axis in self.axes.get(id(tensor), ()):
                yield axis, "result"

    def _parts(self, axis: Axis) -> Iterator[Candidate]:
        """The axis, its terms, and runs of their factors, of which some atom may change."""
        resolved = resolve(axis)
        for term in dict.fromkeys([resolved, *terms_of(resolved)]):
            factors = factors_of(term)
            for start in range(len(factors)):
                for end in range(len(factors), start, -1):
                    part = product(factors[start:end])
                    kind = "width"
                    if not self.heads.isdisjoint(atoms_of(part)):
                        kind = "heads" if end - start == 1 else "product"
                    yield Candidate(part, kind)


def _numbers(layer: nn.Module) -> Iterator[tuple[str, int]]:
    """The whole numbers among a layer's attributes, also those in tuples: `shape[0]`."""
    for key, value in vars(layer).items():
        if key.startswith("_") or key == "training":
            continue
        if type(value) is int:
            yield key, value
        elif isinstance(value, tuple | list) and all(type(item) is int for item in value):
            for i, item in enumerate(value):
                yield f"{key}[{i}]", item


def _set_number(layer: nn.Module, attribute: str, new: int) -> None:
    """Set an attribute of `_numbers`: `width`, or one item of a tuple, `shape[0]`."""
    key, _, index = attribute.rstrip("]").partition("[")
    old = getattr(layer, key)
    if not index:
        setattr(layer, key, new)
    elif old[int(index)] != new:
        items = list(old)
        items[int(index)] = new
        setattr(layer, key, items if isinstance(old, list) else tuple(items))


def _likely_kind(attribute: str, candidates: list[Candidate]) -> str:
    """What a name says about the axis whose size an attribute holds; "" for none."""
    kinds = [candidate.kind for candidate in candidates]
    name = attribute.lower()
    if any(word in name for word in _NO_SIZES):
        return ""

    # 1. In layers without others inside: what they read (nx, in_features, in_dim), or return.
    if "source" in kinds or "result" in kinds:
        is_input = name.startswith("in") or name == "nx"
        sides = ("source", "result") if is_input else ("result", "source")
        return next(kind for kind in sides if kind in kinds)

    # 2. In others: a number of heads (n_head, but not head_dim), or channels.
    is_of_heads = "head" in name and "dim" not in name and "size" not in name
    if is_of_heads and "heads" in kinds:
        return "heads"
    is_wide = any(word in name for word in _WIDE)
    order = ("product", "width", "heads") if is_wide else ("width", "product", "heads")
    return next((kind for kind in order if kind in kinds), "")


# Words of attributes that hold the channels of all heads together.
_WIDE = ("all_head", "inner", "attn", "attention", "split", "proj", "out")


# --- torch's layers

_RECURRENT = (nn.RNN, nn.LSTM, nn.GRU)
_KNOWN = (
    nn.modules.conv._ConvNd,
    nn.Linear,
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.GroupNorm,
    nn.Embedding,
    nn.PReLU,
    nn.MultiheadAttention,
    *_RECURRENT,
)


def _is_known(layer: nn.Module) -> bool:
    return isinstance(layer, _KNOWN)


def _with_shapes(layer: Any) -> Any:
    """The layer, whose weights have shapes: a copy without data if it computes them from parameters.

    Buffers that they are computed from may have data where the parameters have none.
    """
    return copy.deepcopy(layer).to("meta") if is_parametrized(layer) else layer


def _set_known(layer: Any, shaped: Any) -> bool:
    """Set the sizes of one of torch's layers after its weights' shapes; False for other layers.

    Args:
        layer: the layer.
        shaped: the layer, or a copy of it, whose weights have the shapes.
    """
    if isinstance(layer, nn.Linear):
        layer.out_features, layer.in_features = shaped.weight.shape
    elif isinstance(layer, nn.modules.batchnorm._NormBase):
        statistics = layer.running_mean if shaped.weight is None else shaped.weight
        if statistics is not None:
            layer.num_features = statistics.shape[0]
    elif isinstance(layer, nn.LayerNorm | nn.RMSNorm):
        if shaped.weight is not None:
            layer.normalized_shape = tuple(shaped.weight.shape)
    elif isinstance(layer, nn.GroupNorm):
        if shaped.weight is not None:
            layer.num_channels = shaped.weight.shape[0]
    elif isinstance(layer, nn.Embedding):
        layer.num_embeddings, layer.embedding_dim = shaped.weight.shape
    elif isinstance(layer, nn.PReLU):
        layer.num_parameters = shaped.weight.shape[0]
    elif isinstance(layer, _RECURRENT):
        layer.hidden_size = shaped.weight_hh_l0.shape[1]
        layer.input_size = shaped.weight_ih_l0.shape[1]
    return _is_known(layer)


def _set_kernel(layer: Any, kernel: Kernel, size: int) -> None:
    """Set kernel size and padding of a convolution."""
    layer.kernel_size = (size,) * len(kernel.size)
    padding = []
    for axis, (dilation, whole) in enumerate(zip(layer.dilation, kernel.size, strict=True)):
        if isinstance(layer.padding, str):
            padding.append(dilation * (size - 1) // 2)
        else:
            padding.append(layer.padding[axis] - dilation * (whole - size) // 2)
    if not isinstance(layer.padding, str):
        layer.padding = tuple(padding)
    layer._reversed_padding_repeated_twice = [p for p in reversed(padding) for _ in range(2)]


def kept_of(sizes: Mapping[Atom, int], order: Mapping[Atom, np.ndarray]) -> dict[Atom, np.ndarray]:
    """The positions that stay: the most important ones, in their order.

    Atoms that stay whole are left out.

    Args:
        sizes: numbers of positions.
        order: positions from the most to the least important one.
    """
    kept = {}
    for atom, size in sizes.items():
        if size < atom.size:
            kept[atom] = np.sort(order[atom][:size])
    return kept
