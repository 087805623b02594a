"""The weights that operators own: shapes, initialization, and which are trained."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from search_spaces.common.errors import InputError
from search_spaces.ir.convolutions import convolution
from search_spaces.ir.dimensions import known_size, misfit, positive
from search_spaces.ir.graph import Attrs, Shape

BATCH_NORM_EPSILON = 1e-5
RECURRENT = {"RNN": 1, "GRU": 3, "LSTM": 4}  # number of gates
# Operators of ONNX that own their weights here, and their attributes that ONNX lacks.
OWNERS: dict[str, tuple[str, ...]] = {
    "ConvTranspose": ("bias", "channels"),
    "LayerNormalization": ("affine", "bias"),
    "RMSNormalization": ("affine",),
    "InstanceNormalization": ("affine",),
    "GroupNormalization": ("affine",),
    **dict.fromkeys(RECURRENT, ("bias",)),
}


class Weight(NamedTuple):
    """A tensor that an operator owns.

    Attributes:
        name: role of the tensor.
        shape: its shape.
        init: initialization: "kaiming", "ones" or "zeros".
        trained: False for running statistics, and for scale and shift with `affine = 0`, which stay
            one and zero.
        fan_in: inputs per output, for the scale of initial values; 0 for the product of all but the
            first dimension.
    """

    name: str
    shape: tuple[int, ...]
    init: str
    trained: bool = True
    fan_in: int = 0


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
    return (
        *_conv_weights(attrs, shape),
        *_batch_norm(convolution(attrs, shape).channels, dict(attrs)),
    )


def _linear_weights(attrs: Attrs, shape: Shape) -> tuple[Weight, ...]:
    given: dict[str, Any] = dict(attrs)
    features = positive(attrs, "features")
    matrix = Weight("weight", (features, known_size(shape[-1])), "kaiming")
    return (matrix, Weight("bias", (features,), "zeros")) if given.get("bias", 1) else (matrix,)


def _batch_norm_weights(attrs: Attrs, shape: Shape) -> tuple[Weight, ...]:
    return _batch_norm(known_size(shape[1]), dict(attrs))


def _embedding_weights(attrs: Attrs, shape: Shape) -> tuple[Weight, ...]:
    return (Weight("weight", (positive(attrs, "rows"), positive(attrs, "features")), "kaiming"),)


def _norm_weights(dims: tuple[int, ...], given: dict[str, Any], shift: bool) -> tuple[Weight, ...]:
    affine = bool(given.get("affine", 1))
    scale = Weight("scale", dims, "ones", trained=affine)
    return (scale, Weight("shift", dims, "zeros", trained=affine)) if shift else (scale,)


def _channel_norm_weights(attrs: Attrs, shape: Shape) -> tuple[Weight, ...]:
    return _norm_weights((known_size(shape[1]),), dict(attrs), shift=True)


def _layer_norm_weights(attrs: Attrs, shape: Shape) -> tuple[Weight, ...]:
    given: dict[str, Any] = dict(attrs)
    return _norm_weights(_last_dims(given, shape), given, shift=bool(given.get("bias", 1)))


def _rms_norm_weights(attrs: Attrs, shape: Shape) -> tuple[Weight, ...]:
    return _norm_weights(_last_dims(dict(attrs), shape), dict(attrs), shift=False)


def _last_dims(given: dict[str, Any], shape: Shape) -> tuple[int, ...]:
    return tuple([known_size(d) for d in shape[given.get("axis", -1) :]])


def _transposed_conv_weights(attrs: Attrs, shape: Shape) -> tuple[Weight, ...]:
    given: dict[str, Any] = dict(attrs)
    inputs, group, kernel = (
        known_size(shape[1]),
        given.get("group", 1),
        tuple(given["kernel_shape"]),
    )
    channels = int(given.get("channels", inputs))
    if (
        len(kernel) != len(shape) - 2
        or min(channels, group, *kernel) < 1
        or channels % group
        or inputs % group
    ):
        raise InputError(
            f"ConvTranspose does not take attributes {given} on an input of shape {shape}"
        )
    fan_in = inputs // group * prod(kernel)
    weight = Weight("weight", (inputs, channels // group, *kernel), "kaiming", fan_in=fan_in)
    return (weight, Weight("bias", (channels,), "zeros")) if given.get("bias", 0) else (weight,)


def _recurrent_weights(gates: int) -> Callable[[Attrs, Shape], tuple[Weight, ...]]:
    def weights(attrs: Attrs, shape: Shape) -> tuple[Weight, ...]:
        given: dict[str, Any] = dict(attrs)
        hidden, inputs = positive(attrs, "hidden_size"), known_size(shape[-1])
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


@lru_cache(maxsize=65536)
def weights(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> tuple[Weight, ...]:
    """The tensors that a node owns, in the order of the ONNX operator's inputs.

    Args:
        op: name of the operator.
        attrs: attributes.
        shapes: shapes of the inputs.

    Raises:
        InputError: if attributes and shapes do not match.
    """
    if op == "Param":
        given: dict[str, Any] = dict(attrs)
        return (Weight("value", given["shape"], "kaiming"),)
    if op not in _WEIGHTS or len(shapes) != 1:
        return ()
    try:
        return _WEIGHTS[op](attrs, shapes[0])
    except (KeyError, IndexError, TypeError) as error:
        raise misfit(op, attrs, shapes) from error


def initializers(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> tuple[Weight, ...]:
    """The tensors of `weights` that an ONNX file stores, which exclude scale and shift with `affine
    = 0`.
    """
    return tuple(
        [w for w in weights(op, attrs, shapes) if w.trained or w.name not in ("scale", "shift")]
    )


def onnx_attrs(op: str, attrs: Attrs) -> Attrs:
    """The attributes of an operator of `OWNERS` that ONNX's operator has, too."""
    return tuple([(name, value) for name, value in attrs if name not in OWNERS[op]])
