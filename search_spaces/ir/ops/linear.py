"""Linear layers and products of matrices.

The net domain's `Linear <features> (x)` owns its matrix and bias and works on the last dimension of
any rank. ONNX's products with two inputs multiply values of the network.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import onnx

from search_spaces.common.errors import InputError
from search_spaces.ir.graph import Attrs, Dim, Shape, count, known_size, like
from search_spaces.ir.ops.normalization import add_folded_norm, folded_norm, is_bias_left_out
from search_spaces.ir.ops.operator import (
    CountedNode,
    ExportedNode,
    Exporter,
    Function,
    Importer,
    Operator,
    TrainedNode,
    Weight,
    has_operand,
    node_attrs,
    positive,
    weight_shape,
)
from search_spaces.ir.ops.training import check_alone, of_all, plain
from search_spaces.ir.precision import marked, precision_of

if TYPE_CHECKING:
    from torch import nn

# --- shape, weights, costs


def _simplify_linear(attrs: Attrs, shape: Shape) -> Attrs:
    precision_of(attrs)  # checks it
    return attrs


def _infer_linear_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    return like(shapes[0], (*shapes[0][:-1], positive(attrs, "features")))


def _linear_weights(attrs: Attrs, shapes: tuple[Shape, ...]) -> tuple[Weight, ...]:
    features = positive(attrs, "features")
    inputs = known_size(shapes[0][-1])
    matrix = Weight("weight", (features, inputs), "kaiming")
    if not dict(attrs).get("bias", 1):
        return (matrix,)
    return (matrix, Weight("bias", (features,), "zeros"))


def _count_linear(node: CountedNode) -> int:
    return count(node.shapes[0]) * positive(node.attrs, "features")


def _count_product(node: CountedNode) -> int:
    """Every element of the output sums over the inner dimension."""
    operands = node.operands
    left = operands["a"] if "a" in operands else operands["A"]
    is_transposed = node.op == "Gemm" and node.attributes.get("transA")
    inner = left[-2] if is_transposed else left[-1]
    return count((*node.output, inner))


def _count_einsum(node: CountedNode) -> int:
    """An Einsum multiplies its operands from left to right, as ONNX Runtime does."""
    equation = str(node.attributes["equation"]).replace(" ", "")
    inputs, _, output = equation.partition("->")
    # 1. The indices of each operand, and the size of each index. Sizes of 1 broadcast.
    terms = [
        _indices(term, len(shape))
        for term, shape in zip(inputs.split(","), node.shapes, strict=True)
    ]
    sizes: dict[str, Dim] = {}
    for term, shape in zip(terms, node.shapes, strict=True):
        for index, size in zip(term, shape, strict=True):
            if sizes.get(index, 1) == 1:
                sizes[index] = size
    # 2. The indices of the output: if it is omitted, those that occur once.
    if output:
        last = set(_indices(output, len(sizes)))
    else:
        times = Counter("".join(terms))
        last = {index for index, n in times.items() if n == 1 or index.isdigit()}
    # 3. Each product runs over all indices of both factors. Afterwards those that nobody needs any
    #    more are summed.
    total, held = 0, set(terms[0])
    for i, term in enumerate(terms[1:], start=2):
        held |= set(term)
        total += count(tuple([sizes[index] for index in held]))
        needed = set("".join(terms[i:])) | last
        held &= needed
    return total


def _indices(term: str, rank: int) -> str:
    """The indices of a term, one per dimension.

    Digits stand for the dimensions of an ellipsis, counted from the last one.
    """
    hidden = rank - len(term.replace("...", ""))
    digits = "".join(str(i) for i in range(hidden, 0, -1))
    return term.replace("...", digits)


def _count_determinant(node: CountedNode) -> int:
    """LU decomposition of n × n matrices: (n³ - n) / 3."""
    size = known_size(node.shapes[0][-1])
    return count(node.shapes[0][:-2]) * (size**3 - size) // 3


# --- from ONNX


def _read_gemm(reader: Importer, node: onnx.NodeProto) -> int | None:
    """Add a linear layer, and the batch normalization that was folded into it."""
    attrs = node_attrs(node)
    weight = weight_shape(reader, node, 1)
    bias = weight_shape(reader, node, 2)
    is_scaled = {attrs.get("alpha", 1.0), attrs.get("beta", 1.0)} != {1.0}
    if weight is None or len(weight) != 2 or is_scaled or attrs.get("transA", 0):
        return None
    features, inputs = weight if attrs.get("transB", 0) else weight[::-1]
    if has_operand(node, 2) and bias not in ((features,), (1, features)):
        return None
    norm = folded_norm(node)
    has_bias = has_operand(node, 2) or is_bias_left_out(node)
    if norm is not None:  # the operand is what folding made of the bias
        has_bias = norm.bias
    value = _add_linear(reader, node, int(inputs), int(features), has_bias)
    return None if value is None else add_folded_norm(reader, value, norm)


def _read_matmul(reader: Importer, node: onnx.NodeProto) -> int | None:
    """Add a linear layer without bias."""
    x = node.input[0]
    weight = weight_shape(reader, node, 1)
    if weight is None or len(weight) != 2 or reader.is_weight(x):
        return None
    inputs, features = map(int, weight)
    return _add_linear(reader, node, inputs, features, bias=False)


def _add_linear(
    reader: Importer,
    node: onnx.NodeProto,
    inputs: int,
    features: int,
    bias: bool,
) -> int | None:
    x = reader.value(node.input[0])
    shape = reader.shapes[x]
    if len(shape) < 2:
        return None
    if shape[-1] != inputs:
        raise InputError(
            f"weights [{inputs},{features}] do not fit an input of shape {list(shape)}"
        )
    attrs: Attrs = (("bias", int(bias)), ("features", features), *marked(node))
    return reader.emit("Linear", (x,), attrs)


# --- to ONNX


def _write_linear(exporter: Exporter, node: ExportedNode) -> None:
    """Gemm for matrices; Transpose, MatMul and Add for other ranks, as torch's exporters do."""
    name, x = node.name, node.inputs[0]
    if len(node.shapes[0]) == 2:
        exporter.add("Gemm", name, [x, *node.weights], node.output, (("transB", 1),))
        return
    matrix, *bias = node.weights
    product = f"{name}.product_out" if bias else node.output
    exporter.add("Transpose", f"{name}.transpose", [matrix], f"{name}.transposed")
    exporter.add("MatMul", f"{name}.product", [x, f"{name}.transposed"], product)
    if bias:
        exporter.add("Add", name, [product, *bias], node.output)


