"""Operators that work element by element: arithmetic, comparisons, activations, element types.

Operands broadcast to one shape. A constant operand of one number is an attribute: `Mul <B = 2> (x)`.
Quantization is here, too; its scales and zero points are settings, not weights. Quantized
convolutions and products are beside the others of their families.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from search_spaces.common.errors import InputError
from search_spaces.ir import standard
from search_spaces.ir.constants import Known, is_learnable, is_weight
from search_spaces.ir.graph import UNKNOWN, Attrs, Dim, Shape, element_type
from search_spaces.ir.ops.operator import (
    ExportedNode,
    Exporter,
    Function,
    Importer,
    InferShape,
    MakeFunction,
    Operator,
    Read,
    TrainedNode,
    named,
    node_attrs,
    same_shape,
)
from search_spaces.ir.ops.training import of_all, of_first, plain, torch_function

if TYPE_CHECKING:
    from torch import Tensor

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
    if known is None or is_weight(known):
        return None
    if known.static is None or known.static.size != 1:
        return None
    other_rank = 0 if other in reader.known else len(reader.shape(other))
    changes_shape = len(known.shape) > other_rank
    return None if changes_shape else float(known.static.item())


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
    known = reader.known.get(source)
    element = element_type(reader.shape(like))
    if known is None:
        return None
    cast = onnx.helper.make_node("Cast", [source], node.output, to=standard.enum(element))
    return reader.compute(cast, [known])


# --- to ONNX


def _write_zero(exporter: Exporter, node: ExportedNode) -> None:
    """x · 0"""
    zero = np.zeros((), standard.numpy_type(element_type(node.shapes[0])))
    exporter.add("Mul", node.name, [*node.inputs, exporter.constant(zero)], node.output)


# --- to torch


def _with_settings(name: str, **settings: tuple[str, Any]) -> MakeFunction:
    """Makes a function of torch with attributes as arguments: `argument=(attribute, default)`."""

    def make(node: TrainedNode) -> Function:
        attributes = node.attributes
        arguments = {}
        for argument, (attribute, default) in settings.items():
            arguments[argument] = attributes.get(attribute, default)
        return partial(torch_function(name), **arguments)

    return make


def _clip(node: TrainedNode) -> Function:
    import torch

    bounds = node.attributes
    return partial(torch.clamp, min=bounds.get("min"), max=bounds.get("max"))


def _hard_sigmoid(node: TrainedNode) -> Function:
    import torch

    slope = node.attributes.get("alpha", 0.2)
    offset = node.attributes.get("beta", 0.5)
    return lambda x: torch.clamp(slope * x + offset, 0, 1)


def _identity(node: TrainedNode) -> Function:
    return lambda x: x


def _along_axis(name: str) -> MakeFunction:
    """Makes a function of torch along an axis, by default the last."""
    return _with_settings(name, dim=("axis", -1))


def _fold(name: str) -> MakeFunction:
    """Makes a function of any number of operands from one of two, from left to right."""

    def make(node: TrainedNode) -> Function:
        function = torch_function(name)

        def folded(first: Tensor, *others: Tensor) -> Tensor:
            for other in others:
                first = function(first, other)
            return first

        return folded

    return make


def _mean_of_operands(node: TrainedNode) -> Function:
    add = _fold("torch.add")(node)
    return lambda *operands: add(*operands) / len(operands)


def _prelu(node: TrainedNode) -> Function:
    import torch

    return lambda x, slope: torch.where(x > 0, x, slope * x)


def _divide(node: TrainedNode) -> Function:
    import torch

    def divide(a: Tensor, b: Tensor) -> Tensor:
        # ONNX divides integers without rest.
        rounding = None if a.is_floating_point() else "trunc"
        return torch.div(a, b, rounding_mode=rounding)

    return divide


_OF_CHANNELS: dict[str, MakeFunction] = {
    "Abs": plain("torch.abs"),
    "Celu": _with_settings("torch.nn.functional.celu", alpha=("alpha", 1.0)),
    "Clip": _clip,
    "Cos": plain("torch.cos"),
    "Elu": _with_settings("torch.nn.functional.elu", alpha=("alpha", 1.0)),
    "Erf": plain("torch.erf"),
    "Exp": plain("torch.exp"),
    "Gelu": _with_settings("torch.nn.functional.gelu", approximate=("approximate", "none")),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": plain("torch.nn.functional.hardswish"),
    "Identity": _identity,
    "LeakyRelu": _with_settings(
        "torch.nn.functional.leaky_relu",
        negative_slope=("alpha", 0.01),
    ),
    "Log": plain("torch.log"),
    "Mish": plain("torch.nn.functional.mish"),
    "Neg": plain("torch.neg"),
    "Reciprocal": plain("torch.reciprocal"),
    "Relu": plain("torch.nn.functional.relu"),
    "Selu": plain("torch.nn.functional.selu"),
    "Sigmoid": plain("torch.sigmoid"),
    "Sin": plain("torch.sin"),
    "Softplus": plain("torch.nn.functional.softplus"),
    "Softsign": plain("torch.nn.functional.softsign"),
    "Sqrt": plain("torch.sqrt"),
    "Tanh": plain("torch.tanh"),
    "Zero": plain("torch.zeros_like"),
}
_OF_SAMPLES: dict[str, MakeFunction] = {
    "LogSoftmax": _along_axis("torch.nn.functional.log_softmax"),
    "Softmax": _along_axis("torch.nn.functional.softmax"),
}
_OF_OPERANDS: dict[str, MakeFunction] = {
    "Add": _fold("torch.add"),
    "And": plain("torch.logical_and"),
    "Div": _divide,
    "Equal": plain("torch.eq"),
    "Greater": plain("torch.gt"),
    "GreaterOrEqual": plain("torch.ge"),
    "Less": plain("torch.lt"),
    "LessOrEqual": plain("torch.le"),
    "Max": _fold("torch.maximum"),
    "Mean": _mean_of_operands,
    "Min": _fold("torch.minimum"),
    "Mul": plain("torch.mul"),
    "Or": plain("torch.logical_or"),
    "Pow": plain("torch.pow"),
    "PRelu": _prelu,
    "Sub": plain("torch.sub"),
    "Sum": _fold("torch.add"),
    "Where": plain("torch.where"),
}


def _trained(operator: Operator) -> Operator:
    """The operator with its torch function, if it has one."""
    name = operator.name
    if name in _OF_CHANNELS:
        return replace(operator, function=of_first(_OF_CHANNELS[name]), side_by_side="channels")
    if name in _OF_OPERANDS:
        return replace(operator, function=of_all(_OF_OPERANDS[name]), side_by_side="operands")
    if name in _OF_SAMPLES:
        return replace(operator, function=of_first(_OF_SAMPLES[name]))
    return operator


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
_ALL = (*_ARITHMETIC, *_LOGIC, *_FUNCTIONS, *_ACTIVATIONS, *_OTHERS)
OPERATORS = tuple([_trained(operator) for operator in _ALL])
