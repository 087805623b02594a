"""Non-linear activation functions, and dropout, which does nothing while a network is evaluated.

Functions without an ONNX operator consist of others, as in ONNX files that exporters write.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from search_spaces.common.errors import InputError
from search_spaces.ir import standard
from search_spaces.ir.pytorch.pointwise import cast, clamp, divide, multiply, unary
from search_spaces.ir.pytorch.recorder import HANDLERS, Recorder, handles

# --- rectifiers

HANDLERS["relu"] = unary("Relu")
HANDLERS["hardswish"] = unary("HardSwish")


@handles("relu6")
def _relu6(r: Recorder, input: Tensor) -> Tensor:
    return clamp(r, input, 0, 6)


@handles("hardtanh")
def _hardtanh(
    r: Recorder,
    input: Tensor,
    min_val: float = -1.0,
    max_val: float = 1.0,
) -> Tensor:
    return clamp(r, input, min_val, max_val)


@handles("leaky_relu")
def _leaky_relu(r: Recorder, input: Tensor, negative_slope: float = 0.01) -> Tensor:
    return r.add("LeakyRelu", input, alpha=standard.shortest(negative_slope))


@handles("rrelu")
def _rrelu(
    r: Recorder,
    input: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
) -> Tensor:
    if training:
        raise InputError("rrelu in training mode: pass training=self.training")
    return _leaky_relu(r, input, (lower + upper) / 2)


@handles("prelu")
def _prelu(r: Recorder, input: Tensor, weight: Tensor) -> Tensor:
    """One slope, or one for each channel."""
    if weight.numel() > 1:
        spatial = [1] * (input.dim() - 2)
        weight = r.call(torch.reshape, weight, [-1, *spatial])
    return r.add_node("PRelu", input, weight)


@handles("threshold")
def _threshold(
    r: Recorder,
    input: Tensor,
    threshold: float,
    value: float,
) -> Tensor:
    return r.add("Where", r.add("Greater", input, threshold), input, value)


@handles("hardshrink")
def _hardshrink(r: Recorder, input: Tensor, lambd: float = 0.5) -> Tensor:
    return r.add("Shrink", input, lambd=standard.shortest(lambd))


@handles("softshrink")
def _softshrink(r: Recorder, input: Tensor, lambd: float = 0.5) -> Tensor:
    width = standard.shortest(lambd)
    return r.add("Shrink", input, lambd=width, bias=width)


# --- smooth ones


@handles("elu")
def _elu(r: Recorder, input: Tensor, alpha: float = 1.0) -> Tensor:
    return r.add("Elu", input, alpha=standard.shortest(alpha))


@handles("celu")
def _celu(r: Recorder, input: Tensor, alpha: float = 1.0) -> Tensor:
    return r.add("Celu", input, alpha=standard.shortest(alpha))


@handles("selu")
def _selu(r: Recorder, input: Tensor) -> Tensor:
    return r.add("Selu", input)


@handles("gelu")
def _gelu(r: Recorder, input: Tensor, approximate: str = "none") -> Tensor:
    return r.add("Gelu", input, approximate=approximate)


@handles("silu")
def _silu(r: Recorder, input: Tensor) -> Tensor:
    return r.add("Mul", input, r.add("Sigmoid", input))


@handles("mish")
def _mish(r: Recorder, input: Tensor) -> Tensor:
    return r.add("Mish", input)


@handles("glu")
def _glu(r: Recorder, input: Tensor, dim: int = -1) -> Tensor:
    values, gates = r.call(torch.chunk, input, 2, dim)
    return r.add("Mul", values, r.add("Sigmoid", gates))


@handles("hardsigmoid")
def _hardsigmoid(r: Recorder, input: Tensor) -> Tensor:
    return r.add("HardSigmoid", input, alpha=standard.shortest(1 / 6))


@handles("log_sigmoid", "logsigmoid")
def _logsigmoid(r: Recorder, input: Tensor) -> Tensor:
    return r.add("Log", r.add("Sigmoid", input))


@handles("softplus")
def _softplus(
    r: Recorder,
    input: Tensor,
    beta: float = 1,
    threshold: float = 20,
) -> Tensor:
    if threshold != 20:
        raise InputError("softplus with another threshold than 20 is not supported")
    scaled = multiply(r, input, beta)
    return divide(r, r.add("Softplus", scaled), beta)


# --- distributions over an axis


def _softmax_axis(x: Tensor, dim: int | None) -> int:
    """The axis; if none is given, the one that torch takes."""
    if dim is not None:
        return dim
    return 0 if x.dim() in (0, 1, 3) else 1


@handles("softmax")
def _softmax(
    r: Recorder,
    input: Tensor,
    dim: int | None = None,
    *_: Any,
    dtype: Any = None,
    **__: Any,
) -> Tensor:
    x = cast(r, input, dtype)
    return r.add("Softmax", x, axis=_softmax_axis(input, dim))


@handles("softmin")
def _softmin(
    r: Recorder,
    input: Tensor,
    dim: int | None = None,
    *_: Any,
    dtype: Any = None,
    **__: Any,
) -> Tensor:
    return _softmax(r, r.add("Neg", input), dim, dtype=dtype)


@handles("log_softmax")
def _log_softmax(
    r: Recorder,
    input: Tensor,
    dim: int | None = None,
    *_: Any,
    dtype: Any = None,
    **__: Any,
) -> Tensor:
    x = cast(r, input, dtype)
    return r.add("LogSoftmax", x, axis=_softmax_axis(input, dim))


# --- dropout


@handles(
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "alpha_dropout",
    "feature_dropout",
    "feature_alpha_dropout",
)
def _dropout(
    r: Recorder,
    input: Tensor,
    p: float = 0.5,
    train: bool = False,
    training: bool = False,
) -> Tensor:
    if (train or training) and p > 0:
        raise InputError("dropout in training mode: pass training=self.training")
    return input
