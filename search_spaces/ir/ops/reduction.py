"""Reductions along axes, cumulative sums, sorting and losses."""

from __future__ import annotations

import onnx

from search_spaces.ir.ops.operator import (
    Importer,
    Operator,
    known_operand,
    named,
    node_attrs,
    total_size,
)


def _read_mean(reader: Importer, node: onnx.NodeProto) -> int | None:
    """The mean over all spatial dimensions as global average pooling."""
    attrs, operand = node_attrs(node), known_operand(reader, node, 1)
    axes = attrs.get("axes", ())
    if operand is not None and operand.static is not None:
        axes = operand.static.tolist()
    x = reader.value(node.input[0])
    rank = len(reader.shapes[x])
    if rank < 3 or not attrs.get("keepdims", 1):
        return None
    if sorted(axis % rank for axis in axes) != list(range(2, rank)):
        return None
    return reader.emit("GlobalAveragePool", (x,), ())


OPERATORS = (
    Operator(name="ReduceMean", folded_size=total_size, read=_read_mean),
    *[
        Operator(name=name, folded_size=total_size)
        for name in (
            "CumSum",
            "ReduceL2",
            "ReduceMax",
            "ReduceMin",
            "ReduceProd",
            "ReduceSum",
            "ReduceSumSquare",
        )
    ],
    *named(
        "ArgMax",
        "ArgMin",
        "CumProd",
        "NegativeLogLikelihoodLoss",
        "NonMaxSuppression",
        "NonZero",
        "ReduceL1",
        "ReduceLogSum",
        "ReduceLogSumExp",
        "SoftmaxCrossEntropyLoss",
        "TopK",
        "Unique",
    ),
)
