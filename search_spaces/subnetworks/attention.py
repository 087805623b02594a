"""torch's attention with fewer heads than its width allows."""

from __future__ import annotations

from math import sqrt
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from search_spaces.common.errors import InputError


class NarrowMultiheadAttention(nn.MultiheadAttention):
    """`nn.MultiheadAttention` whose heads have another total width than its inputs.

    torch's own forward computes the width of a head as embed_dim / num_heads. Everything else,
    names of parameters and arguments of `forward`, is as there.
    """

    @staticmethod
    def adopt(layer: Any, heads: int, width: int) -> None:
        """Turn an attention with sliced weights into a narrow one.

        Args:
            layer: the attention.
            heads: its new number of heads.
            width: its new number of input features.
        """
        layer.__class__ = NarrowMultiheadAttention
        layer.num_heads, layer.embed_dim = heads, width
        layer.kdim = width if layer._qkv_same_embed_dim else layer.k_proj_weight.shape[1]
        layer.vdim = width if layer._qkv_same_embed_dim else layer.v_proj_weight.shape[1]
        layer.out_proj.out_features, layer.out_proj.in_features = layer.out_proj.weight.shape
        # torch's encoder layers compute attention themselves, by embed_dim, unless this is False.
        layer.separate = not layer._qkv_same_embed_dim
        layer._qkv_same_embed_dim = False

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As `nn.MultiheadAttention.forward`."""
        is_batched = query.dim() == 3
        key_padding_mask = F._canonical_mask(
            key_padding_mask,
            "key_padding_mask",
            F._none_or_dtype(attn_mask),
            "attn_mask",
            query.dtype,
        )
        attn_mask = F._canonical_mask(
            attn_mask, "attn_mask", None, "", query.dtype, check_other=False
        )
        is_self = query is key and key is value
        if is_batched and self.batch_first:
            if is_self:
                query = key = value = query.transpose(1, 0)
            elif key is value:
                query = query.transpose(1, 0)
                key = key.transpose(1, 0)
                value = key
            else:
                query, key, value = (x.transpose(1, 0) for x in (query, key, value))
        if not is_batched:
            query, key, value = (x.unsqueeze(1) for x in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        made, weights = self._attended(
            query,
            key,
            value,
            key_padding_mask,
            need_weights,
            attn_mask,
            average_attn_weights,
            is_causal,
            is_self,
        )
        if not is_batched:
            made = made.squeeze(1)
            return made, None if weights is None else weights.squeeze(0)
        return (made.transpose(1, 0) if self.batch_first else made), weights

    def _attended(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None,
        need_weights: bool,
        attn_mask: Tensor | None,
        average: bool,
        is_causal: bool,
        is_self: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Sequence first (L, N, E), in the steps of
        `torch.nn.functional.multi_head_attention_forward`.
        """
        if self.bias_k is not None or self.add_zero_attn:
            raise InputError(
                "heads of attention with bias_k or add_zero_attn cannot be left out: the layer "
                "stays whole"
            )
        if is_causal and key_padding_mask is None and not need_weights:
            attn_mask = None
        elif key_padding_mask is not None:
            is_causal = False
        length, batch, _ = query.shape
        heads = self.num_heads
        inner = self.out_proj.in_features
        size = inner // heads

        # 1. Queries, keys and values (L, N, inner).
        q, k, v = self._projected(query, key, value, is_self)

        # 2. Heads side by side: (N · heads, L, size).
        q = q.view(length, batch * heads, size).transpose(0, 1)
        k = k.view(k.shape[0], batch * heads, size).transpose(0, 1)
        v = v.view(v.shape[0], batch * heads, size).transpose(0, 1)
        source = k.shape[1]

        # 3. One mask of both kinds: (N · heads or 1, L or 1, source).
        if attn_mask is not None and attn_mask.dim() == 2:
            attn_mask = attn_mask.unsqueeze(0)
        if key_padding_mask is not None:
            padding = key_padding_mask.view(batch, 1, 1, source)
            padding = padding.expand(-1, heads, -1, -1)
            padding = padding.reshape(batch * heads, 1, source)
            attn_mask = padding if attn_mask is None else attn_mask + padding
        dropout = self.dropout if self.training else 0.0

        # 4. Attention whose weights are asked for: step by step.
        if need_weights:
            scaled = q * sqrt(1.0 / size)
            keys = k.transpose(-2, -1)
            scores = (
                torch.bmm(scaled, keys)
                if attn_mask is None
                else torch.baddbmm(attn_mask, scaled, keys)
            )
            scores = F.softmax(scores, dim=-1)  # (N · heads, L, source)
            if dropout > 0.0:
                scores = F.dropout(scores, p=dropout)
            made = torch.bmm(scores, v)  # (N · heads, L, size)
            made = made.transpose(0, 1).reshape(length * batch, inner)
            made = F.linear(made, self.out_proj.weight, self.out_proj.bias)
            scores = scores.view(batch, heads, length, source)
            if average:
                scores = scores.mean(dim=1)
            return made.view(length, batch, -1), scores

        # 5. Attention alone: one function of torch.
        if attn_mask is not None and attn_mask.size(0) == 1:
            attn_mask = attn_mask.unsqueeze(0)  # of all samples and heads
        elif attn_mask is not None:
            attn_mask = attn_mask.view(batch, heads, -1, source)
        q = q.view(batch, heads, length, size)
        k = k.view(batch, heads, source, size)
        v = v.view(batch, heads, source, size)
        made = F.scaled_dot_product_attention(q, k, v, attn_mask, dropout, is_causal)
        made = made.permute(2, 0, 1, 3).reshape(batch * length, inner)
        made = F.linear(made, self.out_proj.weight, self.out_proj.bias)
        return made.view(length, batch, -1), None

    def _projected(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        is_self: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (L, N, inner); by one product where they read the same."""
        inner = self.out_proj.in_features
        bias = self.in_proj_bias
        if is_self and not self.separate:
            joined = F.linear(query, self.in_proj_weight, bias)
            q, k, v = _parts(joined, 3)
            return q, k, v
        if key is value and not self.separate:
            w_q, w_kv = self.in_proj_weight.split([inner, 2 * inner])
            b_q, b_kv = (None, None) if bias is None else bias.split([inner, 2 * inner])
            q = F.linear(query, w_q, b_q)
            joined = F.linear(key, w_kv, b_kv)
            k, v = _parts(joined, 2)
            return q, k, v
        weights: tuple[Tensor, ...]
        if self.separate:
            weights = self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
        else:
            weights = self.in_proj_weight.chunk(3)
        w_q, w_k, w_v = weights
        b_q, b_k, b_v = (None, None, None) if bias is None else bias.chunk(3)
        return F.linear(query, w_q, b_q), F.linear(key, w_k, b_k), F.linear(value, w_v, b_v)


def _parts(joined: Tensor, count: int) -> tuple[Tensor, ...]:
    """The parts (L, N, inner) of (L, N, count · inner), as torch divides them."""
    parts = joined.unflatten(-1, (count, -1)).unsqueeze(0)  # (1, L, N, count, inner)
    parts = parts.transpose(0, -2).squeeze(-2).contiguous()  # (count, L, N, inner)
    return tuple([parts[i] for i in range(count)])
