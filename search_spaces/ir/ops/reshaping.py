"""Operators that give the values of a tensor another shape or order, or repeat them.

In the net domain the sizes are attributes: `Reshape <shape = [0, -1]> (x)`, where 0 keeps the input's
dimension and -1 stands for the one dimension that is not a known number; `Expand <shape> (x)`, where
0 is the batch size, and `Expand <input, shape> ()`, which repeats a number; and `ChannelShuffle
<groups> (x)`, which interleaves groups of channels (arXiv 1707.01083).
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from search_spaces.common.errors import InputError
from search_spaces.ir import standard
from search_spaces.ir.constants import (
    MAX_ELEMENTS,
    MAX_WRITTEN_NUMBERS,
    Known,
    add_filled,
    assumed,
    from_assumed,
    sizes,
)
from search_spaces.ir.graph import (
    BATCH,
    UNKNOWN,
    Attrs,
    Dim,
    Shape,
    element_type,
    known_size,
    like,
    monomial,
    size_product,
    size_quotient,
)
from search_spaces.ir.ops.elementwise import broadcast_shape
from search_spaces.ir.ops.operator import (
    ExportedNode,
    Exporter,
    Function,
    Importer,
    Operator,
    TrainedNode,
    node_attrs,
    positive,
    total_size,
)
from search_spaces.ir.ops.training import of_first

if TYPE_CHECKING:
    from torch import Tensor

# --- Reshape, Flatten, Squeeze, Unsqueeze


def _infer_reshape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    values: dict[str, Any] = dict(attrs)
    (shape,) = shapes
    if values.get("allowzero"):
        raise InputError(
            "Reshape with allowzero = 1 is not supported: a dimension of 0 holds no values"
        )
    # 1. A size of 0 is that of the input.
    requested = values["shape"]
    dims: list[Dim] = []
    for i, size in enumerate(requested):
        dims.append(shape[i] if size == 0 else size)

    # 2. A size of -1 is what is left.
    has_strange = any(isinstance(dim, int) and dim < -1 for dim in dims)
    if has_strange or dims.count(-1) > 1:
        raise InputError(f"Reshape to {requested}: sizes are positive, 0 or at most one -1")
    if -1 in dims:
        others = tuple([dim for dim in dims if dim != -1])
        dims[dims.index(-1)] = size_quotient(shape, others)

    # 3. The number of values stays, as far as it is known.
    is_known = UNKNOWN not in (*dims, *shape)
    if is_known and monomial(tuple(dims)) != monomial(shape):
        raise InputError(f"Reshape from {shape} to {tuple(dims)} changes the number of values")
    return like(shape, dims)


def _simplify_reshape(attrs: Attrs, shape: Shape) -> Attrs:
    """0 for every dimension that stays, -1 for an unknown one."""
    values: dict[str, Any] = dict(attrs)
    target = []
    dims = _infer_reshape(attrs, (shape,))
    for i, (size, dim) in enumerate(zip(values["shape"], dims, strict=True)):
        is_equal = i < len(shape) and dim == shape[i]
        if is_equal and (dim != UNKNOWN or size == 0):
            target.append(0)
        else:
            target.append(dim if isinstance(dim, int) else -1)
    return (("shape", tuple(target)),)


def _infer_flatten(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    values: dict[str, Any] = dict(attrs)
    shape = shapes[0]
    axis = int(values.get("axis", 1))
    return (size_product(shape[:axis]), size_product(shape[axis:]))


def _read_reshape(reader: Importer, node: onnx.NodeProto) -> int | None:
    """Add a Reshape, or Flatten if all but the first dimension are merged."""
    # 1. The requested sizes.
    known = reader.known.get(node.input[1])
    if known is None or known.values is None:
        return None
    allows_zero = bool(node_attrs(node).get("allowzero", 0))
    if allows_zero and any((sizes == 0).any() for sizes in known.values):
        raise InputError(
            "allowzero = 1 with a size of 0 is not supported: the value would be empty"
        )
    x = reader.value(node.input[0])
    shape = reader.shapes[x]
    target = _reshape_target(known.values, shape)
    if target is None:
        return None

    # 2. The operator with the shortest text.
    attrs: Attrs = (("shape", target),)
    result = reader.infer("Reshape", (x,), attrs)
    if result == shape:
        return x
    merges_all_but_first = len(shape) > 2 and len(result) == 2 and result[0] == shape[0]
    if merges_all_but_first:
        return reader.emit("Flatten", (x,), ())
    return reader.emit("Reshape", (x,), attrs)


def _reshape_target(values: tuple[np.ndarray, np.ndarray], shape: Shape) -> tuple[int, ...] | None:
    """Sizes of a Reshape with 0 for kept dimensions and -1 for an open one.

    Args:
        values: the sizes in the file, at the first and second assumed sizes.
        shape: shape of the input.

    Returns:
        The sizes; None if several are open.
    """
    first, second = (v.tolist() for v in values)
    dims = assumed(shape)
    if dims is None:
        return tuple(first) if first == second else None
    # 1. Sizes without 0 and -1.
    first = _without_gaps(first, [a for a, _ in dims])
    second = _without_gaps(second, [b for _, b in dims])
    # 2. What stays, what is one number, what is open.
    target = []
    for i, (a, b) in enumerate(zip(first, second, strict=True)):
        if i < len(dims) and (a, b) == dims[i]:
            target.append(0)
        elif a == b:
            target.append(a)
        else:
            target.append(-1)
    return tuple(target) if target.count(-1) <= 1 else None


def _without_gaps(target: list[int], shape: list[int]) -> list[int]:
    """The sizes with 0 and -1 resolved for an input of this shape."""
    resolved = list(target)
    for i, dim in enumerate(shape):
        if i < len(resolved) and resolved[i] == 0:
            resolved[i] = dim
    if -1 in resolved:
        # Python's numbers, since those of a hostile file may overflow.
        others = abs(prod(resolved))
        resolved[resolved.index(-1)] = prod(shape) // others if others else 0
    return resolved


def _reshape(node: TrainedNode) -> Function:
    sizes = node.attributes["shape"]

    def reshape(x: Tensor) -> Tensor:
        shape = [x.shape[axis] if size == 0 else size for axis, size in enumerate(sizes)]
        return x.reshape(shape)

    return reshape


def _flatten(node: TrainedNode) -> Function:
    axis = node.attributes.get("axis", 1)

    def flatten(x: Tensor) -> Tensor:
        rows = prod(x.shape[:axis])
        columns = prod(x.shape[axis:])
        return x.reshape(rows, columns)

    return flatten


def _to_output_shape(node: TrainedNode) -> Function:
    """Reshape to the known output shape, in which only the batch may be symbolic."""
    sizes = [-1 if isinstance(size, str) else size for size in node.output]
    if sizes.count(-1) > 1:
        raise InputError(
            f"{node.op} to shape {node.output} cannot be trained: fix the model's input size"
        )
    return lambda x: x.reshape(sizes)


# --- Expand and Tile


def _infer_expand(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    values: dict[str, Any] = dict(attrs)
    target = tuple([BATCH if size == 0 else size for size in values["shape"]])
    are_positive = all(isinstance(dim, str) or dim >= 1 for dim in target)
    if not are_positive or len(shapes) + ("input" in values) != 1:
        raise InputError(
            f"Expand takes one input and a shape of positive sizes (0: the batch), not {values}"
        )
    dims = broadcast_shape((*shapes, target))
    return like(shapes[0], dims) if shapes else dims


def _infer_tile(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    """ONNX does not infer a dimension N, or N times a number."""
    values: dict[str, Any] = dict(attrs)
    if "repeats" not in values:
        return standard.infer("Tile", attrs, shapes)
    repeats = values["repeats"]
    dims = [size_product((size, times)) for size, times in zip(shapes[0], repeats, strict=True)]
    return like(shapes[0], dims)


def _read_expand(reader: Importer, node: onnx.NodeProto) -> int | None:
    """Add an Expand, unless it keeps the shape; None if its sizes are not known."""
    source = reader.known.get(node.input[0])
    known = reader.known.get(node.input[1])
    target = sizes(known) if known else None
    if target is None:
        return None
    if source is not None and source.static is not None and not source.shape:
        fill = source.static.item()
        return add_filled(reader.emit, fill, target, element_type(source.shape))
    x = reader.value(node.input[0])
    attrs: Attrs = (("shape", target),)
    if reader.infer("Expand", (x,), attrs) == reader.shapes[x]:
        return x
    return reader.emit("Expand", (x,), attrs)


def _write_expand(exporter: Exporter, node: ExportedNode) -> None:
    attrs: dict[str, Any] = dict(node.attrs)
    source = node.inputs
    if not source:
        number = np.array(attrs["input"], np.float32)
        source = [exporter.constant(number)]
    target = exporter.sizes(f"{node.name}.shape", attrs["shape"])
    exporter.add("Expand", node.name, [*source, target], node.output)


def size_of(shape: np.ndarray) -> int:
    """Elements of a value whose shape is an array of numbers, from files that may be hostile."""
    if shape.size > MAX_WRITTEN_NUMBERS:
        return MAX_ELEMENTS + 1
    return prod(abs(int(size)) for size in shape.ravel())


def _expanded_size(arrays: list[np.ndarray]) -> int:
    return max(1, *(array.size for array in arrays)) * size_of(arrays[1])


def _tiled_size(arrays: list[np.ndarray]) -> int:
    return arrays[0].size * size_of(arrays[1])


def _expand(node: TrainedNode) -> Function:
    """Expand; its last operand is the network's input if the batch size is needed."""
    import torch

    number = node.attributes.get("input")
    sizes = node.attributes["shape"]

    def expand(*inputs: Tensor) -> Tensor:
        target = [inputs[-1].shape[0] if size == 0 else size for size in sizes]
        if number is None:
            x = inputs[0]
        else:
            device = inputs[-1].device if inputs else None
            x = torch.tensor(float(number), device=device)
        return x.expand(torch.broadcast_shapes(x.shape, target))

    return expand


