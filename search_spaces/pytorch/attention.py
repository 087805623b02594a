"""Attention and recurrent layers of torch, as the operators that they consist of."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from search_spaces.common.errors import InputError
from search_spaces.pytorch.recorder import Recorder, handles


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
    return r.call(torch.matmul, r.call(torch.softmax, scores, -1), value)


def _additive(r: Recorder, mask: Tensor) -> Tensor:
    """A mask of truth values as numbers to add."""
    if mask.dtype != torch.bool:
        return mask
    if r.is_constant(mask):
        return torch.zeros(mask.shape).masked_fill(~mask, float("-inf"))
    return r.add("Where", mask, 0.0, float("-inf"))


# --- recurrent layers ------------------------------------------------------------------------------------------------

_MODES = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN", "rnn_relu": "RNN"}


def _recurrent(name: str) -> Any:
    op = _MODES[name]

    def handler(
        r: Recorder, input: Tensor, hx: Any, params: Sequence[Tensor], has_biases: bool, num_layers: int,
        dropout: float, train: bool, bidirectional: bool, batch_first: bool = False,
    ) -> Any:  # fmt: skip
        if not isinstance(batch_first, bool) or not all(r.owned_shape(w) for w in params):
            raise InputError(f"{op} on packed sequences, or with shared weights, is not supported")
        states = hx if isinstance(hx, tuple | list) else (hx,)
        if not all(r.is_constant(state) and not bool(state.any()) for state in states):
            raise InputError(f"{op} with an initial state other than zeros is not supported")
        x = r.call(Tensor.transpose, input, 0, 1) if batch_first else input
        directions, per_layer = 1 + bidirectional, len(params) // num_layers
        finals: list[list[Tensor]] = []
        for layer in range(num_layers):
            weights = params[layer * per_layer : (layer + 1) * per_layer]
            hidden = int(weights[1].shape[1])
            if weights[0].shape[1] != x.shape[-1] or len(weights) != directions * (2 + 2 * has_biases):
                raise InputError(f"{op} with projections is not supported")
            for w in weights:
                r.take(w)
            attrs: dict[str, Any] = {"hidden_size": hidden, "bias": int(has_biases)}
            if bidirectional:
                attrs["direction"] = "bidirectional"
            if op == "GRU":
                attrs["linear_before_reset"] = 1
            if op == "RNN":
                attrs["activations"] = (name[4:].capitalize(),) * directions
            outputs = [r.own(op, x, output=i, **attrs) if i else r.own(op, x, **attrs) for i in range(3 if op == "LSTM" else 2)]
            finals.append(outputs[1:])
            length, batch = x.shape[:2]
            if bidirectional:
                x = r.call(Tensor.reshape, r.call(Tensor.permute, outputs[0], (0, 2, 1, 3)), (length, batch, -1))
            else:
                x = r.call(Tensor.squeeze, outputs[0], 1)
        joined = [parts[0] if num_layers == 1 else r.call(torch.cat, list(parts), 0) for parts in zip(*finals, strict=True)]
        return (r.call(Tensor.transpose, x, 0, 1) if batch_first else x), *joined

    return handler


for _function in _MODES:
    handles(_function)(_recurrent(_function))
