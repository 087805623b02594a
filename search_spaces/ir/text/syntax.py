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
    inputs = ", ".join(
        map(_typed, program.input_shapes, _edge_names("x", len(program.input_shapes)))
    )
    outputs = ", ".join(
        map(_typed, program.output_shapes, _edge_names("y", len(program.output_shapes)))
    )
    blocks = (program.main, *program.functions.values())
    opsets = f'opset_import: ["" : {max(map(_opset, blocks))}, "net" : 1]'
    parts = [
        f"<ir_version: {IR_VERSION}, {opsets}>\nnet ({inputs}) => ({outputs}) "
        f"{{\n{_lines(program.main)}}}\n"
    ]
    for name, block in program.functions.items():
        params = f"<{', '.join(block.params)}> " if block.params else ""
        ins = ", ".join(_edge_names("x", block.inputs))
        outs = ", ".join(_edge_names("y", len(block.outputs)))
        parts.append(
            f'<domain: "net", {opsets}>\n{name} {params}({ins}) => ({outs}) {{\n{_lines(block)}}}\n'
        )
    return "".join(parts)


def _edge_names(letter: str, count: int) -> list[str]:
    return [letter] if count == 1 else [f"{letter}{i}" for i in range(count)]


def _typed(shape: Shape, name: str) -> str:
    dims = f"[{','.join(map(str, shape))}]" if shape else ""
    return f"{element_type(shape)}{dims} {name}"


@lru_cache(maxsize=64)
def _value_names(count: int) -> tuple[str, ...]:
    """a, b, … w, aa, ab, …; without x and y, the inputs and outputs of a block."""
    letters = "abcdefghijklmnopqrstuvwz"
    names: list[str] = list(letters)
    while len(names) < count:
        names += [a + b for a in names[-(len(letters) ** (len(names[-1]))) :] for b in letters]
    return tuple(names[:count])


@lru_cache(maxsize=4096)
def _lines(block: Block) -> str:
    names: list[str] = _edge_names("x", block.inputs)
    ends = dict(zip(block.outputs, _edge_names("y", len(block.outputs)), strict=True))
    free = iter(_value_names(sum(item.outputs for item in block.items)))
    lines = []
    for item in block.items:
        made = [ends.get(len(names) + k) or next(free) for k in range(item.outputs)]
        ins = ", ".join([names[v] for v in item.inputs])
        names += made
        lines.append(f"  {', '.join(made)} = {_domain(item)}{item.op}{_attrs(item)} ({ins})\n")
    return "".join(lines)


def _opset(block: Block) -> int:
    return max([opset(op) for op in {item.op for item in block.items}], default=OPSET)


def _domain(item: Item) -> str:
    """`net.` for functions, for our operators, and for ONNX's with constant operands or weights as
    attributes.
    """
    names = tuple([name for name, _ in item.attrs])
    return (
        ""
        if item.op not in NET_OPERATORS and is_standard(item.op, names, len(item.inputs))
        else "net."
    )


def _attrs(item: Item) -> str:
    if not item.attrs:
        return ""
    return f" <{', '.join([_attr(name, value) for name, value in item.attrs])}>"


def _attr(name: str, value: Any) -> str:
    if isinstance(value, Ref):
        return f"{name}: {'ints' if value.name.startswith('k') else 'int'} = @{value.name}"
    if value == ():
        return f"{name}: ints = []"
    if isinstance(value, tuple):
        return f"{name} = [{','.join([_literal(v) for v in value])}]"
    return f"{name} = {_literal(value)}"


def _literal(value: int | float | str) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, int):
        return str(value)
    text = repr(value)
    return text if any(c in text for c in ".en") else f"{text}.0"


# --- reading
# ---------------------------------------------------------------------------------------------------------


def read(text: str) -> Program:
    """The program of a text.

    Raises:
        InputError: if it is not ONNX text of this dialect.
    """
    if len(text) > MAX_TEXT_BYTES:
        raise InputError(f"the text has {len(text)} characters; at most {MAX_TEXT_BYTES} are read")
    main, functions = _pieces(text)
    for item in (item for block in (main.block, *functions.values()) for item in block.items):
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


