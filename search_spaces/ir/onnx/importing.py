"""Readers of the ONNX operators that the graph represents differently."""

from __future__ import annotations

from collections.abc import Callable

import onnx

from search_spaces.ir import standard
from search_spaces.ir.graph import element_type
from search_spaces.ir.onnx.folding import is_weight
from search_spaces.ir.onnx.reader import Reader, node_attrs
from search_spaces.ir.onnx.shape_operators import (
    read_constant_of_shape,
    read_expand,
    read_reshape,
    read_resize,
    read_slice,
)
from search_spaces.ir.onnx.weight_operators import (
    explicit_pads,
    has_operand,
    read_batch_norm,
    read_conv,
    read_conv_transpose,
    read_gather,
    read_gemm,
    read_matmul,
    read_prelu,
)


def _pool(reader: Reader, node: onnx.NodeProto) -> int | None:
    attrs = node_attrs(node)
    x = reader.value(node.input[0])
    attrs["pads"] = explicit_pads(attrs, attrs["kernel_shape"], reader.shapes[x])
    attrs.pop("auto_pad", None)
    if not any(attrs["pads"]):
        attrs.pop("count_include_pad", None)
    return reader.emit(node.op_type, (x,), tuple(attrs.items()))


def _same(reader: Reader, node: onnx.NodeProto) -> int | None:
    return reader.value(node.input[0])


def read_dropout(reader: Reader, node: onnx.NodeProto, used: list[int]) -> None:
    """The output of Dropout is its input when it does not train; the mask is an operator of its
    own.
    """
    for i in used:
        if i == 0:
            reader.values[node.output[0]] = reader.value(node.input[0])
        else:
            reader.add_output(node, i)


def _concat(reader: Reader, node: onnx.NodeProto) -> int | None:
    """Empty constants add nothing; one operand alone is the result."""
    names = [
        name for name in node.input if name not in reader.known or 0 not in reader.known[name].shape
    ]
    if len(names) == 1:
        return reader.value(names[0])
    if len(names) == len(node.input) or not names:
        return None
    return reader.emit("Concat", tuple(map(reader.value, names)), tuple(node_attrs(node).items()))


def _number(reader: Reader, name: str, other: str) -> float | None:
    """The number of a known scalar that does not change the shape of another operand; None for
    other values.
    """
    known = reader.known.get(name)
    if known is None or is_weight(known) or known.static is None or known.static.size != 1:
        return None
    if len(known.shape) > (0 if other in reader.known else len(reader.shape(other))):
        return None
    return float(known.static.item())


def _mul(reader: Reader, node: onnx.NodeProto) -> int | None:
    for name, factor in (node.input, reversed(node.input)):
        number = _number(reader, factor, name)
        if number == 0:
            return reader.emit("Zero", (reader.value(name),), ())
        if number == 1 and name not in reader.known:
            return reader.value(name)
    return None


def _add(reader: Reader, node: onnx.NodeProto) -> int | None:
    for name, number in (node.input, reversed(node.input)):
        if _number(reader, number, name) == 0 and name not in reader.known:
            return reader.value(name)
    return None


def _sub(reader: Reader, node: onnx.NodeProto) -> int | None:
    name, number = node.input
    return (
        reader.value(name)
        if _number(reader, number, name) == 0 and name not in reader.known
        else None
    )


def _div(reader: Reader, node: onnx.NodeProto) -> int | None:
    a, b = node.input
    if _number(reader, b, a) == 1 and a not in reader.known:
        return reader.value(a)
    if (
        _number(reader, a, b) == 1
        and b not in reader.known
        and element_type(reader.shape(b)) == "float"
    ):
        return reader.emit("Reciprocal", (reader.value(b),), ())
    return None


def _cast_like(reader: Reader, node: onnx.NodeProto) -> int | None:
    x, like = (reader.value(name) for name in node.input)
    element = element_type(reader.shapes[like])
    if element == element_type(reader.shapes[x]):
        return x
    return reader.emit("Cast", (x,), (("to", standard.enum(element)),))


def _extremum(reader: Reader, node: onnx.NodeProto) -> int | None:
    """The maximum or minimum of a value and a number as Clip."""
    numbers = [reader.known[name] for name in node.input if name in reader.known]
    others = [name for name in node.input if name not in reader.known]
    if (
        len(numbers) != 1
        or len(others) != 1
        or numbers[0].static is None
        or numbers[0].static.size != 1
    ):
        return None
    x = reader.value(others[0])
    if len(reader.shapes[x]) < len(numbers[0].shape):
        return None
    bound = standard.number(numbers[0].static.item())
    return reader.emit("Clip", (x,), (("min" if node.op_type == "Max" else "max", bound),))


def _cast(reader: Reader, node: onnx.NodeProto) -> int | None:
    x = reader.value(node.input[0])
    same = standard.enum(element_type(reader.shapes[x])) == node_attrs(node)["to"]
    return x if same else None


def _clip(reader: Reader, node: onnx.NodeProto) -> int | None:
    return None if any(node.input[1:]) or len(node.attribute) else reader.value(node.input[0])


def _pad(reader: Reader, node: onnx.NodeProto) -> int | None:
    """Padding by nothing, as in a U-Net whose sizes already fit, is the value itself."""
    pads = reader.known.get(node.input[1])
    nothing = pads is not None and pads.static is not None and not pads.static.any()
    return reader.value(node.input[0]) if nothing else None


def _reduce_mean(reader: Reader, node: onnx.NodeProto) -> int | None:
    """The mean over all spatial dimensions as global average pooling."""
    attrs = node_attrs(node)
    operand = reader.known.get(node.input[1]) if has_operand(node, 1) else None
    axes = (
        operand.static.tolist()
        if operand is not None and operand.static is not None
        else attrs.get("axes", ())
    )
    x = reader.value(node.input[0])
    rank = len(reader.shapes[x])
    if (
        rank < 3
        or sorted(axis % rank for axis in axes) != list(range(2, rank))
        or not attrs.get("keepdims", 1)
    ):
        return None
    return reader.emit("GlobalAveragePool", (x,), ())


READERS: dict[str, Callable[[Reader, onnx.NodeProto], int | None]] = {
    "Add": _add,
    "AveragePool": _pool,
    "BatchNormalization": read_batch_norm,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Clip": _clip,
    "Concat": _concat,
    "ConstantOfShape": read_constant_of_shape,
    "Conv": read_conv,
    "ConvTranspose": read_conv_transpose,
    "Div": _div,
    "Expand": read_expand,
    "Gather": read_gather,
    "Gemm": read_gemm,
    "Identity": _same,
    "MatMul": read_matmul,
    "Max": _extremum,
    "MaxPool": _pool,
    "Min": _extremum,
    "Mul": _mul,
    "PRelu": read_prelu,
    "Pad": _pad,
    "ReduceMean": _reduce_mean,
    "Reshape": read_reshape,
    "Resize": read_resize,
    "Slice": read_slice,
    "Sub": _sub,
}
