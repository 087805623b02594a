"""Axes of tensors as expressions over atoms, and the unification that couples them.

An *atom* is a set of positions that are kept or removed together everywhere: 64 channels of a
residual stream, 12 attention heads. The axes of all tensors of a network are expressions over
atoms:

    Product(heads, features of a head)      a flattened axis; the first factor varies slowest
    Concat(channels, other channels)        a concatenation
    Product(3, heads, features of a head)   the rows of a fused query, key and value

Operators state which axes are equal. `unify` makes two expressions equal by refining atoms:
splitting 768 into (12, 64), or 256 into 128 and 128. Where no common refinement exists, all atoms
involved are fixed: they stay whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count
from math import prod

import numpy as np

from search_spaces.ir.graph import BATCH, Dim
from search_spaces.ir.pytorch.recorder import BATCH_SIZE

_serials = count()


@dataclass(eq=False)
class Atom:
    """Positions that are kept or removed one by one.

    Attributes:
        size: number of positions.
        fixed: why all positions stay; "" if they may be removed.
        bound: the expression that replaces the atom after a refinement.
        serial: order of creation, for a reproducible order of atoms.
    """

    size: int
    fixed: str = ""
    bound: Axis | None = None
    serial: int = field(default_factory=lambda: next(_serials))


@dataclass(frozen=True, eq=False)
class Product:
    """A flattened axis; the first factor varies slowest."""

    factors: tuple[Axis, ...]
    size: int


@dataclass(frozen=True, eq=False)
class Concat:
    """A concatenation."""

    terms: tuple[Axis, ...]
    size: int


Axis = Atom | Product | Concat
Kept = Mapping[Atom, np.ndarray]
"""Sorted positions that stay, by atom; an atom that is missing stays whole."""


def number_of(dim: Dim) -> int:
    """The size of a dimension during the recording; N_3 is three times the batch size."""
    return prod(BATCH_SIZE if part == BATCH else int(part) for part in str(dim).split("_"))


def fixed(size: int, reason: str) -> Axis:
    """A new axis that stays whole."""
    return Atom(size, reason)


def fresh(dim: Dim, reason: str = "") -> Axis:
    """A new axis for a dimension of a shape; the batch is a factor that stays."""
    factors: list[Axis] = []
    for part in str(dim).split("_"):
        size = number_of(part)
        why_batch = "the batch" if size == BATCH_SIZE else ""
        factors.append(Atom(size, reason or why_batch))
    return product(factors)


def product(factors: Sequence[Axis]) -> Axis:
    """The product of axes; factors of size 1 are dropped."""
    kept = [factor for factor in factors if factor.size != 1]
    if not kept:
        return Atom(1, "size 1")
    if len(kept) == 1:
        return kept[0]
    size = prod(factor.size for factor in kept)
    return Product(tuple(kept), size)


def concat(terms: Sequence[Axis]) -> Axis:
    """The concatenation of axes."""
    if len(terms) == 1:
        return terms[0]
    size = sum(term.size for term in terms)
    return Concat(tuple(terms), size)


def resolve(axis: Axis) -> Axis:
    """The axis after the refinements of its outermost atom."""
    while isinstance(axis, Atom) and axis.bound is not None:
        axis = axis.bound
    return axis


def factors_of(axis: Axis) -> list[Axis]:
    """The axis as a flat list of factors, none of which is a product."""
    axis = resolve(axis)
    if not isinstance(axis, Product):
        return [axis]
    return [inner for factor in axis.factors for inner in factors_of(factor)]


def terms_of(axis: Axis) -> list[Axis]:
    """The axis as a flat list of terms, none of which is a concatenation.

    An example: (a + b) · c is a · c + b · c.
    """
    axis = resolve(axis)
    if isinstance(axis, Concat):
        return [inner for term in axis.terms for inner in terms_of(term)]
    if isinstance(axis, Product):
        first, *others = factors_of(axis)
        if isinstance(first, Concat):
            terms = []
            for term in terms_of(first):
                terms += terms_of(product([term, *others]))
            return terms
    return [axis]


def atoms_of(axis: Axis) -> Iterator[Atom]:
    """The atoms of an axis in order, with repetitions."""
    axis = resolve(axis)
    if isinstance(axis, Atom):
        yield axis
    else:
        for part in axis.factors if isinstance(axis, Product) else axis.terms:
            yield from atoms_of(part)


def fix(axis: Axis, reason: str) -> None:
    """Let all positions of an axis stay; the first reason of an atom counts."""
    for atom in atoms_of(axis):
        atom.fixed = atom.fixed or reason


def is_fixed(axis: Axis) -> bool:
    """True if all positions stay."""
    return all(atom.fixed for atom in atoms_of(axis))


def unify(a: Axis, b: Axis, reason: str) -> None:
    """Make two axes of the same size equal.

    Args:
        a: an axis.
        b: an axis.
        reason: why the atoms are fixed if there is no common refinement.
    """
    a = resolve(a)
    b = resolve(b)
    if a is b or (is_fixed(a) and is_fixed(b)):
        return
    if a.size != b.size:
        fix(a, reason)
        fix(b, reason)
        return

    # 1. An atom is replaced by the other axis; of two atoms, one that is not fixed.
    if isinstance(b, Atom) and not (isinstance(a, Atom) and b.fixed):
        a, b = b, a
    if isinstance(a, Atom):
        if a.fixed:
            fix(b, a.fixed)
        a.bound = b
        return

    # 2. Expressions are refined until their parts are equal.
    left = terms_of(a)
    right = terms_of(b)
    if len(left) > 1 or len(right) > 1:
        _unify_terms(left, right, reason)
    else:
        _unify_factors(factors_of(a), factors_of(b), reason)


def _unify_terms(left: list[Axis], right: list[Axis], reason: str) -> None:
    """Unify two concatenations of the same size from the first position on."""
    # 1. Such as (a + a) and (2, n): equal terms side by side are a product with their number.
    if not _cuts_exist(left, right):
        for terms, others in ((left, right), (right, left)):
            are_equal = len({term.size for term in terms}) == 1
            if len(others) == 1 and are_equal:
                first, *copies = terms
                for term in copies:
                    unify(first, term, reason)
                number = Atom(len(terms), "a number of parts")
                factors = [number, *factors_of(first)]
                _unify_factors(factors, factors_of(others[0]), reason)
                return

    # 2. Term by term: the longer one of two is cut. The next term is the last item.
    left = left[::-1]
    right = right[::-1]
    while left and right:
        x = left.pop()
        y = right.pop()
        size = min(x.size, y.size)
        if x.size != y.size:
            longer, following = (x, left) if x.size > size else (y, right)
            halves = cut(longer, size)
            if halves is None:
                for axis in (x, y, *left, *right):
                    fix(axis, reason)
                return
            head, tail = halves
            following.append(tail)
            x, y = (head, y) if longer is x else (x, head)
        unify(x, y, reason)


def _cuts_exist(left: list[Axis], right: list[Axis]) -> bool:
    """True if both concatenations can be cut where the other one has a border."""
    borders_of_left = set(accumulate(term.size for term in left))
    borders_of_right = set(accumulate(term.size for term in right))
    for terms, borders in ((left, borders_of_right), (right, borders_of_left)):
        start = 0
        for term in terms:
            # Only an atom can be cut, the slowest factor of a product.
            borders_inside = [border - start for border in borders]
            borders_inside = [border for border in borders_inside if 0 < border < term.size]
            slowest = factors_of(term)[0]
            if borders_inside and not isinstance(slowest, Atom):
                return False
            inner_size = term.size // slowest.size
            if any(border % inner_size for border in borders_inside):
                return False
            start += term.size
    return True


def _unify_factors(left: list[Axis], right: list[Axis], reason: str) -> None:
    """Unify two products of the same size.

    It begins with the slowest factors, and continues with the fastest ones where that fails.
    """
    left = list(left)
    right = list(right)
    for end in (0, -1):
        while left and right:
            x = left[end]
            y = right[end]
            if x.size == y.size:
                unify(x, y, reason)
                left.pop(end)
                right.pop(end)
                continue
            # The larger one is split, so that its outermost part is as large as the other.
            if x.size > y.size:
                factors, large, small = left, x, y
            else:
                factors, large, small = right, y, x
            parts = _factorized(large, small.size, outer=end == 0)
            if parts is None:
                break
            factors.pop(end)
            if end == 0:
                factors[:0] = parts
            else:
                factors += parts
    for axis in (*left, *right):
        fix(axis, reason)


def _factorized(axis: Axis, size: int, outer: bool) -> list[Axis] | None:
    """The axis as two factors; None if it has no such factors.

    size: that of the outer factor if `outer`, else that of the inner one.
    """
    axis = resolve(axis)
    if axis.size % size:
        return None
    other_size = axis.size // size
    first, second = (size, other_size) if outer else (other_size, size)
    if isinstance(axis, Atom):
        parts = [Atom(first, axis.fixed), Atom(second, axis.fixed)]
        axis.bound = product(parts)
        return factors_of(axis)
    # Equal terms side by side are a product with their number.
    terms = terms_of(axis)
    are_equal = len({term.size for term in terms}) == 1
    if len(terms) == first and are_equal:
        for term in terms[1:]:
            unify(terms[0], term, "parts of a concatenation")
        return [Atom(first, "a number of parts"), terms[0]]
    return None


def cut(axis: Axis, position: int) -> tuple[Axis, Axis] | None:
    """The axis before and from a position inside of it.

    None if the cut is inside of a product's inner factors.
    """
    terms = terms_of(axis)
    start = 0
    for i, term in enumerate(terms):
        before = terms[:i]
        behind = terms[i + 1 :]
        inside = position - start
        if inside == 0:
            return concat(before), concat([term, *behind])
        if inside < term.size:
            halves = _cut_term(term, inside)
            if halves is None:
                return None
            left, right = halves
            return concat([*before, left]), concat([right, *behind])
        start += term.size
    return None


def _cut_term(term: Axis, position: int) -> tuple[Axis, Axis] | None:
    """A term before and from a position: its slowest factor is cut."""
    first, *others = factors_of(term)
    inner = prod(factor.size for factor in others)
    if position % inner or not isinstance(first, Atom):
        return None
    size = position // inner
    left = Atom(size, first.fixed)
    right = Atom(first.size - size, first.fixed)
    first.bound = Concat((left, right), first.size)
    return product([left, *others]), product([right, *others])


# --- sizes and positions of a choice


def size_of(axis: Axis, sizes: Mapping[Atom, int]) -> int:
    """The size of an axis, given the new sizes of atoms."""
    axis = resolve(axis)
    if isinstance(axis, Atom):
        return sizes.get(axis, axis.size)
    if isinstance(axis, Product):
        return prod([size_of(factor, sizes) for factor in axis.factors])
    return sum([size_of(term, sizes) for term in axis.terms])


def positions_of(axis: Axis, kept: Kept) -> np.ndarray:
    """The positions (k,) of an axis that stay, in order."""
    axis = resolve(axis)
    if isinstance(axis, Atom):
        return kept[axis] if axis in kept else np.arange(axis.size)
    if isinstance(axis, Concat):
        start = 0
        parts = []
        for term in axis.terms:
            parts.append(start + positions_of(term, kept))
            start += term.size
        return np.concatenate(parts)
    positions = np.zeros(1, dtype=int)
    for factor in axis.factors:
        starts = positions[:, None] * factor.size
        positions = (starts + positions_of(factor, kept)).reshape(-1)
    return positions


def labels_of(axis: Axis, atom: Atom) -> np.ndarray:
    """For each position of an axis, the position of an atom that it belongs to, or -1."""
    axis = resolve(axis)
    if isinstance(axis, Atom):
        return np.arange(axis.size) if axis is atom else np.full(axis.size, -1)
    if isinstance(axis, Concat):
        return np.concatenate([labels_of(term, atom) for term in axis.terms])
    labels = np.full(1, -1)
    for factor in axis.factors:
        own = labels_of(factor, atom)
        labels = np.where(own >= 0, own, labels[:, None]).reshape(-1)
    return labels
