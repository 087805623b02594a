"""Claims about scores as tokens."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.rlm.decoder import (
    MAX_NUMBER,
    MINUS,
    NUMBER_LENGTH,
    NUMBER_TOKENS,
    PLUS,
    ZERO,
    grammar,
    read_numbers,
    write_numbers,
)

SCORES = st.floats(-MAX_NUMBER, MAX_NUMBER)


@pytest.mark.parametrize(
    ("score", "sign", "written"),
    [
        (-1.234, MINUS, (1, 2, 3)),
        (0.0, PLUS, (0, 0, 0)),
        (-0.001, PLUS, (0, 0, 0)),
        (0.996, PLUS, (1, 0, 0)),
    ],
)
def test_scores_are_rounded_to_hundredths(
    score: float, sign: int, written: tuple[int, ...]
) -> None:
    assert write_numbers(np.array(score)).tolist() == [sign, *(ZERO + digit for digit in written)]


@given(SCORES)
def test_a_score_comes_back_within_half_a_hundredth(score: float) -> None:
    assert abs(read_numbers(write_numbers(np.array([score])))[0] - score) <= 0.005 + 1e-9


@given(SCORES, SCORES)
def test_written_scores_keep_their_order(one: float, other: float) -> None:
    low, high = read_numbers(write_numbers(np.sort([one, other])))
    assert low <= high


@given(st.floats(MAX_NUMBER, 1e300))
def test_scores_beyond_the_largest_are_clipped(score: float) -> None:
    np.testing.assert_allclose(
        read_numbers(write_numbers(np.array([score, -score]))), [MAX_NUMBER, -MAX_NUMBER]
    )


def test_the_grammar_allows_exactly_numbers() -> None:
    mask = grammar()
    assert mask.shape == (NUMBER_LENGTH, NUMBER_TOKENS)
    every = np.array(list(product(*(np.flatnonzero(row) for row in mask))))
    assert len(every) == 2 * 10**3
    numbers = read_numbers(every)
    assert len(np.unique(numbers)) == 1999  # plus and minus zero are one
    np.testing.assert_allclose(read_numbers(write_numbers(numbers)), numbers)
    assert mask[np.arange(NUMBER_LENGTH), write_numbers(np.linspace(-20, 20, 999))].all()
