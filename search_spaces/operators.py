"""What is known of each operator: output shape, weights, multiply-accumulates.

Names without weights are ONNX's own. Operators that own weights are written in the text's `net` domain:

    Conv, ConvBn  channels (default: the input's), kernel, strides (1), pads (same), dilations (1), group (1), bias (0)
    Linear        features, bias (1)
    BatchNorm     epsilon (1e-5)
    Param         shape: a learned constant
    Zero          zeros of the input's shape

`ConvBn` is a convolution followed by batch normalization.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from search_spaces.errors import InputError
from search_spaces.graph import Attrs, Dim, Shape

NET_OPERATORS = frozenset({"Conv", "ConvBn", "Linear", "BatchNorm", "Param", "Zero"})
COMMUTATIVE = frozenset({"Add", "Sum", "Mul", "Max", "Min", "Mean"})


class Weight(NamedTuple):
    """A tensor that an operator owns. `trained` is false for batch normalization's running statistics."""

    name: str
    shape: tuple[int, ...]
    init: str
    trained: bool = True


def pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    """A square kernel, stride or dilation written as one number, or both numbers as they are."""
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def same_pads(kernel: tuple[int, int], dilations: tuple[int, int] = (1, 1)) -> tuple[int, int, int, int]:
    """Padding that keeps height and width at stride 1 (odd kernels), in ONNX's order (top, left, bottom, right)."""
    height, width = (d * (k - 1) // 2 for k, d in zip(kernel, dilations, strict=True))
    return (height, width, height, width)


class Convolution(NamedTuple):
    """A convolution's attributes with the defaults filled in."""

    in_channels: int
    channels: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int, int, int]
    dilations: tuple[int, int]
    group: int
    bias: bool

    @property
    def weight_shape(self) -> tuple[int, int, int, int]:
        return (self.channels, self.in_channels // self.group, *self.kernel)


def convolution(attrs: Attrs, shape: Shape) -> Convolution:
    """Read a `Conv` or `ConvBn` node's attributes; `shape` (N, C, H, W) is its input's."""
    given: dict[str, Any] = dict(attrs)
    if len(shape) != 4 or isinstance(shape[1], str):
        raise InputError(f"Conv needs an input of shape (N, channels, height, width), not {shape}")
    if "kernel" not in given:
        raise InputError("Conv needs the attribute kernel = [height, width]")
    kernel, dilations = pair(given["kernel"]), pair(given.get("dilations", 1))
    conv = Convolution(
        in_channels=shape[1],
        channels=int(given.get("channels", shape[1])),
        kernel=kernel,
        strides=pair(given.get("strides", 1)),
        pads=given.get("pads", same_pads(kernel, dilations)),
        dilations=dilations,
        group=int(given.get("group", 1)),
        bias=bool(given.get("bias", 0)),
    )
    if min(conv.channels, conv.group, *kernel, *conv.strides, *dilations) < 1:
        raise InputError(f"Conv sizes must be positive: {dict(attrs)}")
    if conv.in_channels % conv.group or conv.channels % conv.group:
        raise InputError(
            f"group = {conv.group} must divide {conv.in_channels} input and {conv.channels} output channels"
        )
    return conv


def _int(attrs: Attrs, name: str) -> int:
    given: dict[str, Any] = dict(attrs)
    return int(given[name])


def _window(size: Dim, kernel: int, stride: int, pads: int, dilation: int = 1, ceil: bool = False) -> Dim:
    if isinstance(size, str):
        return size
    room = size + pads - dilation * (kernel - 1) - 1
    if room < 0:
        raise InputError(f"a window of {kernel} does not fit into {size} with padding {pads}")
    return (-(-room // stride) if ceil else room // stride) + 1


def _conv_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    c = convolution(attrs, shapes[0])
    spatial = (
        _window(size, c.kernel[i], c.strides[i], c.pads[i] + c.pads[i + 2], c.dilations[i])
        for i, size in enumerate(shapes[0][2:])
    )
    return (shapes[0][0], c.channels, *spatial)


def _pool_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    given: dict[str, Any] = dict(attrs)
    kernel = pair(given["kernel_shape"])
    strides, pads = pair(given.get("strides", 1)), given.get("pads", (0, 0, 0, 0))
    ceil = bool(given.get("ceil_mode", 0))
    spatial = (
        _window(size, kernel[i], strides[i], pads[i] + pads[i + 2], ceil=ceil) for i, size in enumerate(shapes[0][2:])
    )
    return (*shapes[0][:2], *spatial)


def _broadcast_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    return tuple(_broadcast_dim(dims, shapes) for dims in zip(*padded, strict=True))


def _broadcast_dim(dims: tuple[Dim, ...], shapes: tuple[Shape, ...]) -> Dim:
    sizes = {d for d in dims if d != 1}
    if len(sizes) > 1:
        raise InputError(f"shapes {', '.join(map(str, shapes))} do not broadcast together")
    return sizes.pop() if sizes else 1


def _same_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    return shapes[0]


def _concat_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    axis = _int(attrs, "axis")
    total = sum(int(s[axis]) for s in shapes)
    return (*shapes[0][:axis], total, *shapes[0][axis:][1:])


def _flatten_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    return (shapes[0][0], prod(map(int, shapes[0][1:])))


def _linear_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    return (*shapes[0][:-1], _int(attrs, "features"))


def _pooled_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    return (*shapes[0][:2], *(1 for _ in shapes[0][2:]))


def _param_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    given: dict[str, Any] = dict(attrs)
    return given["shape"]


_SHAPES: dict[str, Callable[[Attrs, tuple[Shape, ...]], Shape]] = {
    "Conv": _conv_shape,
    "ConvBn": _conv_shape,
    "Linear": _linear_shape,
    "Param": _param_shape,
    "MaxPool": _pool_shape,
    "AveragePool": _pool_shape,
    "GlobalAveragePool": _pooled_shape,
    "Concat": _concat_shape,
    "Flatten": _flatten_shape,
    **dict.fromkeys(["Add", "Sum", "Mul", "Sub", "Div", "Max", "Min"], _broadcast_shape),
    **dict.fromkeys(
        ["BatchNorm", "Zero", "Relu", "Identity", "Sigmoid", "HardSigmoid", "HardSwish", "Clip", "Tanh", "Softmax"],
        _same_shape,
    ),
}
OPERATORS = frozenset(_SHAPES)


@lru_cache(maxsize=65536)
def output_shape(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    """Shape of the operator's output; `InputError` for an operator that is not known or sizes that do not fit."""
    if op not in _SHAPES:
        raise InputError(f"operator {op} is not supported; supported: {', '.join(sorted(OPERATORS))}")
    try:
        return _SHAPES[op](attrs, shapes)
    except (KeyError, IndexError, TypeError) as error:
        raise InputError(f"operator {op} does not take attributes {dict(attrs)} on shapes {shapes}") from error


def _batch_norm(channels: int) -> tuple[Weight, ...]:
    return (
        Weight("scale", (channels,), "ones"),
        Weight("shift", (channels,), "zeros"),
        Weight("mean", (channels,), "zeros", trained=False),
        Weight("var", (channels,), "ones", trained=False),
    )


@lru_cache(maxsize=65536)
def weights(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> tuple[Weight, ...]:
    """The tensors that a node owns, in the order of the ONNX operator's inputs; `shapes` are its inputs' shapes."""
    given: dict[str, Any] = dict(attrs)
    if op in ("Conv", "ConvBn"):
        conv = convolution(attrs, shapes[0])
        kernel = Weight("weight", conv.weight_shape, "kaiming")
        if op == "ConvBn":
            return (kernel, *_batch_norm(conv.channels))
        return (kernel, Weight("bias", (conv.channels,), "zeros")) if conv.bias else (kernel,)
    if op == "Linear":
        features, inputs = int(given["features"]), int(shapes[0][-1])
        matrix = Weight("weight", (features, inputs), "kaiming")
        return (matrix, Weight("bias", (features,), "zeros")) if given.get("bias", 1) else (matrix,)
    if op == "BatchNorm":
        return _batch_norm(int(shapes[0][1]))
    if op == "Param":
        return (Weight("value", given["shape"], "kaiming"),)
    return ()


@lru_cache(maxsize=65536)
def multiply_accumulates(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> int:
    """Multiply-accumulates of one node for one input sample: convolutions and linear layers; the rest counts 0."""
    if op in ("Conv", "ConvBn"):
        conv = convolution(attrs, shapes[0])
        height, width = _conv_shape(attrs, shapes)[2:]
        return prod(conv.weight_shape) * int(height) * int(width)
    if op == "Linear":
        return prod(int(d) for d in shapes[0][1:]) * _int(attrs, "features")
    return 0
