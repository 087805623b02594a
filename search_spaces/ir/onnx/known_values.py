"""Values that are known without running the model, for operators beyond plain constant folding."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from search_spaces.common.errors import InputError
from search_spaces.ir import standard
from search_spaces.ir.graph import element_type
from search_spaces.ir.onnx.folding import (
    Known,
    assumed,
    constant,
    from_assumed,
    is_learnable,
    read_tensor,
)
from search_spaces.ir.onnx.reader import Reader, node_attrs


def _constant(reader: Reader, node: onnx.NodeProto) -> list[Known] | None:
    for attr in node.attribute:
        if attr.name == "value":
            return [read_tensor(attr.t, learned=False)]
        if attr.name in ("value_int", "value_ints", "value_float", "value_floats"):
            element = "int64" if "int" in attr.name else "float"
            array = np.array(onnx.helper.get_attribute_value(attr), standard.numpy_type(element))
            return [constant(array, element)]
    raise InputError("only tensors and numbers are supported as constants")


def _shape(reader: Reader, node: onnx.NodeProto) -> list[Known] | None:
    given, name = node_attrs(node), node.input[0]
    dims = assumed(reader.shape(name)[given.get("start", 0) : given.get("end")])
    if dims is None:
        return None
    first, second = (np.array([pair[i] for pair in dims], np.int64) for i in (0, 1))
    return [from_assumed(first, second, "int64")]


def _size(reader: Reader, node: onnx.NodeProto) -> list[Known] | None:
    dims = assumed(reader.shape(node.input[0]))
    if dims is None:
        return None
    first, second = (np.array(np.prod([pair[i] for pair in dims], dtype=np.int64)) for i in (0, 1))
    return [from_assumed(first, second, "int64")]


def _identity(reader: Reader, node: onnx.NodeProto) -> list[Known] | None:
    """An initializer that Identity passes on is a weight, even if it is a scalar."""
    known = reader.known.get(node.input[0])
    if (
        known is not None
        and known.learned
        and node.input[0] in reader.initializers
        and is_learnable(known)
    ):
        return [Known(known.shape, learned=True, placed=known.placed)]
    return None if known is None else [known]


def _cast_like(reader: Reader, node: onnx.NodeProto) -> list[Known] | None:
    """Fold CastLike as Cast; only the type of the second operand must be known."""
    known, like = reader.known.get(node.input[0]), element_type(reader.shape(node.input[1]))
    cast = onnx.helper.make_node("Cast", node.input[:1], node.output, to=standard.enum(like))
    return None if known is None else reader.folder.fold(cast, [known])


FOLDERS: dict[str, Callable[[Reader, onnx.NodeProto], list[Known] | None]] = {
    "Constant": _constant,
    "Shape": _shape,
    "Size": _size,
    "Identity": _identity,
    "CastLike": _cast_like,
}
