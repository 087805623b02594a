"""Elementwise torch functions of two operands, and compositions of them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from search_spaces.ir.pytorch.casts import converted, widened
from search_spaces.ir.pytorch.recorder import HANDLERS, Recorder, handles

Number = Tensor | float


def _same_type(
    r: Recorder, a: Number, b: Number, *, floating: bool = False
) -> tuple[Number, Number]:
    """Both operands, converted to the element type of the result."""
    dtype = torch.result_type(a, b)
    if floating and not dtype.is_floating_point:
        dtype = torch.get_default_dtype()
    x, y = (v if not isinstance(v, Tensor) else converted(r, v, dtype) for v in (a, b))
    return x, y


def _is_number(r: Recorder, x: Number, number: float) -> bool:
    """True if an operand is a scalar constant of this value."""
    if isinstance(x, Tensor):
        return r.is_constant(x) and not x.is_meta and not x.dim() and bool(x == number)
    return x == number


def _binary(
    op: str, neutral: float | None = None, right_only: bool = False, floating: bool = False
) -> Any:
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
        if (
            neutral is not None
            and not right_only
            and isinstance(b, Tensor)
            and _is_number(r, a, neutral)
        ):
            return r.tensor(r.value(b))
        return r.add(op, a, b)

    return handler


_multiply_any = _binary("Mul", neutral=1)


@handles("mul", "multiply", "__mul__", "__rmul__")
def multiply(r: Recorder, input: Number, other: Number) -> Tensor:
    """The product."""
    for x, number in ((input, other), (other, input)):
        if isinstance(x, Tensor) and r.is_value(x) and _is_number(r, number, 0):
            return r.add_node("Zero", x)
    return _multiply_any(r, input, other)


@handles("add", "__add__", "__radd__")
def _add(r: Recorder, input: Number, other: Number, *, alpha: float = 1) -> Tensor:
    return _plain_add(r, input, other if alpha == 1 else multiply(r, other, alpha))


_plain_add = _binary("Add", neutral=0)
_plain_sub = _binary("Sub", neutral=0, right_only=True)
_plain_div = _binary("Div", neutral=1, right_only=True, floating=True)


@handles("sub", "subtract", "__sub__")
def _subtract(r: Recorder, input: Number, other: Number, *, alpha: float = 1) -> Tensor:
    return _plain_sub(r, input, other if alpha == 1 else multiply(r, other, alpha))


@handles("rsub", "__rsub__")
def _rsub(r: Recorder, input: Number, other: Number, *, alpha: float = 1) -> Tensor:
    return _subtract(r, other, input, alpha=alpha)


@handles("div", "divide", "true_divide", "__truediv__", "__div__")
def divide(
    r: Recorder, input: Number, other: Number, *, rounding_mode: str | None = None
) -> Tensor:
    """The quotient."""
    if rounding_mode is not None:
        return r.add("Floor" if rounding_mode == "floor" else "Trunc", divide(r, input, other))
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
    return r.add(
        "Div", r.add("Sub", a, r.add("Mod", a, b)), b
    )  # ONNX divides integers towards zero


@handles("pow", "__pow__")
def _pow(r: Recorder, input: Number, exponent: Number) -> Tensor:
    return _plain_pow(r, input, exponent)


@handles("__rpow__")
def _rpow(r: Recorder, input: Number, other: Number) -> Tensor:
    return _plain_pow(r, torch.tensor(other), input)


_plain_pow = _binary("Pow", neutral=1, right_only=True)
maximum, minimum = _binary("Max"), _binary("Min")


def _extremum(op: str) -> Any:
    def handler(r: Recorder, input: Number, other: Number) -> Tensor:
        number, x = (
            (input, other)
            if not isinstance(input, Tensor) or r.is_constant(input)
            else (other, input)
        )
        bound = r.setting(number)
        if isinstance(bound, int | float) and isinstance(x, Tensor):
            return r.add_node(
                "Clip", widened(r, x, bound), **{"min" if op == "Max" else "max": bound}
            )
        return (maximum if op == "Max" else minimum)(r, input, other)

    return handler


HANDLERS.update(
    maximum=_extremum("Max"), minimum=_extremum("Min"), fmax=_extremum("Max"), fmin=_extremum("Min")
)
_COMPARISONS = {
    "eq": "Equal",
    "lt": "Less",
    "gt": "Greater",
    "le": "LessOrEqual",
    "ge": "GreaterOrEqual",
}
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
    if torch.result_type(
        input, other
    ).is_floating_point:  # ONNX has this remainder for integers only
        return _subtract(r, input, multiply(r, r.add("Floor", divide(r, input, other)), other))
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
def _addcmul(
    r: Recorder, input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1
) -> Tensor:
    return _add(r, input, multiply(r, multiply(r, tensor1, value), tensor2))


@handles("lerp")
def _lerp(r: Recorder, input: Tensor, end: Tensor, weight: Number) -> Tensor:
    return _add(r, input, multiply(r, _subtract(r, end, input), weight))


@handles("glu")
def _glu(r: Recorder, input: Tensor, dim: int = -1) -> Tensor:
    a, b = r.call(torch.chunk, input, 2, dim)
    return r.add("Mul", a, r.add("Sigmoid", b))


@handles("outer", "ger")
def _outer(r: Recorder, input: Tensor, vec2: Tensor) -> Tensor:
    return multiply(r, r.call(torch.unsqueeze, input, -1), vec2)


@handles("cross", "linalg_cross")
def _cross(r: Recorder, input: Tensor, other: Tensor, dim: int = -1) -> Tensor:
    turned = [[r.call(torch.roll, x, -steps, dim) for steps in (1, 2)] for x in (input, other)]
    return _subtract(
        r, multiply(r, turned[0][0], turned[1][1]), multiply(r, turned[0][1], turned[1][0])
    )


@handles("diff")
def _diff(
    r: Recorder,
    input: Tensor,
    n: int = 1,
    dim: int = -1,
    prepend: Tensor | None = None,
    append: Tensor | None = None,
) -> Tensor:
    parts = [x for x in (prepend, input, append) if x is not None]
    x = input if len(parts) == 1 else r.call(torch.cat, parts, dim)
    last = x.shape[dim] - 1
    for size in range(last, last - n, -1):
        x = _subtract(
            r, r.call(torch.narrow, x, dim, 1, size), r.call(torch.narrow, x, dim, 0, size)
        )
    return x


@handles("atan2", "arctan2")
def _atan2(r: Recorder, input: Tensor, other: Tensor) -> Tensor:
    """The arc tangent of the quotient, moved by half a turn where `other` is negative. Zeros have
    no sign.
    """
    upright = r.call(torch.eq, other, 0)
    angle = r.add("Atan", divide(r, input, _where(r, upright, 1.0, other)))
    turn = _where(r, r.call(torch.lt, input, 0), -math.pi, math.pi)
    moved = _where(r, r.call(torch.lt, other, 0), _add(r, angle, turn), angle)
    return _where(r, upright, multiply(r, r.add("Sign", input), math.pi / 2), moved)
