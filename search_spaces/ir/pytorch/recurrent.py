"""Recurrent layers: the operators of `nn.LSTM`, `nn.GRU` and `nn.RNN`, and cells as products and
sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from search_spaces.common.errors import InputError
from search_spaces.ir.graph import Value
from search_spaces.ir.ops.recurrent import RECURRENT
from search_spaces.ir.pytorch.calls import one_of_each
from search_spaces.ir.pytorch.recorder import Handler, Numbers, Recorder, handles

_OPERATORS = {
    "lstm": "LSTM",
    "gru": "GRU",
    "rnn_tanh": "RNN",
    "rnn_relu": "RNN",
}
# torch's gate numbers in ONNX's order
_GATES = {
    "LSTM": (0, 3, 1, 2),
    "GRU": (1, 0, 2),
    "RNN": (0,),
}


def _handler(name: str) -> Handler:
    def handler(
        r: Recorder,
        input: Tensor,
        hx: Any,
        params: Sequence[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool = False,
    ) -> Any:
        """Layer by layer; outputs and the last states of all layers."""
        if not isinstance(batch_first, bool):
            raise InputError(f"{_OPERATORS[name]} on packed sequences is not supported")
        for state in hx if isinstance(hx, tuple | list) else (hx,):
            if not r.is_constant(state) or bool(one_of_each(state).any()):
                raise InputError(
                    f"{_OPERATORS[name]} with an initial state other than zeros is not supported"
                )
        x = r.call(Tensor.transpose, input, 0, 1) if batch_first else input
        per_layer = len(params) // num_layers
        states_of_layers = []
        for start in range(0, len(params), per_layer):
            weights = params[start : start + per_layer]
            # y (time, directions, N, hidden) becomes x (time, N, directions · hidden).
            y, *states = _layer(r, name, x, weights, has_biases, bidirectional)
            states_of_layers.append(states)
            if bidirectional:
                turned = r.call(Tensor.permute, y, (0, 2, 1, 3))
                x = r.call(Tensor.reshape, turned, (*x.shape[:2], -1))
            else:
                x = r.call(Tensor.squeeze, y, 1)
        last_states = []
        for parts in zip(*states_of_layers, strict=True):
            last_states.append(r.call(torch.cat, parts, 0) if num_layers > 1 else parts[0])
        return (r.call(Tensor.transpose, x, 0, 1) if batch_first else x), *last_states

    return handler


for _name in _OPERATORS:
    handles(_name)(_handler(_name))


def _layer(
    r: Recorder,
    name: str,
    x: Tensor,
    weights: Sequence[Tensor],
    has_biases: bool,
    bidirectional: bool,
) -> list[Tensor]:
    """The outputs of one layer, one operator for each.

    An operator owns the weights if only its output is used.
    """
    op = _OPERATORS[name]
    directions = 1 + bidirectional
    hidden = int(weights[1].shape[1])
    gates = RECURRENT[op] * hidden
    count = directions * (4 if has_biases else 2)
    if weights[0].shape != (gates, x.shape[-1]) or len(weights) != count:
        raise InputError(f"{op} with projections is not supported")
    attrs: dict[str, Value] = {"hidden_size": hidden}
    if bidirectional:
        attrs["direction"] = "bidirectional"
    if op == "GRU":
        attrs["linear_before_reset"] = 1
    if op == "RNN":
        attrs["activations"] = (name.removeprefix("rnn_").capitalize(),) * directions
    # The first output has no attribute that says so.
    outputs: list[dict[str, Value]] = [{}, {"output": 1}, {"output": 2}]
    outputs = outputs[: 3 if op == "LSTM" else 2]
    numbers = _onnx_weights(r, op, weights, directions)
    if all(r.owned_shape(w) for w in weights):
        own = []
        for output in outputs:
            r.keep(*numbers)
            own.append(r.add_node(op, x, bias=int(has_biases), **attrs, **output))
        r.add_owner(own, weights)
        return own
    shapes = [(gates, int(x.shape[-1])), (gates, hidden)]
    if has_biases:
        shapes.append((2 * gates,))  # type: ignore[arg-type]
    params = [
        r.param((directions, *shape), made) for shape, made in zip(shapes, numbers, strict=True)
    ]
    return [r.add_node(op, x, *params, **attrs, **output) for output in outputs]


def _onnx_weights(
    r: Recorder,
    op: str,
    weights: Sequence[Tensor],
    directions: int,
) -> list[Numbers]:
    """The weights of a layer in ONNX's form.

    Gates are in ONNX's order, directions are stacked, and biases are concatenated.

    Args:
        r: the recorder.
        op: ONNX's operator.
        weights: for each direction those of the input (gates, inputs) and of the state (gates,
            hidden), and their biases (gates,) if there are any.
        directions: 1 or 2.

    Returns:
        What computes (directions, gates, inputs), (directions, gates, hidden) and, with biases,
        (directions, 2 · gates).
    """
    each = len(weights) // directions

    def ordered(weight: Tensor) -> Tensor:
        gates = r.weights.computed(weight).chunk(RECURRENT[op])
        return torch.cat([gates[i] for i in _GATES[op]])

    def stacked(*places: int) -> Numbers:
        def numbers() -> Tensor:
            of_directions = []
            for start in range(0, len(weights), each):
                parts = [ordered(weights[start + place]) for place in places]
                of_directions.append(torch.cat(parts))
            return torch.stack(of_directions)

        return numbers

    matrices = [stacked(0), stacked(1)]
    return [*matrices, stacked(2, 3)] if each == 4 else matrices


# --- cells


def _projected(
    r: Recorder,
    x: Tensor,
    state: Tensor,
    weights: Sequence[Tensor | None],
) -> tuple[Tensor, Tensor]:
    """Linear layers of the input and the state of a recurrent cell.

    weights: those of input and state, then their biases, in torch's order.
    """
    of_input, of_state, *biases = weights
    input_bias, state_bias = biases or (None, None)
    from_input = r.call(F.linear, x, of_input, input_bias)
    return from_input, r.call(F.linear, state, of_state, state_bias)


@handles("lstm_cell")
def _lstm_cell(
    r: Recorder,
    input: Tensor,
    hx: Sequence[Tensor],
    *weights: Tensor,
) -> tuple[Tensor, Tensor]:
    hidden, cell = hx
    # 1. The gates.
    gates = r.call(torch.add, *_projected(r, input, hidden, weights))
    i, f, g, o = r.call(torch.chunk, gates, 4, -1)
    # 2. The new cell: what is kept of the old one, and what is added.
    kept = r.call(torch.mul, r.call(torch.sigmoid, f), cell)
    input_gate = r.call(torch.sigmoid, i)
    candidate = r.call(torch.tanh, g)
    added = r.call(torch.mul, input_gate, candidate)
    new_cell = r.call(torch.add, kept, added)
    # 3. What the cell shows.
    output_gate = r.call(torch.sigmoid, o)
    shown = r.call(torch.tanh, new_cell)
    new_hidden = r.call(torch.mul, output_gate, shown)
    return new_hidden, new_cell


@handles("gru_cell")
def _gru_cell(r: Recorder, input: Tensor, hx: Tensor, *weights: Tensor) -> Tensor:
    """new + update · (state - new), with the gates of the input and of the state added."""
    from_input, from_state = _projected(r, input, hx, weights)
    reset_input, update_input, new_input = r.call(torch.chunk, from_input, 3, -1)
    reset_state, update_state, new_state = r.call(torch.chunk, from_state, 3, -1)
    reset = r.call(torch.add, reset_input, reset_state)
    reset = r.call(torch.sigmoid, reset)
    update = r.call(torch.add, update_input, update_state)
    update = r.call(torch.sigmoid, update)
    remembered = r.call(torch.mul, reset, new_state)
    new = r.call(torch.add, new_input, remembered)
    new = r.call(torch.tanh, new)
    difference = r.call(torch.sub, hx, new)
    change = r.call(torch.mul, update, difference)
    return r.call(torch.add, new, change)


def _rnn_cell(activation: Callable[[Tensor], Tensor]) -> Handler:
    def handler(
        r: Recorder,
        input: Tensor,
        hx: Tensor,
        *weights: Tensor,
    ) -> Tensor:
        total = r.call(torch.add, *_projected(r, input, hx, weights))
        return r.call(activation, total)

    return handler


handles("rnn_tanh_cell")(_rnn_cell(torch.tanh))
handles("rnn_relu_cell")(_rnn_cell(torch.relu))
