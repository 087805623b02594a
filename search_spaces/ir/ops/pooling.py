"""Pooling: windows of an image reduced to one number each."""

from __future__ import annotations

from typing import Any

import onnx

from search_spaces.common.errors import InputError
from search_spaces.ir.graph import Attrs, Dim, Shape
from search_spaces.ir.ops.convolution import explicit_pads, window_count
from search_spaces.ir.ops.operator import Importer, Operator, each, named, node_attrs


def _infer_pool_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    values: dict[str, Any] = dict(attrs)
    shape = shapes[0]
    rank = len(shape) - 2
    kernel = each(values.get("kernel_shape", 1), rank)
    strides = each(values.get("strides", 1), rank)
    dilations = each(values.get("dilations", 1), rank)
    pads = values.get("pads", (0,) * 2 * rank)
    ceil = bool(values.get("ceil_mode", 0))
    are_positive = min(*kernel, *strides, *dilations) >= 1
    if "kernel_shape" not in values or not are_positive or "auto_pad" in values:
        raise InputError(f"a pooling operator needs positive sizes and explicit pads, not {values}")
    dims: list[Dim] = list(shape[:2])
    for i, size in enumerate(shape[2:]):
        windows = window_count(
            size,
            kernel=kernel[i],
            stride=strides[i],
            pads=(pads[i], pads[i + rank]),
            dilation=dilations[i],
            ceil=ceil,
        )
        dims.append(windows)
    return tuple(dims)


def _infer_global_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    """One number per channel."""
    return (*shapes[0][:2], *[1 for _ in shapes[0][2:]])


def _read_pool(reader: Importer, node: onnx.NodeProto) -> int | None:
    """Make the padding explicit; without padding, whether it counts has no meaning."""
    attrs = node_attrs(node)
    x = reader.value(node.input[0])
    attrs["pads"] = explicit_pads(attrs, attrs["kernel_shape"], reader.shapes[x])
    attrs.pop("auto_pad", None)
    if not any(attrs["pads"]):
        attrs.pop("count_include_pad", None)
    return reader.emit(node.op_type, (x,), tuple(attrs.items()))


OPERATORS = (
    Operator(name="MaxPool", infer_shape=_infer_pool_shape, read=_read_pool),
    Operator(name="AveragePool", infer_shape=_infer_pool_shape, read=_read_pool),
    Operator(name="GlobalAveragePool", infer_shape=_infer_global_shape),
    *named(
        "GlobalLpPool",
        "GlobalMaxPool",
        "LpPool",
        "MaxRoiPool",
        "MaxUnpool",
        "RoiAlign",
    ),
)