def _pieces(text: str) -> tuple[_Main, dict[str, Block]]:
    """Main block and functions. Each is cached, since texts of one space have most of them in
    common.
    """
    first, *others = text.split(_FUNCTION)
    try:
        return _main(first), dict(map(_function, others))
    except _NotAlone:
        model = _parsed(text)
        return _main_block(model.graph), dict(map(_function_block, model.functions))


class _NotAlone(Exception):
    """A piece that cannot be read alone, since the text is in another style or wrong."""


@lru_cache(maxsize=4096)
def _main(text: str) -> _Main:
    model = _parsed(text, _NotAlone)
    if model.functions:
        raise _NotAlone
    return _main_block(model.graph)


@lru_cache(maxsize=16384)
def _function(text: str) -> tuple[str, Block]:
    """Name and block. Parsed as part of a model, since the parser of a function ignores what
    follows it.
    """
    functions = _parsed(_NOTHING + _FUNCTION + text, _NotAlone).functions
    if len(functions) != 1:
        raise _NotAlone
    return _function_block(functions[0])


def _parsed(text: str, error: type[Exception] = InputError) -> onnx.ModelProto:
    try:
        return onnx.parser.parse_model(text)
    except Exception as found:  # the native parser raises many types
        raise error(f"not ONNX text: {' '.join(str(found).split())[:300]}") from found


def _main_block(graph: onnx.GraphProto) -> _Main:
    block = _block([v.name for v in graph.input], graph.node, [v.name for v in graph.output], ())
    return _Main(block, tuple(map(_shape, graph.input)), tuple(map(_shape, graph.output)))


def _function_block(function: onnx.FunctionProto) -> tuple[str, Block]:
    block = _block(
        list(function.input), function.node, list(function.output), tuple(function.attribute)
    )
    return function.name, block


def _check_whole(item: Item) -> None:
    for name, value in item.attrs:
        for number in value if type(value) is tuple else (value,):
            if type(number) is not int and type(number) is not Ref and name != "epsilon":
                raise InputError(f"{item.op} takes whole numbers only: {name} = {value}")


def _shape(info: onnx.ValueInfoProto) -> Shape:
    tensor = info.type.tensor_type
    if not info.type.HasField("tensor_type") or not tensor.HasField("shape"):
        raise InputError(f"{info.name} is not a tensor with a shape")
    dims = [
        d.dim_param if d.HasField("dim_param") else d.dim_value or UNKNOWN for d in tensor.shape.dim
    ]
    return typed(dims, element_name(tensor.elem_type))


def _block(
    inputs: list[str], nodes: Iterable[onnx.NodeProto], outputs: list[str], params: tuple[str, ...]
) -> Block:
    number = {name: i for i, name in enumerate(inputs)}
    items = []
    for node in nodes:
        op, read, made, attrs = _line(node.SerializeToString(), params)
        if missing := [name for name in read if name not in number]:
            raise InputError(f"{op} reads {missing[0]!r}, which no earlier line produces")
        items.append(Item(op, tuple([number[name] for name in read]), attrs, len(made)))
        for name in made:
            if name in number:
                raise InputError(f"the value {name!r} is produced twice")
            number[name] = len(number)
    if missing := [name for name in outputs if name not in number]:
        raise InputError(f"no line produces the output {missing[0]!r}")
    return Block(len(inputs), tuple(items), tuple([number[name] for name in outputs]), params)


class _Line(NamedTuple):
    """An operator, the names of its inputs and outputs, and its attributes."""

    op: str
    read: tuple[str, ...]
    made: tuple[str, ...]
    attrs: ItemAttrs


@lru_cache(maxsize=16384)
def _line(node: bytes, params: tuple[str, ...]) -> _Line:
    """The line of a serialized node. Cached, since most lines recur and parsing takes ten times as
    long.
    """
    found = onnx.NodeProto.FromString(node)
    return _Line(found.op_type, tuple(found.input), tuple(found.output), _read_attrs(found, params))


def _read_attrs(node: onnx.NodeProto, params: tuple[str, ...]) -> ItemAttrs:
    attrs = {a.name: _read_attr(node, a, params) for a in node.attribute}
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
