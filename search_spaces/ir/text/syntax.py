"""Conversion of programs to text and back: ONNX's textual syntax, without weights and with
canonical names.

    <ir_version: 10, opset_import: ["" : 21, "net" : 1]>
    net (float[N,3,32,32] x) => (float[N,10] y) {
      a = net.ConvBn <channels = 16, kernel = [3,3]> (x)
      b = net.F1 (a)
      …
    }
    <domain: "net", opset_import: ["" : 21, "net" : 1]>
    F1 (x) => (y) {
      …
    }

`onnx.parser.parse_model` accepts it. `search_spaces.ir.ops` describes the operators of the
`net` domain.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import onnx

from search_spaces.common.errors import InputError
from search_spaces.ir.graph import UNKNOWN, Shape, Value, element_type, typed
from search_spaces.ir.ops import NET_OPERATORS
from search_spaces.ir.ops.convolution import CONVOLUTIONS
from search_spaces.ir.precision import PRECISION
from search_spaces.ir.standard import (
    IR_VERSION,
    OPSET,
    attribute_value,
    element_name,
    is_standard,
    opset,
)
from search_spaces.ir.text.program import Block, Item, ItemAttrs, Program, Ref

# Increase it whenever the text of an architecture changes: caches of texts depend on it
TEXT_VERSION = 4
MAX_TEXT_BYTES = 4_000_000
_FUNCTION = "\n<domain:"  # start of a function
_NOTHING = f'<ir_version: {IR_VERSION}, opset_import: ["" : {OPSET}]>\nnet () => () {{\n}}'


def write(program: Program) -> str:
    """The text of a program."""
    # 1. The header, with the opset that all operators need.
    blocks = [program.main, *program.functions.values()]
    newest_opset = max(map(_opset, blocks))
    opsets = f'opset_import: ["" : {newest_opset}, "net" : 1]'
    text = f"<ir_version: {IR_VERSION}, {opsets}>\n"

    # 2. The main block.
    inputs = _typed_names("x", program.input_shapes)
    outputs = _typed_names("y", program.output_shapes)
    text += f"net ({inputs}) => ({outputs}) {{\n{_lines(program.main)}}}\n"

    # 3. The functions.
    for name, block in program.functions.items():
        params = f"<{', '.join(block.params)}> " if block.params else ""
        inputs = ", ".join(_edge_names("x", block.inputs))
        outputs = ", ".join(_edge_names("y", len(block.outputs)))
        text += f'<domain: "net", {opsets}>\n'
        text += f"{name} {params}({inputs}) => ({outputs}) {{\n{_lines(block)}}}\n"
    return text


def _edge_names(letter: str, count: int) -> list[str]:
    """Names of a block's inputs or outputs: x, or x0, x1, …"""
    return [letter] if count == 1 else [f"{letter}{i}" for i in range(count)]


def _typed_names(letter: str, shapes: tuple[Shape, ...]) -> str:
    typed_names = []
    for shape, name in zip(shapes, _edge_names(letter, len(shapes)), strict=True):
        dims = f"[{','.join(map(str, shape))}]" if shape else ""
        typed_names.append(f"{element_type(shape)}{dims} {name}")
    return ", ".join(typed_names)


@lru_cache(maxsize=64)
def _value_names(count: int) -> tuple[str, ...]:
    """a, b, … w, aa, ab, …; without x and y, the inputs and outputs of a block."""
    letters = "abcdefghijklmnopqrstuvwz"
    longest = list(letters)  # all names of the greatest length so far
    names = list(letters)
    while len(names) < count:
        longest = [name + letter for name in longest for letter in letters]
        names += longest
    return tuple(names[:count])


