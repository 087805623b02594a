"""Multiply-accumulates of single operators."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from math import prod
from typing import Any

from search_spaces.graph.convolutions import CONVOLUTIONS
from search_spaces.graph.dimensions import count, known_size, positive
from search_spaces.graph.ir import Attrs, Dim, Shape
from search_spaces.graph.operators import output_shape
from search_spaces.graph.owned_weights import RECURRENT, weights


@lru_cache(maxsize=65536)
def multiply_accumulates(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> int:
    """Multiply-accumulates of one node for a batch of one.

    Convolutions, linear and recurrent layers and matrix products count, other operators are 0.

    Raises:
        InputError: if a size that counts is not a number.
    """
    if op in (*CONVOLUTIONS, "ConvTranspose") and len(shapes) == 1:
        weight = weights(op, attrs, shapes)[0]
        moved = shapes[0] if op == "ConvTranspose" else output_shape(op, attrs, shapes)
        return prod(weight.shape) * count((moved[0], *moved[2:]))
    if op == "Linear":
        return count(shapes[0]) * positive(attrs, "features")
    if op in ("MatMul", "Gemm", "Conv", "Einsum", "Attention", *RECURRENT):
        return _products(op, attrs, shapes)
    return 0


def _products(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> int:
    """Multiply-accumulates of operators that multiply two inputs, and of recurrent layers."""
    given: dict[str, Any] = dict(attrs)
    output = output_shape(op, attrs, shapes)
    if op in RECURRENT:
        hidden = int(given["hidden_size"])
        directions = 2 if given.get("direction") == "bidirectional" else 1
        return count(shapes[0][:-1]) * directions * RECURRENT[op] * hidden * (known_size(shapes[0][-1]) + hidden)
    if op == "Einsum":
        return _einsum(given["equation"].replace(" ", ""), shapes)
    if op == "Attention":
        # queries times keys, then attention weights times values
        keys = known_size(shapes[1][-2])
        pairs = count(shapes[0]) * keys
        return pairs + count(output) * keys
    if op == "Conv":
        return count(output) * count(shapes[1][1:])
    inner = shapes[0][-2] if op == "Gemm" and given.get("transA") else shapes[0][-1]
    return count((*output, inner))


def _einsum(equation: str, shapes: tuple[Shape, ...]) -> int:
    """Multiply-accumulates of an Einsum that multiplies its operands from left to right, as ONNX Runtime does."""
    inputs, _, output = equation.partition("->")
    terms = [_indices(term, len(shape)) for term, shape in zip(inputs.split(","), shapes, strict=True)]
    sizes: dict[str, Dim] = {}
    for term, shape in zip(terms, shapes, strict=True):
        sizes |= {index: size for index, size in zip(term, shape, strict=True) if sizes.get(index, 1) == 1}
    times = Counter("".join(terms))
    last = _indices(output, len(sizes)) if output else [i for i, n in times.items() if n == 1 or i.isdigit()]
    total, held = 0, set(terms[0])
    for i, term in enumerate(terms[1:], start=2):
        held |= set(term)
        total += count(tuple([sizes[index] for index in held]))
        held &= set("".join(terms[i:])) | set(last)
    return total


def _indices(term: str, rank: int) -> str:
    """The indices of a term; digits stand for the dimensions of an ellipsis, the last one for the last of them."""
    named = term.replace("...", "")
    return term.replace("...", "".join(map(str, range(len(named) - rank, 0))).replace("-", ""))
