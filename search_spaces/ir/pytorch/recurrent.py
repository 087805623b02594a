"""torch's recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from search_spaces.common.errors import InputError
from search_spaces.ir.graph import Value
from search_spaces.ir.owned_weights import RECURRENT
from search_spaces.ir.pytorch.calls import one_of_each
from search_spaces.ir.pytorch.recorder import HANDLERS, Numbers, Recorder, handles

_GATES = {
    "LSTM": (0, 3, 1, 2),
    "GRU": (1, 0, 2),
    "RNN": (0,),
}  # torch's gate numbers in ONNX's order
_OPERATORS = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN", "rnn_relu": "RNN"}


def _handler(name: str) -> Any:
    def handler(
        r: Recorder, input: Tensor, hx: Any, params: Sequence[Tensor], has_biases: bool, num_layers: int,
        dropout: float, train: bool, bidirectional: bool, batch_first: bool = False,
    ) -> Any:  # fmt: skip
        if not isinstance(batch_first, bool):
            raise InputError(f"{_OPERATORS[name]} on packed sequences is not supported")
        for state in hx if isinstance(hx, tuple | list) else (hx,):
            if not r.is_constant(state) or bool(one_of_each(state).any()):
                raise InputError(
                    f"{_OPERATORS[name]} with an initial state other than zeros is not supported"
                )
        x = r.call(Tensor.transpose, input, 0, 1) if batch_first else input
        per_layer = len(params) // num_layers
        finals = []
        for start in range(0, len(params), per_layer):
            y, *final = _layer(
                r, name, x, params[start : start + per_layer], has_biases, bidirectional
            )
            finals.append(final)
            if bidirectional:
                x = r.call(
                    Tensor.reshape, r.call(Tensor.permute, y, (0, 2, 1, 3)), (*x.shape[:2], -1)
                )
            else:
                x = r.call(Tensor.squeeze, y, 1)
        states = [
            r.call(torch.cat, parts, 0) if num_layers > 1 else parts[0]
            for parts in zip(*finals, strict=True)
        ]
        return (r.call(Tensor.transpose, x, 0, 1) if batch_first else x), *states

    return handler


def _layer(
    r: Recorder,
    name: str,
    x: Tensor,
    weights: Sequence[Tensor],
    has_biases: bool,
    bidirectional: bool,
) -> list[Tensor]:
    """The outputs of one layer, one operator for each; an operator owns the weights if only its
    output is used.
    """
    op, directions, hidden = _OPERATORS[name], 1 + bidirectional, int(weights[1].shape[1])
    gates = RECURRENT[op] * hidden
    if weights[0].shape != (gates, x.shape[-1]) or len(weights) != directions * (
        2 + 2 * has_biases
    ):
        raise InputError(f"{op} with projections is not supported")
    attrs: dict[str, Value] = {"hidden_size": hidden}
    if bidirectional:
        attrs["direction"] = "bidirectional"
    if op == "GRU":
        attrs["linear_before_reset"] = 1
    if op == "RNN":
        attrs["activations"] = (name[4:].capitalize(),) * directions
    outputs = range(3 if op == "LSTM" else 2)
    numbers = _onnx_weights(r, op, weights, directions)
    if all(r.owned_shape(w) for w in weights):
        own = []
        for i in outputs:
            r.keep(*numbers)
            own.append(
                r.add_node(op, x, bias=int(has_biases), **attrs, **({"output": i} if i else {}))
            )
        r.add_owner(own, weights)
        return own
    shapes = [(gates, int(x.shape[-1])), (gates, hidden), *([(2 * gates,)] if has_biases else [])]
    params = [
        r.param((directions, *shape), made) for shape, made in zip(shapes, numbers, strict=True)
    ]
    return [r.add_node(op, x, *params, **attrs, **({"output": i} if i else {})) for i in outputs]


def _onnx_weights(
    r: Recorder, op: str, weights: Sequence[Tensor], directions: int
) -> list[Numbers]:
    """The weights of a layer in ONNX's form: gates in ONNX's order, directions stacked, biases
    concatenated.
    """

    def ordered(weight: Tensor) -> Tensor:
        gates = r.weights.computed(weight).chunk(RECURRENT[op])
        return torch.cat([gates[i] for i in _GATES[op]])

    def stacked(names: Sequence[int]) -> Tensor:
        each = len(weights) // directions
        parts = [
            [ordered(weights[start + i]) for i in names] for start in range(0, len(weights), each)
        ]
        return torch.stack([torch.cat(part) for part in parts])

    biases = [(2, 3)] if len(weights) == 4 * directions else []
    return [lambda names=names: stacked(names) for names in ((0,), (1,), *biases)]  # type: ignore[misc]


@handles("lstm_cell")
def _lstm_cell(
    r: Recorder, input: Tensor, hx: Sequence[Tensor], *weights: Tensor
) -> tuple[Tensor, Tensor]:
    from_input, from_state = _projected(r, input, hx[0], weights)
    i, f, g, o = r.call(torch.chunk, r.call(torch.add, from_input, from_state), 4, -1)
    kept = r.call(torch.mul, r.call(torch.sigmoid, f), hx[1])
    new = r.call(torch.mul, r.call(torch.sigmoid, i), r.call(torch.tanh, g))
    cell = r.call(torch.add, kept, new)
    return r.call(torch.mul, r.call(torch.sigmoid, o), r.call(torch.tanh, cell)), cell


@handles("gru_cell")
def _gru_cell(r: Recorder, input: Tensor, hx: Tensor, *weights: Tensor) -> Tensor:
    parts = (r.call(torch.chunk, x, 3, -1) for x in _projected(r, input, hx, weights))
    resets, updates, (new_input, new_state) = zip(*parts, strict=True)
    reset, update = (r.call(torch.sigmoid, r.call(torch.add, *pair)) for pair in (resets, updates))
    new = r.call(torch.tanh, r.call(torch.add, new_input, r.call(torch.mul, reset, new_state)))
    return r.call(torch.add, new, r.call(torch.mul, update, r.call(torch.sub, hx, new)))


@handles("rnn_tanh_cell", "rnn_relu_cell")
def _rnn_cell(
    r: Recorder, input: Tensor, hx: Tensor, *weights: Tensor, activation: Any = torch.tanh
) -> Tensor:
    return r.call(activation, r.call(torch.add, *_projected(r, input, hx, weights)))


HANDLERS["rnn_relu_cell"] = lambda r, *args: _rnn_cell(r, *args, activation=torch.relu)


def _projected(
    r: Recorder, x: Tensor, state: Tensor, weights: Sequence[Tensor | None]
) -> tuple[Tensor, Tensor]:
    """Linear layers of the input and the state of a recurrent cell, whose weights are in torch's
    order.
    """
    of_input, of_state, *biases = weights
    first, second = biases or (None, None)
    return r.call(F.linear, x, of_input, first), r.call(F.linear, state, of_state, second)


for _name in _OPERATORS:
    handles(_name)(_handler(_name))
