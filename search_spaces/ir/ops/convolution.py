"""Convolutions, and convolutions fused with batch normalization and ReLU6.

The net domain's `Conv <channels, kernel, …> (x)` owns its kernel. Its attributes have defaults: the
input's channels, a padding that keeps the size, strides and dilations of 1. `ConvBn` is followed by
batch normalization and takes the attributes of both; `ConvBnRelu6` is `ConvBn` followed by clipping
to [0, 6]. ONNX's `Conv (x, kernel)` has a kernel that other operators compute.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx

from search_spaces.common.errors import InputError
from search_spaces.ir import standard
from search_spaces.ir.graph import UNKNOWN, Attrs, Dim, Shape, Value, count, known_size, like
from search_spaces.ir.ops.normalization import (
    NORM_ATTRIBUTES,
    add_folded_norm,
    batch_norm_layer,
    batch_norm_weights,
    folded_norm,
    is_bias_left_out,
    write_norm,
)
from search_spaces.ir.ops.operator import (
    CountedNode,
    ExportedNode,
    Exporter,
    Importer,
    Operator,
    TrainedNode,
    Weight,
    each,
    has_operand,
    known_operand,
    node_attrs,
    weight_shape,
)
from search_spaces.ir.ops.training import of_rank, torch_pads
from search_spaces.ir.precision import marked, precision_of

if TYPE_CHECKING:
    from torch import nn

CONVOLUTIONS = ("Conv", "ConvBn", "ConvBnRelu6")

# --- attributes


def pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    """Height and width of a kernel, stride or dilation; one number stands for both."""
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def same_pads(kernel: tuple[int, ...], dilations: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """Padding that keeps the size at stride 1 (odd kernels).

    In ONNX's order: top, left, bottom, right.
    """
    dilations = dilations or (1,) * len(kernel)
    sides = []
    for size, dilation in zip(kernel, dilations, strict=True):
        sides.append(dilation * (size - 1) // 2)
    return (*sides, *sides)


class Convolution(NamedTuple):
    """Attributes of a convolution with defaults filled in."""

    in_channels: int
    channels: int
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    group: int
    bias: bool

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """(channels, in_channels / group, *kernel)"""
        return (self.channels, self.in_channels // self.group, *self.kernel)

    @property
    def attrs(self) -> Attrs:
        """The attributes in their shortest form, sorted by name and without defaults."""
        ones = (1,) * len(self.kernel)
        is_depthwise = self.group == self.in_channels > 1
        values_and_defaults: dict[str, tuple[Value, Value]] = {
            "bias": (int(self.bias), 0),
            "channels": (self.channels, self.in_channels),
            "depthwise": (int(is_depthwise), 0),
            "dilations": (self.dilations, ones),
            "group": (1 if is_depthwise else self.group, 1),
            "pads": (self.pads, same_pads(self.kernel, self.dilations)),
            "strides": (self.strides, ones),
        }
        attrs: dict[str, Value] = {"kernel": self.kernel}
        for name, (value, default) in values_and_defaults.items():
            if value != default:
                attrs[name] = value
        return tuple(sorted(attrs.items()))


@lru_cache(maxsize=65536)
def convolution(attrs: Attrs, shape: Shape) -> Convolution:
    """Parse the attributes of a convolution.

    Args:
        attrs: attributes of a node of `CONVOLUTIONS`.
        shape: (N, channels, …) of its input.

    Raises:
        InputError: if attributes and shape do not match.
    """
    values: dict[str, Any] = dict(attrs)
    if len(shape) < 3 or isinstance(shape[1], str):
        raise InputError(f"Conv needs an input of shape (N, channels, height, width), not {shape}")
    if "kernel" not in values:
        raise InputError("Conv needs the attribute kernel = [height, width]")
    in_channels = shape[1]
    rank = len(shape) - 2
    kernel = each(values["kernel"], rank)
    dilations = each(values.get("dilations", 1), rank)
    conv = Convolution(
        in_channels=in_channels,
        channels=int(values.get("channels", in_channels)),
        kernel=kernel,
        strides=each(values.get("strides", 1), rank),
        pads=values["pads"] if "pads" in values else same_pads(kernel, dilations),
        dilations=dilations,
        group=in_channels if values.get("depthwise") else int(values.get("group", 1)),
        bias=bool(values.get("bias", 0)),
    )
    per_dimension = (conv.kernel, conv.strides, conv.dilations)
    has_rank = all(len(sizes) == rank for sizes in per_dimension)
    if not has_rank or len(conv.pads) != 2 * rank:
        raise InputError(
            f"Conv does not take attributes {dict(attrs)} on an input of shape {shape}"
        )
    if min(conv.channels, conv.group, *kernel, *conv.strides, *dilations) < 1:
        raise InputError(f"Conv sizes must be positive: {dict(attrs)}")
    if conv.in_channels % conv.group or conv.channels % conv.group:
        raise InputError(
            f"group = {conv.group} must divide {conv.in_channels} input and {conv.channels} output "
            "channels"
        )
    return conv


def _simplify(attrs: Attrs, shape: Shape) -> Attrs:
    norm = [(name, value) for name, value in attrs if name in NORM_ATTRIBUTES]
    return (*convolution(attrs, shape).attrs, *norm, *precision_of(attrs))


def _simplify_transposed(attrs: Attrs, shape: Shape) -> Attrs:
    default = ("channels", shape[1])
    return tuple([attr for attr in attrs if attr != default])


# --- shapes


def window_count(
    size: Dim,
    kernel: int,
    stride: int,
    pads: tuple[int, int],
    dilation: int = 1,
    ceil: bool = False,
) -> Dim:
    """Number of windows along one dimension, of convolutions and of pooling.

    With `ceil` the last window may end beyond the padding, but not begin in it.
    """
    if isinstance(size, str):
        keeps_size = stride == 1 and sum(pads) == dilation * (kernel - 1)
        return size if keeps_size else UNKNOWN
    room = size + sum(pads) - dilation * (kernel - 1) - 1
    if room < 0:
        raise InputError(f"a window of {kernel} does not fit into {size} with padding {pads}")
    if not ceil:
        return room // stride + 1
    windows = -(-room // stride) + 1
    begins_in_padding = (windows - 1) * stride >= size + pads[0]
    return windows - 1 if begins_in_padding else windows


def _infer_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    shape = shapes[0]
    conv = convolution(attrs, shape)
    rank = len(conv.kernel)
    dims: list[Dim] = [shape[0], conv.channels]
    for i, size in enumerate(shape[2:]):
        windows = window_count(
            size,
            kernel=conv.kernel[i],
            stride=conv.strides[i],
            pads=(conv.pads[i], conv.pads[i + rank]),
            dilation=conv.dilations[i],
        )
        dims.append(windows)
    return like(shape, dims)


# --- weights


def _weights(attrs: Attrs, shapes: tuple[Shape, ...]) -> tuple[Weight, ...]:
    conv = convolution(attrs, shapes[0])
    kernel = Weight("weight", conv.weight_shape, "kaiming")
    if not conv.bias:
        return (kernel,)
    return (kernel, Weight("bias", (conv.channels,), "zeros"))


def _weights_with_norm(attrs: Attrs, shapes: tuple[Shape, ...]) -> tuple[Weight, ...]:
    channels = convolution(attrs, shapes[0]).channels
    return (*_weights(attrs, shapes), *batch_norm_weights(channels, attrs))


def _transposed_weights(attrs: Attrs, shapes: tuple[Shape, ...]) -> tuple[Weight, ...]:
    values: dict[str, Any] = dict(attrs)
    inputs = known_size(shapes[0][1])
    group = values.get("group", 1)
    kernel = tuple(values["kernel_shape"])
    channels = int(values.get("channels", inputs))
    are_positive = min(channels, group, *kernel) >= 1
    if len(kernel) != len(shapes[0]) - 2 or not are_positive or channels % group or inputs % group:
        raise InputError(
            f"ConvTranspose does not take attributes {values} on an input of shape {shapes[0]}"
        )
    weight = Weight(
        name="weight",
        shape=(inputs, channels // group, *kernel),
        init="kaiming",
        fan_in=inputs // group * prod(kernel),
    )
    if not values.get("bias", 0):
        return (weight,)
    return (weight, Weight("bias", (channels,), "zeros"))


# --- costs


def _count(node: CountedNode) -> int:
    """Every element of the output sums over the channels of its group and the kernel."""
    if len(node.shapes) == 1:
        kernel = convolution(node.attrs, node.shapes[0]).weight_shape
        batch, _, *positions = node.output
        return prod(kernel) * count((batch, *positions))
    operands = node.operands
    kernel_name = next(name for name in ("W", "w", "weight") if name in operands)
    per_element = count(operands[kernel_name][1:])
    return count(node.output) * per_element


def _count_transposed(node: CountedNode) -> int:
    """Every element of the input is multiplied by the kernels of its group."""
    shape = node.shapes[0]
    if len(node.shapes) == 1:
        (weight, *_) = _transposed_weights(node.attrs, node.shapes)
        batch, _, *positions = shape
        return prod(weight.shape) * count((batch, *positions))
    per_element = count(node.shapes[1][1:])
    return count(shape) * per_element


# --- from ONNX


def _read(reader: Importer, node: onnx.NodeProto) -> int | None:
    """Add a convolution, and the batch normalization that was folded into it."""
    weight = weight_shape(reader, node, 1)
    attrs = node_attrs(node)
    is_bias_computed = has_operand(node, 2) and weight_shape(reader, node, 2) is None
    if weight is None or is_bias_computed:
        return _read_computed_kernel(reader, node, attrs)

    # 1. The kernel, which must fit the input.
    x = reader.value(node.input[0])
    shape = reader.shapes[x]
    channels, inputs_of_group, *sizes = map(int, weight)
    kernel = tuple(sizes)
    ones = (1,) * len(kernel)
    group = attrs.get("group", 1)
    inputs = inputs_of_group * group
    if len(shape) != len(weight) or inputs != shape[1]:
        raise InputError(f"weights {list(weight)} do not fit an input of shape {list(shape)}")

    # 2. The bias, which may be that of a folded normalization.
    norm = folded_norm(node)
    has_bias = _has_bias(reader, node) or is_bias_left_out(node)
    conv = Convolution(
        in_channels=inputs,
        channels=channels,
        kernel=kernel,
        strides=attrs.get("strides", ones),
        pads=explicit_pads(attrs, kernel, shape),
        dilations=attrs.get("dilations", ones),
        group=group,
        bias=has_bias if norm is None else norm.bias,
    )
    value = reader.emit("Conv", (x,), (*conv.attrs, *marked(node)))
    return add_folded_norm(reader, value, norm)


def _has_bias(reader: Importer, node: onnx.NodeProto) -> bool:
    """True if the bias is learned or not zero; unoptimized exports compute a bias of zeros."""
    if not has_operand(node, 2):
        return False
    bias = known_operand(reader, node, 2)
    if bias is None or bias.learned or bias.static is None:
        return True
    return bool(bias.static.any())


def _read_computed_kernel(
    reader: Importer, node: onnx.NodeProto, attrs: dict[str, Any]
) -> int | None:
    """Add a convolution with a computed kernel and explicit padding.

    None if its padding is explicit already: the general rule adds it.
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


