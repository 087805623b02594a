"""Pointwise ops: each element of the result depends on one element of every operand.

Operands of two element types are converted first, since ONNX's operators want equal ones. An operand
that changes nothing, such as + 0, is left out: exporters leave it out, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from search_spaces.common.errors import InputError
from search_spaces.ir import standard
from search_spaces.ir.pytorch.calls import element, one_of_each
from search_spaces.ir.pytorch.recorder import HANDLERS, Handler, Recorder, handles

Number = Tensor | float
LOG_OF_2 = 0.6931471805599453


# --- element types


def cast(r: Recorder, x: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Convert a tensor to another element type; None keeps its own."""
    if dtype is None or x.dtype == dtype:
        return x
    return r.add("Cast", x, to=standard.enum(element(dtype)))


def converted(r: Recorder, x: Tensor, dtype: torch.dtype) -> Tensor:
    """As `cast`; constants stay constants."""
    if x.dtype == dtype:
        return x
    if r.is_constant(x) and not x.is_meta:
        # A constant for all samples may be huge: one element of each is converted.
        return one_of_each(x).to(dtype).expand(x.shape)
    return cast(r, x, dtype)


def widened(r: Recorder, x: Tensor, *bounds: object) -> Tensor:
    """The tensor; if it has integers and a bound is a float, converted to floating point."""
    has_float = any(isinstance(bound, float) for bound in bounds)
    if x.is_floating_point() or not has_float:
        return x
    return cast(r, x, torch.get_default_dtype())


def _same_type(
    r: Recorder,
    a: Number,
    b: Number,
    *,
    floating: bool = False,
) -> tuple[Number, Number]:
    """Both operands, converted to the element type of the result."""
    dtype = torch.result_type(a, b)
    if floating and not dtype.is_floating_point:
        dtype = torch.get_default_dtype()
    x = converted(r, a, dtype) if isinstance(a, Tensor) else a
    y = converted(r, b, dtype) if isinstance(b, Tensor) else b
    return x, y


@handles("to", "type", "type_as")
def _to(
    r: Recorder,
    input: Tensor,
    *args: Any,
    dtype: torch.dtype | None = None,
    **_: Any,
) -> Tensor:
    """To a type, or to that of another tensor; devices do not matter."""
    alike = [argument for argument in args if isinstance(argument, Tensor)]
    for argument in (*args, *[x.dtype for x in alike]):
        if isinstance(argument, torch.dtype):
            dtype = argument
    if dtype is not None and any(r.is_value(x) for x in alike):
        return converted(r, input, dtype)  # a constant as another tensor stays one
    return cast(r, input, dtype)


_CONVERSIONS = {
    "float": torch.float32,
    "half": torch.float16,
    "double": torch.float64,
    "bfloat16": torch.bfloat16,
    "long": torch.int64,
    "int": torch.int32,
    "bool": torch.bool,
    "short": torch.int16,
    "byte": torch.uint8,
}


def _conversion(dtype: torch.dtype) -> Handler:
    def handler(
        r: Recorder,
        input: Tensor,
        *_: Any,
        **__: Any,
    ) -> Tensor:
        return cast(r, input, dtype)

    return handler


for _name, _dtype in _CONVERSIONS.items():
    HANDLERS[_name] = _conversion(_dtype)


# --- arithmetic


def _is_number(r: Recorder, x: Number, number: float) -> bool:
    """True if an operand is a scalar constant of this value."""
    if not isinstance(x, Tensor):
        return x == number
    if not r.is_constant(x) or x.is_meta or x.dim():
        return False
    return bool(x == number)


def _binary(
    op: str,
    neutral: float | None = None,
    right_only: bool = False,
    floating: bool = False,
) -> Callable[..., Tensor]:
    """Handler of an operator with two operands.

    Args:
        op: name of the operator.
        neutral: operand with which the operator returns the other operand.
        right_only: True if only the second operand can be neutral.
        floating: True if the result of integers is floating-point.
    """

    def is_neutral(r: Recorder, x: Number) -> bool:
        return neutral is not None and _is_number(r, x, neutral)

    def handler(
        r: Recorder,
        input: Number,
        other: Number,
        *,
        out: None = None,
    ) -> Tensor:
        a, b = _same_type(r, input, other, floating=floating)
        if isinstance(a, Tensor) and is_neutral(r, b):
            return r.tensor(r.value(a))
        if isinstance(b, Tensor) and not right_only and is_neutral(r, a):
            return r.tensor(r.value(b))
        return r.add(op, a, b)

    return handler


