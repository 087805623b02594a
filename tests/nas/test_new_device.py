"""Claims about a new device: known devices improve its predictions, and few measurements are
enough.
"""

from __future__ import annotations

import numpy as np
import pytest

from experiments.tables import spearman
from nas.new_device import additive_latency, relative_samples, samples_with_costs
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
    predicted = additive_latency(parts[:5], times[:5], parts[5:])
    assert np.median(np.abs(predicted / times[5:] - 1)) < 0.02


def test_costs_help_where_the_new_device_has_a_price_that_no_known_one_has(
    networks: tuple[list[str], np.ndarray],
) -> None:
    texts, latencies = networks
    costs = np.random.default_rng(1).lognormal(0, 1, (60, 1))
    known = latencies[:, 1:]
    new = known[:, 0] + np.median(known[:, 0]) * costs[:, 0]
    model = create("rlm")
    drawn = samples_with_costs(
        model, texts[:10], new[:10], known[:10], costs[:10], texts[10:], known[10:], costs[10:], 16
    )
    assert drawn.shape == (50, 16)
    assert (np.diff(drawn, axis=1) >= 0).all()
    plain = relative_samples(model, texts[:10], new[:10], known[:10], texts[10:], known[10:], 16)
    errors = [np.median(np.abs(np.log(np.median(d, 1) / new[10:]))) for d in (drawn, plain)]
    assert errors[0] < 0.5 * errors[1]
