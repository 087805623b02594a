"""Reductions along axes, cumulative sums, sorting and losses."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import onnx

from search_spaces.ir.ops.operator import (
    Function,
    Importer,
    MakeFunction,
    Operator,
    TrainedNode,
    known_operand,
    named,
    node_attrs,
    total_size,
)
from search_spaces.ir.ops.training import of_first, torch_function

if TYPE_CHECKING:
    from torch import Tensor


def _read_mean(reader: Importer, node: onnx.NodeProto) -> int | None:
    """The mean over all spatial dimensions as global average pooling."""
    attrs = node_attrs(node)
    operand = known_operand(reader, node, 1)
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


# --- to torch


def _reduce(function: Function) -> MakeFunction:
    """Makes a reduction of the node's axes by a function of `dim` and `keepdim`."""

    def make(node: TrainedNode) -> Function:
        attributes = node.attributes
        all_axes = tuple(range(len(node.shapes[0])))
        no_axes = () if attributes.get("noop_with_empty_axes") else all_axes
        axes = attributes.get("axes", no_axes)
        if isinstance(axes, int):
            axes = (axes,)
        if not axes:
            return lambda x: x
        keepdim = bool(attributes.get("keepdims", 1))
        return partial(function, dim=axes, keepdim=keepdim)

    return of_first(make)


def _reduce_by(name: str) -> MakeFunction:
    """Makes a reduction by a function of torch."""
    return lambda node: _reduce(torch_function(name))(node)


def _norm_of(x: Tensor, dim: tuple[int, ...], keepdim: bool) -> Tensor:
    return x.square().sum(dim, keepdim).sqrt()


# --- the operators

OPERATORS = (
    Operator(
        name="ReduceMean",
        folded_size=total_size,
        read=_read_mean,
        function=_reduce_by("torch.mean"),
    ),
    Operator(name="ReduceL2", folded_size=total_size, function=_reduce(_norm_of)),
    Operator(name="ReduceMax", folded_size=total_size, function=_reduce_by("torch.amax")),
    Operator(name="ReduceMin", folded_size=total_size, function=_reduce_by("torch.amin")),
    Operator(name="ReduceSum", folded_size=total_size, function=_reduce_by("torch.sum")),
    *[
        Operator(name=name, folded_size=total_size)
        for name in ("CumSum", "ReduceProd", "ReduceSumSquare")
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
