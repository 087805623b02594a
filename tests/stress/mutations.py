"""Mutations of model files and texts for `tests.stress.fuzz`.

Each function returns a damaged copy. It depends on the random generator alone, so that a case is
reproducible.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto

Rng = np.random.Generator
# Unusual sizes and versions: around zero, and around the limits of 8, 16, 32 and 64 bits.
NUMBERS = (
    0,
    -1,
    1,
    2,
    7,
    255,
    65_537,
    10**6,
    2**31 - 1,
    2**31,
    -(2**31),
    2**62,
    2**63 - 1,
    -(2**63),
)
WORDS = (
    *map(str, NUMBERS),
    str(2**64),
    str(10**40),
    "1e999",
    "-0.0",
    "nan",
    "é",
    "\0",
    '"',
    "<",
    ">",
    "{",
    "}",
    "@c",
)
_TOKEN = re.compile(r"\w+|\s+|.", re.DOTALL)


def _pick(items: Sequence[Any], rng: Rng) -> Any:
    return items[int(rng.integers(len(items)))]


def _times(rng: Rng) -> int:
    """Number of damages, mostly one, since readers refuse an input at its first damage."""
    return int(rng.geometric(0.7))


def damage_bytes(data: bytes, rng: Rng) -> bytes:
    """Once or a few times, flip a bit, delete, insert or repeat bytes, or cut off the end."""
    content = bytearray(data)
    for _ in range(_times(rng)):
        at = int(rng.integers(len(content) + 1))
        length = int(2 ** rng.uniform(0, 8))
        kind = rng.integers(5)
        if kind == 0:
            content[at : at + 1] = bytes(
                b ^ 1 << int(rng.integers(8)) for b in content[at : at + 1]
            )
        elif kind == 1:
            del content[at : at + length]
        elif kind == 2:
            content[at:at] = rng.bytes(min(length, 8))
        elif kind == 3:
            content[at:at] = content[at : at + length] * int(rng.integers(1, 4))
        elif rng.random() < 0.2:
            del content[at:]
    return bytes(content)


def damage_text(text: str, rng: Rng) -> str:
    """Once or a few times, replace, delete, repeat, swap or copy a token or a line."""
    for _ in range(_times(rng)):
        lines = rng.random() < 0.2
        tokens = text.splitlines(keepends=True) if lines else _TOKEN.findall(text)
        if not tokens:
            return text
        i, j = (int(at) for at in rng.integers(len(tokens), size=2))
        kind = rng.integers(6)
        if kind == 0:
            tokens[i] = _pick(WORDS, rng)
        elif kind == 1:
            del tokens[i]
        elif kind == 2:
            tokens[i] *= int(_pick((2, 3, 100, 20_000), rng))
        elif kind == 3:
            tokens[i], tokens[j] = tokens[j], tokens[i]
        elif kind == 4:
            tokens[i] = tokens[j]
        else:
            numbers = [at for at, token in enumerate(tokens) if token.isdigit()] or [i]
            tokens[_pick(numbers, rng)] = _pick(WORDS, rng)
        text = "".join(tokens)
    return text


def damage_model(data: bytes, rng: Rng) -> bytes:
    """Once or a few times, edit a field of the model: valid in protobuf, mostly wrong in ONNX."""
    model = ModelProto.FromString(data)
    for _ in range(_times(rng)):
        _pick(_EDITS, rng)(model, rng)
    return model.SerializeToString()


# --- edits of one field of a model


def _edit_node(model: ModelProto, rng: Rng) -> None:
    nodes = model.graph.node
    if not nodes:
        return
    node, other = _pick(nodes, rng), _pick(nodes, rng)
    names = [name for n in nodes for name in (*n.input, *n.output)] or [""]
    kind = rng.integers(9)
    if kind == 0:
        node.op_type = _pick([*_operators(), other.op_type, "", "é"], rng)
    elif kind == 1:
        node.domain = _pick(["", "ai.onnx", "ai.onnx.ml", "net", "com.microsoft"], rng)
    elif kind == 2 and node.input:
        node.input[int(rng.integers(len(node.input)))] = _pick(
            names, rng
        )  # a later one makes a cycle
    elif kind == 3 and node.output:
        node.output[int(rng.integers(len(node.output)))] = _pick(names, rng)
    elif kind == 4:
        node.input.extend([_pick([*names, ""], rng)] * int(_pick((1, 2, 1000), rng)))
    elif kind == 5:
        nodes.remove(node)
    elif kind == 6:
        nodes.add().CopyFrom(node)
    elif kind == 7:
        node.name = _pick(["", "/", "//", "a/" * 1000, other.name, "/é/b"], rng)
    else:
        del node.input[int(rng.integers(len(node.input) + 1)) :]


def _edit_attribute(model: ModelProto, rng: Rng) -> None:
    nodes = [node for node in model.graph.node if node.attribute]
    if not nodes:
        return
    node = _pick(nodes, rng)
    attribute = _pick(node.attribute, rng)
    kind = rng.integers(8)
    if kind == 0:
        attribute.type = int(rng.integers(0, 15))
    elif kind == 1:
        attribute.i = _pick(NUMBERS, rng)
    elif kind == 2 and attribute.ints:
        attribute.ints[int(rng.integers(len(attribute.ints)))] = _pick(NUMBERS, rng)
    elif kind == 3:
        attribute.ints.extend([_pick(NUMBERS, rng)] * int(_pick((1, 2, 1000), rng)))
    elif kind == 4:
        node.attribute.remove(attribute)
    elif kind == 5:
        node.attribute.add().CopyFrom(attribute)
    elif kind == 6:
        attribute.name = _pick(
            [*(a.name for n in nodes for a in n.attribute), "", "é", "auto_pad"], rng
        )
    else:
        del attribute.ints[:]


def _edit_initializer(model: ModelProto, rng: Rng) -> None:
    tensors = model.graph.initializer
    if not tensors:
        return
    tensor = _pick(tensors, rng)
    kind = rng.integers(8)
    if kind == 0:
        tensor.data_type = int(rng.integers(-1, 30))
    elif kind == 1 and tensor.dims:
        tensor.dims[int(rng.integers(len(tensor.dims)))] = _pick(NUMBERS, rng)
    elif kind == 2:
        tensor.dims.extend([_pick(NUMBERS, rng)] * int(_pick((1, 2, 1000), rng)))
    elif kind == 3:
        tensor.name = _pick(
            [t.name for t in tensors] + [v.name for v in model.graph.input] + [""], rng
        )
    elif kind == 4:
        tensors.remove(tensor)
    elif kind == 5:
        tensor.raw_data = tensor.raw_data[: int(rng.integers(len(tensor.raw_data) + 1))] * int(
            rng.integers(1, 3)
        )
    elif kind == 6:
        del tensor.dims[:]
    else:
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(
            key="location", value=_pick(["../weights", "/dev/zero", "weights", ""], rng)
        )


def _edit_edges(model: ModelProto, rng: Rng) -> None:
    values = _pick([model.graph.input, model.graph.output], rng)
    if not values:
        return
    value = _pick(values, rng)
    dims = value.type.tensor_type.shape.dim
    kind = rng.integers(6)
    if kind == 0 and dims:
        _pick(dims, rng).dim_value = _pick(NUMBERS, rng)
    elif kind == 1 and dims:
        _pick(dims, rng).dim_param = _pick(["N", "é", "", "a b", "float[2]"], rng)
    elif kind == 2:
        dims.add(dim_value=_pick(NUMBERS, rng))
    elif kind == 3:
        value.type.tensor_type.elem_type = int(rng.integers(-1, 30))
    elif kind == 4:
        value.name = _pick([n.output[0] for n in model.graph.node if n.output] or [""], rng)
    else:
        values.remove(value)


def _edit_header(model: ModelProto, rng: Rng) -> None:
    kind = rng.integers(4)
    if kind == 0:
        model.ir_version = _pick(NUMBERS, rng)
    elif kind == 1 and model.opset_import:
        _pick(model.opset_import, rng).version = _pick((*NUMBERS, *range(8, 30)), rng)
    elif kind == 2:
        del model.opset_import[:]
    else:
        model.opset_import.add(
            domain=_pick(["", "net", "ai.onnx.ml"], rng), version=_pick(NUMBERS, rng)
        )


def _edit_nesting(model: ModelProto, rng: Rng) -> None:
    """Nest the whole graph into a node's attribute, one to three levels deep, or add a recursive
    function.
    """
    if not model.graph.node:
        return
    node = _pick(model.graph.node, rng)
    if rng.random() < 0.5:
        for _ in range(rng.integers(1, 4)):
            inner = model.graph.SerializeToString()
            attribute = node.attribute.add(name="body", type=onnx.AttributeProto.GRAPH)
            attribute.g.ParseFromString(inner)
        return
    function = model.functions.add(name="f", domain="net", input=["x"], output=["y"])
    function.opset_import.add(domain="net", version=1)
    function.node.add(op_type="f", domain="net", input=["x"], output=["y"])
    node.op_type, node.domain = "f", "net"
    model.opset_import.add(domain="net", version=1)


_EDITS: tuple[Callable[[ModelProto, Rng], None], ...] = (
    *[_edit_node, _edit_attribute, _edit_initializer] * 3,
    _edit_edges,
    _edit_header,
    _edit_nesting,
)


def _operators() -> list[str]:
    return sorted({schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain})
