"""Elementwise torch functions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from search_spaces.common.errors import InputError
from search_spaces.graph import standard
from search_spaces.pytorch.dtypes import element
from search_spaces.pytorch.recorder import HANDLERS, Recorder, handles

Number = Tensor | float

# --- one operand -----------------------------------------------------------------------------------------------------

_UNARY = {
    "relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "abs": "Abs",
    "neg": "Neg", "__neg__": "Neg", "floor": "Floor", "ceil": "Ceil", "sin": "Sin", "cos": "Cos",
    "tan": "Tan", "atan": "Atan", "arctan": "Atan", "erf": "Erf", "sign": "Sign", "reciprocal": "Reciprocal",
    "hardswish": "HardSwish", "__invert__": "Not", "bitwise_not": "Not", "absolute": "Abs",
    "negative": "Neg", "__abs__": "Abs", "isnan": "IsNaN", "isinf": "IsInf", "sinh": "Sinh", "cosh": "Cosh",
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


@handles("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_dropout", "feature_alpha_dropout")
def _dropout(r: Recorder, input: Tensor, p: float = 0.5, train: bool = False, training: bool = False) -> Tensor:
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
    made = r.call(Tensor.expand_as, _typed(r, src, input.dtype), input)
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
def _clamp(r: Recorder, input: Tensor, min: Number | None = None, max: Number | None = None) -> Tensor:
    return _clip(r, input, min, max)


HANDLERS["clamp_max"] = lambda r, input, max: _clip(r, input, None, max)


def _clip(r: Recorder, x: Tensor, low: Number | None, high: Number | None) -> Tensor:
    bounds = {name: r.setting(b) for name, b in (("min", low), ("max", high)) if b is not None}
    x = _widened(r, x, *bounds.values())
    if any(value is None for value in bounds.values()):
        x = x if low is None else _maximum(r, x, low)
        return x if high is None else _minimum(r, x, high)
    return r.add_node("Clip", x, **bounds)  # type: ignore[arg-type]


def _widened(r: Recorder, x: Tensor, *bounds: object) -> Tensor:
    """Integers as floating-point numbers if a bound is one."""
    if x.is_floating_point() or not any(isinstance(bound, float) for bound in bounds):
        return x
    return cast(r, x, torch.get_default_dtype())


@handles("leaky_relu")
def _leaky_relu(r: Recorder, input: Tensor, negative_slope: float = 0.01) -> Tensor:
    return r.add("LeakyRelu", input, alpha=standard.shortest(negative_slope))


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
    scaled = _multiply(r, input, beta)
    return _divide(r, r.add("Softplus", scaled), beta)


@handles("softmax")
def _softmax(r: Recorder, input: Tensor, dim: int | None = None, *_: Any, dtype: Any = None, **__: Any) -> Tensor:
    return r.add("Softmax", cast(r, input, dtype), axis=_softmax_axis(input) if dim is None else dim)


@handles("softmin")
def _softmin(r: Recorder, input: Tensor, dim: int | None = None, *_: Any, dtype: Any = None, **__: Any) -> Tensor:
    return _softmax(r, r.add("Neg", input), dim, dtype=dtype)


@handles("log_softmax")
def _log_softmax(r: Recorder, input: Tensor, dim: int | None = None, *_: Any, dtype: Any = None, **__: Any) -> Tensor:
    return r.add("LogSoftmax", cast(r, input, dtype), axis=_softmax_axis(input) if dim is None else dim)


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
    return _divide(r, r.add("Log", input), 0.6931471805599453)


@handles("log1p")
def _log1p(r: Recorder, input: Tensor) -> Tensor:
    return r.add("Log", r.add("Add", input, 1))


@handles("expm1")
def _expm1(r: Recorder, input: Tensor) -> Tensor:
    return r.add("Sub", r.add("Exp", input), 1)


@handles("cumsum")
def _cumsum(r: Recorder, input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    x = cast(r, input, dtype or (None if input.is_floating_point() else torch.int64))
    return r.add_node("CumSum", x, axis=dim % input.dim())


# --- types -----------------------------------------------------------------------------------------------------------


def cast(r: Recorder, x: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Convert a tensor to another element type; None keeps its own."""
    return x if dtype is None or x.dtype == dtype else r.add("Cast", x, to=standard.enum(element(dtype)))


