"""Operators that move values without computing: slices, reshapes, transposes, joins, look-ups.

In the net domain the sizes are attributes: `Reshape <shape = [0, -1]> (x)`, where 0 keeps the input's
dimension and -1 stands for the one dimension that is not a known number; `Expand <shape> (x)`, where
0 is the batch size, and `Expand <input, shape> ()`, which repeats a number; `Slice <axes, starts,
ends, steps> (x)`; `ChannelShuffle <groups> (x)`, which interleaves groups of channels (arXiv
1707.01083); and `Embedding <rows, features> (x)`, a row of a learned table for each integer.
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
    is_weight,
    sizes,
)
from search_spaces.ir.graph import (
    BATCH,
    UNKNOWN,
    Attrs,
    Dim,
    Shape,
    Value,
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
    Weight,
    has_operand,
    known_operand,
    named,
    node_attrs,
    positive,
    total_size,
)
from search_spaces.ir.ops.training import check_alone, of_all, of_first, torch_pads, trained_size

if TYPE_CHECKING:
    from torch import Tensor, nn

# --- Reshape and Flatten


def _infer_reshape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    values: dict[str, Any] = dict(attrs)
    (shape,) = shapes
    if values.get("allowzero"):
        raise InputError(
            "Reshape with allowzero = 1 is not supported: a dimension of 0 holds no values"
        )
    dims = [shape[i] if size == 0 else size for i, size in enumerate(values["shape"])]
    if dims.count(-1) > 1 or any(isinstance(dim, int) and dim < -1 for dim in dims):
        raise InputError(f"Reshape to {values['shape']}: sizes are positive, 0 or at most one -1")
    if -1 in dims:
        others = tuple([dim for dim in dims if dim != -1])
        dims[dims.index(-1)] = size_quotient(shape, others)
    if UNKNOWN not in (*dims, *shape) and monomial(tuple(dims)) != monomial(shape):
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
    shape, axis = shapes[0], int(values.get("axis", 1))
    return (size_product(shape[:axis]), size_product(shape[axis:]))


def _read_reshape(reader: Importer, node: onnx.NodeProto) -> int | None:
    """Add a Reshape, or Flatten if all but the first dimension are merged."""
    known = reader.known.get(node.input[1])
    if known is None or known.values is None:
        return None
    if node_attrs(node).get("allowzero", 0) and any((v == 0).any() for v in known.values):
        raise InputError(
            "allowzero = 1 with a size of 0 is not supported: the value would be empty"
        )
    x = reader.value(node.input[0])
    shape = reader.shapes[x]
    target = _reshape_target(known.values, shape)
    if target is None:
        return None
    result = reader.infer("Reshape", (x,), (("shape", target),))
    if result == shape:
        return x
    if len(result) == 2 and len(shape) > 2 and result[0] == shape[0]:
        return reader.emit("Flatten", (x,), ())
    return reader.emit("Reshape", (x,), (("shape", target),))


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
    sizes = list(target)
    for i, dim in enumerate(shape):
        if i < len(sizes) and sizes[i] == 0:
            sizes[i] = dim
    if -1 in sizes:
        # Python's numbers, since those of a hostile file may overflow.
        others = abs(prod(sizes))
        sizes[sizes.index(-1)] = prod(shape) // others if others else 0
    return sizes


# --- Slice and Split

_TO_THE_END = (1 << 63) - 1
_ALMOST_THE_END = 1 << 31  # ends beyond are no sizes, but ONNX's way to write "to the end"


def _slices(attrs: Attrs, shape: Shape) -> dict[int, tuple[int, int, int]]:
    """Start, end and step per axis, in order of the axes.

    They are counted from the front if the axis has a known size.
    """
    values: dict[str, Any] = dict(attrs)
    starts = values["starts"]
    ends = values["ends"]
    count = len(starts)
    axes = values.get("axes", range(count))
    steps = values.get("steps", (1,) * count)
    rank = len(shape)
    ranges = {}
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if not -rank <= axis < rank or step == 0:
            raise InputError(f"Slice along axis {axis} with step {step} does not fit shape {shape}")
        size = shape[axis]
        if isinstance(size, int):
            start, end, _ = slice(start, end, step).indices(size)
            if not range(start, end, step):
                raise InputError(
                    f"Slice from {start} to {end} is empty: dimension {size} (axis {axis})"
                )
            if end < 0:  # backwards to the first element
                end = -size - 1
        ranges[axis % rank] = (start, end, step)
    return dict(sorted(ranges.items()))


def _infer_slice(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    dims = list(shapes[0])
    for axis, (start, end, step) in _slices(attrs, shapes[0]).items():
        size = dims[axis]
        is_whole = (start, step) == (0, 1) and end >= _ALMOST_THE_END
        if isinstance(size, int):
            dims[axis] = len(range(size)[start:end:step])
        elif not is_whole:
            dims[axis] = UNKNOWN
    return like(shapes[0], dims)


def _simplify_slice(attrs: Attrs, shape: Shape) -> Attrs:
    ranges = _slices(attrs, shape)
    kept: dict[str, Value] = {
        "axes": tuple(ranges),
        "ends": tuple([end for _, end, _ in ranges.values()]),
        "starts": tuple([start for start, _, _ in ranges.values()]),
    }
    steps = tuple([step for _, _, step in ranges.values()])
    if set(steps) - {1}:
        kept["steps"] = steps
    return tuple(kept.items())


def _read_slice(reader: Importer, node: onnx.NodeProto) -> int | None:
    """Add a Slice; slices of the whole axis are omitted."""
    if not all(name in reader.known for name in node.input[1:] if name):
        return None
    x = reader.value(node.input[0])
    ranges = _ranges(reader, node, reader.shapes[x])
    if ranges is None:
        return None
    if not ranges:
        return x
    axes, starts, ends, steps = zip(*ranges, strict=True)
    attrs: Attrs = (("axes", axes), ("ends", ends), ("starts", starts), ("steps", steps))
    return reader.emit("Slice", (x,), attrs)


def _ranges(
    reader: Importer, node: onnx.NodeProto, shape: Shape
) -> list[tuple[int, int, int, int]] | None:
    """Axis, start, end and step of each axis that a Slice cuts.

    None if they depend on the data or on open sizes.
    """

    # 1. The operands, each at the first and second assumed sizes.
    starts = _numbers(reader, node, 1, default=[])
    ends = _numbers(reader, node, 2, default=[])
    count = len(starts[0])
    axes = _numbers(reader, node, 3, default=list(range(count)))
    steps = _numbers(reader, node, 4, default=[1] * count)
    # 2. The cut of each axis.
    ranges = []
    for i, axis in enumerate(axes[0]):
        first = starts[0][i], ends[0][i], steps[0][i]
        second = starts[1][i], ends[1][i], steps[1][i]
        cuts = _common_cut(first, second, shape[axis])
        if cuts is None:
            return None
        ranges += [(axis % len(shape), *cut) for cut in cuts]
    return sorted(ranges)


def _numbers(
    reader: Importer,
    node: onnx.NodeProto,
    position: int,
    default: list[int],
) -> tuple[list[int], list[int]]:
    """The numbers of an operand at the first and second assumed sizes."""
    known = known_operand(reader, node, position)
    if known is None or known.values is None:
        return default, default
    first, second = known.values
    return first.tolist(), second.tolist()


_Cut = tuple[int, int, int]  # start, end, step


def _common_cut(first: _Cut, second: _Cut, size: Dim) -> list[_Cut] | None:
    """The cut of a dimension that the file has at the first and second assumed sizes.

    Empty if nothing is cut off; None if no one cut gives both.
    """
    dims = assumed((size,))
    if dims is None:
        return [first] if first == second else None
    ((a, b),) = dims
    first_range, second_range = slice(*first).indices(a), slice(*second).indices(b)
    if first_range == (0, a, 1) and second_range == (0, b, 1):
        return []
    if first == second or (first_range == second_range and isinstance(size, int)):
        return [first]
    # Of an open size, the file may have computed the end.
    is_to_the_end = first_range[1:] == (a, 1) and second_range[1:] == (b, 1)
    if is_to_the_end and first_range[0] == second_range[0]:
        return [(first_range[0], _TO_THE_END, 1)]
    return None


def _read_split(reader: Importer, node: onnx.NodeProto, used: list[int]) -> None:
    """Add a Slice for each used part."""
    attrs = node_attrs(node)
    x = reader.value(node.input[0])
    shape = reader.shapes[x]
    axis = attrs.get("axis", 0) % len(shape)
    size = shape[axis]
    # 1. The sizes of the parts.
    operand = known_operand(reader, node, 1)
    is_computed = has_operand(node, 1) and (operand is None or operand.static is None)
    if isinstance(size, str) or is_computed:
        raise InputError(
            "parts of an open or computed size are not supported: export the model with fixed sizes"
        )
    parts = attrs.get("split")
    if operand is not None and operand.static is not None:
        parts = operand.static.tolist()
    if not parts:
        parts = [-(-size // len(node.output))] * len(node.output)
    bounds = [0, *np.cumsum(parts).tolist()]
    # 2. A Slice for each, unless it is the whole.
    for i in used:
        start, end = bounds[i], min(bounds[i + 1], size)
        value = x
        if end - start != size:
            cut: Attrs = (("axes", (axis,)), ("ends", (end,)), ("starts", (start,)))
            value = reader.emit("Slice", (x,), cut)
        reader.values[node.output[i]] = value


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
    source, known = reader.known.get(node.input[0]), reader.known.get(node.input[1])
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
    source = node.inputs or [exporter.constant(np.array(attrs["input"], np.float32))]
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


# --- Concat, Transpose, Pad


def _infer_concat(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    values: dict[str, Any] = dict(attrs)
    axis = int(values["axis"])
    # 1. Along the axis, sizes are added.
    parts = [shape[axis] for shape in shapes]
    known = [part for part in parts if isinstance(part, int)]
    total: Dim = sum(known)
    if len(known) < len(parts):
        total = parts[0] if len(parts) == 1 else UNKNOWN
    # 2. Along the others, they are equal as far as they are known.
    sizes_per_dim = [set(sizes) - {UNKNOWN} or {UNKNOWN} for sizes in zip(*shapes, strict=True)]
    sizes_per_dim[axis] = {total}
    if any(len(sizes) > 1 for sizes in sizes_per_dim):
        shown = ", ".join(map(str, shapes))
        raise InputError(f"shapes {shown} cannot be joined along axis {axis}")
    return tuple([sizes.pop() for sizes in sizes_per_dim])


def _read_concat(reader: Importer, node: onnx.NodeProto) -> int | None:
    """Empty constants add nothing; one operand alone is the result."""
    names = []
    for name in node.input:
        is_empty = name in reader.known and 0 in reader.known[name].shape
        if not is_empty:
            names.append(name)
    if len(names) == 1:
        return reader.value(names[0])
    if len(names) == len(node.input) or not names:
        return None
    inputs = tuple([reader.value(name) for name in names])
    return reader.emit("Concat", inputs, tuple(node_attrs(node).items()))


def _infer_transpose(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    shape = shapes[0]
    perm: Any = dict(attrs).get("perm", range(len(shape))[::-1])
    if sorted(perm) != list(range(len(shape))):
        raise InputError(f"Transpose by {list(perm)} does not fit shape {shape}")
    return tuple([shape[axis] for axis in perm])


def _read_pad(reader: Importer, node: onnx.NodeProto) -> int | None:
    """Padding by nothing, as in a U-Net whose sizes already fit, is the value itself."""
    pads = reader.known.get(node.input[1])
    if pads is None or pads.static is None or pads.static.any():
        return None
    return reader.value(node.input[0])


# --- ChannelShuffle


def _infer_shuffle(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    groups, channels = positive(attrs, "groups"), shapes[0][1]
    if known_size(channels) % groups:
        raise InputError(f"ChannelShuffle: {groups} groups must divide {channels} channels")
    return shapes[0]


def _write_shuffle(exporter: Exporter, node: ExportedNode) -> None:
    """The channels as a matrix of groups, transposed."""
    name, shape = node.name, node.shapes[0]
    groups = positive(node.attrs, "groups")
    channels, *positions = (int(size) for size in shape[1:])
    # 1. (N, groups, channels / groups, …)
    split = f"{name}.split_out"
    parts = _sizes(exporter, 0, groups, channels // groups, *positions)
    exporter.add("Reshape", f"{name}.split", [node.inputs[0], parts], split)
    # 2. (N, channels / groups, groups, …)
    swapped = f"{name}.swap_out"
    order = (0, 2, 1, *range(3, len(shape) + 1))
    exporter.add("Transpose", f"{name}.swap", [split], swapped, (("perm", order),))
    # 3. (N, channels, …)
    whole = _sizes(exporter, 0, channels, *positions)
    exporter.add("Reshape", f"{name}.join", [swapped, whole], node.output)


def _sizes(exporter: Exporter, *sizes: int) -> str:
    """Name of a constant with sizes as Reshape reads them: 0 keeps a dimension."""
    return exporter.constant(np.array(sizes, np.int64))


# --- look-ups


def _infer_embedding(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    positive(attrs, "rows")
    element = element_type(shapes[0])
    if element not in ("int32", "int64"):
        raise InputError(f"Embedding needs integers as input, not {element}")
    return (*shapes[0], positive(attrs, "features"))


def _embedding_weights(attrs: Attrs, shapes: tuple[Shape, ...]) -> tuple[Weight, ...]:
    rows, features = positive(attrs, "rows"), positive(attrs, "features")
    return (Weight("weight", (rows, features), "kaiming"),)


def _read_gather(reader: Importer, node: onnx.NodeProto) -> int | None:
    """Add an embedding, if the operand is a learned matrix."""
    table = reader.known.get(node.input[0])
    if table is None or not is_weight(table) or len(table.shape) != 2:
        return None
    if node_attrs(node).get("axis", 0) != 0 or element_type(table.shape) != "float":
        return None
    rows, features = map(int, table.shape)
    indices = reader.value(node.input[1])
    return reader.emit("Embedding", (indices,), (("features", features), ("rows", rows)))


def _write_embedding(exporter: Exporter, node: ExportedNode) -> None:
    exporter.add("Gather", node.name, [*node.weights, *node.inputs], node.output)


def _gathered_size(arrays: list[np.ndarray]) -> int:
    return arrays[0].size * arrays[1].size


# --- sizes of other values


def _fold_shape(reader: Importer, node: onnx.NodeProto) -> list[Known] | None:
    attrs = node_attrs(node)
    shape = reader.shape(node.input[0])
    dims = assumed(shape[attrs.get("start", 0) : attrs.get("end")])
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

# --- to torch: shapes


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


def _transpose(node: TrainedNode) -> Function:
    axes = tuple(range(len(node.shapes[0])))
    perm = node.attributes.get("perm", axes[::-1])
    return lambda x: x.permute(perm)


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


# --- to torch: parts


def _slice(node: TrainedNode) -> Function:
    import torch

    attributes = node.attributes
    axes = attributes["axes"]
    steps = attributes.get("steps", (1,) * len(axes))
    cuts = list(zip(axes, attributes["starts"], attributes["ends"], steps, strict=True))

    def cut(x: Tensor) -> Tensor:
        for axis, start, end, step in cuts:
            if step > 0:
                whole = (slice(None),) * axis
                x = x[(*whole, slice(start, end, step))]
            else:
                # Torch has no negative steps.
                size = trained_size(node.shapes[0][axis], "Slice")
                places = list(range(size))[start:end:step]
                x = x.index_select(axis, torch.tensor(places, device=x.device))
        return x

    return cut


def _gather(node: TrainedNode) -> Function:
    axis = node.attributes.get("axis", 0)

    def gather(data: Tensor, indices: Tensor) -> Tensor:
        places = indices.long() % data.shape[axis]  # negative ones count from the end
        if not places.dim():
            return data.select(axis, int(places))
        selected = data.index_select(axis, places.flatten())
        return selected.unflatten(axis, places.shape)

    return gather


def _triangle(node: TrainedNode) -> Function:
    import torch

    triangle = torch.triu if node.attributes.get("upper", 1) else torch.tril
    return partial(triangle, diagonal=node.attributes.get("k", 0))


# --- to torch: more elements


def _concat(node: TrainedNode) -> Function:
    import torch

    axis = node.attributes["axis"]
    return lambda *parts: torch.cat(parts, dim=axis)


def _tile(node: TrainedNode) -> Function:
    repeats = node.attributes["repeats"]
    return lambda x: x.repeat(repeats)


# Modes of Pad, and their names in torch
_PAD_MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}


def _pad(node: TrainedNode) -> Function:
    from torch.nn import functional

    attributes = node.attributes
    # 1. Pads of all axes: starts, then ends.
    rank = len(node.shapes[0])
    pads = attributes["pads"]
    axes = attributes.get("axes", tuple(range(rank)))
    axes = (axes,) if isinstance(axes, int) else axes
    starts = [0] * rank
    ends = [0] * rank
    for i, axis in enumerate(axes):
        starts[axis] = pads[i]
        ends[axis] = pads[i + len(axes)]

    # 2. Torch pads with a number along all axes, in other modes along the last ones.
    mode = attributes.get("mode", "constant")
    if mode == "constant":
        number = float(attributes.get("constant_value", 0))
        return partial(functional.pad, pad=torch_pads((*starts, *ends)), value=number)
    if any((*starts[:2], *ends[:2])):
        raise InputError(f"Pad of batch or channels in mode {mode} cannot be trained")
    spatial = torch_pads((*starts[2:], *ends[2:]))
    return partial(functional.pad, pad=spatial, mode=_PAD_MODES[mode])


def _embedding_layer(node: TrainedNode) -> nn.Module:
    from torch import nn

    check_alone(node)
    return nn.Embedding(node.attributes["rows"], node.attributes["features"])


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
    Operator(
        name="Slice",
        own_attributes={"axes": None, "ends": None, "starts": None, "steps": None},
        in_net_domain=True,
        infer_own_shape=_infer_slice,
        simplify=_simplify_slice,
        read=_read_slice,
        function=of_first(_slice),
        folded_size=total_size,
        rearranges=True,
    ),
    Operator(name="Split", read_outputs=_read_split, rearranges=True),
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
        name="Concat",
        infer_shape=_infer_concat,
        read=_read_concat,
        function=of_all(_concat),
        folded_size=total_size,
    ),
    Operator(
        name="Transpose",
        infer_shape=_infer_transpose,
        function=of_first(_transpose),
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
    Operator(name="Trilu", function=of_first(_triangle), folded_size=total_size),
    Operator(
        name="Pad",
        read=_read_pad,
        function=of_first(_pad),
        settings=(2,),
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
    Operator(
        name="Embedding",
        own_attributes={"features": None, "rows": None},
        in_net_domain=True,
        infer_own_shape=_infer_embedding,
        weights=_embedding_weights,
        write=_write_embedding,
        layer=_embedding_layer,
    ),
    Operator(
        name="Gather",
        read=_read_gather,
        function=of_all(_gather),
        folded_size=_gathered_size,
        kernels=(0,),
        rearranges=True,
    ),
    Operator(name="GatherElements", kernels=(0,)),
    Operator(name="GatherND", kernels=(0,)),
    Operator(name="OneHot", settings=(2,)),
    Operator(name="Shape", fold=_fold_shape),
    Operator(name="Size", fold=_fold_size),
    *named(
        "CenterCropPad",
        "Compress",
        "ReverseSequence",
        "ScatterElements",
        "ScatterND",
    ),
    Operator(name="DepthToSpace", function=of_first(_depth_to_space)),
    Operator(name="SpaceToDepth", function=of_first(_space_to_depth)),
)
