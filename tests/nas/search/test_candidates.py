"""Claims about candidates that evolve on predictions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from nas.search import candidates
from nas.search.candidates import MAX_TRIES, best_first, evolve
from search_spaces import Architecture, SearchSpace, get_space

SPACE = get_space("tiny-resnet")


def flops(architectures: Sequence[Architecture]) -> np.ndarray:
    return np.array([SPACE.flops(architecture) for architecture in architectures], dtype=float)


def test_candidates_are_distinct_new_and_better_than_random_ones() -> None:
    rng = np.random.default_rng(0)
    start = [SPACE.sample(rng) for _ in range(100)]
    found = evolve(SPACE, start, {*start}, 200, flops, rng)
    assert len(found) == len({*found}) == 200
    assert not {*found} & {*start}
    assert np.median(flops(found)) < 0.5 * np.median(flops(start))


def test_a_small_space_gives_all_architectures_that_are_left(switches: SearchSpace) -> None:
    every = list(switches.enumerate())
    seen = every[:3]
    found = evolve(
        switches, seen, {*seen}, 100, lambda some: np.zeros(len(some)), np.random.default_rng(0)
    )
    assert sorted(map(str, found)) == sorted(map(str, every[3:]))
    assert (
        evolve(
            switches,
            seen,
            {*every},
            100,
            lambda some: np.zeros(len(some)),
            np.random.default_rng(0),
        )
        == []
    )


def test_a_space_of_unknown_size_gives_what_is_left_and_ends_soon_if_nothing_is(
    switches: SearchSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    every, draw, drawn = list(switches.enumerate()), switches.sample, []

    def sample(rng: np.random.Generator) -> Architecture:
        drawn.append(draw(rng))
        return drawn[-1]

    def evolved(seen: list[Architecture]) -> list[Architecture]:
        return evolve(
            switches,
            every,
            {*seen},
            100,
            lambda some: np.zeros(len(some)),
            np.random.default_rng(0),
        )

    monkeypatch.setattr(type(switches), "size", None)
    assert sorted(map(str, evolved(every[:3]))) == sorted(map(str, every[3:]))
    monkeypatch.setattr(candidates, "RANDOM_SHARE", 1.0)
    monkeypatch.setattr(switches, "sample", sample)
    assert evolved(every) == []
    assert len(drawn) == MAX_TRIES * 100, "the tries of one generation"


@pytest.mark.parametrize("size", [1, 3, 7])
def test_a_few_candidates_are_found_too(size: int) -> None:
    rng = np.random.default_rng(0)
    start = [SPACE.sample(rng) for _ in range(10)]
    assert len(evolve(SPACE, start, {*start}, size, flops, rng)) == size


def test_equal_ranks_are_shuffled_after_lower_ones() -> None:
    ranks = np.array([1.0, 0.0, 1.0, 1.0, 0.0])
    orders = {tuple(best_first(ranks, np.random.default_rng(seed)).tolist()) for seed in range(20)}
    assert {frozenset(order[:2]) for order in orders} == {frozenset({1, 4})}
    assert len(orders) > 5


def test_each_generation_is_ranked_once() -> None:
    start = [SPACE.sample(np.random.default_rng(seed)) for seed in range(10)]
    for generations in (1, 2, 5):
        ranked: list[int] = []

        def rank(some: Sequence[Architecture], ranked: list[int] = ranked) -> np.ndarray:
            ranked.append(len(some))
            return flops(some)

        rng = np.random.default_rng(0)
        found = evolve(SPACE, start, {*start}, 20, rank, rng, generations=generations)
        assert len(found) == 20
        assert len(ranked) == generations
