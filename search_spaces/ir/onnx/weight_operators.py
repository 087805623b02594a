"""Readers of ONNX operators with weights as operands: they become operators that own their weights.

A reader returns None for an operator that it cannot read so; the general rule then applies.
"""

from __future__ import annotations

from typing import Any

import onnx

from search_spaces.common.errors import InputError
from search_spaces.ir.convolutions import Convolution
from search_spaces.ir.dimensions import known_size
from search_spaces.ir.graph import Shape, Value, element_type
from search_spaces.ir.onnx.folded_norms import FoldedNorm, folded_norm, is_bias_left_out
from search_spaces.ir.onnx.folding import is_weight
from search_spaces.ir.onnx.reader import Reader, node_attrs
from search_spaces.ir.onnx.weight_uses import is_own_constant
from search_spaces.ir.owned_weights import BATCH_NORM_EPSILON


def weight_shape(reader: Reader, node: onnx.NodeProto, position: int) -> Shape | None:
    """The shape of an operand that is a known tensor.

    None if it is omitted, a scalar, our constant, or computed from initializers of another number
    of elements.
    """
    name = node.input[position] if len(node.input) > position else ""
    known = reader.known.get(name)
    if known is None or not len(known.shape) or not known.is_whole:
        return None
    if not known.learned and is_own_constant(reader.makers.get(name)):
        return None
    return tuple(known.shape)


def has_operand(node: onnx.NodeProto, position: int) -> bool:
    """True unless the operand is omitted."""
    return len(node.input) > position and node.input[position] != ""


def _has_bias(reader: Reader, node: onnx.NodeProto, position: int) -> bool:
    """True if the bias is learned or not zero; unoptimized exports compute a bias of zeros."""
    known = reader.known.get(node.input[position]) if has_operand(node, position) else None
    zeros = (
        known is not None
        and not known.learned
        and known.static is not None
        and not known.static.any()
    )
    return has_operand(node, position) and not zeros


def read_conv(reader: Reader, node: onnx.NodeProto) -> int | None:
    """Add a convolution, and the batch normalization that was folded into it."""
    weight, attrs = weight_shape(reader, node, 1), node_attrs(node)
    if weight is None or (has_operand(node, 2) and weight_shape(reader, node, 2) is None):
        return _computed_conv(reader, node, attrs)
    x, norm = reader.value(node.input[0]), folded_norm(node)
    shape, (channels, inputs, *kernel) = reader.shapes[x], map(int, weight)
    ones, group = (1,) * len(kernel), attrs.get("group", 1)
    if len(shape) != len(weight) or inputs * group != shape[1]:
        raise InputError(f"weights {list(weight)} do not fit an input of shape {list(shape)}")
    conv = Convolution(
        in_channels=inputs * group,
        channels=channels,
        kernel=tuple(kernel),
        strides=attrs.get("strides", ones),
        pads=explicit_pads(attrs, tuple(kernel), shape),
        dilations=attrs.get("dilations", ones),
        group=group,
        bias=norm.bias if norm else _has_bias(reader, node, 2) or is_bias_left_out(node),
    )
    return _normalized(reader, reader.emit("Conv", (x,), conv.attrs), norm)


def _computed_conv(reader: Reader, node: onnx.NodeProto, attrs: dict[str, Any]) -> int | None:
    """Add a convolution with a computed kernel and explicit padding; None if its padding is
    explicit already.
    """
    if attrs.get("auto_pad", "NOTSET") == "NOTSET":
        return None
    kernel = tuple([known_size(size) for size in reader.shape(node.input[1])[2:]])
    pads = explicit_pads(attrs, kernel, reader.shape(node.input[0]))
    explicit = onnx.NodeProto()
    explicit.CopyFrom(node)
    del explicit.attribute[:]
    explicit.attribute.extend(a for a in node.attribute if a.name not in ("auto_pad", "pads"))
    explicit.attribute.append(onnx.helper.make_attribute("pads", pads))
    reader.add_output(explicit, 0)
    return reader.values[node.output[0]]


def _normalized(reader: Reader, value: int, norm: FoldedNorm | None) -> int:
    return reader.emit("BatchNorm", (value,), norm.attrs) if norm else value