@lru_cache(maxsize=4096)
def _lines(block: Block) -> str:
    """The lines of a block; its outputs are y, or y0, y1, …"""
    names = _edge_names("x", block.inputs)  # of all values so far
    output_names = _edge_names("y", len(block.outputs))
    output_name_of = dict(zip(block.outputs, output_names, strict=True))
    value_count = sum(item.outputs for item in block.items)
    unused_names = iter(_value_names(value_count))
    lines = ""
    for item in block.items:
        operands = ", ".join([names[v] for v in item.inputs])
        results = []
        for value in range(len(names), len(names) + item.outputs):
            results.append(output_name_of.get(value) or next(unused_names))
        names += results
        operator = f"{_domain(item)}{item.op}{_attrs(item)}"
        lines += f"  {', '.join(results)} = {operator} ({operands})\n"
    return lines


def _opset(block: Block) -> int:
    ops = {item.op for item in block.items}
    return max([opset(op) for op in ops], default=OPSET)


def _domain(item: Item) -> str:
    """`net.` for functions and for our operators, "" for ONNX's.

    ONNX's operators with constant operands or weights as attributes have `net.`, too.
    """
    names = tuple([name for name, _ in item.attrs])
    is_onnx = item.op not in NET_OPERATORS and is_standard(item.op, names, len(item.inputs))
    return "" if is_onnx else "net."


def _attrs(item: Item) -> str:
    if not item.attrs:
        return ""
    attrs = [_attr(name, value) for name, value in item.attrs]
    return f" <{', '.join(attrs)}>"


def _attr(name: str, value: Any) -> str:
    if isinstance(value, Ref):
        kind = "ints" if value.name.startswith("k") else "int"
        return f"{name}: {kind} = @{value.name}"
    if value == ():
        return f"{name}: ints = []"
    if isinstance(value, tuple):
        numbers = ",".join([_literal(number) for number in value])
        return f"{name} = [{numbers}]"
    return f"{name} = {_literal(value)}"


def _literal(value: int | float | str) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, int):
        return str(value)
    text = repr(value)
    return text if any(c in text for c in ".en") else f"{text}.0"


# --- reading


def read(text: str) -> Program:
    """The program of a text.

    Raises:
        InputError: if it is not ONNX text of this dialect.
    """
    if len(text) > MAX_TEXT_BYTES:
        raise InputError(f"the text has {len(text)} characters; at most {MAX_TEXT_BYTES} are read")
    main, functions = _parts(text)
    for block in (main.block, *functions.values()):
        for item in block.items:
            outputs = len(functions[item.op].outputs) if item.op in functions else 1
            if item.outputs != outputs:
                raise InputError(f"{item.op} has {outputs} outputs, not {item.outputs}")
            if item.op in functions or item.op in CONVOLUTIONS:
                _check_whole(item)
    return Program(main.block, functions, main.input_shapes, main.output_shapes)


class _Main(NamedTuple):
    """The main block, and the shapes of its inputs and outputs."""

    block: Block
    input_shapes: tuple[Shape, ...]
    output_shapes: tuple[Shape, ...]


def _parts(text: str) -> tuple[_Main, dict[str, Block]]:
    """Main block and functions.

    Each is cached, since texts of one space have most of them in common.
    """
    first, *others = text.split(_FUNCTION)
    try:
        return _main(first), dict(map(_function, others))
    except _NotAlone:
        model = _parsed(text)
        return _main_block(model.graph), dict(map(_function_block, model.functions))


class _NotAlone(Exception):
    """A block that cannot be read alone, since the text is in another style or wrong."""


@lru_cache(maxsize=4096)
def _main(text: str) -> _Main:
    model = _parsed(text, _NotAlone)
    if model.functions:
        raise _NotAlone
    return _main_block(model.graph)


@lru_cache(maxsize=16384)
def _function(text: str) -> tuple[str, Block]:
    """Name and block of a function.

    It is parsed as part of a model, since the parser of a function ignores what follows it.
    """
    functions = _parsed(_NOTHING + _FUNCTION + text, _NotAlone).functions
    if len(functions) != 1:
        raise _NotAlone
    return _function_block(functions[0])


def _parsed(text: str, error: type[Exception] = InputError) -> onnx.ModelProto:
    try:
        return onnx.parser.parse_model(text)
    except Exception as cause:  # the native parser raises many types
        reason = " ".join(str(cause).split())
        raise error(f"not ONNX text: {reason[:300]}") from cause


