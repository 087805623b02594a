"""Operators that work element by element: arithmetic, comparisons, activations, element types.

Operands broadcast to one shape. A constant operand of one number is an attribute: `Mul <B = 2> (x)`.
Quantization is here, too; its scales and zero points are settings, not weights. Quantized
convolutions and products are beside the others of their families.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import onnx

from search_spaces.common.errors import InputError
from search_spaces.ir import standard
from search_spaces.ir.constants import Known, is_learnable, is_weight
from search_spaces.ir.graph import UNKNOWN, Attrs, Dim, Shape, element_type
from search_spaces.ir.ops.operator import (
    ExportedNode,
    Exporter,
    Importer,
    InferShape,
    Operator,
    Read,
    named,
    node_attrs,
    same_shape,
)

_MAX_FOLDED_RANK = 8

# --- shapes


def broadcast_shape(shapes: tuple[Shape, ...]) -> Shape:
    """The shape to which inputs broadcast; InputError if they do not."""
    rank = max(len(shape) for shape in shapes)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    columns = zip(*padded, strict=True)
    return tuple([_broadcast_dim(dims, shapes) for dims in columns])


def _broadcast_dim(dims: tuple[Dim, ...], shapes: tuple[Shape, ...]) -> Dim:
    sizes = {dim for dim in dims if dim != 1}
    if len(sizes) > 1:
        sizes.discard(UNKNOWN)  # it must be equal to the other one
    if len(sizes) > 1:
        raise InputError(f"shapes {', '.join(map(str, shapes))} do not broadcast together")
    return sizes.pop() if sizes else 1


def _infer_broadcast(op: str) -> InferShape:
    def infer(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
        # ONNX knows the rank of an operand that is an attribute.
        return standard.infer(op, attrs, shapes) if attrs else broadcast_shape(shapes)

    return infer


def broadcast_size(arrays: list[np.ndarray]) -> int:
    """Number of elements of the shape to which arrays broadcast."""
    shapes = [array.shape for array in arrays if array.ndim <= _MAX_FOLDED_RANK]
    padded = [(1,) * (_MAX_FOLDED_RANK - len(shape)) + shape for shape in shapes]
    return prod(max(sizes) for sizes in zip(*padded, strict=True))


# --- from ONNX: operations that change nothing are left out


def _read_identity(reader: Importer, node: onnx.NodeProto) -> int | None:
    return reader.value(node.input[0])


def _fold_identity(reader: Importer, node: onnx.NodeProto) -> list[Known] | None:
    """An initializer that Identity passes on is a weight, even if it is a scalar."""
    name = node.input[0]
    known = reader.known.get(name)
    if known is None:
        return None
    if known.learned and name in reader.initializers and is_learnable(known):
        return [Known(known.shape, learned=True, placed=known.placed)]
    return [known]


def _read_dropout(reader: Importer, node: onnx.NodeProto, used: list[int]) -> None:
    """The output is the input when Dropout does not train; the mask is an operator of its own."""
    for position in used:
        if position == 0:
            reader.values[node.output[0]] = reader.value(node.input[0])
        else:
            reader.add_output(node, position)


def _scalar(reader: Importer, name: str, other: str) -> float | None:
    """The number of a known scalar that does not change the shape of another operand.

    None for other values.
    """
    known = reader.known.get(name)
    if known is None or is_weight(known) or known.static is None or known.static.size != 1:
        return None
    other_rank = 0 if other in reader.known else len(reader.shape(other))
    return None if len(known.shape) > other_rank else float(known.static.item())


def _read_mul(reader: Importer, node: onnx.NodeProto) -> int | None:
    """x · 0 as Zero, x · 1 as x."""
    for name, factor in (node.input, reversed(node.input)):
        number = _scalar(reader, factor, name)
        if number == 0:
            return reader.emit("Zero", (reader.value(name),), ())
        if number == 1 and name not in reader.known:
            return reader.value(name)
    return None


def _read_add(reader: Importer, node: onnx.NodeProto) -> int | None:
    """x + 0 as x."""
    for name, number in (node.input, reversed(node.input)):
        if _scalar(reader, number, name) == 0 and name not in reader.known:
            return reader.value(name)
    return None


def _read_sub(reader: Importer, node: onnx.NodeProto) -> int | None:
    """x - 0 as x."""
    name, number = node.input
    if _scalar(reader, number, name) == 0 and name not in reader.known:
        return reader.value(name)
    return None


def _read_div(reader: Importer, node: onnx.NodeProto) -> int | None:
    """x / 1 as x, 1 / x as Reciprocal."""
    a, b = node.input
    if _scalar(reader, b, a) == 1 and a not in reader.known:
        return reader.value(a)
    is_inverse = _scalar(reader, a, b) == 1 and b not in reader.known
    if is_inverse and element_type(reader.shape(b)) == "float":
        return reader.emit("Reciprocal", (reader.value(b),), ())
    return None


def _read_extremum(bound: str) -> Read:
    """The maximum or minimum of a value and a number as Clip."""

    def read(reader: Importer, node: onnx.NodeProto) -> int | None:
        numbers = [reader.known[name] for name in node.input if name in reader.known]
        others = [name for name in node.input if name not in reader.known]
        if len(numbers) != 1 or len(others) != 1:
            return None
        (number,), (other,) = numbers, others
        if number.static is None or number.static.size != 1:
            return None
        x = reader.value(other)
        if len(reader.shapes[x]) < len(number.shape):
            return None
        return reader.emit("Clip", (x,), ((bound, standard.number(number.static.item())),))

    return read


def _read_clip(reader: Importer, node: onnx.NodeProto) -> int | None:
    """Without bounds it is its input."""
    has_bounds = any(node.input[1:]) or len(node.attribute) > 0
    return None if has_bounds else reader.value(node.input[0])


def _read_prelu(reader: Importer, node: onnx.NodeProto) -> int | None:
    """Add a PRelu whose slope is learned, even if it is a scalar.

    Leading dimensions of 1 are dropped.
    """
    x, slope_name = node.input
    slope = reader.known.get(slope_name)
    if slope is None or not slope.learned:
        return None
    shape = tuple(map(int, slope.shape))
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    param = reader.emit("Param", (), (("shape", shape or (1,)),))
    return reader.emit("PRelu", (reader.value(x), param), ())


def _read_cast(reader: Importer, node: onnx.NodeProto) -> int | None:
    """A cast to the element type of the input is the input."""
    x = reader.value(node.input[0])
    is_same = standard.enum(element_type(reader.shapes[x])) == node_attrs(node)["to"]
    return x if is_same else None


def _read_cast_like(reader: Importer, node: onnx.NodeProto) -> int | None:
    """Add a Cast to the element type of the second operand."""
    x, like = (reader.value(name) for name in node.input)
    element = element_type(reader.shapes[like])
    if element == element_type(reader.shapes[x]):
        return x
    return reader.emit("Cast", (x,), (("to", standard.enum(element)),))


def _fold_cast_like(reader: Importer, node: onnx.NodeProto) -> list[Known] | None:
    """Fold CastLike as Cast; only the type of the second operand must be known."""
    source, like = node.input
    known, element = reader.known.get(source), element_type(reader.shape(like))
    if known is None:
        return None
    cast = onnx.helper.make_node("Cast", [source], node.output, to=standard.enum(element))
    return reader.compute(cast, [known])


# --- to ONNX


def _write_zero(exporter: Exporter, node: ExportedNode) -> None:
    """x · 0"""
    zero = np.zeros((), standard.numpy_type(element_type(node.shapes[0])))
    exporter.add("Mul", node.name, [*node.inputs, exporter.constant(zero)], node.output)


# --- the operators


def _computed(*operators: Operator) -> tuple[Operator, ...]:
    """Operators that are computed if all operands are known."""
    return tuple([replace(operator, folded_size=broadcast_size) for operator in operators])


_ARITHMETIC = (
    *_computed(
        Operator(
            name="Add",
            commutative=True,
            broadcasts=True,
            infer_shape=_infer_broadcast("Add"),
            read=_read_add,
        ),
        Operator(
            name="Sub",
            broadcasts=True,
            infer_shape=_infer_broadcast("Sub"),
            read=_read_sub,
        ),
        Operator(
            name="Mul",
            commutative=True,
            broadcasts=True,
            infer_shape=_infer_broadcast("Mul"),
            read=_read_mul,
        ),
        Operator(
            name="Div",
            broadcasts=True,
            infer_shape=_infer_broadcast("Div"),
            read=_read_div,
        ),
        Operator(
            name="Sum",
            commutative=True,
            infer_shape=_infer_broadcast("Sum"),
        ),
        Operator(
            name="Max",
            commutative=True,
            infer_shape=_infer_broadcast("Max"),
            read=_read_extremum("min"),
        ),
        Operator(
            name="Min",
            commutative=True,
            infer_shape=_infer_broadcast("Min"),
            read=_read_extremum("max"),
        ),
        Operator(name="Pow", broadcasts=True),
        *named("Mod"),
    ),
    Operator(name="Mean", commutative=True),
)
_LOGIC = (
    *_computed(
        Operator(name="And", broadcasts=True),
        Operator(name="Or", broadcasts=True),
        Operator(name="Where", broadcasts=True),
        Operator(name="Equal", broadcasts=True),
        Operator(name="Greater", broadcasts=True),
        Operator(name="Less", broadcasts=True),
        *named("GreaterOrEqual", "LessOrEqual", "Not", "Xor"),
    ),
    *named(
        "BitShift",
        "BitwiseAnd",
        "BitwiseNot",
        "BitwiseOr",
        "BitwiseXor",
        "IsInf",
        "IsNaN",
    ),
)
_FUNCTIONS = (
    *_computed(
        *named(
            "Abs",
            "Ceil",
            "Cos",
            "Erf",
            "Exp",
            "Floor",
            "Log",
            "Neg",
            "Reciprocal",
            "Round",
            "Sign",
            "Sin",
            "Sqrt",
        )
    ),
    *named(
        "Acos",
        "Acosh",
        "Asin",
        "Asinh",
        "Atan",
        "Atanh",
        "Cosh",
        "Sinh",
        "Tan",
    ),
)
_ACTIVATIONS = (
    *_computed(
        Operator(name="Sigmoid", infer_shape=same_shape),
        Operator(name="Tanh", infer_shape=same_shape),
        Operator(
            name="Clip",
            in_net_domain=True,
            infer_shape=same_shape,
            read=_read_clip,
            settings=(1, 2),
            rearranges=True,
        ),
    ),
    Operator(name="Relu", infer_shape=same_shape),
    Operator(name="HardSigmoid", infer_shape=same_shape),
    Operator(name="HardSwish", infer_shape=same_shape),
    Operator(name="Softmax", infer_shape=same_shape),
    Operator(name="PRelu", read=_read_prelu, kernels=(1,)),
    *named(
        "Celu",
        "Elu",
        "Gelu",
        "Hardmax",
        "LeakyRelu",
        "LogSoftmax",
        "Mish",
        "Selu",
        "Shrink",
        "Softplus",
        "Softsign",
        "SwiGLU",
        "Swish",
        "ThresholdedRelu",
    ),
)
_OTHERS = (
    *_computed(
        Operator(
            name="Identity",
            infer_shape=same_shape,
            fold=_fold_identity,
            read=_read_identity,
            rearranges=True,
        ),
        Operator(name="Dropout", read_outputs=_read_dropout),
        Operator(name="Cast", read=_read_cast, rearranges=True),
        Operator(name="QuantizeLinear", settings=(1, 2), rearranges=True),
        Operator(name="DequantizeLinear", settings=(1, 2), rearranges=True),
        Operator(
            name="CastLike",
            fold=_fold_cast_like,
            read=_read_cast_like,
            rearranges=True,
        ),
    ),
    Operator(
        name="Zero",
        own_attributes={},
        in_net_domain=True,
        infer_own_shape=same_shape,
        write=_write_zero,
    ),
    *named("BitCast", "DynamicQuantizeLinear"),
)
OPERATORS = (*_ARITHMETIC, *_LOGIC, *_FUNCTIONS, *_ACTIVATIONS, *_OTHERS)