_plain_add = _binary("Add", neutral=0)
_plain_sub = _binary("Sub", neutral=0, right_only=True)
_plain_mul = _binary("Mul", neutral=1)
_plain_div = _binary("Div", neutral=1, right_only=True, floating=True)
_plain_pow = _binary("Pow", neutral=1, right_only=True)
_plain_equal = _binary("Equal")
maximum, minimum = _binary("Max"), _binary("Min")


@handles("mul", "multiply", "__mul__", "__rmul__")
def multiply(r: Recorder, input: Number, other: Number) -> Tensor:
    """The product."""
    for x, factor in ((input, other), (other, input)):
        if isinstance(x, Tensor) and r.is_value(x) and _is_number(r, factor, 0):
            return r.add_node("Zero", x)
    return _plain_mul(r, input, other)


@handles("add", "__add__", "__radd__")
def add(
    r: Recorder,
    input: Number,
    other: Number,
    *,
    alpha: float = 1,
) -> Tensor:
    """The sum; the second operand times `alpha`."""
    return _plain_add(r, input, other if alpha == 1 else multiply(r, other, alpha))


@handles("sub", "subtract", "__sub__")
def subtract(
    r: Recorder,
    input: Number,
    other: Number,
    *,
    alpha: float = 1,
) -> Tensor:
    """The difference; the second operand times `alpha`."""
    return _plain_sub(r, input, other if alpha == 1 else multiply(r, other, alpha))


@handles("rsub", "__rsub__")
def _rsub(
    r: Recorder,
    input: Number,
    other: Number,
    *,
    alpha: float = 1,
) -> Tensor:
    return subtract(r, other, input, alpha=alpha)


@handles("div", "divide", "true_divide", "__truediv__", "__div__")
def divide(
    r: Recorder,
    input: Number,
    other: Number,
    *,
    rounding_mode: str | None = None,
) -> Tensor:
    """The quotient."""
    if rounding_mode is not None:
        quotient = divide(r, input, other)
        return r.add("Floor" if rounding_mode == "floor" else "Trunc", quotient)
    if isinstance(other, Tensor) and _is_number(r, input, 1):
        return r.add("Reciprocal", other)
    return _plain_div(r, input, other)


@handles("__rtruediv__", "__rdiv__")
def _rdivide(r: Recorder, input: Number, other: Number) -> Tensor:
    return divide(r, other, input)


@handles("floor_divide", "__floordiv__")
def _floor_divide(r: Recorder, input: Number, other: Number) -> Tensor:
    a, b = _same_type(r, input, other)
    if torch.result_type(input, other).is_floating_point:
        return r.add("Floor", r.add("Div", a, b))
    # ONNX divides integers towards zero, torch downwards: without the remainder they agree.
    multiple = r.add("Sub", a, r.add("Mod", a, b))
    return r.add("Div", multiple, b)


@handles("remainder", "__mod__")
def _remainder(r: Recorder, input: Number, other: Number) -> Tensor:
    if not torch.result_type(input, other).is_floating_point:
        return r.add("Mod", *_same_type(r, input, other))
    # ONNX has this remainder for integers only.
    times = r.add("Floor", divide(r, input, other))
    return subtract(r, input, multiply(r, times, other))


@handles("pow", "__pow__")
def _pow(r: Recorder, input: Number, exponent: Number) -> Tensor:
    return _plain_pow(r, input, exponent)


@handles("__rpow__")
def _rpow(r: Recorder, input: Number, other: Number) -> Tensor:
    return _plain_pow(r, torch.tensor(other), input)


def _extremum(op: str, bound_name: str) -> Handler:
    """Handler of the elementwise maximum or minimum; with a number it is a `Clip`."""
    of_two = maximum if op == "Max" else minimum

    def handler(r: Recorder, input: Number, other: Number) -> Tensor:
        number, x = input, other
        if isinstance(input, Tensor) and not r.is_constant(input):
            number, x = other, input
        bound = r.setting(number)
        if isinstance(bound, int | float) and isinstance(x, Tensor):
            return r.add_node("Clip", widened(r, x, bound), **{bound_name: bound})
        return of_two(r, input, other)

    return handler


