"""The module of a sub-network: a copy of the user's module with sliced parameters, whose sizes are
set right.

torch's layers have known attributes (`in_channels`, `num_features`, …). Other layers, such as an
attention of timm or transformers, hold sizes in attributes of any name. `Mender` finds the axis
that each of these numbers is the size of. Where several axes have that size, names decide, and
`analysis` tries other assignments if the module does not run.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from search_spaces.common.errors import InputError
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
from search_spaces.subnetworks.reading import Call, Reading
from search_spaces.subnetworks.resizing import Block

_RECURRENT = (nn.RNN, nn.LSTM, nn.GRU)


class Skipped(nn.Module):
    """Stands for a block that is left out: returns its first argument.

    It has the block's plain attributes, such as `self_attn.batch_first`, since a network's code may
    read these, and no parameters.
    """

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        for name, value in vars(block).items():
            if isinstance(value, str | int | float | None) and not name.startswith("_"):
                setattr(self, name, value)
        for name, child in block.named_children():
            self.add_module(name, Skipped(child))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if args else next(iter(kwargs.values()))


# Attributes with these words hold other numbers, which may equal a number of channels by chance.
_NO_SIZES = (
    "block", "class", "depth", "dilat", "grid", "image", "img", "kernel", "layer", "max_", "pad", "patch", "position",
    "shift", "stride", "vocab", "window",
)  # fmt: skip
_NO_CHANNELS = ("an axis of the input", "an axis of the image", "the batch", "size 1")


class Candidate(NamedTuple):
    """An axis whose size an attribute may hold.

    Attributes:
        axis: the axis.
        kind: "heads" for a number of heads, "product" for all their channels, or "width"; in layers
            without others inside, "source" for what they read and "result" for what they return.
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
    """

    def __init__(
        self, module: nn.Module, reading: Reading, coupling: Coupling, groups: Iterable[Group]
    ) -> None:
        self.module, self.reading, self.coupling = module, reading, coupling
        self.names = source_names(module, reading)
        self.axes = {id(reading.sources[value]): coupling.weights[value] for value in self.names}
        self.axes |= {id(x): coupling.axes[value] for value, x in reading.buffers.items()}
        self.heads = {group.atom for group in groups if group.kind == HEADS}
        self.changing = {group.atom for group in groups}
        self.calls: dict[str, Call] = {}
        for call in reading.recorder.calls:
            self.calls.setdefault(call.name, call)
        self.assignment: dict[tuple[type, str], str] = {}
        self._attributes: dict[str, dict[str, list[Candidate]]] | None = None

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
        cut = {id(kernel.weight): (kernel, size) for kernel, size in (kernels or {}).values()}
        memo: dict[int, Any] = {}
        for tensor in (*self.module.parameters(), *self.module.buffers()):
            memo[id(tensor)] = self._sliced(tensor, kept, cut.get(id(tensor)), meta)
        try:
            made = copy.deepcopy(self.module, memo)
        except Exception as error:  # the module's own __deepcopy__ may raise any
            raise InputError(
                f"the module cannot be copied ({type(error).__name__}: {error})"
            ) from error
        sizes = {atom: len(positions) for atom, positions in kept.items()}
        self._mend(made, sizes, kernels or {})
        for block in skipped:
            parent, _, name = block.name.rpartition(".")
            setattr(made.get_submodule(parent), name, Skipped(made.get_submodule(block.name)))
        return made

    def _sliced(
        self, tensor: Tensor, kept: Kept, cut: tuple[Kernel, int] | None, meta: bool
    ) -> Tensor:
        data = tensor.detach()
        if meta and not data.is_meta and isinstance(tensor, nn.Parameter):
            data = torch.empty_like(data, device="meta")
        is_new = False
        for dim, axis in enumerate(self.axes.get(id(tensor), ())):
            if axis.size == data.shape[dim : dim + 1].numel() and any(
                atom in kept for atom in atoms_of(axis)
            ):
                data = data.index_select(
                    dim, torch.from_numpy(positions_of(axis, kept)).to(data.device)
                )
                is_new = True
        if cut is not None:
            kernel, size = cut
            for i, whole in enumerate(kernel.size):
                data = data.narrow(2 + i, (whole - size) // 2, size)
        data = data.contiguous() if is_new else data.clone()
        if isinstance(tensor, nn.Parameter):
            return nn.Parameter(data, requires_grad=tensor.requires_grad)
        return data

    # --- attributes

    def _mend(
        self, made: nn.Module, sizes: Mapping[Atom, int], kernels: Mapping[str, tuple[Kernel, int]]
    ) -> None:
        for name, layer in made.named_modules():
            if isinstance(layer, nn.MultiheadAttention):
                self._mend_attention(name, layer, sizes)
            elif not _mend_layer(layer):
                self._mend_other(name, layer, sizes)
            if hasattr(layer, "groups") or isinstance(layer, nn.GroupNorm):
                self._mend_groups(name, layer, sizes)
        for name, (kernel, size) in kernels.items():
            _mend_kernel(made.get_submodule(name), kernel, size)

    def _mend_groups(self, name: str, layer: Any, sizes: Mapping[Atom, int]) -> None:
        """Set the number of groups of a convolution or group normalization."""
        call = self.calls.get(name)
        is_own = (
            isinstance(layer, nn.modules.conv._ConvNd | nn.GroupNorm)
            or next(layer.children(), None) is None
        )
        if call is None or not is_own:
            return
        for node in self.reading.recorder.nodes[call.start : call.end]:
            groups = self.coupling.groups.get(node.outputs[0])
            if groups is not None and node.op in ("Conv", "ConvTranspose", "GroupNormalization"):
                attribute = "num_groups" if node.op == "GroupNormalization" else "groups"
                if getattr(layer, attribute, None) == groups.size:
                    setattr(layer, attribute, size_of(groups, sizes))
        if isinstance(layer, nn.modules.conv._ConvNd):
            rows, columns, *_ = layer.weight.shape
            outputs, inputs = (columns, rows) if layer.transposed else (rows, columns)
            layer.in_channels = inputs if layer.transposed else inputs * layer.groups
            layer.out_channels = outputs * layer.groups if layer.transposed else outputs

    def _mend_attention(
        self, name: str, layer: nn.MultiheadAttention, sizes: Mapping[Atom, int]
    ) -> None:
        """Heads and width of torch's attention; its own code allows no other number of heads."""
        whole: Any = self.module.get_submodule(name)
        weight = whole.in_proj_weight if whole._qkv_same_embed_dim else whole.q_proj_weight
        axes = self.axes.get(id(weight))
        if axes is None:
            return
        heads = [atom for atom in atoms_of(axes[0]) if atom in self.heads]
        count = size_of(heads[0], sizes) if heads else whole.num_heads
        width = size_of(axes[1], sizes)
        if (count, width) != (whole.num_heads, whole.embed_dim):
            NarrowMultiheadAttention.adopt(layer, count, width)

    def _mend_other(self, name: str, layer: nn.Module, sizes: Mapping[Atom, int]) -> None:
        for attribute, candidates in self.attributes[name].items():
            chosen = self._candidate(layer, attribute, candidates)
            if chosen is not None:
                _set_number(layer, attribute, size_of(chosen.axis, sizes))

    def _candidate(
        self, layer: nn.Module, attribute: str, candidates: list[Candidate]
    ) -> Candidate | None:
        kind = self.assignment.get((type(layer), attribute), _likely_kind(attribute, candidates))
        return next((candidate for candidate in candidates if candidate.kind == kind), None)

    @property
    def attributes(self) -> dict[str, dict[str, list[Candidate]]]:
        """For each layer that is not torch's, its attributes that may hold sizes."""
        if self._attributes is None:
            layers = self.module.named_modules(remove_duplicate=False)
            self._attributes = {name: self._attributes_of(name, layer) for name, layer in layers}
        return self._attributes

    def ambiguous(self, touched: set[Atom]) -> list[tuple[tuple[type, str], list[str]]]:
        """The attributes of classes that may be several things: key, and the other kinds to try.

        Args:
            touched: atoms, of which an attribute's size must contain one.
        """
        keys: dict[tuple[type, str], list[str]] = {}
        for name, attributes in self.attributes.items():
            layer = self.module.get_submodule(name)
            for attribute, candidates in attributes.items():
                if all(touched.isdisjoint(atoms_of(candidate.axis)) for candidate in candidates):
                    continue
                likely = _likely_kind(attribute, candidates)
                others = [
                    kind
                    for kind in [*dict.fromkeys(c.kind for c in candidates), ""]
                    if kind != likely
                ]
                keys.setdefault((type(layer), attribute), others)
        return list(keys.items())

    def _attributes_of(self, name: str, layer: nn.Module) -> dict[str, list[Candidate]]:
        numbers = {key: value for key, value in _numbers(layer) if value > 1}
        if not numbers or _is_known(layer):
            return {}
        by_size: dict[int, list[Candidate]] = {}
        is_leaf = next(layer.children(), None) is None
        for axis, place in self._axes_near(name, layer):
            for candidate in self._parts(axis):
                if is_leaf:  # a layer with weights of its own: what it reads, and what it returns
                    candidate = candidate._replace(kind=place)
                known = by_size.setdefault(candidate.axis.size, [])
                if all(candidate.kind != other.kind for other in known):
                    known.append(candidate)
        return {
            key: by_size[value]
            for key, value in numbers.items()
            if any(
                not self.changing.isdisjoint(atoms_of(candidate.axis))
                for candidate in by_size.get(value, ())
            )
        }

    def _axes_near(self, name: str, layer: nn.Module) -> Iterator[tuple[Axis, str]]:
        """Axes of what a layer reads and returns, of its tensors, and of the layers inside of it.

        With each axis, "source" if the layer reads it, else "result".
        """
        prefix = f"{name}." if name else ""
        calls = [
            call for inner, call in self.calls.items() if inner == name or inner.startswith(prefix)
        ]
        for call in sorted(calls, key=lambda call: (call.name != name, call.start)):
            for value in (call.source, *call.results):
                if value is not None and value in self.coupling.axes:
                    place = "source" if value == call.source else "result"
                    for axis in self.coupling.axes[value]:
                        if not all(atom.fixed in _NO_CHANNELS for atom in atoms_of(axis)):
                            yield axis, place
        for tensor in (*layer.parameters(), *layer.buffers()):
            for axis in self.axes.get(id(tensor), ()):
                yield axis, "result"

    def _parts(self, axis: Axis) -> Iterator[Candidate]:
        """The axis, its terms, and runs of their factors, of which some atom may change."""
        whole = resolve(axis)
        for term in dict.fromkeys([whole, *terms_of(whole)]):
            factors = factors_of(term)
            for start in range(len(factors)):
                for end in range(len(factors), start, -1):
                    part = product(factors[start:end])
                    atoms = set(atoms_of(part))
                    if atoms.isdisjoint(self.heads):
                        yield Candidate(part, "width")
                    else:
                        yield Candidate(
                            part, "heads" if len(factors[start:end]) == 1 else "product"
                        )


