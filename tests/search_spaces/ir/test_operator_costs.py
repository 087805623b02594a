"""Claims about multiply-accumulates: every operator is counted, free, or refused by name."""

from __future__ import annotations

import onnx
import pytest

from search_spaces.common.errors import InputError
from search_spaces.ir.graph import Attrs, Shape, Typed
from search_spaces.ir.ops import OPERATORS, multiply_accumulates

# Operators that no graph has: control flow, sequences, optional values, strings, files, and removed
# ones.
NOT_IN_GRAPHS = {
    "If", "Loop", "Scan", "SequenceMap", "ConcatFromSequence", "SplitToSequence", "SequenceAt", "SequenceConstruct",
    "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength", "Optional", "OptionalGetElement",
    "OptionalHasElement", "ImageDecoder", "RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit",
    "Scatter", "Upsample",
}  # fmt: skip


def test_every_operator_of_onnx_has_a_family_or_is_in_no_graph() -> None:
    names = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}
    in_graphs = {name for name, operator in OPERATORS.items() if operator.is_in_graphs}
    assert names - in_graphs == NOT_IN_GRAPHS


@pytest.mark.parametrize("op", sorted(NOT_IN_GRAPHS))
def test_what_is_in_no_graph_costs_nothing_known(op: str) -> None:
    with pytest.raises(InputError, match=f"how many multiply-accumulates operator {op} takes"):
        multiply_accumulates(op, (), ((2, 3),))


def test_an_unknown_operator_is_refused_by_name() -> None:
    with pytest.raises(
        InputError, match="how many multiply-accumulates operator FlexAttention takes"
    ):
        multiply_accumulates("FlexAttention", (), ((2, 3),))


def int8(*dims: int) -> Shape:
    return Typed(dims, "int8")


@pytest.mark.parametrize(
    ("op", "attrs", "shapes", "products"),
    [
        ("MatMul", (), ((5, 16), (16, 10)), 800),
        ("MatMul", (), ((3, 5, 16), (16,)), 240),
        ("MatMulInteger", (), (int8(5, 16), int8(16, 10)), 800),
        ("ConvInteger", (("group", 2),), (int8(1, 4, 8, 8), int8(6, 2, 3, 3)), 6 * 36 * 18),
        ("Conv", (("group", 2),), ((1, 4, 8, 8), (6, 2, 3, 3)), 6 * 36 * 18),
        ("ConvTranspose", (), ((1, 4, 5, 5), (4, 3, 2, 2)), 4 * 25 * 12),
        ("Gemm", (("transA", 1),), ((16, 5), (16, 10)), 800),
        ("Det", (), ((2, 3, 3),), 2 * 8),
        ("DFT", (("axis", 1),), ((1, 8, 1),), 8 * 3),
        ("DFT", (("axis", 1),), ((1, 8, 2),), 2 * 8 * 3),
        ("Attention", (), ((1, 2, 6, 8), (1, 2, 9, 8), (1, 2, 9, 4)), 2 * 6 * 9 * (8 + 4)),
    ],
)
def test_multiply_accumulates(
    op: str, attrs: Attrs, shapes: tuple[Shape, ...], products: int
) -> None:
    assert multiply_accumulates(op, attrs, shapes) == products


@pytest.mark.parametrize(
    ("rule", "updates"), [("linear", 1), ("gated", 1), ("delta", 2), ("gated_delta", 2)]
)
def test_linear_attention(rule: str, updates: int) -> None:
    """Per token: the update of each state, and the read of each query."""
    attrs: Attrs = (("kv_num_heads", 2), ("q_num_heads", 4), ("update_rule", rule))
    shapes: tuple[Shape, ...] = ((1, 5, 4 * 8), (1, 5, 2 * 8), (1, 5, 2 * 6))
    if "gated" in rule:
        shapes += ((1, 5, 2),)
        attrs = (*attrs[:1], ("positions", (0, 1, 2, 4)), *attrs[1:])
    if "delta" in rule:
        shapes += ((1, 5, 2),)
        positions = (0, 1, 2, 4, 5) if "gated" in rule else (0, 1, 2, 5)
        attrs = tuple(sorted({**dict(attrs), "positions": positions}.items()))
    assert multiply_accumulates("LinearAttention", attrs, shapes) == 5 * 8 * 6 * (2 * updates + 4)