# --- the operators

_MAX_OPERANDS = 16  # of an Einsum

# --- to torch


def _linear_layer(node: TrainedNode) -> nn.Module:
    from torch import nn

    from search_spaces.ir.ops.layers import GroupedLinear

    shape = node.shapes[0]
    inputs = int(shape[-1])
    features = node.attributes["features"]
    bias = bool(node.attributes.get("bias", 1))
    if len(shape) == 2:
        return GroupedLinear(inputs, features, bias, node.replicas)
    check_alone(node)
    return nn.Linear(inputs, features, bias)


def _einsum(node: TrainedNode) -> Function:
    import torch

    return partial(torch.einsum, node.attributes["equation"])


# --- the operators

OPERATORS = (
    Operator(
        name="Linear",
        own_attributes={"bias": 1, "features": None, "precision": None},
        in_net_domain=True,
        infer_own_shape=_infer_linear_shape,
        simplify=_simplify_linear,
        weights=_linear_weights,
        count=_count_linear,
        write=_write_linear,
        layer=_linear_layer,
    ),
    Operator(
        name="Gemm",
        count=_count_product,
        read=_read_gemm,
        kernels=(1, 0),
        vectors=(2,),
        role="linear",
    ),
    Operator(
        name="MatMul",
        count=_count_product,
        read=_read_matmul,
        function=of_all(plain("torch.matmul")),
        kernels=(1, 0),
        role="linear",
    ),
    Operator(
        name="MatMulInteger",
        count=_count_product,
        kernels=(1, 0),
        settings=(2, 3),
        role="linear",
    ),
    Operator(
        name="QLinearMatMul",
        count=_count_product,
        kernels=(3, 0),
        settings=(1, 2, 4, 5, 6, 7),
        role="linear",
    ),
    Operator(
        name="Einsum",
        count=_count_einsum,
        function=of_all(_einsum),
        kernels=tuple(range(_MAX_OPERANDS)),
        role="linear",
    ),
    Operator(name="Det", count=_count_determinant),
)
