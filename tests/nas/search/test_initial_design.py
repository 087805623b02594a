"""Claims about a search's initial design: networks of all costs that differ."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import rankdata

from nas.search.initial_design import DRAWS_PER_ARCHITECTURE, initial_design
from predictors import Predictor, create
from predictors.rlm.predictor import RLM
from predictors.rlm.tokens import learned_features
from search_spaces import Architecture, SearchSpace, Subnetworks, get_space


@pytest.mark.slow
def test_networks_of_an_initial_design_differ_more_than_random_ones() -> None:
    space, reader = get_space("nasbench201", channels=4, cells=1), RLM()

    def nearest(architectures: list[Architecture]) -> float:
        """Mean distance of each network's state to the nearest other one's."""
        states = learned_features(
            reader.states([space.to_text(architecture) for architecture in architectures])
        )
        distances = np.linalg.norm(states[:, None] - states, axis=-1) + 1e9 * np.eye(len(states))
        return float(distances.min(1).mean())

    rngs = [np.random.default_rng(seed) for seed in range(4)]
    random = np.mean([nearest([space.sample(rng) for _ in range(12)]) for rng in rngs])
    assert np.mean([nearest(initial_design(space, 12, rng)) for rng in rngs]) > 1.1 * random


def test_an_initial_design_holds_one_network_of_each_tenth_of_costs() -> None:
    """The cost of a network is its rank in FLOPs plus its rank in the number of operators."""
    space, rng = get_space("nasbench201", channels=4, cells=1), np.random.default_rng(0)
    design = initial_design(space, 10, rng)
    same = np.random.default_rng(0)
    drawn = list(dict.fromkeys(space.sample(same) for _ in range(10 * DRAWS_PER_ARCHITECTURE)))
    flops = rankdata([space.flops(one) for one in drawn])
    operators = rankdata([len(space.graph(one).nodes) for one in drawn])
    cost = dict(zip(drawn, (flops + operators).tolist(), strict=True))
    groups = np.array_split(sorted(cost.values()), 10)
    for architecture, group in zip(design, groups, strict=True):
        assert group[0] <= cost[architecture] <= group[-1]


def test_an_initial_design_is_promising_by_predicted_proxies() -> None:
    space, reader = get_space("nasbench201", channels=4, cells=1), RLM()
    design = initial_design(space, 12, np.random.default_rng(0))
    random = [space.sample(np.random.default_rng(seed)) for seed in range(60)]
    proxies = reader.proxies([space.to_text(architecture) for architecture in (*design, *random)])
    ranks = proxies.argsort(0).argsort(0).mean(1)
    assert ranks[: len(design)].mean() > 1.1 * ranks[len(design) :].mean()


def test_an_initial_design_is_that_of_the_rlm_that_guides_the_search() -> None:
    space = get_space("nasbench201", channels=4, cells=1)

    def design(predictor: Predictor | None) -> list[Architecture]:
        return initial_design(space, 8, np.random.default_rng(0), predictor=predictor)

    assert design(RLM()) == design(create("ridge")) == design(None)
    assert design(RLM(base="rlm-generated")) != design(RLM())


def test_a_small_space_is_taken_whole(switches: SearchSpace) -> None:
    assert len(set(initial_design(switches, 50, np.random.default_rng(0)))) == switches.size


def test_a_first_design_begins_with_the_networks_that_the_space_proposes() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3),
        torch.nn.ReLU(),
        torch.nn.Conv2d(32, 32, 3),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(32, 10),
    )
    space = Subnetworks(model, torch.zeros(1, 3, 8, 8))
    proposed = space.initial_designs(6)
    design = initial_design(space, 8, np.random.default_rng(0))
    assert design[: len(proposed)] == proposed
    assert design[0] == space.whole
    assert len(set(design)) == 8
    assert set(initial_design(space, 50, np.random.default_rng(0))) == {*space.enumerate()}