@handles("to", "type", "type_as")
def _to(r: Recorder, input: Tensor, *args: Any, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    for argument in args:
        if isinstance(argument, torch.dtype):
            dtype = argument
        elif isinstance(argument, Tensor):
            dtype = argument.dtype
    return cast(r, input, dtype)


_TYPES = {
    "float": torch.float32, "half": torch.float16, "double": torch.float64, "bfloat16": torch.bfloat16,
    "long": torch.int64, "int": torch.int32, "bool": torch.bool, "short": torch.int16, "byte": torch.uint8,
}  # fmt: skip
HANDLERS.update({name: lambda r, x, *_, d=dtype, **__: cast(r, x, d) for name, dtype in _TYPES.items()})

# --- two operands ----------------------------------------------------------------------------------------------------


def _same_type(r: Recorder, a: Number, b: Number, *, floating: bool = False) -> tuple[Number, Number]:
    """Both operands, converted to the element type of the result."""
    dtype = torch.result_type(a, b)
    if floating and not dtype.is_floating_point:
        dtype = torch.get_default_dtype()
    x, y = (v if not isinstance(v, Tensor) else _typed(r, v, dtype) for v in (a, b))
    return x, y


def _typed(r: Recorder, x: Tensor, dtype: torch.dtype) -> Tensor:
    if x.dtype == dtype:
        return x
    return x.to(dtype) if r.is_constant(x) and not x.is_meta else cast(r, x, dtype)


def _is_number(r: Recorder, x: Number, number: float) -> bool:
    """True if an operand is a scalar constant of this value."""
    if isinstance(x, Tensor):
        return r.is_constant(x) and not x.is_meta and not x.dim() and bool(x == number)
    return x == number


def _binary(op: str, neutral: float | None = None, right_only: bool = False, floating: bool = False) -> Any:
    """Handler of an operator with two operands.

    Args:
        op: name of the operator.
        neutral: operand with which the operator returns the other operand.
        right_only: True if only the second operand can be neutral.
        floating: True if the result of integers is floating-point.
    """

    def handler(r: Recorder, input: Number, other: Number, *, out: None = None) -> Tensor:
        a, b = _same_type(r, input, other, floating=floating)
        if neutral is not None and isinstance(a, Tensor) and _is_number(r, b, neutral):
            return r.tensor(r.value(a))
        if neutral is not None and not right_only and isinstance(b, Tensor) and _is_number(r, a, neutral):
            return r.tensor(r.value(b))
        return r.add(op, a, b)

    return handler


_multiply_any = _binary("Mul", neutral=1)


@handles("mul", "multiply", "__mul__", "__rmul__")
def _multiply(r: Recorder, input: Number, other: Number) -> Tensor:
    for x, number in ((input, other), (other, input)):
        if isinstance(x, Tensor) and r.is_value(x) and _is_number(r, number, 0):
            return r.add_node("Zero", x)
    return _multiply_any(r, input, other)


@handles("add", "__add__", "__radd__")
def _add(r: Recorder, input: Number, other: Number, *, alpha: float = 1) -> Tensor:
    return _plain_add(r, input, other if alpha == 1 else _multiply(r, other, alpha))


_plain_add = _binary("Add", neutral=0)
_plain_sub = _binary("Sub", neutral=0, right_only=True)
_plain_div = _binary("Div", neutral=1, right_only=True, floating=True)


@handles("sub", "subtract", "__sub__")
def _subtract(r: Recorder, input: Number, other: Number, *, alpha: float = 1) -> Tensor:
    return _plain_sub(r, input, other if alpha == 1 else _multiply(r, other, alpha))


@handles("rsub", "__rsub__")
def _rsub(r: Recorder, input: Number, other: Number, *, alpha: float = 1) -> Tensor:
    return _subtract(r, other, input, alpha=alpha)


@handles("div", "divide", "true_divide", "__truediv__", "__div__")
def _divide(r: Recorder, input: Number, other: Number, *, rounding_mode: str | None = None) -> Tensor:
    if rounding_mode is not None:
        return r.add("Floor" if rounding_mode == "floor" else "Trunc", _divide(r, input, other))
    if isinstance(other, Tensor) and _is_number(r, input, 1):
        return r.add("Reciprocal", other)
    return _plain_div(r, input, other)


@handles("__rtruediv__", "__rdiv__")
def _rdivide(r: Recorder, input: Number, other: Number) -> Tensor:
    return _divide(r, other, input)


@handles("floor_divide", "__floordiv__")
def _floor_divide(r: Recorder, input: Number, other: Number) -> Tensor:
    a, b = _same_type(r, input, other)
    if torch.result_type(input, other).is_floating_point:
        return r.add("Floor", r.add("Div", a, b))
    return r.add("Div", r.add("Sub", a, r.add("Mod", a, b)), b)  # ONNX divides integers towards zero


@handles("pow", "__pow__")
def _pow(r: Recorder, input: Number, exponent: Number) -> Tensor:
    return _plain_pow(r, input, exponent)


@handles("__rpow__")
def _rpow(r: Recorder, input: Number, other: Number) -> Tensor:
    return _plain_pow(r, torch.tensor(other), input)


_plain_pow = _binary("Pow", neutral=1, right_only=True)
_maximum, _minimum = _binary("Max"), _binary("Min")


def _extremum(op: str) -> Any:
    def handler(r: Recorder, input: Number, other: Number) -> Tensor:
        number, x = (input, other) if not isinstance(input, Tensor) or r.is_constant(input) else (other, input)
        bound = r.setting(number)
        if isinstance(bound, int | float) and isinstance(x, Tensor):
            return r.add_node("Clip", _widened(r, x, bound), **{"min" if op == "Max" else "max": bound})
        return (_maximum if op == "Max" else _minimum)(r, input, other)

    return handler


HANDLERS.update(maximum=_extremum("Max"), minimum=_extremum("Min"), fmax=_extremum("Max"), fmin=_extremum("Min"))
_COMPARISONS = {"eq": "Equal", "lt": "Less", "gt": "Greater", "le": "LessOrEqual", "ge": "GreaterOrEqual"}
for _name, _op in _COMPARISONS.items():
    HANDLERS[_name] = HANDLERS[f"__{_name}__"] = _binary(_op)
_LOGIC = {"and": "And", "or": "Or", "xor": "Xor"}
for _name, _op in _LOGIC.items():
    for _form in ("logical_{}", "bitwise_{}", "__{}__", "__r{}__"):
        HANDLERS[_form.format(_name)] = _binary(_op)


@handles("ne", "__ne__", "not_equal")
def _not_equal(r: Recorder, input: Number, other: Number) -> Tensor:
    return r.add("Not", _binary("Equal")(r, input, other))


@handles("remainder", "__mod__")
def _remainder(r: Recorder, input: Number, other: Number) -> Tensor:
    if torch.result_type(input, other).is_floating_point:  # ONNX has this remainder for integers only
        return _subtract(r, input, _multiply(r, r.add("Floor", _divide(r, input, other)), other))
    return r.add("Mod", *_same_type(r, input, other))


@handles("where")
def _where(r: Recorder, condition: Tensor, input: Number, other: Number) -> Tensor:
    a, b = _same_type(r, input, other)
    return r.add("Where", condition, a, b)


@handles("_where")
def _method_where(r: Recorder, input: Tensor, condition: Tensor, other: Number) -> Tensor:
    return _where(r, condition, input, other)


@handles("masked_fill")
def _masked_fill(r: Recorder, input: Tensor, mask: Tensor, value: Number) -> Tensor:
    filled = value.to(input.dtype) if isinstance(value, Tensor) and r.is_constant(value) else value
    return r.add("Where", mask, filled, input)


@handles("addcmul")
def _addcmul(r: Recorder, input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    return _add(r, input, _multiply(r, _multiply(r, tensor1, value), tensor2))


@handles("lerp")
def _lerp(r: Recorder, input: Tensor, end: Tensor, weight: Number) -> Tensor:
    return _add(r, input, _multiply(r, _subtract(r, end, input), weight))


@handles("glu")
def _glu(r: Recorder, input: Tensor, dim: int = -1) -> Tensor:
    a, b = r.call(torch.chunk, input, 2, dim)
    return r.add("Mul", a, r.add("Sigmoid", b))
