"""Linear functions, products of matrices, embeddings, and attention, which consists of these.

A layer *owns* its weights where it can: they are no values of the graph, but part of its operator, as
in an ONNX model. A weight that several layers read, or that is computed from several parameters, is a
value; then the layer is the product that ONNX has for two values.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import torch
from torch import Tensor

from search_spaces.common.errors import InputError
from search_spaces.ir.pytorch.calls import one_of_each
from search_spaces.ir.pytorch.pointwise import cast
from search_spaces.ir.pytorch.recorder import Recorder, handles
from search_spaces.ir.pytorch.reductions import reduced


def owned(r: Recorder, *weights: Tensor | None) -> list[tuple[int, ...] | None] | None:
    """Take weights for the next layer; return their shapes, or None if it cannot own all.

    The shape of an omitted weight is None.
    """
    if any(w is not None and r.owned_shape(w) is None for w in weights):
        return None
    return [None if w is None else r.take(w) for w in weights]


def plus_bias(
    r: Recorder,
    x: Tensor,
    bias: Tensor | None,
    spatial: int,
) -> Tensor:
    """Add a bias per channel that the layer does not own.

    spatial: the number of axes behind the channels.
    """
    if bias is None:
        return x
    if spatial:
        bias = r.call(torch.reshape, bias, (-1, *[1] * spatial))
    return r.call(torch.add, x, bias)


# --- linear layers


@handles("linear")
def _linear(
    r: Recorder,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    if weight.dim() != 2 or weight.shape[1] != input.shape[-1]:
        raise InputError(
            f"a linear layer with weights {list(weight.shape)} has an input of shape "
            f"{list(input.shape)}"
        )
    features = int(weight.shape[0])
    if r.owned_shape(weight) is None or input.dim() < 2:
        turned = r.add_node("Transpose", r.as_value(weight), perm=(1, 0))
        return plus_bias(r, r.add_node("MatMul", input, turned), bias, 0)
    if owned(r, weight, bias) is not None:
        has_bias = int(bias is not None)
        return r.add_node("Linear", input, features=features, bias=has_bias, **r.precision(weight))
    r.take(weight)
    product = r.add_node("Linear", input, features=features, bias=0, **r.precision(weight))
    return plus_bias(r, product, bias, 0)


@handles("bilinear")
def _bilinear(
    r: Recorder,
    input1: Tensor,
    input2: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    product = r.call(torch.einsum, "...i,oij,...j->...o", input1, r.as_value(weight), input2)
    return plus_bias(r, product, bias, 0)


# --- products of matrices


@handles("matmul", "bmm", "mm", "__matmul__")
def _matmul(r: Recorder, input: Tensor, other: Tensor) -> Tensor:
    """A product with a matrix of weights (inputs, features) is a linear layer that owns it."""
    is_matrix_of_weights = r.weights.is_weight(other) and other.dim() == 2
    if is_matrix_of_weights and input.dim() > 1 and r.owned_shape(other) is not None:
        rows, features = other.shape
        if rows == input.shape[-1]:
            r.take(other, transposed=True)
            precision = r.precision(other)
            return r.add_node("Linear", input, features=int(features), bias=0, **precision)
    # A constant operand stays a tensor, also where its numbers could be an attribute.
    factors = [r.tensor(r.value(x)) if r.is_constant(x) else x for x in (input, other)]
    return r.add("MatMul", *factors)


@handles("__rmatmul__")
def _rmatmul(r: Recorder, input: Tensor, other: Tensor) -> Tensor:
    return _matmul(r, other, input)


@handles("baddbmm")
def _baddbmm(
    r: Recorder,
    input: Tensor,
    batch1: Tensor,
    batch2: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> Tensor:
    product = r.call(torch.mul, _matmul(r, batch1, batch2), alpha)
    return r.call(torch.add, r.call(torch.mul, input, beta), product)


@handles("addmm")
def _addmm(
    r: Recorder,
    input: Tensor,
    mat1: Tensor,
    mat2: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> Tensor:
    return _baddbmm(r, input, mat1, mat2, beta=beta, alpha=alpha)


@handles("einsum")
def _einsum(r: Recorder, equation: str, *operands: Any) -> Tensor:
    is_list = len(operands) == 1 and isinstance(operands[0], list | tuple)
    tensors = operands[0] if is_list else operands
    return r.add_node("Einsum", *tensors, equation=equation.replace(" ", ""))


# --- sparse functions


@handles("embedding")
def _embedding(
    r: Recorder,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    *_: Any,
    **__: Any,
) -> Tensor:
    if max_norm is not None:
        raise InputError(
            "an embedding with max_norm is not supported: its weights change when they are read"
        )
    if r.owned_shape(weight) is None or weight.dtype != torch.float32:  # Embedding is of floats
        return r.add_node("Gather", r.as_value(weight), r.as_value(input))
    r.take(weight)
    rows, features = (int(size) for size in weight.shape)
    return r.add_node("Embedding", r.as_value(input), features=features, rows=rows)


_BAGS = {
    "mean": "ReduceMean",
    "sum": "ReduceSum",
    "max": "ReduceMax",
}


@handles("embedding_bag")
def _embedding_bag(
    r: Recorder,
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    *_: Any,
    mode: str = "mean",
    max_norm: float | None = None,
    per_sample_weights: Tensor | None = None,
    padding_idx: int | None = None,
    **__: Any,
) -> Tensor:
    if offsets is not None or padding_idx is not None:
        raise InputError(
            "an embedding bag with offsets or padding_idx depends on the data: give one bag per row"
        )
    words = _embedding(r, input, weight, max_norm=max_norm)
    if per_sample_weights is not None:
        words = r.call(torch.mul, words, r.call(torch.unsqueeze, per_sample_weights, -1))
    return reduced(r, _BAGS[mode], words, 1, False)


@handles("one_hot")
def _one_hot(r: Recorder, input: Tensor, num_classes: int = -1) -> Tensor:
    if num_classes < 0:
        raise InputError("one_hot without the number of classes depends on the data")
    column = r.call(torch.unsqueeze, input, -1)
    is_class = r.add("Equal", column, torch.arange(num_classes))
    return cast(r, is_class, torch.int64)


# --- attention


@handles("scaled_dot_product_attention")
def _attention(
    r: Recorder,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(query · keyᵀ · scale + mask) · value, in the operators of the ONNX exporter: the
    scale's root multiplies both factors.
    """
    # 1. Groups of queries share keys and values, which are repeated for all heads.
    heads = query.shape[-3] if enable_gqa else 0
    if enable_gqa and key.shape[-3] != heads:
        times = heads // key.shape[-3]
        key = r.call(torch.repeat_interleave, key, times, -3)
        value = r.call(torch.repeat_interleave, value, times, -3)

    # 2. Scores (…, L, S).
    width = query.shape[-1]
    factor = sqrt(1 / sqrt(width) if scale is None else scale)
    turned = r.call(Tensor.transpose, key, -2, -1)
    scaled_keys = r.call(torch.mul, turned, factor)
    scaled_queries = r.call(torch.mul, query, factor)
    scores = r.call(torch.matmul, scaled_queries, scaled_keys)

    # 3. The mask hides keys from queries.
    if is_causal:
        hidden = torch.full((query.shape[-2], key.shape[-2]), float("-inf"))
        attn_mask = hidden.triu(1)
    if attn_mask is not None:
        scores = r.call(torch.add, scores, _additive(r, attn_mask))
    weights = r.call(torch.softmax, scores, -1)
    is_boolean = attn_mask is not None and attn_mask.dtype == torch.bool
    if is_boolean and r.is_value(attn_mask):
        # A row that the mask hides entirely, such as one of padding, attends to nothing instead of
        # being undefined.
        is_undefined = r.call(torch.isnan, weights)
        weights = r.call(torch.where, is_undefined, 0.0, weights)

    # 4. Means of the values (…, L, E).
    return r.call(torch.matmul, weights, value)


def _additive(r: Recorder, mask: Tensor) -> Tensor:
    """A boolean mask as 0 and -inf to add; other masks stay as they are."""
    if mask.dtype != torch.bool:
        return mask
    if not r.is_constant(mask):
        return r.add("Where", mask, 0.0, float("-inf"))
    one = one_of_each(mask)  # a mask for all samples may be huge
    hidden = torch.zeros(one.shape).masked_fill(~one, float("-inf"))
    return hidden.expand(mask.shape)


@handles("_nested_tensor_from_mask_left_aligned")
def _left_aligned(r: Recorder, *_: Tensor) -> bool:
    """Whether a Transformer may leave out padding, on which its texts must not depend."""
    return False
