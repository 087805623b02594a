"""ONNX's operators according to their schemas: operands, defaults, output shapes.

A constant operand is an attribute with the schema's name of the operand: `Clip <min = 0, max = 6>
(x)`, `ReduceMean <axes = [1]> (x)`, `Sub <A = 1> (x)`. Integers are written without a point; the
element type follows from the operands of the same type variable. The other operands are inputs in
order; if an optional one before them is omitted, the attribute `positions` lists their positions.
`output = k` selects output k instead of output 0.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.defs import OpSchema

from search_spaces.common.errors import InputError
from search_spaces.ir.graph import UNKNOWN, Attrs, Dim, Shape, Value, element_type, typed

IR_VERSION = 10
OPSET = 21
NEWEST_OPSET = onnx.defs.onnx_opset_version()
_EXACT_INTEGERS = 1 << 24  # smaller integers are exact in float32
_MAX_OPERANDS = 1000
_SYMMETRIC = frozenset({"Add", "Mul", "Equal", "And", "Or"})


@lru_cache(maxsize=1024)
def schema(op: str) -> OpSchema | None:
    """The operator's schema; None if there is none, or it is deprecated.

    It is that of opset 21, or of the newest opset for a later operator.
    """
    for version in (OPSET, NEWEST_OPSET):
        if onnx.defs.has(op, version):
            op_schema = onnx.defs.get_schema(op, version)
            return None if op_schema.deprecated else op_schema
    return None


def _required_schema(op: str) -> OpSchema:
    """The operator's schema; InputError if there is none."""
    op_schema = schema(op)
    if op_schema is None:
        raise InputError(
            f"operator {op} is not supported: neither ONNX nor the text's net domain has it"
        )
    return op_schema


@lru_cache(maxsize=1024)
def opset(op: str) -> int:
    """The opset that a model with this operator needs: 21, or the later one that introduced it."""
    op_schema = schema(op)
    return max(OPSET, op_schema.since_version) if op_schema else OPSET


@lru_cache(maxsize=1024)
def operand_names(op: str) -> tuple[str, ...]:
    """Names of the operands in order, including a variadic last one."""
    op_schema = schema(op)
    return tuple(operand.name for operand in op_schema.inputs) if op_schema else ()


@lru_cache(maxsize=1024)
def single_operands(op: str) -> tuple[str, ...]:
    """Names of the operands that are not variadic; InputError for an unknown operator."""
    op_schema = _required_schema(op)
    variadic = OpSchema.FormalParameterOption.Variadic
    return tuple(operand.name for operand in op_schema.inputs if operand.option != variadic)


@lru_cache(maxsize=1024)
def defaults(op: str) -> dict[str, object]:
    """Default values of the operator's attributes, in the form of `attribute_value`."""
    op_schema = schema(op)
    values: dict[str, object] = {}
    for name, attribute in op_schema.attributes.items() if op_schema else ():
        if attribute.default_value.name:
            values[name] = attribute_value(op, attribute.default_value)
    return values


@lru_cache(maxsize=65536)
def is_standard(op: str, names: tuple[str, ...], inputs: int) -> bool:
    """True if ONNX's operator has all these attributes and needs no more than `inputs` operands."""
    op_schema = schema(op)
    if op_schema is None or inputs < op_schema.min_input:
        return False
    return all(name in op_schema.attributes for name in names)


def attribute_value(op: str, attr: onnx.AttributeProto) -> Value:
    """An ONNX attribute as a plain Python value.

    Raises:
        InputError: for tensors, subgraphs, and strings that the text cannot hold.
    """
    value = helper.get_attribute_value(attr)
    kinds = onnx.AttributeProto
    if attr.type == kinds.INT:
        return int(value)
    if attr.type == kinds.INTS:
        return tuple(value)
    if attr.type == kinds.FLOAT:
        return shortest(value)
    if attr.type == kinds.FLOATS:
        return tuple(map(shortest, value))
    if attr.type == kinds.STRING:
        return _plain(op, attr.name, value)
    if attr.type == kinds.STRINGS:
        return tuple([_plain(op, attr.name, item) for item in value])
    raise InputError(f"attribute {attr.name} of {op} is of a kind that the text cannot hold")


def _plain(op: str, name: str, value: bytes) -> str:
    text = value.decode("utf-8", "replace")
    if not text.isprintable() or not text.isascii() or set(text) & set('"\\'):
        raise InputError(
            f"attribute {name} of {op} has characters that the text cannot hold: {text[:40]!r}"
        )
    return text


