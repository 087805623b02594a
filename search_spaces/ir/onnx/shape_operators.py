"""Readers of ONNX operators whose constant operands are shapes: slices, reshapes, expansions,
resizes, splits.
"""

from __future__ import annotations

import numpy as np
import onnx

from search_spaces.common.errors import InputError
from search_spaces.ir import standard
from search_spaces.ir.graph import Attrs, Shape, element_type
from search_spaces.ir.onnx.folding import assumed, constant, read_tensor, sizes
from search_spaces.ir.onnx.reader import Reader, node_attrs
from search_spaces.ir.onnx.weight_operators import has_operand
from search_spaces.ir.operators import output_shape


def _ranges(
    reader: Reader, node: onnx.NodeProto, shape: Shape
) -> list[tuple[int, int, int, int]] | None:
    """Axis, start, end and step of each axis that a Slice cuts; None if they depend on the data or
    on open sizes.
    """
    known = [reader.known[name] if name else None for name in node.input[1:]]
    values = [k.values if k else None for k in known]
    count = len(values[0][0]) if values and values[0] else 0
    plain = [list(range(count)), [1] * count]
    starts, ends, axes, steps = (
        [v.tolist() for v in pair] if pair is not None else [plain[i - 2]] * 2
        for i, pair in enumerate([*values, None, None][:4])
    )
    found = []
    for i, axis in enumerate(axes[0]):
        size = shape[axis]
        one, two = ((starts[n][i], ends[n][i], steps[n][i]) for n in (0, 1))
        if (pair := assumed((size,))) is None:
            if one != two:
                return None
            found.append((axis % len(shape), *one))
            continue
        first, second = (slice(*cut).indices(n) for cut, n in zip((one, two), pair[0], strict=True))
        if first == (0, pair[0][0], 1) and second == (0, pair[0][1], 1):
            continue
        if one != two and not (first == second and isinstance(size, int)):
            if (first[0], first[1:], second[1:]) != (second[0], (pair[0][0], 1), (pair[0][1], 1)):
                return None
            one = (first[0], _TO_THE_END, 1)
        found.append((axis % len(shape), *one))
    return sorted(found)


_TO_THE_END = (1 << 63) - 1


def read_slice(reader: Reader, node: onnx.NodeProto) -> int | None:
    """Add a Slice; slices of the whole axis are omitted."""
    if not all(name in reader.known for name in node.input[1:] if name):
        return None
    x = reader.value(node.input[0])
    ranges = _ranges(reader, node, reader.shapes[x])
    if not ranges:
        return x if ranges == [] else None
    axes, starts, ends, steps = zip(*ranges, strict=True)
    return reader.emit(
        "Slice", (x,), (("axes", axes), ("ends", ends), ("starts", starts), ("steps", steps))
    )


def read_reshape(reader: Reader, node: onnx.NodeProto) -> int | None:
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
    target = _target(known.values, shape)
    if target is None:
        return None
    result = output_shape("Reshape", (("shape", target),), (shape,))
    if result == shape:
        return x
    if len(result) == 2 and len(shape) > 2 and result[0] == shape[0]:
        return reader.emit("Flatten", (x,), ())
    return reader.emit("Reshape", (x,), (("shape", target),))


def _target(values: tuple[np.ndarray, np.ndarray], shape: Shape) -> tuple[int, ...] | None:
    """Sizes of a Reshape with 0 for kept dimensions and -1 for an open one; None if several are
    open.
    """
    pairs = list(zip(*(v.tolist() for v in values), strict=True))
    sizes = assumed(shape)
    if sizes is None:
        return tuple(a for a, _ in pairs) if all(a == b for a, b in pairs) else None
    full = [
        _without_gaps(list(column), [size[i] for size in sizes])
        for i, column in enumerate(zip(*pairs, strict=True))
    ]
    found = []
    for i, (a, b) in enumerate(zip(*full, strict=True)):
        stays = i < len(shape) and (a, b) == sizes[i]
        found.append(0 if stays else a if a == b else -1)
    return tuple(found) if found.count(-1) <= 1 else None


