"""Dimensions of shapes: numbers, symbols, and products such as N_8 (8 · N) and N_L."""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import Any

from search_spaces.common.errors import InputError
from search_spaces.ir.graph import BATCH, UNKNOWN, Attrs, Dim, Shape


def positive(attrs: Attrs, name: str) -> int:
    """The attribute as an integer; InputError unless it is positive."""
    given: dict[str, Any] = dict(attrs)
    if int(given[name]) < 1:
        raise InputError(f"{name} must be positive, not {given[name]}")
    return int(given[name])


def known_size(size: Dim) -> int:
    """The dimension as a number; InputError if it is symbolic."""
    if isinstance(size, str):
        raise InputError(
            f"a size that must be a number is {size!r}: export the model with that dimension fixed"
        )
    return size


def misfit(op: str, attrs: Attrs, shapes: tuple[Shape, ...]) -> InputError:
    """Error for attributes that an operator cannot have on inputs of these shapes."""
    return InputError(
        f"operator {op} does not take attributes {dict(attrs)} on shapes "
        f"{', '.join(map(str, shapes))}"
    )


def monomial(shape: Shape) -> tuple[int, Counter[str]]:
    """The product of the dimensions: its numerical factor, and the multiplicity of each symbol."""
    factors = [part for dim in shape for part in str(dim).split("_")]
    letters = Counter(part for part in factors if not part.isdecimal())
    return prod(int(part) for part in factors if part.isdecimal()), letters


def size_product(shape: Shape, divisor: int = 1, without: Counter[str] | None = None) -> Dim:
    """The product of the dimensions, divided by a number and by symbols; unknown if a dimension
    is.
    """
    if UNKNOWN in shape:
        return UNKNOWN
    value, letters = monomial(shape)
    value, letters = value // divisor, letters - (without or Counter())
    names = sorted(letters.elements(), key=lambda letter: (letter != BATCH, letter))
    return "_".join([*names, *([str(value)] if value != 1 else [])]) if names else value


def size_quotient(shape: Shape, others: Shape) -> Dim:
    """The missing dimension of a reshape: elements of `shape` divided by the product of the other
    dimensions.

    Raises:
        InputError: if the others do not divide the number of elements.
    """
    if UNKNOWN in (*shape, *others):
        return UNKNOWN
    (total, letters), (part, known) = monomial(shape), monomial(others)
    if part == 0 or total % part or known - letters:
        raise InputError(f"Reshape from {shape} by {others} changes the number of values")
    return size_product(shape, part, known)


def count(shape: Shape) -> int:
    """Number of elements for a batch of one; InputError if another dimension is not a number."""
    value, letters = monomial(shape)
    letters.pop(BATCH, None)
    if letters:
        raise InputError(
            f"costs need numbers, but a shape is {list(shape)}: export the model with fixed sizes"
        )
    return value
