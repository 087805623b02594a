"""Recurrent layers. With one input they own their weights: `LSTM <hidden_size = 8> (x)`.

Input: (steps, N, features), or (N, steps, features) with `layout = 1`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from search_spaces.ir.graph import Attrs, Shape, count, known_size
from search_spaces.ir.ops.operator import CountedNode, Operator, Weight, positive

RECURRENT = {"RNN": 1, "GRU": 3, "LSTM": 4}  # number of gates


def _weights(gates: int) -> Callable[[Attrs, tuple[Shape, ...]], tuple[Weight, ...]]:
    def weights(attrs: Attrs, shapes: tuple[Shape, ...]) -> tuple[Weight, ...]:
        values: dict[str, Any] = dict(attrs)
        hidden = positive(attrs, "hidden_size")
        inputs = known_size(shapes[0][-1])
        directions = _directions(values)
        rows = gates * hidden
        tensors = (
            Weight("weight", (directions, rows, inputs), "kaiming", fan_in=inputs),
            Weight("recurrent", (directions, rows, hidden), "kaiming", fan_in=hidden),
        )
        if not values.get("bias", 1):
            return tensors
        # ONNX keeps a bias for the input and one for the state.
        return (*tensors, Weight("bias", (directions, 2 * rows), "zeros"))

    return weights


def _count(node: CountedNode) -> int:
    """Per step and direction, every gate multiplies the input and the state."""
    hidden = int(node.attributes["hidden_size"])
    shape = node.shapes[0]
    steps = count(shape[:-1])
    features = known_size(shape[-1])
    per_gate = hidden * (features + hidden)
    per_step = _directions(node.attributes) * RECURRENT[node.op] * per_gate
    return steps * per_step


def _directions(attrs: dict[str, Any]) -> int:
    return 2 if attrs.get("direction") == "bidirectional" else 1


OPERATORS = tuple(
    [
        Operator(
            name=name,
            owned_attributes={"bias": 1},
            weights=_weights(gates),
            count=_count,
            kernels=(1, 2, 7) if name == "LSTM" else (1, 2),  # 7: peephole connections
            vectors=(3,),
            zero_by_default=(5, 6),  # initial states
        )
        for name, gates in RECURRENT.items()
    ]
)
