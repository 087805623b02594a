"""Claims about choosing a batch by expected hypervolume improvement or Thompson sampling."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nas.search.acquisition import (
    Boxes,
    choose_batch,
    choose_by_thompson,
    expected_improvement,
    free_boxes,
)
from nas.search.pareto import hypervolume


def _random_problem(seed: int, m: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A front (k, m), sampled candidates (6, 3, m), a reference point."""
    rng = np.random.default_rng(seed)
    return rng.random((rng.integers(0, 8), m)), rng.random((6, 3, m)) * 1.4 - 0.2, np.full(m, 1.1)


@given(seed=st.integers(0, 10_000), m=st.integers(1, 4))
@settings(deadline=None)
def test_improvement_is_the_hypervolume_that_a_point_adds(seed: int, m: int) -> None:
    front, samples, reference = _random_problem(seed, m)
    gains = expected_improvement(
        samples, np.ones((6, 3)), [Boxes(free_boxes(front, reference))] * 3
    )
    base = hypervolume(front, reference)
    expected = [
        np.mean([hypervolume(np.vstack([front, p]), reference) - base for p in draws])
        for draws in samples
    ]
    np.testing.assert_allclose(gains, expected, atol=1e-12)


@given(seed=st.integers(0, 10_000), m=st.integers(1, 3))
@settings(deadline=None)
def test_batch_is_chosen_greedily_by_what_it_adds_together(seed: int, m: int) -> None:
    front, samples, reference = _random_problem(seed, m)
    chosen = choose_batch(samples, np.ones((6, 3)), front, reference, 3)

    def value(batch: list[int]) -> float:
        return float(
            np.mean(
                [hypervolume(np.vstack([front, samples[batch, s]]), reference) for s in range(3)]
            )
        )

    for size in (1, 2, 3):
        best = max(value([*chosen[: size - 1], i]) for i in range(6) if i not in chosen[: size - 1])
        assert value(chosen[:size]) == pytest.approx(best)


@given(seed=st.integers(0, 10_000), m=st.integers(1, 3))
@settings(deadline=None)
def test_by_thompson_each_choice_is_the_best_if_its_sample_comes_true(seed: int, m: int) -> None:
    front, samples, reference = _random_problem(seed, m)
    chosen = choose_by_thompson(samples, np.ones((6, 3)), front, reference, 5)
    assert len(set(chosen)) == 5
    for place, best in enumerate(chosen):
        now = np.vstack([front, samples[chosen[:place], place % 3]])
        gains = [
            -1.0
            if i in chosen[:place]
            else hypervolume(np.vstack([now, samples[i, place % 3]]), reference)
            for i in range(6)
        ]
        assert gains[best] == pytest.approx(max(gains))


def test_two_equal_candidates_are_not_both_chosen() -> None:
    samples = np.array([[[0.2, 0.2]], [[0.2, 0.2]], [[0.1, 0.9]]])
    assert choose_batch(samples, np.ones((3, 1)), np.empty((0, 2)), np.ones(2), 2) == [0, 2]


def test_samples_that_break_a_constraint_add_nothing() -> None:
    samples = np.array([[[0.1, 0.1]], [[0.5, 0.5]]])
    for choose in (choose_batch, choose_by_thompson):
        assert choose(samples, np.array([[0.0], [1.0]]), np.empty((0, 2)), np.ones(2), 2)[0] == 1


@pytest.mark.parametrize("m", [2, 3, 4])
@pytest.mark.parametrize("choose", [choose_batch, choose_by_thompson])
def test_overflowing_volumes_do_not_stop_the_choice(
    m: int, choose: Callable[..., list[int]]
) -> None:
    rng = np.random.default_rng(0)
    samples, front = (-(10.0 ** rng.uniform(-10, 190, shape)) for shape in ((200, 4, m), (5, m)))
    assert len(set(choose(samples, rng.integers(0, 2, (200, 4)), front, np.ones(m), 5))) == 5


def test_a_batch_is_never_larger_than_the_candidates() -> None:
    assert sorted(
        choose_batch(np.zeros((2, 1, 2)), np.ones((2, 1)), np.zeros((1, 2)), np.ones(2), 5)
    ) == [0, 1]