def _tile(node: TrainedNode) -> Function:
    repeats = node.attributes["repeats"]
    return lambda x: x.repeat(repeats)


# --- Transpose, and orders of channels


def _infer_transpose(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    shape = shapes[0]
    axes = list(range(len(shape)))
    perm: Any = dict(attrs).get("perm", axes[::-1])
    if sorted(perm) != axes:
        raise InputError(f"Transpose by {list(perm)} does not fit shape {shape}")
    return tuple([shape[axis] for axis in perm])


def _transpose(node: TrainedNode) -> Function:
    axes = tuple(range(len(node.shapes[0])))
    perm = node.attributes.get("perm", axes[::-1])
    return lambda x: x.permute(perm)


def _infer_shuffle(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    groups = positive(attrs, "groups")
    channels = shapes[0][1]
    if known_size(channels) % groups:
        raise InputError(f"ChannelShuffle: {groups} groups must divide {channels} channels")
    return shapes[0]


def _write_shuffle(exporter: Exporter, node: ExportedNode) -> None:
    """The channels as a matrix of groups, transposed."""
    name = node.name
    shape = node.shapes[0]
    groups = positive(node.attrs, "groups")
    channels, *positions = [int(size) for size in shape[1:]]
    # 1. (N, groups, channels / groups, …)
    split = f"{name}.split_out"
    in_groups = _shape_constant(exporter, 0, groups, channels // groups, *positions)
    exporter.add("Reshape", f"{name}.split", [node.inputs[0], in_groups], split)
    # 2. (N, channels / groups, groups, …)
    swapped = f"{name}.swap_out"
    rest = range(3, len(shape) + 1)
    swap: Attrs = (("perm", (0, 2, 1, *rest)),)
    exporter.add("Transpose", f"{name}.swap", [split], swapped, swap)
    # 3. (N, channels, …)
    whole = _shape_constant(exporter, 0, channels, *positions)
    exporter.add("Reshape", f"{name}.join", [swapped, whole], node.output)


def _shape_constant(exporter: Exporter, *dims: int) -> str:
    """Name of a constant with sizes as Reshape reads them: 0 keeps a dimension."""
    return exporter.constant(np.array(dims, np.int64))


def _shuffle(node: TrainedNode) -> Function:
    groups = node.attributes["groups"]

    def shuffle(x: Tensor) -> Tensor:
        grouped = x.unflatten(1, (groups, -1))  # (n, groups, channels of a group, …)
        return grouped.transpose(1, 2).flatten(1, 2)

    return shuffle


def _depth_to_space(node: TrainedNode) -> Function:
    from torch.nn import functional

    size = node.attributes["blocksize"]
    if node.attributes.get("mode", "DCR") == "CRD":
        return partial(functional.pixel_shuffle, upscale_factor=size)

    def depth_to_space(x: Tensor) -> Tensor:
        # The block's positions vary slowest; torch expects them to vary fastest.
        channels = x.shape[1] // size**2
        blocks = x.unflatten(1, (size**2, channels))
        return functional.pixel_shuffle(blocks.transpose(1, 2).flatten(1, 2), size)

    return depth_to_space


def _space_to_depth(node: TrainedNode) -> Function:
    from torch.nn import functional

    size = node.attributes["blocksize"]

    def space_to_depth(x: Tensor) -> Tensor:
        blocks = functional.pixel_unshuffle(x, size).unflatten(1, (-1, size**2))
        return blocks.transpose(1, 2).flatten(1, 2)

    return space_to_depth


# --- the shape itself


def _fold_shape(reader: Importer, node: onnx.NodeProto) -> list[Known] | None:
    attrs = node_attrs(node)
    start = attrs.get("start", 0)
    end = attrs.get("end")
    shape = reader.shape(node.input[0])
    dims = assumed(shape[start:end])
    if dims is None:
        return None
    first = np.array([a for a, _ in dims], np.int64)
    second = np.array([b for _, b in dims], np.int64)
    return [from_assumed(first, second, "int64")]


def _fold_size(reader: Importer, node: onnx.NodeProto) -> list[Known] | None:
    dims = assumed(reader.shape(node.input[0]))
    if dims is None:
        return None
    first = np.array(np.prod([a for a, _ in dims], dtype=np.int64))
    second = np.array(np.prod([b for _, b in dims], dtype=np.int64))
    return [from_assumed(first, second, "int64")]


# --- the operators

OPERATORS = (
    Operator(
        name="Reshape",
        own_attributes={"allowzero": 0, "shape": None},
        in_net_domain=True,
        infer_own_shape=_infer_reshape,
        simplify=_simplify_reshape,
        read=_read_reshape,
        function=of_first(_reshape),
        folded_size=total_size,
        rearranges=True,
    ),
    Operator(
        name="Flatten",
        infer_shape=_infer_flatten,
        function=of_first(_flatten),
        folded_size=total_size,
        rearranges=True,
    ),
    *[
        Operator(
            name=name,
            function=of_first(_to_output_shape),
            folded_size=total_size,
            rearranges=True,
        )
        for name in ("Squeeze", "Unsqueeze")
    ],
    Operator(
        name="Expand",
        own_attributes={"input": None, "shape": None},
        own_inputs=(0, 1),
        in_net_domain=True,
        infer_own_shape=_infer_expand,
        read=_read_expand,
        write=_write_expand,
        function=_expand,
        folded_size=_expanded_size,
        shape_from_numbers=True,
        rearranges=True,
    ),
    Operator(
        name="Tile",
        infer_shape=_infer_tile,
        keeps_element=True,
        function=of_first(_tile),
        folded_size=_tiled_size,
        shape_from_numbers=True,
        rearranges=True,
    ),
    Operator(
        name="Transpose",
        infer_shape=_infer_transpose,
        function=of_first(_transpose),
        folded_size=total_size,
        rearranges=True,
    ),
    Operator(
        name="ChannelShuffle",
        own_attributes={"groups": None},
        in_net_domain=True,
        infer_own_shape=_infer_shuffle,
        write=_write_shuffle,
        function=of_first(_shuffle),
    ),
    Operator(name="DepthToSpace", function=of_first(_depth_to_space)),
    Operator(name="SpaceToDepth", function=of_first(_space_to_depth)),
    Operator(name="Shape", fold=_fold_shape),
    Operator(name="Size", fold=_fold_size),
)
