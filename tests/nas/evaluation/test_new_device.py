"""Claims about a new device: known devices improve its predictions, and few measurements are
enough.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments.runtimes import study
from experiments.tables import spearman
from nas.evaluation.new_device import (
    AdditiveModel,
    NewDeviceModel,
    counted_costs,
    relative_samples,
    with_constant,
)
from predictors import create
from search_spaces import get_space


@pytest.fixture(scope="module")
def networks() -> tuple[list[str], np.ndarray]:
    """60 texts, and their latencies (60, 3) on a slow and on two fast devices, which are almost the
    same.
    """
    space, rng = get_space("tiny-resnet"), np.random.default_rng(0)
    drawn = {space.to_text(a): a for a in (space.sample(rng) for _ in range(400))}
    texts = list(drawn)[:60]
    flops = np.array([space.flops(drawn[text]) for text in texts], float)
    params = np.array([space.params(drawn[text]) for text in texts], float)
    fast = flops * 1e-6 * np.exp(rng.normal(0, 0.5, 60))
    return texts, np.stack([params * 1e-4, fast, fast * np.exp(rng.normal(0, 0.02, 60))], 1)


def test_a_device_like_a_known_one_is_ranked_like_it(
    networks: tuple[list[str], np.ndarray],
) -> None:
    texts, latencies = networks
    model = create("rlm").fit(texts[:5], {"other_ms": np.arange(1.0, 6.0)})
    new = 3 * latencies[:, 2]
    drawn = relative_samples(
        model, texts[:10], new[:10], latencies[:10, :2], texts[10:], latencies[10:, :2], 16
    )
    assert drawn.shape == (50, 16)
    assert (np.diff(drawn, axis=1) >= 0).all()
    assert spearman(np.median(drawn, 1), new[10:]) > 0.98
    assert np.median(np.abs(np.log(np.median(drawn, 1) / new[10:]))) < 0.2
    assert model.metrics == ("other_ms",), "its own examples stay"


def test_predictions_do_not_depend_on_the_units_of_devices(
    networks: tuple[list[str], np.ndarray],
) -> None:
    texts, latencies = networks
    model = create("rlm").fit(texts[:5], {"other_ms": np.arange(1.0, 6.0)})
    new, known = latencies[:, 2], latencies[:, :2]
    first = relative_samples(model, texts[:8], new[:8], known[:8], texts[8:30], known[8:30], 8)
    again = relative_samples(
        model, texts[:8], 1e3 * new[:8], 1e3 * known[:8], texts[8:30], 1e3 * known[8:30], 8
    )
    np.testing.assert_allclose(again, 1e3 * first, rtol=1e-3)


def test_a_network_whose_other_devices_are_predicted_is_as_uncertain_as_these(
    networks: tuple[list[str], np.ndarray],
) -> None:
    texts, latencies = networks
    model = create("rlm").fit(texts[:5], {"other_ms": np.arange(1.0, 6.0)})
    known = latencies[:, 1:2]
    spread = np.exp(np.linspace(-1, 1, 16))
    predicted = known[10:, :, None] * np.where(np.arange(50)[:, None, None] % 2, spread, 1.0)
    drawn = relative_samples(
        model, texts[:10], 3 * known[:10, 0], known[:10], texts[10:], predicted, 16
    )
    width = np.log(drawn[:, -1] / drawn[:, 0])
    assert (width[1::2] > 1.9).all()
    assert (width[::2] < 1.0).all()


def test_a_time_that_is_a_sum_is_found_from_five_networks() -> None:
    """Of three parts, one of which has no share in it."""
    rng = np.random.default_rng(0)
    parts = rng.lognormal(0, 1, (40, 3)) * [1.0, 1e8, 1e3]
    times = 2 * parts[:, 0] + 3e-8 * parts[:, 1]
    predicted = AdditiveModel(parts[:5], times[:5]).predict(parts[5:])
    assert np.median(np.abs(predicted / times[5:] - 1)) < 0.02


def test_costs_help_where_the_new_device_has_a_price_that_no_known_one_has(
    networks: tuple[list[str], np.ndarray],
) -> None:
    texts, latencies = networks
    costs = np.random.default_rng(1).lognormal(0, 1, (60, 1))
    known = latencies[:, 1:]
    new = known[:, 0] + np.median(known[:, 0]) * costs[:, 0]
    model = create("rlm")
    fitted = NewDeviceModel(model, texts[:10], new[:10], costs[:10], known[:10])
    drawn = fitted.sample(texts[10:], costs[10:], known[10:], 16)
    assert drawn.shape == (50, 16)
    assert (np.diff(drawn, axis=1) >= 0).all()
    plain = relative_samples(model, texts[:10], new[:10], known[:10], texts[10:], known[10:], 16)
    errors = [np.median(np.abs(np.log(np.median(d, 1) / new[10:]))) for d in (drawn, plain)]
    assert errors[0] < 0.5 * errors[1]


def test_a_device_without_any_known_one_is_predicted_from_counted_costs() -> None:
    """ONNX Runtime, from ten networks of eleven spaces."""
    table = str(Path(study.__file__).parent)
    runtimes = "onnxruntime,openvino,ncnn,mnn,torch"
    with_costs = study.score("rlm-costs-alone", "onnxruntime", 10, table, runtimes, 0)
    texts_only = study.score("rlm-texts", "onnxruntime", 10, table, runtimes, 0)
    assert with_costs["rho"] > 0.95
    assert with_costs["error"] < 15
    assert with_costs["error"] < 0.6 * texts_only["error"]


def test_a_prediction_does_not_depend_on_the_networks_that_are_predicted_with_it() -> None:
    texts = _networks("tiny-resnet", 8)
    costs = counted_costs(texts)
    fitted = NewDeviceModel(create("rlm"), texts[:5], costs[:5, 1], costs[:5])
    together = fitted.sample(texts[5:], costs[5:], samples=8)
    alone = [fitted.sample([texts[i]], costs[[i]], samples=8)[0] for i in (5, 6, 7)]
    np.testing.assert_allclose(together, alone, rtol=1e-4)


def test_the_additive_model_moves_predictions_and_keeps_their_uncertainty(
    networks: tuple[list[str], np.ndarray],
) -> None:
    """Less with more measurements, of which the RLM makes more."""
    texts, latencies = networks
    costs = counted_costs(texts)
    for count in (10, 20):
        rows, others = slice(0, count), slice(count, count + 10)
        values = latencies[rows, 1]
        fitted = NewDeviceModel(create("rlm"), texts[rows], values, costs[rows])
        added = fitted.additive.predict(with_constant(costs[others]))
        by_ratios = fitted.ratios.sample(texts[others], added[:, None], 16)
        drawn = fitted.sample(texts[others], costs[others], samples=16)
        np.testing.assert_allclose(drawn[:, -1] / drawn[:, 0], by_ratios[:, -1] / by_ratios[:, 0])
        moved = np.log(np.median(drawn, 1) / np.median(by_ratios, 1))
        whole = np.log(added / np.median(by_ratios, 1))
        np.testing.assert_allclose(moved, 5 / count * whole, rtol=1e-6)


def test_a_sum_is_positive_for_a_network_without_any_of_its_parts() -> None:
    fitted = AdditiveModel(np.array([[1.0], [2.0], [4.0]]), np.array([3.0, 6.0, 12.0]))
    assert 0 < fitted.predict(np.zeros((1, 1)))[0] < 3


def _networks(name: str, count: int, **options: int) -> list[str]:
    """Texts of distinct random networks."""
    space, rng = get_space(name, **options), np.random.default_rng(0)
    drawn = dict.fromkeys(space.to_text(space.sample(rng)) for _ in range(20 * count))
    return list(drawn)[:count]
