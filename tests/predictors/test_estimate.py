"""Claims about the second opinion on a decoder's predictions: Gaussian processes on what is seen of a text."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import check_grad
from scipy.special import ndtri
from scipy.stats import kendalltau, spearmanr

from predictors.estimate import Estimator, Inputs, Kernel, Seen, Units, _unlikeliness, _variance, some_of

RNG = np.random.default_rng(0)
STATES = RNG.normal(size=(160, 4))
HIDDEN = RNG.normal(size=160)
TARGET = 100 + np.sin(STATES[:, 0]) + HIDDEN
COUNTS = RNG.integers(0, 9, (160, 5)).astype(np.float32)
NAMES = ["Conv", "Pool", "Conv > Conv", "Conv > Pool", "Pool > Pool > y"]
FIRST, REST = slice(0, 80), slice(80, None)
QUANTILES = np.tile(ndtri((np.arange(40) + 0.5) / 40), (80, 1))


def _seen(rows: slice, counts: bool = False) -> Seen:
    return Seen(STATES[rows], COUNTS[rows] if counts else np.empty((len(STATES[rows]), 0), np.float32))


def _samples(given: dict[str, np.ndarray]) -> np.ndarray:
    estimator = Estimator(_seen(FIRST), [], {"target": TARGET[FIRST], "known": HIDDEN[FIRST]})
    found = estimator.sample("target", _seen(REST), given, QUANTILES)
    assert found is not None
    return found


def test_what_is_known_is_used_where_it_is_given() -> None:
    without = np.median(_samples({}), 1)
    informed = np.median(_samples({"known": HIDDEN[REST]}), 1)
    assert kendalltau(informed, TARGET[REST]).statistic > 0.8 > 0.4 > kendalltau(without, TARGET[REST]).statistic


@pytest.mark.parametrize("measured", [10, 80])
def test_a_latency_that_adds_up_over_operators_is_learned_from_few(measured: int) -> None:
    latency = 3 + 2.0 * COUNTS[:, 0] + 0.5 * COUNTS[:, 1]
    values = np.where(np.arange(80) < measured, latency[FIRST], np.nan)
    noise = np.zeros((80, 1))
    for names, counts, least, most in ((NAMES, True, 0.9, 1.0), ([], False, -0.5, 0.5)):
        estimator = Estimator(_seen(FIRST, counts), names, {"latency_ms": values})
        found = estimator.sample("latency_ms", _seen(REST, counts), {}, noise)
        assert found is not None
        assert least <= spearmanr(found[:, 0], latency[REST]).statistic <= most


def test_what_was_chosen_tells_a_latency_that_no_text_tells() -> None:
    chosen = COUNTS[:, 2].astype(float)
    estimator = Estimator(
        _seen(FIRST, True)._replace(counts=COUNTS[FIRST, :2]),
        NAMES[:2],
        {"latency_ms": (20 + COUNTS[:, 0] + 3 * chosen)[FIRST], "pool chosen": chosen[FIRST]},
        by_value=True,
    )
    seen = _seen(REST, True)._replace(counts=COUNTS[REST, :2])
    found = estimator.expect("latency_ms", seen, {"pool chosen": chosen[REST]})
    assert found is not None
    np.testing.assert_allclose(found, (20 + COUNTS[:, 0] + 3 * chosen)[REST], rtol=0.02)


def test_what_was_chosen_and_no_text_shows_tells_nothing_of_an_accuracy() -> None:
    chosen, values = COUNTS[:, 2].astype(float), {}
    for metric in ("accuracy", "latency_ms"):
        values[metric] = 50 + 10 * STATES[FIRST, 0] + 3 * chosen[FIRST]
    estimator = Estimator(_seen(FIRST), [], values | {"pool chosen": chosen[FIRST]}, by_value=True)
    for metric, same in (("accuracy", True), ("latency_ms", False)):
        few, many = (estimator.expect(metric, _seen(REST), {"pool chosen": np.full(80, n)}) for n in (0.0, 8.0))
        assert few is not None
        assert np.array_equal(few, many) == same, metric


def test_counts_far_beyond_those_learned_do_not_make_latencies_negative() -> None:
    estimator = Estimator(_seen(FIRST, True), NAMES, {"latency_ms": 1 + COUNTS[FIRST, 0]})
    far = Seen(STATES[REST], COUNTS[REST] - 1000)
    found = estimator.sample("latency_ms", far, {}, QUANTILES)
    assert found is not None
    assert (found > 0).all()


def test_by_value_the_best_can_be_surpassed_and_failures_do_not_matter() -> None:
    accuracy = 90 - 10 * np.abs(STATES[:, 0] - 3)  # higher than any that is learned, where the state is 3
    accuracy[:8] = 10  # failed
    best = Seen(np.where(np.arange(4) == 0, 3.0, STATES[:1]), np.empty((1, 0), np.float32))
    middle = {}
    for by_value in (False, True):
        estimator = Estimator(_seen(FIRST), [], {"accuracy": accuracy[FIRST]}, by_value)
        for name, seen in (("best", best), ("rest", _seen(REST))):
            found = estimator.sample("accuracy", seen, {}, np.zeros((len(seen.states), 4)))
            expected = estimator.expect("accuracy", seen, {})
            assert found is not None
            middle[name, by_value] = found[:, 0]
            np.testing.assert_allclose(found.mean(1), expected)
            # By value, half of the samples still go by ranks.
            assert (found[:, 0] != found[:, 2]).any() == by_value
    assert middle["best", True] > middle["best", False]
    assert kendalltau(middle["rest", True], accuracy[REST]).statistic > 0.6


def test_slopes_of_the_likelihood_are_those_of_its_values() -> None:
    inputs = Inputs(STATES[:30], {"operators": COUNTS[:30].astype(float), "known": HIDDEN[:30, None]})
    products = Units.of(inputs).products(inputs, inputs)
    names = ("length", "noise", "operators", "known", "share")
    target, noise = TARGET[:30] - 100, np.linspace(0.1, 3, 30)

    def kernel(x: np.ndarray) -> Kernel:
        return Kernel(dict(zip(names, np.exp(x).tolist(), strict=True)))

    def slope(x: np.ndarray) -> np.ndarray:
        inverse = _unlikeliness(kernel(x), products, target, noise)[1]
        weights = inverse @ target
        residual = inverse - np.outer(weights, weights) / _variance(weights, target)
        return np.array([0.5 * np.vdot(residual, kernel(x).slopes(products, noise)[name]) for name in names])

    at = np.array([0.3, -2.0, 0.1, -0.5, 0.4])
    assert check_grad(lambda x: _unlikeliness(kernel(x), products, target, noise)[0], slope, at) < 1e-4


def test_by_value_the_noise_of_a_latency_grows_with_it() -> None:
    latency = (10 + 3 * STATES[:, 0]).clip(1) * np.exp(0.1 * np.random.default_rng(1).normal(size=160))
    spreads = {}
    for by_value in (False, True):
        estimator = Estimator(_seen(FIRST), [], {"x_latency_ms": latency[FIRST]}, by_value)
        found = estimator.sample("x_latency_ms", _seen(REST), {}, QUANTILES)
        assert found is not None
        order = found.mean(1).argsort()
        spreads[by_value] = found.std(1)[order[:10]].mean() / found.std(1)[order[-10:]].mean()
    assert spreads[True] < 0.6 < spreads[False]


def test_by_value_failures_do_not_make_all_others_look_uncertain() -> None:
    rng = np.random.default_rng(2)
    fine = np.arange(160) % 8 > 0
    accuracy = np.where(fine, 90 + 2 * STATES[:, 0] + 0.3 * rng.normal(size=160), 50)
    estimator = Estimator(_seen(FIRST), [], {"accuracy": accuracy[FIRST]}, by_value=True)
    found = estimator.sample("accuracy", _seen(REST), {}, rng.permuted(QUANTILES, axis=1))
    assert found is not None
    low, high = np.quantile(found, [0.25, 0.75], axis=1)
    inside = ((low <= accuracy[REST]) & (accuracy[REST] <= high))[fine[REST]].mean()
    assert 0.3 <= inside <= 0.7


def test_how_alike_accuracies_are_may_go_by_less_than_the_states_and_latencies_go_by_all() -> None:
    values = {"accuracy": 50 + 10 * STATES[FIRST, 0], "x_latency_ms": 50 + 10 * STATES[FIRST, 1]}
    asked = _seen(slice(80, 81))
    elsewhere = asked._replace(states=asked.states + np.array([0, 1, 1, 1]))
    only_first = Estimator(_seen(FIRST), [], values, by_value=True, likeness=np.eye(4)[:, :1])
    for metric, same in (("accuracy", True), ("x_latency_ms", False)):
        found, there = (only_first.expect(metric, seen, {}) for seen in (asked, elsewhere))
        assert found is not None
        assert np.allclose(found, there) == same, metric


def test_samples_are_in_the_metrics_unit_and_spread_as_the_errors_are() -> None:
    for given in ({}, {"known": HIDDEN[REST]}):
        low, high = np.quantile(_samples(given), [0.05, 0.95], axis=1)
        inside = ((low <= TARGET[REST]) & (TARGET[REST] <= high)).mean()
        assert 0.75 <= inside <= 1.0
    assert _samples({"known": HIDDEN[REST]}).std(1).mean() < 0.7 * _samples({}).std(1).mean()


def test_the_metric_itself_is_never_an_input() -> None:
    np.testing.assert_array_equal(_samples({"target": TARGET[REST]}), _samples({}))


def test_a_part_of_a_table_is_not_taken_at_even_distances() -> None:
    # Every fifth network of an enumerated space may have the same last operator.
    assert some_of(20, 100).tolist() == list(range(20))
    rows = some_of(1000, 200)
    assert len(np.unique(rows)) == 200
    assert len(np.unique(np.diff(rows))) > 3


def test_three_values_are_too_few() -> None:
    few = np.where(np.arange(80) < 3, 1.0, np.nan)
    estimator = Estimator(_seen(FIRST), [], {"few": few, "target": TARGET[FIRST]})
    assert estimator.sample("few", _seen(REST), {}, QUANTILES) is None
    assert estimator.sample("other", _seen(REST), {}, QUANTILES) is None


def test_equal_states_and_equal_values_are_no_trouble() -> None:
    flat = Seen(np.ones((8, 3)), np.ones((8, 1)))
    estimator = Estimator(flat, ["Conv"], {"flat": np.full(8, 5.0), "known": np.ones(8)})
    asked = Seen(np.ones((80, 3)), np.ones((80, 1)))
    found = estimator.sample("flat", asked, {"known": np.ones(80)}, QUANTILES)
    np.testing.assert_allclose(found, 5.0, atol=1e-6)