def _main_block(graph: onnx.GraphProto) -> _Main:
    inputs = [value.name for value in graph.input]
    outputs = [value.name for value in graph.output]
    block = _block(inputs, graph.node, outputs, params=())
    input_shapes = tuple([_shape(value) for value in graph.input])
    output_shapes = tuple([_shape(value) for value in graph.output])
    return _Main(block, input_shapes, output_shapes)


def _function_block(function: onnx.FunctionProto) -> tuple[str, Block]:
    inputs = list(function.input)
    outputs = list(function.output)
    block = _block(inputs, function.node, outputs, params=tuple(function.attribute))
    return function.name, block


def _check_whole(item: Item) -> None:
    for name, value in item.attrs:
        if name == "epsilon" or (name == PRECISION and isinstance(value, str | Ref)):
            continue
        numbers = value if type(value) is tuple else (value,)
        if not all(type(number) in (int, Ref) for number in numbers):
            raise InputError(f"{item.op} takes whole numbers only: {name} = {value}")


def _shape(info: onnx.ValueInfoProto) -> Shape:
    tensor = info.type.tensor_type
    if not info.type.HasField("tensor_type") or not tensor.HasField("shape"):
        raise InputError(f"{info.name} is not a tensor with a shape")
    dims: list[str | int] = []
    for dim in tensor.shape.dim:
        dims.append(dim.dim_param if dim.HasField("dim_param") else dim.dim_value or UNKNOWN)
    return typed(dims, element_name(tensor.elem_type))


def _block(
    inputs: list[str],
    nodes: Iterable[onnx.NodeProto],
    outputs: list[str],
    params: tuple[str, ...],
) -> Block:
    number = {name: i for i, name in enumerate(inputs)}
    items = []
    for node in nodes:
        op, read, made, attrs = _line(node.SerializeToString(), params)
        for name in read:
            if name not in number:
                raise InputError(f"{op} reads {name!r}, which no earlier line produces")
        numbers = tuple([number[name] for name in read])
        items.append(Item(op, numbers, attrs, len(made)))
        for name in made:
            if name in number:
                raise InputError(f"the value {name!r} is produced twice")
            number[name] = len(number)
    for name in outputs:
        if name not in number:
            raise InputError(f"no line produces the output {name!r}")
    returned = tuple([number[name] for name in outputs])
    return Block(len(inputs), tuple(items), returned, params)


class _Line(NamedTuple):
    """An operator, the names of its inputs and outputs, and its attributes."""

    op: str
    read: tuple[str, ...]
    made: tuple[str, ...]
    attrs: ItemAttrs


@lru_cache(maxsize=16384)
def _line(node: bytes, params: tuple[str, ...]) -> _Line:
    """The line of a serialized node.

    Cached, since most lines recur and parsing takes ten times as long.
    """
    parsed = onnx.NodeProto.FromString(node)
    attrs = _read_attrs(parsed, params)
    return _Line(parsed.op_type, tuple(parsed.input), tuple(parsed.output), attrs)


def _read_attrs(node: onnx.NodeProto, params: tuple[str, ...]) -> ItemAttrs:
    attrs = {}
    for attr in node.attribute:
        attrs[attr.name] = _read_attr(node, attr, params)
    if len(attrs) < len(node.attribute):
        raise InputError(f"{node.op_type} has an attribute twice")
    return tuple([(name, attrs[name]) for name in sorted(attrs)])


def _read_attr(
    node: onnx.NodeProto, attr: onnx.AttributeProto, params: tuple[str, ...]
) -> Value | Ref:
    if attr.ref_attr_name:
        if attr.ref_attr_name not in params:
            raise InputError(
                f"{node.op_type} takes {attr.ref_attr_name}, which is no parameter of its function"
            )
        return Ref(attr.ref_attr_name)
    return attribute_value(node.op_type, attr)


def fingerprint(text: str) -> str:
    """Short name of a network: the first 16 hexadecimal digits of the SHA-256 of its text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
