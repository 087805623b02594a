"""Attention, and what goes with it: positions that rotate, caches of keys and values."""

from __future__ import annotations

from search_spaces.ir.graph import count, known_size
from search_spaces.ir.ops.operator import CountedNode, Operator, named


def _count(node: CountedNode) -> int:
    """Queries times keys, then attention weights times values.

    Keys of the past count, masked ones, too.
    """
    operands = node.operands
    keys = known_size(operands["K"][-2])
    if "past_key" in operands:
        keys += known_size(operands["past_key"][-2])
    queries_times_keys = count(operands["Q"]) * keys
    weights_times_values = count(node.output) * keys
    return queries_times_keys + weights_times_values


def _count_linear(node: CountedNode) -> int:
    """Per token and head: outer product of key and value, and state times query.

    The rule `delta` also multiplies the state by the key.
    """
    operands = node.operands
    attrs = node.attributes
    query_heads = int(attrs["q_num_heads"])
    heads = int(attrs["kv_num_heads"])
    key = known_size(operands["key"][-1]) // heads
    value = known_size(operands["value"][-1]) // heads
    rule = str(attrs.get("update_rule", "gated_delta"))
    updates = 2 if "delta" in rule else 1
    tokens = count(operands["query"][:-1])
    per_token = key * value * (updates * heads + query_heads)
    return tokens * per_token


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
