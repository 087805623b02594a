"""Claims about the shipped model: what its weights have learned, on tables and networks that it has
not seen.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from scipy.stats import kendalltau

from nas.benchmarks import load_benchmark
from predictors import load
from predictors.rlm.predictor import RLM
from search_spaces import get_space

SPACE = get_space("nasbench201", channels=4, cells=1)


@pytest.fixture(scope="module")
def digits() -> tuple[list[str], np.ndarray]:
    """Texts and accuracies of 180 trained residual networks. Pretraining has not seen them."""
    table = load_benchmark("digits-resnet")
    rows = np.random.default_rng(0).permutation(len(table))[:180]
    return [table.space.to_text(table.architectures[i]) for i in rows], table.values(
        "digits_accuracy"
    )[rows]


def _tau(
    model: RLM, texts: list[str], truth: np.ndarray, given: dict[str, np.ndarray] | None = None
) -> float:
    return float(
        kendalltau(model.predict(texts, ["top1"], given, samples=16)["top1"], truth).statistic
    )


@pytest.mark.slow
def test_more_examples_help(digits: tuple[list[str], np.ndarray]) -> None:
    texts, accuracy = digits
    taus = []
    for count in (10, 100):
        parts = [slice(start, start + count) for start in (0, 20, 40)]
        fitted = [RLM().fit(texts[part], {"top1": accuracy[part]}) for part in parts]
        taus.append(float(np.mean([_tau(model, texts[140:], accuracy[140:]) for model in fitted])))
    assert taus[1] > max(taus[0], 0.3)


@pytest.mark.slow
def test_a_noisy_copy_of_the_metric_predicts_it(digits: tuple[list[str], np.ndarray]) -> None:
    texts, accuracy = digits
    copy = accuracy + 0.05 * accuracy.std() * np.random.default_rng(0).normal(size=len(accuracy))
    model = RLM().fit(texts[:50], {"top1": accuracy[:50], "copy": copy[:50]})
    assert _tau(model, texts[50:], accuracy[50:], {"copy": copy[50:]}) > 0.8
    assert _tau(model, texts[50:], accuracy[50:]) < 0.8


def test_an_example_with_the_same_text_moves_the_prediction_towards_its_value() -> None:
    texts = list(
        dict.fromkeys(
            SPACE.to_text(SPACE.sample(np.random.default_rng(seed))) for seed in range(40)
        )
    )
    values = np.random.default_rng(0).normal(size=len(texts))
    query, rest = texts[:1], texts[1:]
    without = RLM().fit(rest, {"top1": values[1:]}).predict(query, ["top1"])["top1"][0]
    for value in (-2.0, 2.0):
        moved = RLM().fit(texts, {"top1": [value, *values[1:]]}).predict(query, ["top1"])["top1"][0]
        assert abs(moved - value) < abs(without - value)


def test_intervals_are_approximately_calibrated(digits: tuple[list[str], np.ndarray]) -> None:
    texts, accuracy = digits
    model = RLM().fit(texts[:100], {"top1": accuracy[:100]})
    samples = model.predict(texts[100:], ["top1"]).samples[:, :, 0]
    low, high = np.quantile(samples, [0.1, 0.9], axis=1)
    assert 0.65 < np.mean((low <= accuracy[100:]) & (accuracy[100:] <= high)) < 0.95


def test_correlated_metrics_have_correlated_samples() -> None:
    texts = list(
        dict.fromkeys(
            SPACE.to_text(SPACE.sample(np.random.default_rng(seed))) for seed in range(80)
        )
    )
    values = np.random.default_rng(1).normal(size=len(texts))  # nothing in the text tells them
    model = RLM().fit(texts[:60], {"top1": values[:60], "a_latency_ms": 3 - values[:60]})
    samples = model.predict(texts[60:], ["top1", "a_latency_ms"]).samples
    correlation = np.mean([np.corrcoef(rows.T)[0, 1] for rows in samples])
    assert correlation < -0.4


def test_networks_of_another_kind_are_far_and_their_intervals_are_wide() -> None:
    known, strange = get_space("nasbench201"), get_space("ofa-resnet50")
    drawn = [known.sample(np.random.default_rng(seed)) for seed in range(80)]
    texts = [known.to_text(architecture) for architecture in drawn]
    model = RLM().fit(
        texts[:60], {"top1": [np.log(1 + known.flops(architecture)) for architecture in drawn[:60]]}
    )
    far = [strange.to_text(strange.sample(np.random.default_rng(seed))) for seed in range(5)]
    assert model.novelty(far).min() > 1 > np.median(model.novelty(texts[60:]))
    near_std, far_std = (np.median(model.predict(some, ["top1"]).std) for some in (texts[60:], far))
    assert far_std > near_std


@pytest.mark.slow
def test_networks_of_a_space_are_ordered_as_by_their_zero_cost_proxies() -> None:
    from nas.evaluation.proxies import compute_proxies

    small = get_space("nasbench201", channels=8, cells=2, input_shape=(3, 16, 16), prune=True)
    drawn = [small.sample(np.random.default_rng(seed)) for seed in range(40)]
    graphs = [small.graph(architecture) for architecture in drawn]
    computed = [compute_proxies(graph, 0, ("nwot",))["nwot"] for graph in graphs]
    predicted = RLM().proxies([small.to_text(architecture) for architecture in drawn])
    best = max(kendalltau(column, computed).statistic for column in predicted.T)
    assert best > 0.5


def test_the_shipped_model_has_no_examples() -> None:
    assert load("rlm-base").metrics == ()


LOAD = """
import sys, predictors.rlm.examples
predictors.rlm.examples.MAX_EXAMPLES = 200  # of the whole table: to read 2,000 takes seconds
from search_spaces import get_space
space = get_space("nasbench201")
text = space.to_text(next(iter(space.enumerate())))
predictors.load("rlm-nasbench201").predict([text], ["cifar10_test_accuracy", "pixel3_latency_ms"])
print("torch._dynamo" in sys.modules)
"""


@pytest.mark.slow
def test_no_process_waits_for_torchs_compiler_to_load_a_checkpoint_and_to_predict() -> None:
    done = subprocess.run([sys.executable, "-c", LOAD], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


@pytest.mark.slow
def test_the_shipped_zoo_ranks_two_real_networks_by_speed_and_accuracy() -> None:
    from search_spaces.sources import read_source

    metrics = ["imagenet_top1_accuracy", "rtx4090_ms", "i7_12700h_ms"]
    small, large = (
        load("rlm-zoo").predict([read_source(f"timm:resnet{n}") for n in (18, 50)], metrics).median
    )
    assert (small < large).all()
    assert 0.2 < small[1] / large[1] < 0.8