def explicit_pads(
    attrs: dict[str, Any],
    kernel: tuple[int, ...],
    shape: Shape,
) -> tuple[int, ...]:
    """The padding of a convolution or pooling, computed if ONNX's deprecated `auto_pad` is set.

    Args:
        attrs: attributes of the node.
        kernel: sizes of the window.
        shape: (N, channels, …) of the input.

    Raises:
        InputError: if `auto_pad` needs a size that is not fixed.
    """
    mode = attrs.get("auto_pad", "NOTSET")
    rank = len(kernel)
    none = (0,) * 2 * rank
    if mode == "NOTSET":
        return attrs.get("pads", none)
    if mode == "VALID":
        return none
    ones = (1,) * rank
    strides = attrs.get("strides", ones)
    dilations = attrs.get("dilations", ones)
    begins = []
    ends = []
    axes = zip(shape[2:], kernel, strides, dilations, strict=True)
    for size, width, stride, dilation in axes:
        if isinstance(size, str):
            raise InputError(
                f"auto_pad = {mode} needs a fixed image size: export the model with one"
            )
        windows = -(-size // stride)  # rounded up
        reach = dilation * (width - 1) + 1
        last_end = (windows - 1) * stride + reach
        total = max(0, last_end - size)
        smaller = total // 2
        begin = smaller if mode == "SAME_UPPER" else total - smaller
        begins.append(begin)
        ends.append(total - begin)
    return (*begins, *ends)


def _read_transposed(reader: Importer, node: onnx.NodeProto) -> int | None:
    """Add a transposed convolution, and the batch normalization that was folded into it."""
    weight = weight_shape(reader, node, 1)
    attrs = node_attrs(node)
    is_bias_computed = has_operand(node, 2) and weight_shape(reader, node, 2) is None
    if weight is None or is_bias_computed or "output_shape" in attrs:
        return None
    x = reader.value(node.input[0])
    if weight[0] != reader.shapes[x][1]:
        raise InputError(
            f"weights {list(weight)} do not fit an input of shape {list(reader.shapes[x])}"
        )
    norm = folded_norm(node)
    has_bias = has_operand(node, 2) if norm is None else norm.bias
    _, group_channels, *kernel = map(int, weight)
    attrs["channels"] = group_channels * attrs.get("group", 1)
    attrs["kernel_shape"] = tuple(kernel)
    attrs["bias"] = int(has_bias)
    value = reader.emit("ConvTranspose", (x,), tuple(attrs.items()))
    return add_folded_norm(reader, value, norm)


# --- to ONNX


def _write(exporter: Exporter, node: ExportedNode) -> None:
    """Conv, for ConvBn also BatchNormalization, for ConvBnRelu6 also Clip."""
    attrs = _onnx_attrs(convolution(node.attrs, node.shapes[0]))
    if node.op == "Conv":
        operands = [*node.inputs, *node.weights]
        exporter.add("Conv", node.name, operands, node.output, attrs)
        return

    # 1. The convolution. The last four weights are those of the normalization.
    own = node.weights[:-4]
    norm = node.weights[-4:]
    convolved = f"{node.name}.conv_out"
    exporter.add("Conv", f"{node.name}.conv", [*node.inputs, *own], convolved, attrs)

    # 2. The normalization.
    is_last = node.op == "ConvBn"
    normalized = node.output if is_last else f"{node.name}.norm_out"
    write_norm(exporter, f"{node.name}.norm", node.attrs, [convolved, *norm], normalized)

    # 3. The activation.
    if not is_last:
        bounds = [exporter.constant(np.array(bound, np.float32)) for bound in (0, 6)]
        exporter.add("Clip", f"{node.name}.relu6", [normalized, *bounds], node.output)


@lru_cache(maxsize=4096)
def _onnx_attrs(conv: Convolution) -> Attrs:
    attrs: Attrs = (
        ("dilations", conv.dilations),
        ("group", conv.group),
        ("kernel_shape", conv.kernel),
        ("pads", conv.pads),
        ("strides", conv.strides),
    )
    return tuple([(name, v) for name, v in attrs if v != 1 and not standard.neutral(name, v)])


# --- to torch

_CONVOLUTIONS = {3: "Conv1d", 4: "Conv2d", 5: "Conv3d"}
_TRANSPOSED = {3: "ConvTranspose1d", 4: "ConvTranspose2d", 5: "ConvTranspose3d"}


def _conv_layer(node: TrainedNode) -> nn.Module:
    """A convolution; behind a layer of zero padding if the sides differ, as torch's has none."""
    from torch import nn

    from search_spaces.ir.ops.layers import ZeroPad

    conv = convolution(node.attrs, node.shapes[0])
    rank = len(conv.kernel)
    starts = conv.pads[:rank]
    is_symmetric = starts == conv.pads[rank:]
    new_layer = of_rank(node, _CONVOLUTIONS)
    layer = new_layer(
        conv.in_channels * node.replicas,
        conv.channels * node.replicas,
        conv.kernel,
        stride=conv.strides,
        padding=starts if is_symmetric else 0,
        dilation=conv.dilations,
        groups=conv.group * node.replicas,
        bias=conv.bias,
    )
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    if is_symmetric:
        return layer
    return nn.Sequential(ZeroPad(torch_pads(conv.pads)), layer)


def _conv_bn_layer(node: TrainedNode) -> nn.Module:
    from torch import nn

    return nn.Sequential(_conv_layer(node), batch_norm_layer(node))


def _conv_bn_relu6_layer(node: TrainedNode) -> nn.Module:
    from torch import nn

    return nn.Sequential(_conv_layer(node), batch_norm_layer(node), nn.ReLU6())


def _transposed_layer(node: TrainedNode) -> nn.Module:
    attributes = node.attributes
    inputs = int(node.shapes[0][1])
    channels = attributes.get("channels", inputs)
    kernel = attributes["kernel_shape"]
    rank = len(kernel)
    ones = (1,) * rank
    pads = attributes.get("pads", (0,) * 2 * rank)
    starts = pads[:rank]
    if starts != pads[rank:] or attributes.keys() & {"auto_pad", "output_shape"}:
        raise InputError(
            "ConvTranspose can be trained only with explicit pads that are equal on both sides"
        )
    new_layer = of_rank(node, _TRANSPOSED)
    return new_layer(
        inputs * node.replicas,
        channels * node.replicas,
        kernel,
        stride=attributes.get("strides", ones),
        padding=starts,
        output_padding=attributes.get("output_padding", 0),
        groups=attributes.get("group", 1) * node.replicas,
        bias=bool(attributes.get("bias", 0)),
        dilation=attributes.get("dilations", ones),
    )


# --- the operators

_ATTRIBUTES: dict[str, Value | None] = {
    "bias": 0,
    "channels": None,
    "depthwise": 0,
    "dilations": None,
    "group": 1,
    "kernel": None,
    "pads": None,
    "precision": None,
    "strides": None,
}

OPERATORS = (
    Operator(
        name="Conv",
        own_attributes=_ATTRIBUTES,
        in_net_domain=True,
        infer_own_shape=_infer_shape,
        simplify=_simplify,
        weights=_weights,
        count=_count,
        read=_read,
        write=_write,
        layer=_conv_layer,
        kernels=(1,),
        vectors=(2,),
        role="linear",
    ),
    *[
        Operator(
            name=name,
            own_attributes={**_ATTRIBUTES, **NORM_ATTRIBUTES},
            in_net_domain=True,
            infer_own_shape=_infer_shape,
            simplify=_simplify,
            weights=_weights_with_norm,
            count=_count,
            write=_write,
            layer=layer,
        )
        for name, layer in (("ConvBn", _conv_bn_layer), ("ConvBnRelu6", _conv_bn_relu6_layer))
    ],
    Operator(
        name="ConvTranspose",
        owned_attributes={"bias": 0, "channels": None},
        simplify=_simplify_transposed,
        weights=_transposed_weights,
        count=_count_transposed,
        read=_read_transposed,
        layer=_transposed_layer,
        kernels=(1,),
        vectors=(2,),
        role="linear",
    ),
    Operator(name="DeformConv", count=_count, kernels=(1,), vectors=(3,), role="linear"),
    Operator(name="ConvInteger", count=_count, kernels=(1,), settings=(2, 3), role="linear"),
    Operator(
        name="QLinearConv",
        count=_count,
        kernels=(3,),
        vectors=(8,),
        settings=(1, 2, 4, 5, 6, 7),
    ),
    Operator(name="CausalConvWithState", count=_count, kernels=(1,), vectors=(2,)),
)
