"""Claims about the sketch of the lines around each line."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from predictors.rlm.tokens import NEIGHBOURS, neighbour_sketch, tokenize
from search_spaces import get_space

CHAIN = np.array([[0, 1, 2], [1, 2, 3]])  # edges of four lines in a row


def of(words: list[int], edges: np.ndarray) -> np.ndarray:
    """The sketch of lines of one word each."""
    return neighbour_sketch(np.array(words), np.ones(len(words), int), edges)


@given(st.permutations(range(5)))
def test_the_order_of_lines_does_not_matter(order: list[int]) -> None:
    words, edges = np.array([3, 1, 4, 1, 5]), np.array([[0, 0, 1, 2, 3], [1, 2, 3, 3, 4]])
    place = np.argsort(order)
    assert (of(words[order].tolist(), place[edges]) == of(words.tolist(), edges)).all()


def test_equal_operators_in_another_order_or_direction_differ() -> None:
    found = [of([1, 2, 3, 4], CHAIN), of([1, 3, 2, 4], CHAIN), of([4, 3, 2, 1], CHAIN)]
    assert not (found[0] == found[1]).all()
    assert not (found[0] == found[2]).all()


def test_copies_add_up() -> None:
    once = of([1, 2, 3, 4], CHAIN)
    assert (of([1, 2, 3, 4] * 2, np.concatenate([CHAIN, CHAIN + 4], 1)) == 2 * once).all()


def test_signs_of_different_kinds_are_almost_orthogonal() -> None:
    none = np.zeros((2, 0), int)
    signs = np.stack([of([word], none) for word in range(200)])
    cosines = (signs @ signs.T) / (
        np.linalg.norm(signs, axis=1)[:, None] * np.linalg.norm(signs, axis=1)
    )
    assert np.abs(cosines - np.eye(200)).max() < 6 * NEIGHBOURS**-0.5


def test_wider_networks_of_one_structure_have_one_sketch() -> None:
    texts = []
    for channels in (8, 16):
        space = get_space("nasbench201", channels=channels)
        texts.append(space.to_text(space.sample(np.random.default_rng(0))))
    narrow, wide = (tokenize(text) for text in texts)
    assert (narrow.neighbours == wide.neighbours).all()
    assert not (narrow.counts == wide.counts).all()
