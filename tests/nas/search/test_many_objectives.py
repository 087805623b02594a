"""Claims about searches with many objectives: they end in reasonable time and memory."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nas import Problem, Reference, create_sampler, parse_objectives, search
from nas.search.acquisition import RAYS, Boxes, Rays, choose_batch, free_boxes, free_region
from nas.search.pareto import MAX_EXACT_OBJECTIVES, hypervolume
from nas.search.progress import GrowingFront, SearchProgress
from search_spaces import Architecture, InputError
from tests.nas.search.spaces import Widths


class Random:
    """Random values: with many objectives, every network is on the front."""

    def __init__(self, m: int) -> None:
        self.metrics = tuple(f"m{i}" for i in range(m))

    def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
        draws = [random.Random(str(architecture)) for architecture in architectures]
        return np.array([[draw.random() for _ in self.metrics] for draw in draws])


def front_of(n: int, m: int, seed: int = 0) -> np.ndarray:
    """Losses (n, m) on a sphere, none of which dominates another."""
    points = np.abs(np.random.default_rng(seed).standard_normal((n, m)))
    return 1 - points / np.linalg.norm(points, axis=1, keepdims=True)


@pytest.mark.parametrize(
    "sampler", ["random", "tpe", "nsga3", pytest.param("ridge", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("m", [20, 12, 10, 6])
def test_a_search_ends_with_progress_result_and_reference(m: int, sampler: str) -> None:
    evaluator, seen = Random(m), list[SearchProgress]()
    goals = ",".join(f"{metric}:min" for metric in evaluator.metrics)
    started = time.process_time()
    result = search(
        Problem(Widths(), evaluator, goals),
        sampler=sampler,
        evaluations=60 if sampler != "ridge" else 16,
        progress=seen.append,
    )
    volumes = [now.hypervolume for now in seen if now.hypervolume is not None]
    assert 0 < result.hypervolume([1.1] * m) < 1.1**m
    reference = Reference.of_table(result.evaluated.values, result.objectives)
    assert reference.ratio(result.evaluated.values) == pytest.approx(1.0)
    curve = reference.curve(result.evaluated.values)
    assert (np.diff(curve) >= 0).all()
    assert curve[-1] == pytest.approx(1.0)
    assert len(volumes) > 1
    assert (np.diff(volumes) >= 0).all()
    assert time.process_time() - started < 60  # seconds; the exact hypervolume would take days


@pytest.mark.parametrize(("n", "m"), [(60, 6), (200, 6), (60, 7), (30, 8), (20, 9)])
def test_the_estimate_is_near_the_exact_hypervolume(n: int, m: int) -> None:
    import moocore

    assert m > MAX_EXACT_OBJECTIVES
    front, reference = front_of(n, m), np.full(m, 1.1)
    exact = float(moocore.hypervolume(front, ref=reference))
    assert hypervolume(front, reference) == pytest.approx(exact, rel=0.02)


@given(seed=st.integers(0, 10_000), m=st.integers(6, 12), n=st.integers(1, 12))
@settings(deadline=None, max_examples=25)
def test_a_better_front_never_has_a_lower_estimate(seed: int, m: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    losses, reference = rng.random((n, m)), np.full(m, 1.1)
    volume = hypervolume(losses, reference)
    better = losses - rng.random((n, m)) * rng.integers(0, 2, size=(n, m)) / 2
    assert hypervolume(better, reference) >= volume
    assert hypervolume(np.vstack([losses, rng.random((1, m))]), reference) >= volume
    growing = GrowingFront(m)
    volumes = [growing.hypervolume for point in rng.random((20, m)) if growing.add(point) or True]
    assert (np.diff(volumes[10:]) >= 0).all()


@given(seed=st.integers(0, 10_000), m=st.integers(2, 5))
@settings(deadline=None, max_examples=25)
def test_improvements_by_rays_are_near_those_by_boxes(seed: int, m: int) -> None:
    rng = np.random.default_rng(seed)
    front, points, reference = front_of(10, m, seed), rng.random((20, m)), np.full(m, 1.1)
    exact = Boxes(free_boxes(front, reference)).gains(points)
    rays = Rays.of(front, reference)
    whole = hypervolume(np.zeros((1, m)), reference)
    np.testing.assert_allclose(rays.gains(points), exact, atol=5 * whole / np.sqrt(RAYS))
    assert (rays.gains(front) == 0).all()
    assert (rays.cut(points[0]).gains(points[:1]) == 0).all()
    assert (rays.gains(points + 2.0) == 0).all()  # beyond the reference point


@pytest.mark.parametrize("m", [4, 5, 6, 8, 12])
def test_a_batch_is_chosen_in_seconds_and_prefers_what_dominates(m: int) -> None:
    front = front_of(100, m)
    samples = np.repeat(front_of(200, m, 1)[:, None], 32, axis=1)
    samples[17] -= 0.3
    started = time.process_time()
    chosen = choose_batch(samples, np.ones((200, 32)), front, np.full(m, 1.1), 5)
    assert chosen[0] == 17
    assert time.process_time() - started < 30
    assert isinstance(free_region(front, np.full(m, 1.1)), Rays)


def test_optunas_gp_is_refused_where_it_needs_gigabytes() -> None:
    for m in (4, 6, 12):
        goals = ",".join(f"m{i}:min" for i in range(m))
        with pytest.raises(InputError, match=f"{m} objectives: with more than 3, use gp, .* nsga3"):
            create_sampler("optuna-gp", Widths(), goals)
        with pytest.raises(InputError, match="use gp"):
            search(
                Problem(Widths(), Random(m), goals),
                sampler=optuna.samplers.GPSampler(seed=0),
                evaluations=5,
            )
    assert create_sampler("optuna-gp", Widths(), parse_objectives("a,b,c"))