def _without_gaps(target: list[int], shape: list[int]) -> list[int]:
    """The sizes with 0 and -1 resolved for an input of this shape."""
    target = [shape[i] if size == 0 and i < len(shape) else size for i, size in enumerate(target)]
    if -1 in target:
        rest = abs(int(np.prod(target, dtype=object)))
        target[target.index(-1)] = int(np.prod(shape, dtype=object)) // rest if rest else 0
    return target


def read_expand(reader: Reader, node: onnx.NodeProto) -> int | None:
    """Add an Expand, unless it keeps the shape; None if its sizes are not known."""
    known, source = reader.known.get(node.input[1]), reader.known.get(node.input[0])
    target = sizes(known) if known else None
    if target is None:
        return None
    if source is not None and source.static is not None and not source.shape:
        return add_filled(reader, target, source.static, element_type(source.shape))
    x = reader.value(node.input[0])
    given: Attrs = (("shape", target),)
    return (
        x
        if output_shape("Expand", given, (reader.shapes[x],)) == reader.shapes[x]
        else reader.emit("Expand", (x,), given)
    )


def read_constant_of_shape(reader: Reader, node: onnx.NodeProto) -> int | None:
    """Add a constant filled with one number."""
    known = reader.known.get(node.input[0])
    target = sizes(known) if known else None
    if target is None:
        raise InputError("the shape depends on the data, or on an open size other than the batch's")
    fill = next(
        (read_tensor(a.t, learned=False) for a in node.attribute),
        constant(np.zeros(1, np.float32), "float"),
    )
    return add_filled(reader, target, fill.static, element_type(fill.shape))


def add_filled(
    reader: Reader, target: tuple[int, ...], fill: np.ndarray | None, element: str
) -> int:
    """Add a constant of shape `target` (0 for the batch size) filled with a scalar."""
    if fill is None:
        raise InputError("the constant to fill with is not known")
    value = reader.emit("Expand", (), (("input", standard.number(fill.item())), ("shape", target)))
    return (
        value
        if element == "float"
        else reader.emit("Cast", (value,), (("to", standard.enum(element)),))
    )


def read_resize(reader: Reader, node: onnx.NodeProto) -> int | None:
    """Add a Resize of the axes whose sizes change."""
    attrs, x = node_attrs(node), reader.value(node.input[0])
    shape = reader.shapes[x]
    axes = attrs.pop("axes", tuple(range(len(shape))))
    by = next(
        (i for i in (3, 2) if has_operand(node, i) and len(reader.shape(node.input[i])) == 1), 0
    )
    known = reader.known.get(node.input[by]) if by else None
    if (
        known is None
        or known.values is None
        or (has_operand(node, 1) and reader.shape(node.input[1]) != (0,))
    ):
        return None
    pairs = zip(*(v.tolist() for v in known.values), strict=True)
    changed = {
        axis % len(shape): a
        for axis, (a, b) in zip(axes, pairs, strict=True)
        if [(a, b)] != ([(1, 1)] if by == 2 else assumed((shape[axis],)))
    }
    if not changed:
        return x
    kept, values = zip(*sorted(changed.items()), strict=True)
    name = "scales" if by == 2 else "sizes"
    return reader.emit(
        "Resize",
        (x,),
        (*attrs.items(), ("axes", kept), (name, tuple(map(standard.number, values)))),
    )


def read_split(reader: Reader, node: onnx.NodeProto, used: list[int]) -> None:
    """Add a Slice for each used part."""
    attrs, x = node_attrs(node), reader.value(node.input[0])
    shape = reader.shapes[x]
    axis = attrs.get("axis", 0) % len(shape)
    size, operand = shape[axis], reader.known.get(node.input[1]) if has_operand(node, 1) else None
    if isinstance(size, str) or (
        has_operand(node, 1) and (operand is None or operand.static is None)
    ):
        raise InputError(
            "parts of an open or computed size are not supported: export the model with fixed sizes"
        )
    equal = -(-size // len(node.output))
    parts = (
        operand.static.tolist()
        if operand is not None and operand.static is not None
        else attrs.get("split")
    )
    ends = np.cumsum(parts or [equal] * len(node.output)).tolist()
    for i in used:
        start, end = ends[i - 1] if i else 0, min(ends[i], size)
        given: Attrs = (("axes", (axis,)), ("ends", (end,)), ("starts", (start,)))
        reader.values[node.output[i]] = (
            x if end - start == size else reader.emit("Slice", (x,), given)
        )