def _numbers(layer: nn.Module) -> Iterator[tuple[str, int]]:
    """The whole numbers among a layer's attributes, also those in tuples: `shape[0]`."""
    for key, value in vars(layer).items():
        if key.startswith("_") or key == "training":
            continue
        if type(value) is int:
            yield key, value
        elif isinstance(value, tuple | list) and all(type(item) is int for item in value):
            yield from ((f"{key}[{i}]", item) for i, item in enumerate(value))


def _set_number(layer: nn.Module, attribute: str, new: int) -> None:
    key, _, place = attribute.rstrip("]").partition("[")
    old = getattr(layer, key)
    if not place:
        setattr(layer, key, new)
    elif old[int(place)] != new:
        items = [new if i == int(place) else item for i, item in enumerate(old)]
        setattr(layer, key, items if isinstance(old, list) else tuple(items))


def _likely_kind(attribute: str, candidates: list[Candidate]) -> str:
    kinds = [candidate.kind for candidate in candidates]
    words = attribute.lower()
    if any(word in words for word in _NO_SIZES):
        return ""
    if {"source", "result"} & {*kinds}:  # nx, in_features, in_dim
        order = (
            ("source", "result")
            if words.startswith("in") or words == "nx"
            else ("result", "source")
        )
        return next(kind for kind in order if kind in kinds)
    if "head" in words and "dim" not in words and "size" not in words and "heads" in kinds:
        return "heads"
    wide = ("all_head", "inner", "attn", "attention", "split", "proj", "out")
    order = ("product", "width") if any(word in words for word in wide) else ("width", "product")
    return next((kind for kind in (*order, "heads") if kind in kinds), "")


