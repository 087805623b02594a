"""Claims about a search's first design: all sizes, and better networks than random ones of the same sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nas import load_benchmark
from nas.searching.startup import DRAWS_PER_ARCHITECTURE, first_design
from search_spaces import Architecture, SearchSpace, get_space


@pytest.mark.slow
def test_a_first_design_is_better_than_random_networks(nas_data: Path) -> None:
    table = load_benchmark("nasbench201")

    def accuracy(archs: list[Architecture]) -> float:
        return float(np.mean([table.query(arch)["cifar10_validation_accuracy"] for arch in archs]))

    rngs = [np.random.default_rng(seed) for seed in range(3)]
    random = [accuracy([table.space.sample(rng) for _ in range(100)]) for rng in rngs]
    assert all(accuracy(first_design(table.space, 10, rng)) > max(random) for rng in rngs)


def test_a_first_design_holds_one_network_of_each_tenth_of_sizes() -> None:
    space, rng = get_space("nasbench201", channels=4, cells=1), np.random.default_rng(0)
    design = first_design(space, 10, rng)
    same = np.random.default_rng(0)
    drawn = dict.fromkeys(space.sample(same) for _ in range(10 * DRAWS_PER_ARCHITECTURE))
    groups = np.array_split(np.sort([space.flops(arch) for arch in drawn]), 10)
    flops = [space.flops(arch) for arch in design]
    assert all(group[0] <= found <= group[-1] for group, found in zip(groups, flops, strict=True))


def test_a_small_space_is_taken_whole(switches: SearchSpace) -> None:
    assert len(set(first_design(switches, 50, np.random.default_rng(0)))) == switches.size