def explicit_pads(attrs: dict[str, Any], kernel: tuple[int, ...], shape: Shape) -> tuple[int, ...]:
    """The padding of a convolution or pooling, computed if ONNX's deprecated `auto_pad` is set.

    Args:
        attrs: attributes of the node.
        kernel: sizes of the window.
        shape: (N, channels, …) of the input.

    Raises:
        InputError: if `auto_pad` needs a size that is not fixed.
    """
    auto, rank = attrs.get("auto_pad", "NOTSET"), len(kernel)
    if auto == "NOTSET":
        return attrs.get("pads", (0,) * 2 * rank)
    if auto == "VALID":
        return (0,) * 2 * rank
    strides, dilations = (attrs.get(name, (1,) * rank) for name in ("strides", "dilations"))
    begin, end = [], []
    for size, k, stride, dilation in zip(shape[2:], kernel, strides, dilations, strict=True):
        if isinstance(size, str):
            raise InputError(
                f"auto_pad = {auto} needs a fixed image size: export the model with one"
            )
        total = max(0, (-(-size // stride) - 1) * stride + dilation * (k - 1) + 1 - size)
        begin.append(total // 2 if auto == "SAME_UPPER" else total - total // 2)
        end.append(total - begin[-1])
    return (*begin, *end)


def read_conv_transpose(reader: Reader, node: onnx.NodeProto) -> int | None:
    """Add a transposed convolution, and the batch normalization that was folded into it."""
    weight, attrs = weight_shape(reader, node, 1), node_attrs(node)
    if (
        weight is None
        or (has_operand(node, 2) and weight_shape(reader, node, 2) is None)
        or "output_shape" in attrs
    ):
        return None
    given = {
        **attrs,
        "channels": int(weight[1]) * attrs.get("group", 1),
        "kernel_shape": tuple(map(int, weight[2:])),
    }
    x = reader.value(node.input[0])
    if weight[0] != reader.shapes[x][1]:
        raise InputError(
            f"weights {list(weight)} do not fit an input of shape {list(reader.shapes[x])}"
        )
    norm = folded_norm(node)
    bias = norm.bias if norm else has_operand(node, 2)
    return _normalized(
        reader, reader.emit("ConvTranspose", (x,), (*given.items(), ("bias", int(bias)))), norm
    )


def read_gemm(reader: Reader, node: onnx.NodeProto) -> int | None:
    """Add a linear layer, and the batch normalization that was folded into it."""
    attrs, weight, bias = (
        node_attrs(node),
        weight_shape(reader, node, 1),
        weight_shape(reader, node, 2),
    )
    if (
        weight is None
        or len(weight) != 2
        or {attrs.get("alpha", 1.0), attrs.get("beta", 1.0)} != {1.0}
    ):
        return None
    features, inputs = weight if attrs.get("transB", 0) else weight[::-1]
    if attrs.get("transA", 0) or (
        has_operand(node, 2) and bias not in ((features,), (1, features))
    ):
        return None
    norm = folded_norm(node)
    has_bias = norm.bias if norm else has_operand(node, 2) or is_bias_left_out(node)
    value = _linear(reader, node.input[0], int(inputs), int(features), bias=has_bias)
    return value if value is None else _normalized(reader, value, norm)


def read_matmul(reader: Reader, node: onnx.NodeProto) -> int | None:
    """Add a linear layer without bias."""
    weight = weight_shape(reader, node, 1)
    if weight is None or len(weight) != 2 or reader.is_weight(node.input[0]):
        return None
    return _linear(reader, node.input[0], int(weight[0]), int(weight[1]), bias=False)


def _linear(reader: Reader, name: str, inputs: int, features: int, bias: bool) -> int | None:
    x = reader.value(name)
    if len(reader.shapes[x]) < 2:
        return None
    if reader.shapes[x][-1] != inputs:
        raise InputError(
            f"weights [{inputs},{features}] do not fit an input of shape {list(reader.shapes[x])}"
        )
    return reader.emit("Linear", (x,), (("bias", int(bias)), ("features", features)))


def read_batch_norm(reader: Reader, node: onnx.NodeProto) -> int | None:
    """Add a batch normalization; a constant scale of 1 and shift of 0 are omitted."""
    attrs = node_attrs(node)
    if attrs.get("training_mode", 0):
        raise InputError(
            "batch normalization in training mode: export the model in evaluation mode"
        )
    x, operands = reader.value(node.input[0]), [reader.stored(name) for name in node.input[1:5]]
    shape = reader.shapes[x]
    if any(known is None or tuple(known.shape) != tuple(shape[1:2]) for known in operands):
        raise InputError(
            "scale, shift, mean and variance must be weights that fit an input of shape "
            f"{list(shape)}"
        )
    scale, shift = (known.static if known and not known.learned else None for known in operands[:2])
    given: dict[str, Value] = {"epsilon": attrs.get("epsilon", BATCH_NORM_EPSILON)}
    untrained = (
        scale is not None and shift is not None and (scale == 1).all() and (shift == 0).all()
    )
    is_shared = not all(name in reader.known for name in node.input[1:3])
    if untrained or is_shared:
        given["affine"] = 0
    normalized = reader.emit("BatchNorm", (x,), tuple(given.items()))
    return _scaled(reader, node, normalized) if is_shared else normalized


def _scaled(reader: Reader, node: onnx.NodeProto, x: int) -> int:
    """Scale and shift a normalized value by vectors that other operators read, too."""
    channels, *positions = reader.shapes[x][1:]
    for op, name in zip(("Mul", "Add"), node.input[1:3], strict=True):
        vector = reader.value(name)
        if positions:
            sizes = (int(channels), *[1 for _ in positions])
            vector = reader.emit("Reshape", (vector,), (("shape", sizes),))
        x = reader.emit(op, (x, vector), ())
    return x


def read_gather(reader: Reader, node: onnx.NodeProto) -> int | None:
    """Add an embedding, if the operand is a learned matrix."""
    table = reader.known.get(node.input[0])
    if (
        table is None
        or not is_weight(table)
        or len(table.shape) != 2
        or node_attrs(node).get("axis", 0) != 0
    ):
        return None
    if element_type(table.shape) != "float":
        return None
    rows, features = map(int, table.shape)
    return reader.emit(
        "Embedding", (reader.value(node.input[1]),), (("features", features), ("rows", rows))
    )


def read_prelu(reader: Reader, node: onnx.NodeProto) -> int | None:
    """Add a PRelu whose slope is learned, even if it is a scalar; leading dimensions of 1 are
    dropped.
    """
    slope = reader.known.get(node.input[1])
    if slope is None or not slope.learned:
        return None
    shape = tuple(slope.shape)
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    param = reader.emit("Param", (), (("shape", tuple(map(int, shape)) or (1,)),))
    return reader.emit("PRelu", (reader.value(node.input[0]), param), ())