HANDLERS["maximum"] = HANDLERS["fmax"] = _extremum("Max", "min")
HANDLERS["minimum"] = HANDLERS["fmin"] = _extremum("Min", "max")


# --- comparison, logic, choice

_COMPARISONS = {
    "eq": "Equal",
    "lt": "Less",
    "gt": "Greater",
    "le": "LessOrEqual",
    "ge": "GreaterOrEqual",
}
for _name, _op in _COMPARISONS.items():
    HANDLERS[_name] = HANDLERS[f"__{_name}__"] = _binary(_op)

_LOGIC = {
    "and": "And",
    "or": "Or",
    "xor": "Xor",
}
for _name, _op in _LOGIC.items():
    for _form in ("logical_{}", "bitwise_{}", "__{}__", "__r{}__"):
        HANDLERS[_form.format(_name)] = _binary(_op)


@handles("ne", "__ne__", "not_equal")
def _not_equal(r: Recorder, input: Number, other: Number) -> Tensor:
    return r.add("Not", _plain_equal(r, input, other))


@handles("logical_not")
def _logical_not(r: Recorder, input: Tensor) -> Tensor:
    return r.add("Not", cast(r, input, torch.bool))


@handles("isfinite")
def _isfinite(r: Recorder, input: Tensor) -> Tensor:
    is_not = r.add("Or", r.add("IsInf", input), r.add("IsNaN", input))
    return r.add("Not", is_not)


@handles("where")
def where(
    r: Recorder,
    condition: Tensor,
    input: Number,
    other: Number,
) -> Tensor:
    """Elements of `input` where the condition is true, and of `other` elsewhere."""
    a, b = _same_type(r, input, other)
    return r.add("Where", condition, a, b)


@handles("_where")
def _method_where(
    r: Recorder,
    input: Tensor,
    condition: Tensor,
    other: Number,
) -> Tensor:
    return where(r, condition, input, other)


@handles("masked_fill")
def _masked_fill(
    r: Recorder,
    input: Tensor,
    mask: Tensor,
    value: Number,
) -> Tensor:
    if isinstance(value, Tensor) and r.is_constant(value):
        value = value.to(input.dtype)
    return r.add("Where", mask, value, input)


# --- functions of one operand

_UNARY = {
    "abs": "Abs",
    "absolute": "Abs",
    "__abs__": "Abs",
    "acos": "Acos",
    "arccos": "Acos",
    "acosh": "Acosh",
    "asin": "Asin",
    "arcsin": "Asin",
    "asinh": "Asinh",
    "atan": "Atan",
    "arctan": "Atan",
    "atanh": "Atanh",
    "bitwise_not": "Not",
    "__invert__": "Not",
    "ceil": "Ceil",
    "cos": "Cos",
    "cosh": "Cosh",
    "erf": "Erf",
    "special_erf": "Erf",
    "exp": "Exp",
    "floor": "Floor",
    "isinf": "IsInf",
    "isnan": "IsNaN",
    "log": "Log",
    "neg": "Neg",
    "negative": "Neg",
    "__neg__": "Neg",
    "reciprocal": "Reciprocal",
    "sigmoid": "Sigmoid",
    "special_expit": "Sigmoid",
    "sign": "Sign",
    "sin": "Sin",
    "sinh": "Sinh",
    "sqrt": "Sqrt",
    "tan": "Tan",
    "tanh": "Tanh",
}


def unary(op: str) -> Handler:
    """Handler of an operator with one operand; further arguments do not matter."""

    def handler(
        r: Recorder,
        input: Tensor,
        *_: Any,
        **__: Any,
    ) -> Tensor:
        return r.add(op, input)

    return handler


for _name, _op in _UNARY.items():
    HANDLERS[_name] = unary(_op)


@handles("contiguous", "detach", "cpu", "cuda")
def _same(
    r: Recorder,
    input: Tensor,
    *_: Any,
    **__: Any,
) -> Tensor:
    return input


@handles("data", "real")
def _data(r: Recorder, input: Tensor) -> Tensor:
    return r.alias(input)


