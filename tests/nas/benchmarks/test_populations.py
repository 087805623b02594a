"""The measured populations that travel with the project are what their card says."""

from __future__ import annotations

import json

import numpy as np
import pytest

from nas.benchmarks import load_benchmark
from nas.benchmarks.loading import PACKAGE_DATA
from nas.benchmarks.populations import POPULATIONS
from nas.evaluation.proxies import PROXIES
from search_spaces import flops, params

RANDOM = sorted(name for name, population in POPULATIONS.items() if population.count is not None)
SCORED = sorted(name for name, population in POPULATIONS.items() if population.proxies)
CURVES = "digits-resnet"


@pytest.mark.parametrize("name", POPULATIONS)
def test_a_population_has_every_network_once_with_all_its_measurements(name: str) -> None:
    benchmark, population = load_benchmark(name), POPULATIONS[name]
    card = json.loads((PACKAGE_DATA / f"{name}.json").read_text())
    assert len(benchmark) == card["rows"] == (population.count or 6040)
    seeds = [benchmark.values(f"digits_accuracy_seed{seed}") for seed in population.seeds]
    assert all(np.ptp(values) > 0 and values.min() >= 0 and values.max() <= 100 for values in seeds)
    np.testing.assert_allclose(benchmark.values("digits_accuracy"), np.mean(seeds, 0), atol=1e-3)
    assert benchmark.values("cpu_latency_ms").min() > 0


@pytest.mark.parametrize("name", POPULATIONS)
def test_params_and_flops_are_those_of_the_networks(name: str) -> None:
    benchmark = load_benchmark(name)
    for i in np.random.default_rng(0).permutation(len(benchmark))[:10]:
        model = benchmark.space.to_onnx(benchmark.architectures[i])
        assert (benchmark.values("params")[i], benchmark.values("flops")[i]) == (
            params(model),
            flops(model),
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", RANDOM)
def test_no_two_networks_of_a_random_population_share_a_text(name: str) -> None:
    benchmark = load_benchmark(name)
    some = np.random.default_rng(0).permutation(len(benchmark))[:100]
    assert len({benchmark.space.to_text(benchmark.architectures[i]) for i in some}) == len(some)


@pytest.mark.parametrize("name", SCORED)
def test_a_random_population_has_every_proxy(name: str) -> None:
    benchmark = load_benchmark(name)
    assert set(PROXIES) <= set(benchmark.metrics)
    assert all(np.isfinite(benchmark.values(proxy)).mean() > 0.9 for proxy in PROXIES)


def test_a_population_has_curves_that_end_in_its_accuracies_and_seconds_per_epoch() -> None:
    benchmark, epochs = load_benchmark(CURVES), POPULATIONS[CURVES].task["epochs"]
    curve = np.stack([benchmark.values(f"digits_accuracy@{epoch}") for epoch in range(1, epochs)])
    assert curve.shape == (15, 200)
    assert curve.min() >= 0
    assert (
        np.abs(curve[-1] - benchmark.values("digits_accuracy")).mean()
        < 1
        < np.abs(curve[0] - curve[-1]).mean()
    )
    seconds = benchmark.values("epoch_s")
    assert np.corrcoef(np.log(seconds), np.log(benchmark.values("flops")))[0, 1] > 0.8


def test_all_populations_together_are_small() -> None:
    assert sum(path.stat().st_size for path in PACKAGE_DATA.iterdir()) < 5_000_000
