"""torch's attention, decomposed into operators."""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor

from search_spaces.ir.pytorch.calls import one_of_each
from search_spaces.ir.pytorch.recorder import Recorder, handles


@handles("scaled_dot_product_attention")
def _attention(
    r: Recorder, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        times = query.shape[-3] // key.shape[-3]
        key, value = (r.call(torch.repeat_interleave, x, times, -3) for x in (key, value))
    factor = sqrt(1 / sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        rows, columns = query.shape[-2], key.shape[-2]
        attn_mask = torch.full((rows, columns), float("-inf")).triu(1)
    turned = r.call(torch.mul, r.call(Tensor.transpose, key, -2, -1), factor)
    scores = r.call(torch.matmul, r.call(torch.mul, query, factor), turned)
    if attn_mask is not None:
        scores = r.call(torch.add, scores, _additive(r, attn_mask))
    weights = r.call(torch.softmax, scores, -1)
    if attn_mask is not None and attn_mask.dtype == torch.bool and r.is_value(attn_mask):
        # A row that the mask hides entirely, such as one of padding, attends to nothing instead of
        # being undefined.
        weights = r.call(torch.where, r.call(torch.isnan, weights), 0.0, weights)
    return r.call(torch.matmul, weights, value)


@handles("_nested_tensor_from_mask_left_aligned")
def _left_aligned(r: Recorder, *_: Tensor) -> bool:
    """Whether a Transformer may leave out padding, on which its texts must not depend."""
    return False


def _additive(r: Recorder, mask: Tensor) -> Tensor:
    """A boolean mask as 0 and -inf to add; other masks stay as they are."""
    if mask.dtype != torch.bool:
        return mask
    if r.is_constant(mask):
        one = one_of_each(mask)  # a mask for all samples may be huge
        return torch.zeros(one.shape).masked_fill(~one, float("-inf")).expand(mask.shape)
    return r.add("Where", mask, 0.0, float("-inf"))
