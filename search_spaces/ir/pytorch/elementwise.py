"""Elementwise torch functions of one operand."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from search_spaces.common.errors import InputError
from search_spaces.ir import standard
from search_spaces.ir.pytorch.arithmetic import Number, divide, maximum, minimum, multiply
from search_spaces.ir.pytorch.casts import cast, converted, widened
from search_spaces.ir.pytorch.recorder import HANDLERS, Recorder, handles

_UNARY = {
    "relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "abs": "Abs",
    "neg": "Neg", "__neg__": "Neg", "floor": "Floor", "ceil": "Ceil", "sin": "Sin", "cos": "Cos",
    "tan": "Tan", "atan": "Atan", "arctan": "Atan", "erf": "Erf", "sign": "Sign", "reciprocal": "Reciprocal",
    "hardswish": "HardSwish", "__invert__": "Not", "bitwise_not": "Not", "absolute": "Abs", "special_expit": "Sigmoid",
    "negative": "Neg", "__abs__": "Abs", "isnan": "IsNaN", "isinf": "IsInf", "sinh": "Sinh", "cosh": "Cosh",
    "asin": "Asin", "arcsin": "Asin", "acos": "Acos", "arccos": "Acos", "asinh": "Asinh", "acosh": "Acosh",
    "atanh": "Atanh", "special_erf": "Erf",
}  # fmt: skip


def _unary(op: str) -> Any:
    return lambda r, input, *_, **__: r.add(op, input)


HANDLERS.update({name: _unary(op) for name, op in _UNARY.items()})


@handles("round")
def _round(r: Recorder, input: Tensor, *, decimals: int = 0) -> Tensor:
    if decimals:
        raise InputError("round to decimals is not supported: multiply, round and divide")
    return r.add("Round", input)


@handles("logical_not")
def _logical_not(r: Recorder, input: Tensor) -> Tensor:
    return r.add("Not", cast(r, input, torch.bool))


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
    r: Recorder, input: Tensor, p: float = 0.5, train: bool = False, training: bool = False
) -> Tensor:
    if (train or training) and p > 0:
        raise InputError("dropout in training mode: pass training=self.training")
    return input


@handles("contiguous", "detach", "cpu", "cuda")
def _same(r: Recorder, input: Tensor, *_: Any, **__: Any) -> Tensor:
    return input


@handles("clone")
def _clone(r: Recorder, input: Tensor, *_: Any, **__: Any) -> Tensor:
    return r.tensor(r.value(input))


@handles("copy")
def _copy(r: Recorder, input: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    """The content of `copy_`."""
    made = r.call(Tensor.expand_as, converted(r, src, input.dtype), input)
    return r.tensor(r.value(made))


@handles("one_hot")
def _one_hot(r: Recorder, input: Tensor, num_classes: int = -1) -> Tensor:
    if num_classes < 0:
        raise InputError("one_hot without the number of classes depends on the data")
    found = r.add("Equal", r.call(torch.unsqueeze, input, -1), torch.arange(num_classes))
    return cast(r, found, torch.int64)


@handles("data", "real")
def _data(r: Recorder, input: Tensor) -> Tensor:
    return r.alias(input)


@handles("isfinite")
def _isfinite(r: Recorder, input: Tensor) -> Tensor:
    return r.add("Not", r.add("Or", r.add("IsInf", input), r.add("IsNaN", input)))


@handles("gelu")
def _gelu(r: Recorder, input: Tensor, approximate: str = "none") -> Tensor:
    return r.add("Gelu", input, approximate=approximate)


@handles("silu")
def _silu(r: Recorder, input: Tensor) -> Tensor:
    return r.add("Mul", input, r.add("Sigmoid", input))


@handles("mish")
def _mish(r: Recorder, input: Tensor) -> Tensor:
    return r.add("Mish", input)


@handles("hardsigmoid")
def _hardsigmoid(r: Recorder, input: Tensor) -> Tensor:
    return r.add("HardSigmoid", input, alpha=standard.shortest(1 / 6))


@handles("relu6")
def _relu6(r: Recorder, input: Tensor) -> Tensor:
    return _clip(r, input, 0, 6)


@handles("hardtanh")
def _hardtanh(r: Recorder, input: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    return _clip(r, input, min_val, max_val)


@handles("clamp", "clip", "clamp_min", "clamp_max")
def _clamp(
    r: Recorder, input: Tensor, min: Number | None = None, max: Number | None = None
) -> Tensor:
    return _clip(r, input, min, max)


HANDLERS["clamp_max"] = lambda r, input, max: _clip(r, input, None, max)


def _clip(r: Recorder, x: Tensor, low: Number | None, high: Number | None) -> Tensor:
    bounds = {name: r.setting(b) for name, b in (("min", low), ("max", high)) if b is not None}
    x = widened(r, x, *bounds.values())
    if any(value is None for value in bounds.values()):
        x = x if low is None else maximum(r, x, low)
        return x if high is None else minimum(r, x, high)
    return r.add_node("Clip", x, **bounds)  # type: ignore[arg-type]


@handles("leaky_relu")
def _leaky_relu(r: Recorder, input: Tensor, negative_slope: float = 0.01) -> Tensor:
    return r.add("LeakyRelu", input, alpha=standard.shortest(negative_slope))


@handles("rrelu")
def _rrelu(
    r: Recorder, input: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False
) -> Tensor:
    if training:
        raise InputError("rrelu in training mode: pass training=self.training")
    return _leaky_relu(r, input, (lower + upper) / 2)


@handles("hardshrink")
def _hardshrink(r: Recorder, input: Tensor, lambd: float = 0.5) -> Tensor:
    return r.add("Shrink", input, lambd=standard.shortest(lambd))


@handles("softshrink")
def _softshrink(r: Recorder, input: Tensor, lambd: float = 0.5) -> Tensor:
    return r.add("Shrink", input, lambd=standard.shortest(lambd), bias=standard.shortest(lambd))


@handles("threshold")
def _threshold(r: Recorder, input: Tensor, threshold: float, value: float) -> Tensor:
    return r.add("Where", r.add("Greater", input, threshold), input, value)


@handles("elu")
def _elu(r: Recorder, input: Tensor, alpha: float = 1.0) -> Tensor:
    return r.add("Elu", input, alpha=standard.shortest(alpha))


@handles("celu")
def _celu(r: Recorder, input: Tensor, alpha: float = 1.0) -> Tensor:
    return r.add("Celu", input, alpha=standard.shortest(alpha))


@handles("selu")
def _selu(r: Recorder, input: Tensor) -> Tensor:
    return r.add("Selu", input)


@handles("log_sigmoid", "logsigmoid")
def _logsigmoid(r: Recorder, input: Tensor) -> Tensor:
    return r.add("Log", r.add("Sigmoid", input))


@handles("softplus")
def _softplus(r: Recorder, input: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    if threshold != 20:
        raise InputError("softplus with another threshold than 20 is not supported")
    scaled = multiply(r, input, beta)
    return divide(r, r.add("Softplus", scaled), beta)


@handles("softmax")
def _softmax(
    r: Recorder, input: Tensor, dim: int | None = None, *_: Any, dtype: Any = None, **__: Any
) -> Tensor:
    return r.add(
        "Softmax", cast(r, input, dtype), axis=_softmax_axis(input) if dim is None else dim
    )


@handles("softmin")
def _softmin(
    r: Recorder, input: Tensor, dim: int | None = None, *_: Any, dtype: Any = None, **__: Any
) -> Tensor:
    return _softmax(r, r.add("Neg", input), dim, dtype=dtype)


@handles("log_softmax")
def _log_softmax(
    r: Recorder, input: Tensor, dim: int | None = None, *_: Any, dtype: Any = None, **__: Any
) -> Tensor:
    return r.add(
        "LogSoftmax", cast(r, input, dtype), axis=_softmax_axis(input) if dim is None else dim
    )


def _softmax_axis(x: Tensor) -> int:
    """The axis that torch takes if none is given."""
    return 0 if x.dim() in (0, 1, 3) else 1


@handles("rsqrt")
def _rsqrt(r: Recorder, input: Tensor) -> Tensor:
    return r.add("Reciprocal", r.add("Sqrt", input))


@handles("square")
def _square(r: Recorder, input: Tensor) -> Tensor:
    return r.add("Pow", input, 2)


@handles("log2")
def _log2(r: Recorder, input: Tensor) -> Tensor:
    return divide(r, r.add("Log", input), 0.6931471805599453)


@handles("log1p")
def _log1p(r: Recorder, input: Tensor) -> Tensor:
    return r.add("Log", r.add("Add", input, 1))


@handles("expm1")
def _expm1(r: Recorder, input: Tensor) -> Tensor:
    return r.add("Sub", r.add("Exp", input), 1)


@handles("nan_to_num")
def _nan_to_num(
    r: Recorder,
    input: Tensor,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Tensor:
    if not input.is_floating_point():
        return input
    limits = torch.finfo(input.dtype)
    x = r.add("Where", r.add("IsNaN", input), float(nan or 0), input)
    x = r.add(
        "Where",
        r.add("IsInf", x, detect_negative=0),
        limits.max if posinf is None else float(posinf),
        x,
    )
    return r.add(
        "Where",
        r.add("IsInf", x, detect_positive=0),
        limits.min if neginf is None else float(neginf),
        x,
    )


@handles("cumsum")
def _cumsum(r: Recorder, input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    x = cast(r, input, dtype or (None if input.is_floating_point() else torch.int64))
    return r.add_node("CumSum", x, axis=dim % input.dim())
