"""Claims about `profile`: counts are exact, limits at the ends of a space are noticed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import nas
from search_spaces import SearchSpace, Subnetworks, get_space
from search_spaces.common.errors import InputError


@pytest.fixture
def space() -> Subnetworks:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    return Subnetworks(nn.Sequential(*layers), torch.zeros(1, 3, 8, 8), name="plain")


def test_the_counts_of_a_small_space_are_those_of_all_its_networks(space: Subnetworks) -> None:
    costs = nas.profile(space, samples=300)
    flops = [space.flops(arch) for arch in space.enumerate()]
    row = costs.table.loc["flops"]
    assert (row["min"], row["max"]) == (min(flops), max(flops))
    assert row["median"] == np.median(flops)
    assert row["networks"] == len(flops)


def test_a_limit_that_only_the_smallest_network_keeps_is_reachable() -> None:
    space = get_space("nasbench201", channels=4, cells=1)
    least = min(space.flops(arch) for arch in space.enumerate())
    costs = nas.profile(space, f"flops <= {least}", samples=20)
    (limit,) = costs.limits
    assert costs.reachable
    assert limit.nearest == least
    assert limit.share < 0.2
    assert not nas.profile(space, f"flops <= {least - 1}", samples=20).reachable


def test_the_share_is_that_of_random_networks(space: Subnetworks) -> None:
    params = [space.params(arch) for arch in space.enumerate()]
    bound = int(np.median(params))
    (limit,) = nas.profile(space, f"params <= {bound}", samples=300).limits
    assert limit.share == np.mean(np.array(params) <= bound)
    assert limit.networks == len(params)


def test_latencies_are_measured_for_some_networks(space: Subnetworks) -> None:
    costs = nas.profile(space, "cpu_latency_ms <= 1000", samples=30, measured=2)
    assert costs.table.loc["cpu_latency_ms", "networks"] == 2
    assert 0 < costs.table.loc["cpu_latency_ms", "min"] < 1000
    assert [limit.share for limit in costs.limits] == [1]


def test_what_needs_a_training_is_refused(switches: SearchSpace) -> None:
    with pytest.raises(InputError, match=r"accuracy.*trains nothing"):
        nas.profile(switches, "digits_accuracy >= 90")
    with pytest.raises(InputError, match="at least 1"):
        nas.profile(switches, samples=0)