def _is_known(layer: nn.Module) -> bool:
    known = (nn.modules.conv._ConvNd, nn.Linear, nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.RMSNorm, nn.GroupNorm,
             nn.Embedding, nn.PReLU, nn.MultiheadAttention, *_RECURRENT)  # fmt: skip
    return isinstance(layer, known)


def _mend_layer(layer: Any) -> bool:
    """Set the sizes of one of torch's layers after the shapes of its weights; False for another
    layer.
    """
    if isinstance(layer, nn.Linear):
        layer.out_features, layer.in_features = layer.weight.shape
    elif isinstance(layer, nn.modules.batchnorm._NormBase):
        shaped = next((x for x in (layer.weight, layer.running_mean) if x is not None), None)
        if shaped is not None:
            layer.num_features = shaped.shape[0]
    elif isinstance(layer, nn.LayerNorm | nn.RMSNorm):
        if layer.weight is not None:
            layer.normalized_shape = tuple(layer.weight.shape)
    elif isinstance(layer, nn.GroupNorm):
        if layer.weight is not None:
            layer.num_channels = layer.weight.shape[0]
    elif isinstance(layer, nn.Embedding):
        layer.num_embeddings, layer.embedding_dim = layer.weight.shape
    elif isinstance(layer, nn.PReLU):
        layer.num_parameters = layer.weight.shape[0]
    elif isinstance(layer, _RECURRENT):
        weights: Any = layer
        layer.hidden_size, layer.input_size = (
            weights.weight_hh_l0.shape[1],
            weights.weight_ih_l0.shape[1],
        )
    return _is_known(layer)


def _mend_kernel(layer: Any, kernel: Kernel, size: int) -> None:
    """Set kernel size and padding of a convolution."""
    less = [d * (k - size) // 2 for d, k in zip(layer.dilation, kernel.size, strict=True)]
    layer.kernel_size = (size,) * len(kernel.size)
    if not isinstance(layer.padding, str):
        layer.padding = tuple([p - n for p, n in zip(layer.padding, less, strict=True)])
    padding = (
        layer.padding
        if not isinstance(layer.padding, str)
        else [d * (size - 1) // 2 for d in layer.dilation]
    )
    layer._reversed_padding_repeated_twice = [p for p in reversed(padding) for _ in range(2)]


def kept_of(sizes: Mapping[Atom, int], order: Mapping[Atom, np.ndarray]) -> dict[Atom, np.ndarray]:
    """The positions that stay: the most important ones, in their order; atoms that stay whole are
    left out.

    Args:
        sizes: numbers of positions.
        order: positions from the most to the least important one.
    """
    return {atom: np.sort(order[atom][:size]) for atom, size in sizes.items() if size < atom.size}