@lru_cache(maxsize=4096)
def shortest(value: float) -> float:
    """The number with the fewest digits that equals `value` in float32, ONNX's precision."""
    return float(str(np.float32(value)))


def number(value: float) -> int | float:
    """A number of a constant operand: integral values as int, others with the fewest digits."""
    if isinstance(value, int):
        return int(value)  # also converts bool
    is_exact = abs(value) < _EXACT_INTEGERS
    return int(value) if is_exact and value == int(value) else shortest(value)


def numbers(array: np.ndarray) -> Value:
    """A constant operand of at most one dimension as the value of an attribute."""
    values = [number(item) for item in array.ravel().tolist()]
    if array.ndim == 0:
        return values[0]
    if all(isinstance(value, int) for value in values):
        return tuple(values)
    return tuple(map(float, values))


# --- operands


class Call(NamedTuple):
    """A node in the form of ONNX.

    Attributes:
        operands: per operand, the position of an input, a constant, or None if it is omitted.
        attrs: attributes of the schema.
        output: number of the output.
    """

    operands: tuple[int | np.ndarray | None, ...]
    attrs: Attrs
    output: int


@lru_cache(maxsize=65536)
def call(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> Call:
    """The ONNX form of a node.

    Args:
        op: name of the operator.
        attrs: attributes and constant operands.
        shapes: shapes of the inputs.

    Raises:
        InputError: if the operator does not have an attribute, operand or output.
    """
    formal = single_operands(op)
    op_schema = _required_schema(op)

    # 1. The attributes: which output is used, where the inputs stand, constant operands by
    #    position, and those of the schema.
    values: dict[str, Any] = dict(attrs)
    output = values.pop("output", 0)
    positions = values.pop("positions", None)
    constants = {}
    for name in list(values):
        if name in formal:
            constants[formal.index(name)] = values.pop(name)
    for name in values:
        if name not in op_schema.attributes:
            raise InputError(f"{op} has no attribute or operand {name!r}")
    if not 0 <= output < len(op_schema.outputs):
        raise InputError(f"{op} has no output {output}")

    # 2. The inputs stand in order between the constants, unless `positions` says otherwise.
    total = len(shapes) + len(constants)
    if positions is None:
        free = [position for position in range(total) if position not in constants]
        positions = tuple(free[: len(shapes)])
    are_distinct = len({*positions, *constants}) == len(positions) + len(constants)
    is_in_range = max(positions, default=0) <= _MAX_OPERANDS
    if len(positions) != len(shapes) or not are_distinct or not is_in_range:
        raise InputError(
            f"{op} takes {len(positions)} operands at positions {list(positions)}, but "
            f"{len(shapes)} are given"
        )

    # 3. All operands. Constants have the element type of inputs with the same type variable.
    count = max((*positions, *constants), default=-1) + 1
    operands: list[int | np.ndarray | None] = [None] * count
    types = {}
    for i, (position, shape) in enumerate(zip(positions, shapes, strict=True)):
        operands[position] = i
        types[_type_name(op_schema, position)] = element_type(shape)
    for position, value in constants.items():
        element = operand_type(op, position, types)
        operands[position] = np.array(value, numpy_type(element))
    return Call(tuple(operands), tuple(values.items()), output)


def arrange(
    op: str,
    inputs: dict[int, int],
    attrs: dict[str, Any],
    count: int,
) -> tuple[int, ...]:
    """The inputs of a node in order; the inverse of `call`.

    A constant first operand of a symmetric operator becomes the second.

    Args:
        op: name of the operator.
        inputs: numbers of values by their positions among the operands.
        attrs: attributes and constant operands; `positions` is added in place if the order is
            ambiguous.
        count: number of operands.
    """
    formal = single_operands(op)
    # 1. 2 + x as x + 2
    if op in _SYMMETRIC and "A" in attrs and "B" not in attrs:
        attrs["B"] = attrs.pop("A")
        inputs = {0: inputs[1]}
    # 2. Inputs take the free positions in order; otherwise `positions` says where they stand.
    positions = tuple(sorted(inputs))
    free = [i for i in range(count + 1) if i >= len(formal) or formal[i] not in attrs]
    if positions != tuple(free[: len(positions)]):
        attrs["positions"] = positions
    return tuple([inputs[position] for position in positions])


def _type_name(op_schema: OpSchema, position: int) -> str:
    """The type variable of an operand (`T`), or its only type (`tensor(int64)`)."""
    if not op_schema.inputs:
        return ""
    last = len(op_schema.inputs) - 1  # may be variadic
    return op_schema.inputs[min(position, last)].type_str


@lru_cache(maxsize=1024)
def type_names(op: str) -> tuple[str, ...]:
    """The type variables of the operator's operands, in order."""
    op_schema = schema(op)
    return tuple(operand.type_str for operand in op_schema.inputs) if op_schema else ()


@lru_cache(maxsize=4096)
def is_result(op: str, position: int) -> bool:
    """True if an output has the element type of the operand."""
    op_schema = schema(op)
    if op_schema is None:
        return False
    return _type_name(op_schema, position) in {output.type_str for output in op_schema.outputs}


@lru_cache(maxsize=1024)
def makes_tensors(op: str) -> bool:
    """True if outputs of the operator may be tensors; others are sequences, optionals or maps."""
    op_schema = schema(op)
    if op_schema is None:
        return True
    types = [name for output in op_schema.outputs for name in output.types]
    return any(name.startswith("tensor") for name in types)


def operand_type(op: str, position: int, types: dict[str, str]) -> str:
    """Element type of a constant operand.

    It is that of the operands with the same type variable, otherwise float, int64 or the first type
    in alphabetical order that the schema allows.

    Args:
        op: name of the operator.
        position: position of the operand.
        types: element types by type variable.
    """
    op_schema = _required_schema(op)
    variable = _type_name(op_schema, position)
    if variable in types:
        return types[variable]
    allowed = [
        name.removeprefix("tensor(").removesuffix(")") for name in op_schema.inputs[position].types
    ]
    for element in ("float", "int64"):
        if element in allowed:
            return element
    return min(allowed)


@lru_cache(maxsize=64)
def enum(element: str) -> int:
    """ONNX's number of an element type; InputError for an unknown type."""
    try:
        return TensorProto.DataType.Value(element.upper())
    except ValueError as error:
        raise InputError(f"element type {element!r} is not supported") from error


@lru_cache(maxsize=64)
def element_name(kind: int) -> str:
    """The element type with this number in ONNX: the inverse of `enum`."""
    return TensorProto.DataType.Name(kind).lower()


def numpy_type(element: str) -> np.dtype:
    """The numpy type of an element type."""
    return helper.tensor_dtype_to_np_dtype(enum(element))


# --- shapes


def type_proto(shape: Shape) -> onnx.TypeProto:
    """ONNX's type of a value of this shape."""
    dims = [None if d == UNKNOWN else d for d in shape]
    return helper.make_tensor_type_proto(enum(element_type(shape)), dims)


def output_names(op: str, output: int, name: str) -> list[str]:
    """Names of the operator's outputs if only one is used, which is called `name`."""
    count = max(_required_schema(op).min_output, output + 1)
    names = [f"{name}_unused{i}" for i in range(count)]
    names[output] = name
    return names


@lru_cache(maxsize=65536)
def infer(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    """Shape of the output by ONNX's shape inference; dimensions that depend on the data are `"?"`.

    Raises:
        InputError: if the operator does not take these attributes and shapes, or the rank of the
            output is unknown.
    """
    called = call(op, attrs, shapes)
    op_schema = _required_schema(op)

    # 1. A node with a name per operand, their types, and the numbers of constants.
    names: list[str] = []
    types: dict[str, onnx.TypeProto] = {}
    data: dict[str, TensorProto] = {}
    for i, operand in enumerate(called.operands):
        name = "" if operand is None else f"i{i}"
        names.append(name)
        if isinstance(operand, np.ndarray):
            tensor = onnx.numpy_helper.from_array(operand)
            data[name] = tensor
            types[name] = helper.make_tensor_type_proto(tensor.data_type, operand.shape)
        elif operand is not None:
            types[name] = type_proto(shapes[operand])
    attributes: dict[str, Any] = dict(called.attrs)
    outputs = output_names(op, called.output, "y")
    node = helper.make_node(op, names, outputs, **attributes)

    # 2. ONNX's inference.
    versions = [helper.make_opsetid("", opset(op))]
    try:
        inferred = onnx.shape_inference.infer_node_outputs(
            op_schema,
            node,
            types,
            data,
            None,
            versions,
            IR_VERSION,
        )
    except Exception as error:  # of several kinds, most of them from the native library
        reason = " ".join(str(error).split())[:160]
        raise InputError(f"{op} does not take shapes {_listed(shapes)}: {reason}") from error
    shape = shape_of(inferred.get("y", onnx.TypeProto()))

    # 3. A shape that a text can show.
    if shape is None:
        raise InputError(
            f"{op}: the shape of the output depends on the data, so the text cannot show it"
        )
    if any(isinstance(size, int) and size < 0 for size in shape):
        raise InputError(
            f"{op} turns {_listed(shapes)} into {_listed((shape,))}: sizes must not be negative"
        )
    return shape


def shape_of(kind: onnx.TypeProto) -> Shape | None:
    """The shape of a tensor type; None for other types and unknown ranks."""
    tensor = kind.tensor_type
    if not kind.HasField("tensor_type") or not tensor.HasField("shape"):
        return None
    return typed([_dim(d) for d in tensor.shape.dim], element_name(tensor.elem_type))


def _dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    return dim.dim_value if dim.HasField("dim_value") else dim.dim_param or UNKNOWN


def _listed(shapes: tuple[Shape, ...]) -> str:
    listed = []
    for shape in shapes:
        dims = ",".join([str(dim) for dim in shape])
        listed.append(f"{element_type(shape)}[{dims}]")
    return ", ".join(listed) or "(none)"


# --- canonical attributes

# Constant operands that are equivalent to omitting them.
_OPERAND_DEFAULTS = {("Pad", "constant_value"): 0, ("Trilu", "k"): 0}


@lru_cache(maxsize=65536)
def canonical(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> Attrs:
    """The attributes in their shortest form.

    They are sorted, without defaults, and axes are counted from the front.
    """
    formal = operand_names(op)
    default = defaults(op)
    is_first_constant = bool(formal) and any(name == formal[0] for name, _ in attrs)
    rank = len(shapes[0]) if shapes and not is_first_constant else 0
    kept: dict[str, Value] = {}
    for name, value in attrs:
        # 1. Numbers: constant operands as integers where possible, attributes by their schema.
        if name in formal:
            value = _whole(value)
        elif isinstance(value, int) and _is_float(op, name):
            value = float(value)
        # 2. Axes from the front.
        value = _from_front(op, name, value, rank, default.get(name))
        # 3. No defaults.
        is_default = default.get(name) == value
        if not is_default and not _is_omitted(op, name, value, rank):
            kept[name] = value
    return tuple(sorted(kept.items()))


@lru_cache(maxsize=4096)
def _is_float(op: str, name: str) -> bool:
    op_schema = schema(op)
    if op_schema is None or name not in op_schema.attributes:
        return False
    return op_schema.attributes[name].type == OpSchema.AttrType.FLOAT


def _whole(value: Any) -> Value:
    """The number or numbers of a constant operand in the form of `number`."""
    if isinstance(value, tuple):
        return numbers(np.array(value)) if value else ()
    return number(value)


def _from_front(
    op: str,
    name: str,
    value: Any,
    rank: int,
    default: object,
) -> Value:
    """The value of an attribute, with axes counted from the front."""
    if op == "Flatten" and isinstance(value, int):  # its axis may also be the rank
        return value + rank if value < 0 else value
    if name == "axis" and rank and isinstance(value, int) and op != "OneHot":
        axis = value % rank if -rank <= value < rank else value
        is_default = isinstance(default, int) and default % rank == axis
        return default if is_default else axis  # type: ignore[return-value]
    if name == "axes" and rank and isinstance(value, tuple):
        span = rank + len(value) if op == "Unsqueeze" else rank
        axes = [axis % span if -span <= axis < span else axis for axis in value]
        is_set = op.startswith(("Reduce", "Squeeze", "Unsqueeze"))
        return tuple(sorted(axes) if is_set else axes)
    return value


def _is_omitted(
    op: str,
    name: str,
    value: object,
    rank: int,
) -> bool:
    """True for values without a default in ONNX's schema that are equivalent to omitting them."""
    if (op, name) in _OPERAND_DEFAULTS:
        return _OPERAND_DEFAULTS[op, name] == value
    if (op, name) == ("Transpose", "perm"):
        return value == tuple(range(rank))[::-1]
    return op != "Pad" and neutral(name, value)  # Pad needs its operand `pads`


def neutral(name: str, value: object) -> bool:
    """True for lists of attributes of windows that are equivalent to omitting them."""
    if not isinstance(value, tuple) or not value:
        return False
    if name in ("strides", "dilations"):
        return set(value) == {1}
    return name in ("pads", "output_padding") and set(value) == {0}
