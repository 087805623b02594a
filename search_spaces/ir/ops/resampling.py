"""Images of other sizes: interpolation, grids, and columns to images."""

from __future__ import annotations

from typing import Any

import onnx

from search_spaces.ir import standard
from search_spaces.ir.constants import assumed
from search_spaces.ir.graph import Attrs, Shape, count, known_size
from search_spaces.ir.ops.operator import (
    CountedNode,
    Importer,
    Operator,
    has_operand,
    known_operand,
    named,
    node_attrs,
)

_SCALES, _SIZES = 2, 3  # positions of operands of Resize


def _infer_resize(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    values: dict[str, Any] = dict(attrs)
    keeps_ratio = values.get("keep_aspect_ratio_policy", "stretch") != "stretch"
    if len(shapes) != 1 or keeps_ratio or "axes" not in values:
        return standard.infer("Resize", attrs, shapes)
    dims = list(shapes[0])
    for i, axis in enumerate(values["axes"]):
        if "sizes" in values:
            dims[axis] = values["sizes"][i]
        else:
            dims[axis] = int(known_size(dims[axis]) * values["scales"][i])
    return tuple(dims)


def _read_resize(reader: Importer, node: onnx.NodeProto) -> int | None:
    """Add a Resize of the axes whose sizes change."""
    attrs, x = node_attrs(node), reader.value(node.input[0])
    shape = reader.shapes[x]
    axes = attrs.pop("axes", tuple(range(len(shape))))
    # 1. One number per axis, at the first and second assumed sizes: sizes, or scales.
    position = next(
        (
            i
            for i in (_SIZES, _SCALES)
            if has_operand(node, i) and len(reader.shape(node.input[i])) == 1
        ),
        None,
    )
    known = None if position is None else known_operand(reader, node, position)
    if known is None or known.values is None:
        return None
    if has_operand(node, 1) and reader.shape(node.input[1]) != (0,):  # a region of interest
        return None
    pairs = zip(*(v.tolist() for v in known.values), strict=True)
    # 2. The axes that change.
    changes = {}
    for axis, (first, second) in zip(axes, pairs, strict=True):
        unchanged = [(1, 1)] if position == _SCALES else assumed((shape[axis],))
        if [(first, second)] != unchanged:
            changes[axis % len(shape)] = standard.number(first)
    if not changes:
        return x
    # 3. The node has these alone.
    kept, values = zip(*sorted(changes.items()), strict=True)
    name = "scales" if position == _SCALES else "sizes"
    return reader.emit("Resize", (x,), (*attrs.items(), ("axes", kept), (name, values)))


def _infer_col2im(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    """ONNX does not infer the batch size."""
    return (shapes[0][0], *standard.infer("Col2Im", attrs, shapes)[1:])


def _count_affine_grid(node: CountedNode) -> int:
    """Every coordinate is a row of the matrix times a position."""
    return count(node.output) * known_size(node.shapes[0][-1])


OPERATORS = (
    Operator(name="Resize", infer_shape=_infer_resize, read=_read_resize, settings=(1, 2)),
    Operator(name="Col2Im", infer_shape=_infer_col2im),
    Operator(name="AffineGrid", count=_count_affine_grid),
    *named("GridSample"),
)