@handles("clone")
def _clone(
    r: Recorder,
    input: Tensor,
    *_: Any,
    **__: Any,
) -> Tensor:
    return r.tensor(r.value(input))


@handles("copy")
def _copy(
    r: Recorder,
    input: Tensor,
    src: Tensor,
    non_blocking: bool = False,
) -> Tensor:
    """The content of `copy_`."""
    source = converted(r, src, input.dtype)
    wide = r.call(Tensor.expand_as, source, input)
    return r.tensor(r.value(wide))


@handles("round")
def _round(r: Recorder, input: Tensor, *, decimals: int = 0) -> Tensor:
    if decimals:
        raise InputError("round to decimals is not supported: multiply, round and divide")
    return r.add("Round", input)


@handles("rsqrt")
def _rsqrt(r: Recorder, input: Tensor) -> Tensor:
    return r.add("Reciprocal", r.add("Sqrt", input))


@handles("square")
def _square(r: Recorder, input: Tensor) -> Tensor:
    return r.add("Pow", input, 2)


@handles("log2")
def _log2(r: Recorder, input: Tensor) -> Tensor:
    return divide(r, r.add("Log", input), LOG_OF_2)


@handles("log1p")
def _log1p(r: Recorder, input: Tensor) -> Tensor:
    return r.add("Log", r.add("Add", input, 1))


@handles("expm1")
def _expm1(r: Recorder, input: Tensor) -> Tensor:
    return r.add("Sub", r.add("Exp", input), 1)


@handles("clamp", "clip", "clamp_min", "clamp_max")
def clamp(
    r: Recorder,
    input: Tensor,
    min: Number | None = None,
    max: Number | None = None,
) -> Tensor:
    """Elements between two bounds, either of which may be None, a number or a tensor."""
    settings = {}
    if min is not None:
        settings["min"] = r.setting(min)
    if max is not None:
        settings["max"] = r.setting(max)
    x = widened(r, input, *settings.values())
    if None not in settings.values():
        return r.add_node("Clip", x, **settings)  # type: ignore[arg-type]
    # A bound that is a value of the graph is no attribute of `Clip`.
    if min is not None:
        x = maximum(r, x, min)
    return x if max is None else minimum(r, x, max)


@handles("clamp_max")
def _clamp_max(r: Recorder, input: Tensor, max: Number) -> Tensor:
    return clamp(r, input, None, max)


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
    highest = limits.max if posinf is None else float(posinf)
    lowest = limits.min if neginf is None else float(neginf)
    x = r.add("Where", r.add("IsNaN", input), float(nan or 0), input)
    x = r.add("Where", r.add("IsInf", x, detect_negative=0), highest, x)
    return r.add("Where", r.add("IsInf", x, detect_positive=0), lowest, x)


# --- compositions


@handles("addcmul")
def _addcmul(
    r: Recorder,
    input: Tensor,
    tensor1: Tensor,
    tensor2: Tensor,
    *,
    value: float = 1,
) -> Tensor:
    scaled = multiply(r, tensor1, value)
    return add(r, input, multiply(r, scaled, tensor2))


@handles("lerp")
def _lerp(
    r: Recorder,
    input: Tensor,
    end: Tensor,
    weight: Number,
) -> Tensor:
    way = subtract(r, end, input)
    return add(r, input, multiply(r, way, weight))


@handles("atan2", "arctan2")
def _atan2(r: Recorder, input: Tensor, other: Tensor) -> Tensor:
    """The arc tangent of the quotient, moved by half a turn where `other` is negative.

    Zeros have no sign.
    """
    # 1. The arc tangent of the quotient, without a division by 0.
    upright = r.call(torch.eq, other, 0)
    divisor = where(r, upright, 1.0, other)
    angle = r.add("Atan", divide(r, input, divisor))
    # 2. Half a turn more where `other` is negative.
    is_below = r.call(torch.lt, input, 0)
    half_turn = where(r, is_below, -math.pi, math.pi)
    is_left = r.call(torch.lt, other, 0)
    moved = where(r, is_left, add(r, angle, half_turn), angle)
    # 3. A quarter of a turn where it is 0.
    sign = r.add("Sign", input)
    quarter_turn = multiply(r, sign, math.pi / 2)
    return where(r, upright, quarter_turn, moved)
