"""Images of other sizes: interpolation, grids, and columns to images."""

from __future__ import annotations

from functools import partial
from typing import Any

import onnx

from search_spaces.common.errors import InputError
from search_spaces.ir import standard
from search_spaces.ir.constants import assumed
from search_spaces.ir.graph import Attrs, Shape, count, known_size
from search_spaces.ir.ops.operator import (
    CountedNode,
    Function,
    Importer,
    Operator,
    TrainedNode,
    has_operand,
    known_operand,
    named,
    node_attrs,
)
from search_spaces.ir.ops.training import of_first, trained_size

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
    attrs = node_attrs(node)
    x = reader.value(node.input[0])
    shape = reader.shapes[x]
    axes = attrs.pop("axes", tuple(range(len(shape))))
    # 1. One number per axis, at the first and second assumed sizes: sizes, or scales.
    for position in (_SIZES, _SCALES):
        if has_operand(node, position) and len(reader.shape(node.input[position])) == 1:
            break
    else:
        return None
    known = known_operand(reader, node, position)
    if known is None or known.values is None:
        return None
    if has_operand(node, 1) and reader.shape(node.input[1]) != (0,):  # a region of interest
        return None
    first_values, second_values = known.values
    pairs = zip(first_values.tolist(), second_values.tolist(), strict=True)

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


# --- to torch

_SMOOTH_MODES = {1: "linear", 2: "bilinear", 3: "trilinear"}  # by number of dimensions
_SMOOTH_COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners")


def _resize(node: TrainedNode) -> Function:
    from torch.nn import functional

    attributes = node.attributes
    mode = attributes.get("mode", "nearest")
    coordinates = attributes.get("coordinate_transformation_mode", "half_pixel")
    rounding = attributes.get("nearest_mode", "round_prefer_floor")
    size = [trained_size(dim, "Resize") for dim in node.output[2:]]

    # 1. Nearest pixels, counted from the corner.
    if (mode, coordinates, rounding) == ("nearest", "asymmetric", "floor"):
        return partial(functional.interpolate, size=size, mode="nearest")

    # 2. Between pixels.
    keeps_channels = node.output[1] == node.shapes[0][1]
    is_smooth = mode == "linear" and len(size) in _SMOOTH_MODES
    is_torch = keeps_channels and not attributes.get("antialias")
    if is_smooth and is_torch and coordinates in _SMOOTH_COORDINATES:
        return partial(
            functional.interpolate,
            size=size,
            mode=_SMOOTH_MODES[len(size)],
            align_corners=coordinates == "align_corners",
        )
    raise InputError(
        f"Resize with mode {mode} and coordinates {coordinates} cannot be trained; use linear, or "
        "nearest with asymmetric "
        "coordinates and nearest_mode floor"
    )


def _col2im(node: TrainedNode) -> Function:
    """Sums of overlapping windows."""
    from torch.nn import functional

    attributes = node.attributes
    pads = attributes.get("pads", (0, 0, 0, 0))
    if len(pads) != 4 or pads[:2] != pads[2:]:
        raise InputError(
            f"Col2Im with pads {list(pads)} cannot be trained; use images, and equal pads on both "
            "sides"
        )
    return partial(
        functional.fold,
        output_size=attributes["image_shape"],
        kernel_size=attributes["block_shape"],
        dilation=attributes.get("dilations", (1, 1)),
        padding=pads[:2],
        stride=attributes.get("strides", (1, 1)),
    )


# --- the operators

OPERATORS = (
    Operator(
        name="Resize",
        infer_shape=_infer_resize,
        read=_read_resize,
        function=of_first(_resize),
        settings=(1, 2),
    ),
    Operator(name="Col2Im", infer_shape=_infer_col2im, function=of_first(_col2im)),
    Operator(name="AffineGrid", count=_count_affine_grid),
    *named("GridSample"),
)
