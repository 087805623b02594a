"""Claims about the second opinion on a decoder's predictions: Gaussian processes on its encoder's states."""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri
from scipy.stats import kendalltau

from predictors.rlm.estimate import Estimator

RNG = np.random.default_rng(0)
STATES = RNG.normal(size=(160, 4))
HIDDEN = RNG.normal(size=160)
TARGET = 100 + np.sin(STATES[:, 0]) + HIDDEN
FIRST, REST = slice(0, 80), slice(80, None)
QUANTILES = np.tile(ndtri((np.arange(40) + 0.5) / 40), (80, 1))


def _samples(given: dict[str, np.ndarray]) -> np.ndarray:
    estimator = Estimator(STATES[FIRST], {"target": TARGET[FIRST], "known": HIDDEN[FIRST]})
    found = estimator.sample("target", STATES[REST], given, QUANTILES)
    assert found is not None
    return found


def test_what_is_known_is_used_where_it_is_given() -> None:
    without = np.median(_samples({}), 1)
    informed = np.median(_samples({"known": HIDDEN[REST]}), 1)
    assert kendalltau(informed, TARGET[REST]).statistic > 0.8 > 0.4 > kendalltau(without, TARGET[REST]).statistic


def test_samples_are_in_the_metrics_unit_and_spread_as_the_errors_are() -> None:
    for given in ({}, {"known": HIDDEN[REST]}):
        low, high = np.quantile(_samples(given), [0.05, 0.95], axis=1)
        inside = ((low <= TARGET[REST]) & (TARGET[REST] <= high)).mean()
        assert 0.75 <= inside <= 1.0
    assert _samples({"known": HIDDEN[REST]}).std(1).mean() < 0.7 * _samples({}).std(1).mean()


def test_the_metric_itself_is_never_an_input() -> None:
    np.testing.assert_array_equal(_samples({"target": TARGET[REST]}), _samples({}))


def test_three_values_are_too_few() -> None:
    few = np.where(np.arange(80) < 3, 1.0, np.nan)
    estimator = Estimator(STATES[FIRST], {"few": few, "target": TARGET[FIRST]})
    assert estimator.sample("few", STATES[REST], {}, QUANTILES) is None
    assert estimator.sample("other", STATES[REST], {}, QUANTILES) is None


def test_equal_states_and_equal_values_are_no_trouble() -> None:
    estimator = Estimator(np.ones((8, 3)), {"flat": np.full(8, 5.0), "known": np.ones(8)})
    found = estimator.sample("flat", np.ones((80, 3)), {"known": np.ones(80)}, QUANTILES)
    np.testing.assert_allclose(found, 5.0, atol=1e-6)
