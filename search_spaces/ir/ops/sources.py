"""Values that no other value determines: learned tensors, constants, ranges, random numbers.

The net domain's `Param <shape, element> ()` is a learned constant. `Buffer <shape, element, limit> ()`
is a constant that is not learned and too long to be written, such as a table of positions or a mask;
its integers are below `limit`.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from search_spaces.common.errors import InputError
from search_spaces.ir import standard
from search_spaces.ir.constants import (
    MAX_ELEMENTS,
    Known,
    add_filled,
    constant,
    read_tensor,
    sizes,
)
from search_spaces.ir.graph import Attrs, Shape, element_type, typed
from search_spaces.ir.ops.operator import (
    ExportedNode,
    Exporter,
    Importer,
    Operator,
    TrainedNode,
    Weight,
    named,
)
from search_spaces.ir.ops.reshaping import size_of
from search_spaces.ir.ops.training import check_alone

if TYPE_CHECKING:
    from torch import nn

# --- Param and Buffer


def _infer_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    values: dict[str, Any] = dict(attrs)
    if not all(isinstance(size, int) and size >= 0 for size in values["shape"]):
        raise InputError(
            f"Param and Buffer: shape must be whole numbers from 0, not {values['shape']}"
        )
    return typed(values["shape"], values.get("element", "float"))


def _param_weights(attrs: Attrs, shapes: tuple[Shape, ...]) -> tuple[Weight, ...]:
    values: dict[str, Any] = dict(attrs)
    return (Weight("value", values["shape"], "kaiming"),)


def _write_param(exporter: Exporter, node: ExportedNode) -> None:
    exporter.add("Identity", node.name, node.weights, node.output)


def _write_buffer(exporter: Exporter, node: ExportedNode) -> None:
    """Add a long constant; without given numbers, they are made up.

    Made-up numbers are neither equal, evenly spaced nor triangular, since such constants are
    written as operators. The first is the largest, so that the limit of integers survives.
    """
    attrs: dict[str, Any] = dict(node.attrs)
    dtype = standard.numpy_type(attrs.get("element", "float"))
    index = np.arange(prod(attrs["shape"]))
    limit = attrs.get("limit", 2)
    if node.numbers is not None:
        numbers = node.numbers
    elif dtype.kind in "iub":
        numbers = limit - 1 - index * (index + 1) // 2 % limit
    else:
        numbers = np.cos(index)
    exporter.add_constant(node.name, numbers.astype(dtype).reshape(attrs["shape"]), node.output)


# --- ONNX's constants


def _fold_constant(reader: Importer, node: onnx.NodeProto) -> list[Known] | None:
    for attr in node.attribute:
        if attr.name == "value":
            return [read_tensor(attr.t, learned=False)]
        if attr.name in ("value_int", "value_ints", "value_float", "value_floats"):
            element = "int64" if "int" in attr.name else "float"
            array = np.array(onnx.helper.get_attribute_value(attr), standard.numpy_type(element))
            return [constant(array, element)]
    raise InputError("only tensors and numbers are supported as constants")


def _read_constant_of_shape(reader: Importer, node: onnx.NodeProto) -> int | None:
    """Add a constant filled with one number."""
    known = reader.known.get(node.input[0])
    target = sizes(known) if known else None
    if target is None:
        raise InputError("the shape depends on the data, or on an open size other than the batch's")
    fill = constant(np.zeros(1, np.float32), "float")
    if node.attribute:
        fill = read_tensor(node.attribute[0].t, learned=False)
    if fill.static is None:
        raise InputError("the constant to fill with is not known")
    return add_filled(reader.emit, fill.static.item(), target, element_type(fill.shape))


def _filled_size(arrays: list[np.ndarray]) -> int:
    return size_of(arrays[0])


def _range_size(arrays: list[np.ndarray]) -> int:
    start, limit, delta = (float(array) for array in arrays)
    if not delta:
        return MAX_ELEMENTS + 1
    return int(min(abs((limit - start) / delta), 1e18)) + 1


# --- to torch


def _param_layer(node: TrainedNode) -> nn.Module:
    from search_spaces.ir.ops.layers import LearnedTensor

    check_alone(node)
    element = node.attributes.get("element", "float")
    if element != "float":
        raise InputError(f"a learned constant of {element} cannot be trained; only float can")
    return LearnedTensor(node.attributes["shape"])


# --- the operators

OPERATORS = (
    Operator(
        name="Param",
        own_attributes={"element": "float", "shape": None},
        own_inputs=(),
        in_net_domain=True,
        infer_own_shape=_infer_shape,
        weights=_param_weights,
        write=_write_param,
        layer=_param_layer,
    ),
    Operator(
        name="Buffer",
        own_attributes={"element": "float", "limit": None, "shape": None},
        own_inputs=(),
        in_net_domain=True,
        infer_own_shape=_infer_shape,
        write=_write_buffer,
    ),
    Operator(name="Constant", fold=_fold_constant),
    Operator(
        name="ConstantOfShape",
        read=_read_constant_of_shape,
        folded_size=_filled_size,
        shape_from_numbers=True,
    ),
    Operator(name="Range", folded_size=_range_size, shape_from_numbers=True),
    *named("EyeLike", "Bernoulli", "Multinomial"),
    *named("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
)
