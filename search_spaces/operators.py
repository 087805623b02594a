"""What is known of each operator: output shape, weights, multiply-accumulates.

Operators that own weights, or whose constant operands are written as attributes, belong to the text's `net` domain:

    Conv, ConvBn    channels (default: the input's), kernel, strides (1), pads (same), dilations (1), bias (0),
                    group (1) or depthwise (0; 1: one group per input channel)
    Linear          features, bias (1)
    BatchNorm       epsilon (1e-5), affine (1; 0: no trained scale and shift)
    Param           shape: a learned constant
    Zero            zeros of the input's shape
    ChannelShuffle  groups: interleaves that many groups of channels (arXiv 1707.01083)
    Slice           axes, starts, ends as in ONNX, there as operands
    Reshape, Clip   shape; min, max: as in ONNX, there as operands

`ConvBn` is a convolution followed by batch normalization and takes the attributes of both. All others are ONNX's own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from search_spaces.errors import InputError
from search_spaces.graph import Attrs, Dim, Shape, Value

# Operators whose constant operands, named as in ONNX's schema, are attributes here.
CONSTANT_OPERANDS: dict[str, tuple[str, ...]] = {
    "Slice": ("starts", "ends", "axes", "steps"),
    "Reshape": ("shape",),
    "Clip": ("min", "max"),
}
NET_OPERATORS = frozenset(
    {"Conv", "ConvBn", "Linear", "BatchNorm", "Param", "Zero", "ChannelShuffle", *CONSTANT_OPERANDS}
)
COMMUTATIVE = frozenset({"Add", "Sum", "Mul", "Max", "Min", "Mean"})


class Weight(NamedTuple):
    """A tensor that an operator owns. `trained` is false for batch normalization's running statistics, and for its
    scale and shift where it has none (`affine = 0`): they stay one and zero."""

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

    @property
    def attrs(self) -> Attrs:
        """The shortest attributes that mean this, in alphabetical order: those equal to the default are left out."""
        depthwise = self.group == self.in_channels > 1
        same = same_pads(self.kernel, self.dilations)
        given: dict[str, tuple[Value, Value]] = {
            "bias": (int(self.bias), 0),
            "channels": (self.channels, self.in_channels),
            "depthwise": (int(depthwise), 0),
            "dilations": (self.dilations, (1, 1)),
            "group": (1 if depthwise else self.group, 1),
            "pads": (self.pads, same),
            "strides": (self.strides, (1, 1)),
        }
        kept = {name: value for name, (value, default) in given.items() if value != default}
        return tuple(sorted({**kept, "kernel": self.kernel}.items()))


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
        group=shape[1] if given.get("depthwise") else int(given.get("group", 1)),
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


def _window(size: Dim, kernel: int, stride: int, pads: tuple[int, int], dilation: int = 1, ceil: bool = False) -> Dim:
    """Number of windows that fit; with `ceil` the last may end beyond the padding, but not start there."""
    if isinstance(size, str):
        return size
    room = size + sum(pads) - dilation * (kernel - 1) - 1
    if room < 0:
        raise InputError(f"a window of {kernel} does not fit into {size} with padding {pads}")
    count = (-(-room // stride) if ceil else room // stride) + 1
    return count - 1 if ceil and (count - 1) * stride >= size + pads[0] else count


def _conv_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    c = convolution(attrs, shapes[0])
    spatial = (
        _window(size, c.kernel[i], c.strides[i], (c.pads[i], c.pads[i + 2]), c.dilations[i])
        for i, size in enumerate(shapes[0][2:])
    )
    return (shapes[0][0], c.channels, *spatial)


def _pool_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    given: dict[str, Any] = dict(attrs)
    kernel = pair(given["kernel_shape"])
    strides, pads = pair(given.get("strides", 1)), given.get("pads", (0, 0, 0, 0))
    ceil = bool(given.get("ceil_mode", 0))
    spatial = (
        _window(size, kernel[i], strides[i], (pads[i], pads[i + 2]), ceil=ceil) for i, size in enumerate(shapes[0][2:])
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


def _shuffle_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    if int(shapes[0][1]) % _int(attrs, "groups"):
        raise InputError(f"ChannelShuffle: {_int(attrs, 'groups')} groups must divide {shapes[0][1]} channels")
    return shapes[0]


def _slice_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    given: dict[str, Any] = dict(attrs)
    dims = list(shapes[0])
    for axis, start, end in zip(given["axes"], given["starts"], given["ends"], strict=True):
        if isinstance(dims[axis], str) or not 0 <= start < end <= dims[axis]:
            raise InputError(f"Slice from {start} to {end} does not fit dimension {dims[axis]} (axis {axis})")
        dims[axis] = end - start
    return tuple(dims)


def _reshape_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    given: dict[str, Any] = dict(attrs)
    dims = tuple(shapes[0][i] if size == 0 else size for i, size in enumerate(given["shape"]))
    if _elements(dims) != _elements(shapes[0]):
        raise InputError(f"Reshape from {shapes[0]} to {dims} changes the number of values")
    return dims


def _elements(dims: Shape) -> tuple[int, int]:
    """Product of the known dimensions and number of symbolic ones."""
    return prod(d for d in dims if isinstance(d, int)), sum(isinstance(d, str) for d in dims)


def _transpose_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    given: dict[str, Any] = dict(attrs)
    perm = given.get("perm", range(len(shapes[0]))[::-1])
    if sorted(perm) != list(range(len(shapes[0]))):
        raise InputError(f"Transpose by {list(perm)} does not fit shape {shapes[0]}")
    return tuple(shapes[0][axis] for axis in perm)


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
    "ChannelShuffle": _shuffle_shape,
    "Slice": _slice_shape,
    "Reshape": _reshape_shape,
    "Transpose": _transpose_shape,
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


@lru_cache(maxsize=65536)
def canonical_attrs(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> Attrs:
    """The operator's attributes in their shortest form, so that equal computation is written equally.

    Raises InputError for an attribute that a convolution does not have.
    """
    if op not in ("Conv", "ConvBn"):
        return tuple(sorted(attrs))
    norm = ("affine", "epsilon") if op == "ConvBn" else ()
    for name, _ in attrs:
        if name not in (*_CONV_ATTRIBUTES, *norm):
            raise InputError(f"{op} has no attribute {name!r}; it has {', '.join((*_CONV_ATTRIBUTES, *norm))}")
    kept = tuple((name, value) for name, value in attrs if name in norm and (name, value) != ("affine", 1))
    return tuple(sorted((*convolution(attrs, shapes[0]).attrs, *kept)))


_CONV_ATTRIBUTES = ("bias", "channels", "depthwise", "dilations", "group", "kernel", "pads", "strides")


def _batch_norm(channels: int, given: dict[str, Any]) -> tuple[Weight, ...]:
    affine = bool(given.get("affine", 1))
    return (
        Weight("scale", (channels,), "ones", trained=affine),
        Weight("shift", (channels,), "zeros", trained=affine),
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
            return (kernel, *_batch_norm(conv.channels, given))
        return (kernel, Weight("bias", (conv.channels,), "zeros")) if conv.bias else (kernel,)
    if op == "Linear":
        features, inputs = int(given["features"]), int(shapes[0][-1])
        matrix = Weight("weight", (features, inputs), "kaiming")
        return (matrix, Weight("bias", (features,), "zeros")) if given.get("bias", 1) else (matrix,)
    if op == "BatchNorm":
        return _batch_norm(int(shapes[0][1]), given)
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
