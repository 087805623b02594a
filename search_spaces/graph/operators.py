"""What is known of each operator: output shape, weights, multiply-accumulates.

Operators that own weights, or whose constant operands are written as attributes, belong to the text's `net` domain.
All others are ONNX's own. Of our own making, with one input unless said otherwise:

    Conv, ConvBn, ConvBnRelu6
                    channels (default: the input's), kernel, strides (1), pads (same), dilations (1), bias (0),
                    group (1) or depthwise (0; 1: one group per input channel); any number of spatial dimensions
    Linear          features, bias (1); on the last dimension, whatever the rank
    BatchNorm       epsilon (1e-5), affine (1; 0: no trained scale and shift)
    Embedding       rows, features: a row of a learned table for each of the input's integers
    Param           shape, element ("float"): a learned constant; no input
    Zero            zeros of the input's shape
    ChannelShuffle  groups: interleaves that many groups of channels (arXiv 1707.01083)
    Reshape         shape: 0 keeps the input's dimension, -1 is the one that is not a known number
    Expand          shape: as in ONNX, but 0 is the batch size; `input = c`, without inputs: filled with the constant c
    Slice           axes, starts, ends, steps (1) as in ONNX, there as operands

Operators of ONNX that have one input here own the weights which are further operands there; each keeps its attributes:

    ConvTranspose                                   channels, kernel_shape, bias (0)
    LayerNormalization, RMSNormalization            affine (1); LayerNormalization: bias (1)
    InstanceNormalization, GroupNormalization       affine (1)
    RNN, GRU, LSTM                                  hidden_size, bias (1)

Any other operator of ONNX takes constant operands as attributes (`search_spaces.graph.standard`), and weights from
`Param`. `ConvBn` is a convolution followed by batch normalization and takes the attributes of both; so does
`ConvBnRelu6`, whose values are cut off below 0 and above 6.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from search_spaces.common.errors import InputError
from search_spaces.graph import standard
from search_spaces.graph.ir import BATCH, UNKNOWN, Attrs, Dim, Shape, Typed, Value, element_type, typed

COMMUTATIVE = frozenset({"Add", "Sum", "Mul", "Max", "Min", "Mean"})
BATCH_NORM_EPSILON = 1e-5


class Weight(NamedTuple):
    """A tensor that an operator owns. `trained` is false for batch normalization's running statistics, and for a
    normalization's scale and shift where it has none (`affine = 0`): they stay one and zero.

    `fan_in`: how many weights make one output; 0: all of the shape but the first dimension.
    """

    name: str
    shape: tuple[int, ...]
    init: str
    trained: bool = True
    fan_in: int = 0


# --- convolutions ----------------------------------------------------------------------------------------------------


def pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    """A square kernel, stride or dilation written as one number, or both numbers as they are."""
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _each(value: int | tuple[int, ...], rank: int) -> tuple[int, ...]:
    """One number for every spatial dimension."""
    return (value,) * rank if isinstance(value, int) else tuple(value)


def same_pads(kernel: tuple[int, ...], dilations: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """Padding that keeps the size at stride 1 (odd kernels), in ONNX's order (top, left, bottom, right)."""
    sides = tuple([d * (k - 1) // 2 for k, d in zip(kernel, dilations or (1,) * len(kernel), strict=True)])
    return (*sides, *sides)


class Convolution(NamedTuple):
    """A convolution's attributes with the defaults filled in."""

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
        return (self.channels, self.in_channels // self.group, *self.kernel)

    @property
    def attrs(self) -> Attrs:
        """The shortest attributes that mean this, in alphabetical order: those equal to the default are left out."""
        ones = (1,) * len(self.kernel)
        depthwise = self.group == self.in_channels > 1
        given: dict[str, tuple[Value, Value]] = {
            "bias": (int(self.bias), 0),
            "channels": (self.channels, self.in_channels),
            "depthwise": (int(depthwise), 0),
            "dilations": (self.dilations, ones),
            "group": (1 if depthwise else self.group, 1),
            "pads": (self.pads, same_pads(self.kernel, self.dilations)),
            "strides": (self.strides, ones),
        }
        kept = {name: value for name, (value, default) in given.items() if value != default}
        return tuple(sorted({**kept, "kernel": self.kernel}.items()))


@lru_cache(maxsize=65536)
def convolution(attrs: Attrs, shape: Shape) -> Convolution:
    """Read a `Conv` or `ConvBn` node's attributes; `shape` (N, C, …) is its input's."""
    given: dict[str, Any] = dict(attrs)
    if len(shape) < 3 or isinstance(shape[1], str):
        raise InputError(f"Conv needs an input of shape (N, channels, height, width), not {shape}")
    if "kernel" not in given:
        raise InputError("Conv needs the attribute kernel = [height, width]")
    rank = len(shape) - 2
    kernel, dilations = _each(given["kernel"], rank), _each(given.get("dilations", 1), rank)
    conv = Convolution(
        in_channels=shape[1],
        channels=int(given.get("channels", shape[1])),
        kernel=kernel,
        strides=_each(given.get("strides", 1), rank),
        pads=given["pads"] if "pads" in given else same_pads(kernel, dilations),
        dilations=dilations,
        group=shape[1] if given.get("depthwise") else int(given.get("group", 1)),
        bias=bool(given.get("bias", 0)),
    )
    if {len(conv.kernel), len(conv.strides), len(conv.dilations), len(conv.pads) / 2} != {rank}:
        raise InputError(f"Conv does not take attributes {dict(attrs)} on an input of shape {shape}")
    if min(conv.channels, conv.group, *kernel, *conv.strides, *dilations) < 1:
        raise InputError(f"Conv sizes must be positive: {dict(attrs)}")
    if conv.in_channels % conv.group or conv.channels % conv.group:
        raise InputError(
            f"group = {conv.group} must divide {conv.in_channels} input and {conv.channels} output channels"
        )
    return conv


# --- shapes of our own operators, and of ONNX's that most networks are made of ---------------------------------------


def _positive(attrs: Attrs, name: str) -> int:
    given: dict[str, Any] = dict(attrs)
    if int(given[name]) < 1:
        raise InputError(f"{name} must be positive, not {given[name]}")
    return int(given[name])


def _known(size: Dim) -> int:
    if isinstance(size, str):
        raise InputError(f"a size that must be a number is {size!r}: export the model with that dimension fixed")
    return size


def _window(size: Dim, kernel: int, stride: int, pads: tuple[int, int], dilation: int = 1, ceil: bool = False) -> Dim:
    """Number of windows that fit; with `ceil` the last may end beyond the padding, but not start there."""
    if isinstance(size, str):
        keeps = stride == 1 and sum(pads) == dilation * (kernel - 1)
        return size if keeps else UNKNOWN
    room = size + sum(pads) - dilation * (kernel - 1) - 1
    if room < 0:
        raise InputError(f"a window of {kernel} does not fit into {size} with padding {pads}")
    count = (-(-room // stride) if ceil else room // stride) + 1
    return count - 1 if ceil and (count - 1) * stride >= size + pads[0] else count


def _conv_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    c = convolution(attrs, shapes[0])
    rank = len(c.kernel)
    spatial = (
        _window(size, c.kernel[i], c.strides[i], (c.pads[i], c.pads[i + rank]), c.dilations[i])
        for i, size in enumerate(shapes[0][2:])
    )
    return (shapes[0][0], c.channels, *spatial)


def _pool_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    given: dict[str, Any] = dict(attrs)
    rank = len(shapes[0]) - 2
    kernel, strides, dilations = (_each(given.get(n, 1), rank) for n in ("kernel_shape", "strides", "dilations"))
    pads, ceil = given.get("pads", (0,) * 2 * rank), bool(given.get("ceil_mode", 0))
    if "kernel_shape" not in given or min(*kernel, *strides, *dilations) < 1 or "auto_pad" in given:
        raise InputError(f"a pooling operator needs positive sizes and explicit pads, not {given}")
    spatial = (
        _window(size, kernel[i], strides[i], (pads[i], pads[i + rank]), dilations[i], ceil)
        for i, size in enumerate(shapes[0][2:])
    )
    return (*shapes[0][:2], *spatial)


def _broadcast_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    return tuple([_broadcast_dim(dims, shapes) for dims in zip(*padded, strict=True)])


def _broadcast_dim(dims: tuple[Dim, ...], shapes: tuple[Shape, ...]) -> Dim:
    sizes = {d for d in dims if d != 1}
    if len(sizes) > 1 and UNKNOWN in sizes:
        sizes.discard(UNKNOWN)
    if len(sizes) > 1:
        raise InputError(f"shapes {', '.join(map(str, shapes))} do not broadcast together")
    return sizes.pop() if sizes else 1


def _same_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    return shapes[0]


def _concat_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    axis = int(dict(attrs)["axis"])  # type: ignore[arg-type]
    dims = [set(sizes) - {UNKNOWN} or {UNKNOWN} for sizes in zip(*shapes, strict=True)]
    parts: list[Dim] = [s[axis] for s in shapes]
    total: Dim = sum(d for d in parts if isinstance(d, int))
    if any(isinstance(d, str) for d in parts):
        total = parts[0] if len(parts) == 1 else UNKNOWN
    dims[axis] = {total}
    if any(len(sizes) > 1 for sizes in dims):
        raise InputError(f"shapes {', '.join(map(str, shapes))} cannot be joined along axis {axis}")
    return tuple([sizes.pop() for sizes in dims])


def _flatten_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    axis = int(dict(attrs).get("axis", 1))  # type: ignore[arg-type]
    return (_product(shapes[0][:axis]), _product(shapes[0][axis:]))


def _linear_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    return (*shapes[0][:-1], _positive(attrs, "features"))


def _pooled_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    return (*shapes[0][:2], *[1 for _ in shapes[0][2:]])


def _param_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    given: dict[str, Any] = dict(attrs)
    if not all(isinstance(d, int) and d >= 0 for d in given["shape"]):
        raise InputError(f"Param: shape must be whole numbers, not {given['shape']}")
    return typed(given["shape"], given.get("element", "float"))


def _shuffle_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    groups = _positive(attrs, "groups")
    if _known(shapes[0][1]) % groups:
        raise InputError(f"ChannelShuffle: {groups} groups must divide {shapes[0][1]} channels")
    return shapes[0]


def _slices(attrs: Attrs, shape: Shape) -> dict[int, tuple[int, int, int]]:
    """Start, end and step of each axis, in order; of an axis of unknown size as they are given."""
    given: dict[str, Any] = dict(attrs)
    starts, ends = given["starts"], given["ends"]
    axes, steps = given.get("axes", range(len(starts))), given.get("steps", (1,) * len(starts))
    ranges = {}
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        size = shape[axis]
        if not -len(shape) <= axis < len(shape) or step == 0:
            raise InputError(f"Slice along axis {axis} with step {step} does not fit shape {shape}")
        if isinstance(size, int):
            start, end, _ = slice(start, end, step).indices(size)
            if not range(start, end, step):
                raise InputError(f"Slice from {start} to {end} is empty: dimension {size} (axis {axis})")
            end = end if end >= 0 else -size - 1
        ranges[axis % len(shape)] = (start, end, step)
    return dict(sorted(ranges.items()))


def _slice_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    dims = list(shapes[0])
    for axis, (start, end, step) in _slices(attrs, shapes[0]).items():
        size = dims[axis]
        if isinstance(size, int):
            dims[axis] = len(range(size)[start:end:step])
        elif (start, step) != (0, 1) or end < 1 << 31:
            dims[axis] = UNKNOWN
    return tuple(dims)


def _slice_attrs(attrs: Attrs, shape: Shape) -> Attrs:
    ranges = _slices(attrs, shape)
    starts, ends, steps = (tuple(r[i] for r in ranges.values()) for i in range(3))
    kept: Attrs = (("axes", tuple(ranges)), ("ends", ends), ("starts", starts))
    return kept if set(steps) <= {1} else (*kept, ("steps", steps))


def _reshape_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    given: dict[str, Any] = dict(attrs)
    (shape,) = shapes
    if given.get("allowzero"):
        raise InputError("Reshape with allowzero = 1 is not supported: a dimension of 0 holds no values")
    dims = [shape[i] if size == 0 else size for i, size in enumerate(given["shape"])]
    if dims.count(-1) > 1 or any(isinstance(d, int) and d < -1 for d in dims):
        raise InputError(f"Reshape to {given['shape']}: sizes are positive, 0 or at most one -1")
    if -1 in dims:
        dims[dims.index(-1)] = _quotient(shape, tuple(d for d in dims if d != -1))
    if UNKNOWN not in (*dims, *shape) and _monomial(tuple(dims)) != _monomial(shape):
        raise InputError(f"Reshape from {shape} to {tuple(dims)} changes the number of values")
    return tuple(dims)


def _reshape_attrs(attrs: Attrs, shape: Shape) -> Attrs:
    """0 where the dimension stays, -1 for one that is not a number."""
    given: dict[str, Any] = dict(attrs)
    sizes: list[int] = []
    for i, (size, dim) in enumerate(zip(given["shape"], _reshape_shape(attrs, (shape,)), strict=True)):
        stays = i < len(shape) and dim == shape[i] and (dim != UNKNOWN or size == 0)
        sizes.append(0 if stays else dim if isinstance(dim, int) else -1)
    return (("shape", tuple(sizes)),)


def _expand_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    given: dict[str, Any] = dict(attrs)
    target = tuple([BATCH if size == 0 else size for size in given["shape"]])
    if any(isinstance(d, int) and d < 1 for d in target) or len(shapes) + ("input" in given) != 1:
        raise InputError(f"Expand takes one input and a shape of positive sizes (0: the batch), not {given}")
    return _broadcast_shape((), (*shapes, target))


def _transpose_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    given: dict[str, Any] = dict(attrs)
    perm = given.get("perm", range(len(shapes[0]))[::-1])
    if sorted(perm) != list(range(len(shapes[0]))):
        raise InputError(f"Transpose by {list(perm)} does not fit shape {shapes[0]}")
    return tuple([shapes[0][axis] for axis in perm])


def _embedding_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    if element_type(shapes[0]) not in ("int32", "int64") or not _positive(attrs, "rows"):
        raise InputError(f"Embedding needs integers as input, not {element_type(shapes[0])}")
    return (*shapes[0], _positive(attrs, "features"))


def _resize_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    given: dict[str, Any] = dict(attrs)
    if len(shapes) != 1 or given.get("keep_aspect_ratio_policy", "stretch") != "stretch" or "axes" not in given:
        return standard.infer("Resize", attrs, shapes)
    dims = list(shapes[0])
    for i, axis in enumerate(given["axes"]):
        dims[axis] = given["sizes"][i] if "sizes" in given else int(_known(dims[axis]) * given["scales"][i])
    return tuple(dims)


# Dimensions that are not numbers are products such as N_8 (8 · N) and N_L.


def _monomial(shape: Shape) -> tuple[int, Counter[str]]:
    """The product of the dimensions: its number, and how often each letter stands in it."""
    factors = [part for dim in shape for part in str(dim).split("_")]
    letters = Counter(part for part in factors if not part.isdecimal())
    return prod(int(part) for part in factors if part.isdecimal()), letters


def _product(shape: Shape, divisor: int = 1, without: Counter[str] | None = None) -> Dim:
    if UNKNOWN in shape:
        return UNKNOWN
    value, letters = _monomial(shape)
    value, letters = value // divisor, letters - (without or Counter())
    names = sorted(letters.elements(), key=lambda letter: (letter != BATCH, letter))
    return "_".join([*names, *([str(value)] if value != 1 else [])]) if names else value


def _quotient(shape: Shape, others: Shape) -> Dim:
    """The size that makes the other dimensions of a reshaped value hold as many elements as before."""
    if UNKNOWN in (*shape, *others):
        return UNKNOWN
    (total, letters), (part, known) = _monomial(shape), _monomial(others)
    if part == 0 or total % part or known - letters:
        raise InputError(f"Reshape from {shape} by {others} changes the number of values")
    return _product(shape, part, known)


CONVOLUTIONS = ("Conv", "ConvBn", "ConvBnRelu6")
_SHAPES: dict[str, Callable[[Attrs, tuple[Shape, ...]], Shape]] = {
    **dict.fromkeys(CONVOLUTIONS, _conv_shape),
    "Linear": _linear_shape,
    "Embedding": _embedding_shape,
    "Param": _param_shape,
    "MaxPool": _pool_shape,
    "AveragePool": _pool_shape,
    "GlobalAveragePool": _pooled_shape,
    "Concat": _concat_shape,
    "Flatten": _flatten_shape,
    "ChannelShuffle": _shuffle_shape,
    "Slice": _slice_shape,
    "Reshape": _reshape_shape,
    "Expand": _expand_shape,
    "Transpose": _transpose_shape,
    "Resize": _resize_shape,
    **dict.fromkeys(["Add", "Sum", "Mul", "Sub", "Div", "Max", "Min"], _broadcast_shape),
    **dict.fromkeys(
        ["BatchNorm", "Zero", "Relu", "Identity", "Sigmoid", "HardSigmoid", "HardSwish", "Clip", "Tanh", "Softmax"],
        _same_shape,
    ),
    "GroupNormalization": _same_shape,  # ONNX has no inference of its own for it
}


# --- weights ---------------------------------------------------------------------------------------------------------


def _batch_norm(channels: int, given: dict[str, Any]) -> tuple[Weight, ...]:
    affine = bool(given.get("affine", 1))
    return (
        Weight("scale", (channels,), "ones", trained=affine),
        Weight("shift", (channels,), "zeros", trained=affine),
        Weight("mean", (channels,), "zeros", trained=False),
        Weight("var", (channels,), "ones", trained=False),
    )


def _conv_weights(attrs: Attrs, shape: Shape) -> tuple[Weight, ...]:
    conv = convolution(attrs, shape)
    kernel = Weight("weight", conv.weight_shape, "kaiming")
    return (kernel, Weight("bias", (conv.channels,), "zeros")) if conv.bias else (kernel,)


def _conv_bn_weights(attrs: Attrs, shape: Shape) -> tuple[Weight, ...]:
    return (*_conv_weights(attrs, shape), *_batch_norm(convolution(attrs, shape).channels, dict(attrs)))


def _linear_weights(attrs: Attrs, shape: Shape) -> tuple[Weight, ...]:
    given: dict[str, Any] = dict(attrs)
    features = _positive(attrs, "features")
    matrix = Weight("weight", (features, _known(shape[-1])), "kaiming")
    return (matrix, Weight("bias", (features,), "zeros")) if given.get("bias", 1) else (matrix,)


def _batch_norm_weights(attrs: Attrs, shape: Shape) -> tuple[Weight, ...]:
    return _batch_norm(_known(shape[1]), dict(attrs))


def _embedding_weights(attrs: Attrs, shape: Shape) -> tuple[Weight, ...]:
    return (Weight("weight", (_positive(attrs, "rows"), _positive(attrs, "features")), "kaiming"),)


def _norm_weights(dims: tuple[int, ...], given: dict[str, Any], shift: bool) -> tuple[Weight, ...]:
    affine = bool(given.get("affine", 1))
    scale = Weight("scale", dims, "ones", trained=affine)
    return (scale, Weight("shift", dims, "zeros", trained=affine)) if shift else (scale,)


def _channel_norm_weights(attrs: Attrs, shape: Shape) -> tuple[Weight, ...]:
    return _norm_weights((_known(shape[1]),), dict(attrs), shift=True)


def _layer_norm_weights(attrs: Attrs, shape: Shape) -> tuple[Weight, ...]:
    given: dict[str, Any] = dict(attrs)
    return _norm_weights(_last_dims(given, shape), given, shift=bool(given.get("bias", 1)))


def _rms_norm_weights(attrs: Attrs, shape: Shape) -> tuple[Weight, ...]:
    return _norm_weights(_last_dims(dict(attrs), shape), dict(attrs), shift=False)


def _last_dims(given: dict[str, Any], shape: Shape) -> tuple[int, ...]:
    return tuple([_known(d) for d in shape[given.get("axis", -1) :]])


def _transposed_conv_weights(attrs: Attrs, shape: Shape) -> tuple[Weight, ...]:
    given: dict[str, Any] = dict(attrs)
    inputs, group, kernel = _known(shape[1]), given.get("group", 1), tuple(given["kernel_shape"])
    channels = int(given.get("channels", inputs))
    if len(kernel) != len(shape) - 2 or min(channels, group, *kernel) < 1 or channels % group or inputs % group:
        raise InputError(f"ConvTranspose does not take attributes {given} on an input of shape {shape}")
    fan_in = inputs // group * prod(kernel)
    weight = Weight("weight", (inputs, channels // group, *kernel), "kaiming", fan_in=fan_in)
    return (weight, Weight("bias", (channels,), "zeros")) if given.get("bias", 0) else (weight,)


RECURRENT = {"RNN": 1, "GRU": 3, "LSTM": 4}  # and how many gates each has


def _recurrent_weights(gates: int) -> Callable[[Attrs, Shape], tuple[Weight, ...]]:
    def weights(attrs: Attrs, shape: Shape) -> tuple[Weight, ...]:
        given: dict[str, Any] = dict(attrs)
        hidden, inputs = _positive(attrs, "hidden_size"), _known(shape[-1])
        directions = 2 if given.get("direction") == "bidirectional" else 1
        tensors = (
            Weight("weight", (directions, gates * hidden, inputs), "kaiming", fan_in=inputs),
            Weight("recurrent", (directions, gates * hidden, hidden), "kaiming", fan_in=hidden),
        )
        bias = Weight("bias", (directions, 2 * gates * hidden), "zeros")
        return (*tensors, bias) if given.get("bias", 1) else tensors

    return weights


_WEIGHTS: dict[str, Callable[[Attrs, Shape], tuple[Weight, ...]]] = {
    "Conv": _conv_weights,
    "ConvBn": _conv_bn_weights,
    "ConvBnRelu6": _conv_bn_weights,
    "Linear": _linear_weights,
    "BatchNorm": _batch_norm_weights,
    "Embedding": _embedding_weights,
    "ConvTranspose": _transposed_conv_weights,
    "LayerNormalization": _layer_norm_weights,
    "RMSNormalization": _rms_norm_weights,
    "InstanceNormalization": _channel_norm_weights,
    "GroupNormalization": _channel_norm_weights,
    **{op: _recurrent_weights(gates) for op, gates in RECURRENT.items()},
}
# ONNX's operators that own their weights here, with the attributes that ONNX does not have.
OWNERS: dict[str, tuple[str, ...]] = {
    "ConvTranspose": ("bias", "channels"),
    "LayerNormalization": ("affine", "bias"),
    "RMSNormalization": ("affine",),
    "InstanceNormalization": ("affine",),
    "GroupNormalization": ("affine",),
    **dict.fromkeys(RECURRENT, ("bias",)),
}
_OWN = frozenset(
    {*CONVOLUTIONS, "Linear", "BatchNorm", "Embedding", "Zero", "ChannelShuffle", "Reshape", "Expand", "Slice"}
)
NET_OPERATORS = frozenset({*_OWN, "Param", "Clip"})
OPERATORS = frozenset({*_SHAPES, *OWNERS})


@lru_cache(maxsize=65536)
def weights(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> tuple[Weight, ...]:
    """The tensors that a node owns, in the order of the ONNX operator's inputs; `shapes` are its inputs' shapes."""
    if op == "Param":
        given: dict[str, Any] = dict(attrs)
        return (Weight("value", given["shape"], "kaiming"),)
    if op not in _WEIGHTS or len(shapes) != 1:
        return ()
    try:
        return _WEIGHTS[op](attrs, shapes[0])
    except (KeyError, IndexError, TypeError) as error:
        raise _misfit(op, attrs, shapes) from error


def onnx_attrs(op: str, attrs: Attrs) -> Attrs:
    """Those attributes of an operator in `OWNERS` that are ONNX's."""
    return tuple([(name, value) for name, value in attrs if name not in OWNERS[op]])


# --- what every operator has -----------------------------------------------------------------------------------------


def _misfit(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> InputError:
    return InputError(f"operator {op} does not take attributes {dict(attrs)} on shapes {', '.join(map(str, shapes))}")


@lru_cache(maxsize=65536)
def output_shape(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    """Shape of the operator's output; `InputError` for an operator that is not known or sizes that do not fit."""
    try:
        return _output_shape(op, attrs, shapes)
    except InputError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        raise _misfit(op, attrs, shapes) from error


def _output_shape(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    if is_own(op, len(shapes)):
        return _own_shape(op, attrs, shapes)
    if op in OWNERS and len(shapes) == 1:
        owned = tuple([typed(w.shape, element_type(shapes[0])) for w in weights(op, attrs, shapes)])
        return shapes[0] if op == "GroupNormalization" else standard.infer(op, onnx_attrs(op, attrs), (*shapes, *owned))
    plain = not any(isinstance(shape, Typed) for shape in shapes)
    if op in _SHAPES and plain and not (attrs and _SHAPES[op] is _broadcast_shape):
        return _SHAPES[op](attrs, shapes)
    return standard.infer(op, attrs, shapes)


def is_own(op: str, inputs: int) -> bool:
    """Whether a node is of our own making, and no operator of ONNX with that name and more operands."""
    return op == "Param" or (op in _OWN and inputs == 1) or (op == "Expand" and inputs == 0)


def _own_shape(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    shape = _SHAPES[op](attrs, shapes)
    if op in ("Embedding", "Param") or not any(isinstance(s, Typed) for s in shapes):
        return tuple(shape) if op == "Embedding" else shape
    return typed(shape, element_type(shapes[0]))


@lru_cache(maxsize=65536)
def canonical_attrs(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> Attrs:
    """The operator's attributes in their shortest form, so that equal computation is written equally.

    Raises InputError for an attribute that the operator does not have.
    """
    if not is_own(op, len(shapes)):
        if op in OWNERS and len(shapes) == 1:
            return _owner_attrs(op, attrs, shapes)
        return standard.canonical(op, attrs, shapes)
    for name, _ in attrs:
        if name not in _ATTRIBUTES[op]:
            raise InputError(f"{op} has no attribute {name!r}; it has {', '.join(_ATTRIBUTES[op]) or 'none'}")
    if op == "Slice":
        return _slice_attrs(attrs, shapes[0])
    if op == "Reshape":
        return _reshape_attrs(attrs, shapes[0])
    if op in CONVOLUTIONS:
        norm = tuple([(n, v) for n, v in attrs if n in _NORM_DEFAULTS])
        return tuple(sorted((*convolution(attrs, shapes[0]).attrs, *_without_defaults(norm))))
    return tuple(sorted(_without_defaults(attrs)))


def _owner_attrs(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> Attrs:
    ours = {name: value for name, value in attrs if name in OWNERS[op]}
    inputs = shapes[0][1] if op == "ConvTranspose" else None
    default = {"affine": 1, "bias": 0 if op == "ConvTranspose" else 1, "channels": inputs}
    kept = {name: value for name, value in ours.items() if value != default[name]}
    return tuple(sorted({**kept, **dict(standard.canonical(op, onnx_attrs(op, attrs), shapes))}.items()))


_NORM_DEFAULTS: dict[str, Value] = {"affine": 1, "epsilon": BATCH_NORM_EPSILON}
_DEFAULTS: dict[str, Value] = {**_NORM_DEFAULTS, "bias": 1, "element": "float", "allowzero": 0}
_CONV_ATTRIBUTES = ("bias", "channels", "depthwise", "dilations", "group", "kernel", "pads", "strides")
_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "Conv": _CONV_ATTRIBUTES,
    "ConvBn": (*_CONV_ATTRIBUTES, "affine", "epsilon"),
    "ConvBnRelu6": (*_CONV_ATTRIBUTES, "affine", "epsilon"),
    "Linear": ("bias", "features"),
    "BatchNorm": ("affine", "epsilon"),
    "Embedding": ("features", "rows"),
    "Param": ("element", "shape"),
    "Zero": (),
    "ChannelShuffle": ("groups",),
    "Reshape": ("allowzero", "shape"),
    "Expand": ("input", "shape"),
    "Slice": ("axes", "ends", "starts", "steps"),
}


def _without_defaults(attrs: Attrs) -> Attrs:
    return tuple([(name, value) for name, value in attrs if _DEFAULTS.get(name) != value])


# --- multiply-accumulates --------------------------------------------------------------------------------------------


@lru_cache(maxsize=65536)
def multiply_accumulates(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> int:
    """Multiply-accumulates of one node for a batch of one: convolutions, linear and recurrent layers, products of
    matrices; the rest counts 0. InputError where a size that counts is not a number.
    """
    if op in (*CONVOLUTIONS, "ConvTranspose") and len(shapes) == 1:
        weight = weights(op, attrs, shapes)[0]
        moved = shapes[0] if op == "ConvTranspose" else output_shape(op, attrs, shapes)
        return prod(weight.shape) * count((moved[0], *moved[2:]))
    if op == "Linear":
        return count(shapes[0]) * _positive(attrs, "features")
    if op in ("MatMul", "Gemm", "Conv", "Einsum", "Attention", *RECURRENT):
        return _products(op, attrs, shapes)
    return 0


def count(shape: Shape) -> int:
    """Number of elements for a batch of one; InputError where another dimension is not a number."""
    value, letters = _monomial(shape)
    letters.pop(BATCH, None)
    if letters:
        raise InputError(f"costs need numbers, but a shape is {list(shape)}: export the model with fixed sizes")
    return value


def _products(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> int:
    """Multiply-accumulates of ONNX's operators that multiply their inputs as matrices."""
    given: dict[str, Any] = dict(attrs)
    output = output_shape(op, attrs, shapes)
    if op in RECURRENT:
        hidden = int(given["hidden_size"])
        directions = 2 if given.get("direction") == "bidirectional" else 1
        return count(shapes[0][:-1]) * directions * RECURRENT[op] * hidden * (_known(shapes[0][-1]) + hidden)
    if op == "Einsum":
        return count(tuple(_einsum_sizes(given["equation"], shapes).values()))
    if op == "Attention":
        # queries by keys, then what they attend to by values
        keys = _known(shapes[1][-2])
        pairs = count(shapes[0]) * keys
        return pairs + count(output) * keys
    if op == "Conv":
        return count(output) * count(shapes[1][1:])
    inner = shapes[0][-2] if op == "Gemm" and given.get("transA") else shapes[0][-1]
    return count((*output, inner))


def _einsum_sizes(equation: str, shapes: tuple[Shape, ...]) -> dict[str, Dim]:
    """Size of every index of an Einsum; each combination of them is one multiply-accumulate."""
    sizes: dict[str, Dim] = {}
    for term, shape in zip(equation.replace(" ", "").partition("->")[0].split(","), shapes, strict=True):
        named = len(term.replace("...", ""))
        letters = term.replace("...", "".join(map(str, range(len(shape) - named))))
        sizes.update(zip(letters, shape, strict=True))
    return sizes
