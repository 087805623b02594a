"""Axes as expressions over atoms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.subnetworks.axes import (
    Atom,
    atoms_of,
    concat,
    cut,
    is_fixed,
    labels_of,
    positions_of,
    product,
    size_of,
    unify,
)


def test_an_atom_is_split_into_heads_and_their_channels() -> None:
    features, heads, inner = Atom(12), Atom(3), Atom(4)
    unify(features, product([heads, inner]), "")
    assert list(atoms_of(features)) == [heads, inner]
    assert positions_of(features, {heads: np.array([0, 2])}).tolist() == [0, 1, 2, 3, 8, 9, 10, 11]
    assert positions_of(features, {inner: np.array([1])}).tolist() == [1, 5, 9]
    assert size_of(features, {heads: 2}) == 8


def test_two_concatenations_are_cut_at_all_borders() -> None:
    a, b, c, d = Atom(4), Atom(4), Atom(2), Atom(6)
    unify(concat([a, b]), concat([c, d]), "")
    assert [atom.size for atom in atoms_of(concat([a, b]))] == [2, 2, 4]
    assert list(atoms_of(concat([a, b]))) == list(atoms_of(concat([c, d])))


def test_halves_that_are_multiplied_are_one_atom() -> None:
    whole = Atom(8)
    left, right = cut(whole, 4) or pytest.fail("no cut")
    unify(left, right, "")
    (atom,) = set(atoms_of(whole))
    assert positions_of(whole, {atom: np.array([1, 3])}).tolist() == [1, 3, 5, 7]


def test_a_view_of_equal_halves_is_a_product() -> None:
    half = Atom(3)
    two, inner = Atom(2), Atom(3)
    unify(product([two, inner]), concat([half, half]), "")
    assert positions_of(concat([half, half]), {inner: np.array([0])}).tolist() == [0, 3]


def test_what_has_no_common_refinement_is_fixed() -> None:
    a, b = product([Atom(4), Atom(6)]), product([Atom(6), Atom(4)])
    unify(a, b, "another order")
    assert is_fixed(a)
    assert is_fixed(b)
    assert {atom.fixed for atom in atoms_of(a)} == {"another order"}


def test_a_fixed_axis_fixes_what_it_meets() -> None:
    a, b = Atom(6), product([Atom(2), Atom(3)])
    unify(Atom(6, "an input"), a, "")
    unify(a, b, "")
    assert is_fixed(b)


@given(st.lists(st.integers(2, 4), min_size=2, max_size=4))
def test_positions_of_products_are_those_of_an_array(sizes: list[int]) -> None:
    """A product of axes is a flattened array; removing positions of an atom removes the array's
    slices.
    """
    atoms = [Atom(size) for size in sizes]
    flat = Atom(int(np.prod(sizes)))
    unify(flat, product(atoms), "")
    array = np.arange(flat.size).reshape(sizes)
    rng = np.random.default_rng(sum(sizes))
    kept = {atom: np.sort(rng.permutation(atom.size)[: max(1, atom.size - 1)]) for atom in atoms}
    expected = array[np.ix_(*kept.values())].reshape(-1)
    assert positions_of(flat, kept).tolist() == expected.tolist()
    assert size_of(flat, {atom: len(places) for atom, places in kept.items()}) == expected.size
    places = np.indices(sizes)[0].reshape(-1)
    assert labels_of(flat, atoms[0]).tolist() == places.tolist()
