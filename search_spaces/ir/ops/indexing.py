"""Operators that take parts of tensors, join them, or look values up.

The net domain has `Slice <axes, starts, ends, steps> (x)`, and `Embedding <rows, features> (x)`, a row
of a learned table for each integer.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from search_spaces.common.errors import InputError
from search_spaces.ir.constants import (
    assumed,
    is_weight,
)
from search_spaces.ir.graph import (
    UNKNOWN,
    Attrs,
    Dim,
    Shape,
    Value,
    element_type,
    like,
)
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
    first_range = slice(*first).indices(a)
    second_range = slice(*second).indices(b)
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
        start = bounds[i]
        end = min(bounds[i + 1], size)
        value = x
        if end - start != size:
            cut: Attrs = (("axes", (axis,)), ("ends", (end,)), ("starts", (start,)))
            value = reader.emit("Slice", (x,), cut)
        reader.values[node.output[i]] = value


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


# --- Concat and Pad


def _infer_concat(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    values: dict[str, Any] = dict(attrs)
    axis = int(values["axis"])  # below 0 from the last one
    # 1. Along the axis, sizes are added.
    parts = [shape[axis] for shape in shapes]
    known = [part for part in parts if isinstance(part, int)]
    total: Dim = sum(known)
    if len(known) < len(parts):
        total = parts[0] if len(parts) == 1 else UNKNOWN

    # 2. Along the others, they are equal as far as they are known.
    joined: list[Dim] = []
    rank = len(shapes[0])
    for i, sizes in enumerate(zip(*shapes, strict=True)):
        distinct = set(sizes) - {UNKNOWN}
        if i == axis % rank:
            joined.append(total)
        elif len(distinct) > 1:
            shown = ", ".join(map(str, shapes))
            raise InputError(f"shapes {shown} cannot be joined along axis {axis}")
        else:
            joined.append(distinct.pop() if distinct else UNKNOWN)
    return tuple(joined)


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


def _concat(node: TrainedNode) -> Function:
    import torch

    axis = node.attributes["axis"]
    return lambda *parts: torch.cat(parts, dim=axis)


def _read_pad(reader: Importer, node: onnx.NodeProto) -> int | None:
    """Padding by nothing, as in a U-Net whose sizes already fit, is the value itself."""
    pads = reader.known.get(node.input[1])
    if pads is None or pads.static is None or pads.static.any():
        return None
    return reader.value(node.input[0])


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


# --- Gather, Embedding and Trilu


def _infer_embedding(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    positive(attrs, "rows")
    element = element_type(shapes[0])
    if element not in ("int32", "int64"):
        raise InputError(f"Embedding needs integers as input, not {element}")
    return (*shapes[0], positive(attrs, "features"))


def _embedding_weights(attrs: Attrs, shapes: tuple[Shape, ...]) -> tuple[Weight, ...]:
    rows = positive(attrs, "rows")
    features = positive(attrs, "features")
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


def _embedding_layer(node: TrainedNode) -> nn.Module:
    from torch import nn

    check_alone(node)
    return nn.Embedding(node.attributes["rows"], node.attributes["features"])


def _gathered_size(arrays: list[np.ndarray]) -> int:
    return arrays[0].size * arrays[1].size


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


# --- the operators

OPERATORS = (
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
        name="Concat",
        infer_shape=_infer_concat,
        read=_read_concat,
        function=of_all(_concat),
        folded_size=total_size,
    ),
    Operator(
        name="Pad",
        read=_read_pad,
        function=of_first(_pad),
        settings=(2,),
        rearranges=True,
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
    Operator(name="Trilu", function=of_first(_triangle), folded_size=total_size),
    *named(
        "CenterCropPad",
        "Compress",
        "ReverseSequence",
        "ScatterElements",
        "ScatterND",
    ),
)
