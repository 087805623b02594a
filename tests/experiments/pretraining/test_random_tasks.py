"""Claims about the random tasks that the in-context decoder is pretrained on."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.pretraining.random_tasks import Prior, SpaceStates, draw_task
from predictors.rlm.kernel_regression import COVARIATES, FEATURES
from predictors.rlm.model import Task
from predictors.rlm.tokens import COMMON, COUNTS, NEIGHBOURS, QUALITY

NETWORKS, FREE = 90, 40


def _space(seed: int, with_proxies: bool = True) -> SpaceStates:
    rng = np.random.default_rng(seed)
    states = (
        rng.standard_normal((NETWORKS, 6))
        @ rng.standard_normal((6, FREE + QUALITY + COUNTS + NEIGHBOURS + COMMON))
        + 5 * rng.standard_normal()
    )
    others = rng.standard_normal((NETWORKS, 8 if with_proxies else 0))
    others[:3, :1] = np.nan
    return SpaceStates.of(states, rng.standard_normal((NETWORKS, 5)), others)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(6, 50))
def test_tasks_are_finite_and_on_the_scale_of_their_examples(seed: int, n: int) -> None:
    task = draw_task([_space(0), _space(1, False)], n, 32, np.random.default_rng(seed))
    assert task.examples.shape == (n, FEATURES)
    assert task.queries.shape == (32, FEATURES)
    for part in (task.examples, task.queries, task.example_targets, task.query_targets):
        assert np.isfinite(part).all()
    assert np.abs(np.median(task.example_targets)) < 1.5


def _spread_ratio(task: Task) -> float:
    """Root mean square of the queries' coordinates over that of the examples', without size and
    covariates.
    """
    used = slice(0, FEATURES - COVARIATES - COMMON - 3)
    return float(
        np.sqrt((task.queries[:, used] ** 2).mean() / (task.examples[:, used] ** 2).mean())
    )


@cache
def _share_beyond(extrapolating: float = Prior.extrapolating) -> float:
    """Share of tasks whose queries lie well beyond their examples."""
    spaces, prior = [_space(0), _space(1)], Prior(extrapolating=extrapolating)
    tasks = (draw_task(spaces, 40, 32, np.random.default_rng(i), prior) for i in range(300))
    return float(np.mean([_spread_ratio(task) > 1.3 for task in tasks]))


@pytest.mark.slow
def test_queries_lie_beyond_their_examples_as_often_as_the_prior_says() -> None:
    assert 0.05 < _share_beyond() < 0.45
    assert _share_beyond(1.0) > 0.6
    assert _share_beyond(0.0) < _share_beyond()


def test_the_same_generator_draws_the_same_task() -> None:
    a, b = (draw_task([_space(0)], 20, 32, np.random.default_rng(3)) for _ in range(2))
    np.testing.assert_array_equal(a.queries, b.queries)
    np.testing.assert_array_equal(a.query_targets, b.query_targets)
