"""Claims about `profile`: counts are exact, limits at the ends of a space are noticed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import nas
from nas.evaluation.device_command import DeviceCommand
from nas.evaluation.latency import Latency, LatencyTask
from nas.evaluation.measurement import Measurement
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


def test_latencies_are_measured_briefly_unless_the_user_says_how(
    space: Subnetworks, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks: list[LatencyTask] = []

    def noted(model: Any, task: LatencyTask) -> Latency:
        tasks.append(task)
        return Latency(1, 1, 1)

    monkeypatch.setattr("nas.evaluation.measurement.time_model", noted)
    nas.profile(space, metrics=["cpu_latency_ms"], samples=5, measured=2)
    assert {task.windows for task in tasks} == {2}
    tasks.clear()
    measurement = Measurement((), latency=LatencyTask(threads=2))
    nas.profile(space, metrics=["cpu_latency_ms"], samples=5, measured=2, measurement=measurement)
    assert set(tasks) == {LatencyTask(threads=2)}


@pytest.mark.usefixtures("brief_clocks")
def test_latencies_are_measured_for_some_networks(space: Subnetworks) -> None:
    costs = nas.profile(space, "cpu_latency_ms <= 1000", samples=30, measured=2)
    assert costs.table.loc["cpu_latency_ms", "networks"] == 2
    assert 0 < costs.table.loc["cpu_latency_ms", "min"] < 1000
    assert [limit.share for limit in costs.limits] == [1]


def _command(program: str) -> DeviceCommand:
    settings = {"warmup": 0, "runs": 1, "retries": 0}
    return DeviceCommand.parse(f"board={program}; : {{model}}", settings)


def test_networks_that_a_device_cannot_time_are_left_out(
    space: Subnetworks, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A device that times every second network."""
    calls = tmp_path / "calls"
    board = _command(f"echo >> {calls}; test $(($(wc -l < {calls}) % 2)) = 1 && echo 3")
    costs = nas.profile(
        space,
        metrics=["board_latency_ms"],
        samples=6,
        measured=4,
        measurement=Measurement((), commands=(board,)),
    )
    row = costs.table.loc["board_latency_ms"]
    assert (row["min"], row["median"], row["max"], row["networks"]) == (3, 3, 3, 2)
    assert caplog.text.count("printed no line with a number of milliseconds") >= 2


def test_a_device_that_times_no_network_ends_a_profile_with_its_reason(space: Subnetworks) -> None:
    off = Measurement((), commands=(_command("echo no route; exit 1"),))
    message = r"10 networks in a row could not be measured; the last: .*exit status 1: no route"
    with pytest.raises(InputError, match=message):
        nas.profile(space, metrics=["board_latency_ms"], samples=20, measurement=off)


def test_what_needs_a_training_is_refused(switches: SearchSpace) -> None:
    with pytest.raises(InputError, match=r"accuracy.*trains nothing"):
        nas.profile(switches, "digits_accuracy >= 90")
    with pytest.raises(InputError, match="at least 1"):
        nas.profile(switches, samples=0)
