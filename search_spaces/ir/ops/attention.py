"""Attention, and what goes with it: positions that rotate, caches of keys and values."""

from __future__ import annotations

from search_spaces.ir.graph import count, known_size
from search_spaces.ir.ops.operator import CountedNode, Operator, named


def _count(node: CountedNode) -> int:
    """Queries times keys, then attention weights times values.

    Keys of the past count, masked ones, too.
    """
    operands = node.operands
    past = known_size(operands["past_key"][-2]) if "past_key" in operands else 0
    keys = known_size(operands["K"][-2]) + past
    return (count(operands["Q"]) + count(node.output)) * keys


def _count_linear(node: CountedNode) -> int:
    """Per token and head: outer product of key and value, and state times query.

    The rule `delta` also multiplies the state by the key.
    """
    operands, attrs = node.operands, node.attributes
    query_heads, heads = int(attrs["q_num_heads"]), int(attrs["kv_num_heads"])
    key = known_size(operands["key"][-1]) // heads
    value = known_size(operands["value"][-1]) // heads
    updates = 2 if "delta" in str(attrs.get("update_rule", "gated_delta")) else 1
    tokens = count(operands["query"][:-1])
    return tokens * key * value * (updates * heads + query_heads)


OPERATORS = (
    Operator(
        name="Attention",
        count=_count,
        kernels=(0, 1, 2),
    ),
    Operator(
        name="LinearAttention",
        count=_count_linear,
        kernels=(0, 1, 2),
    ),
    Operator(name="RotaryEmbedding", settings=(1, 2)),
    *named("TensorScatter"),
)
