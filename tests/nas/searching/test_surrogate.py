from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import pytest

from nas.searching.surrogate import SAMPLES, Surrogate
from predictors import Predictions
from search_spaces import Architecture, get_space

SPACE = get_space("nasbench201", cells=1)
# `none` after a pooling or a skip connection: the same network, twice.
TWIN, OTHER_TWIN = (
    SPACE.parse(f"|{first}~0|+|none~0|none~1|+|nor_conv_3x3~0|none~1|none~2|") for first in ("none", "skip_connect")
)
STRANGER = SPACE.parse("|none~0|+|none~0|none~1|+|nor_conv_1x1~0|none~1|none~2|")


class Guess:
    """Believes every network to have 50 ± 5, and keeps what it was told."""

    def fit(self, texts: Sequence[str], metrics: dict[str, np.ndarray]) -> Self:
        self.told = metrics
        return self

    def predict(
        self, texts: Sequence[str], metrics: Sequence[str], given: dict[str, np.ndarray], samples: int, seed: int
    ) -> Predictions:
        self.given = given
        draws = np.random.default_rng(seed).standard_normal((len(texts), samples, len(metrics)))
        standard = (draws - draws.mean(axis=1, keepdims=True)) / draws.std(axis=1, keepdims=True)
        return Predictions.of_samples(metrics, 50 + 5 * standard)


def _surrogate(
    evaluated: dict[Architecture, float], metrics: Sequence[str] = ("test_accuracy",), given: Sequence[str] = ()
) -> tuple[Surrogate, Guess]:
    guess = Guess()
    surrogate = Surrogate(SPACE, lambda: guess, metrics, given)  # type: ignore[arg-type, return-value]
    surrogate.fit({a: np.array([value] * len(metrics)) for a, value in evaluated.items()}, seed=0)
    return surrogate, guess


def test_twins_have_one_text() -> None:
    assert SPACE.to_text(TWIN) == SPACE.to_text(OTHER_TWIN) != SPACE.to_text(STRANGER)


def test_a_twin_is_believed_to_be_nearer_to_the_measurement_than_to_the_prediction() -> None:
    surrogate, _ = _surrogate({TWIN: 60.0})
    samples = surrogate.samples([OTHER_TWIN, STRANGER])
    assert samples.shape == (2, SAMPLES, 1)
    assert 57 < samples[0].mean() < 60
    assert samples[1].mean() == pytest.approx(50)
    assert samples[0].std() < samples[1].std() == pytest.approx(5)


def test_twins_that_agree_teach_that_there_is_little_noise() -> None:
    agreeing, _ = _surrogate({TWIN: 60.0, OTHER_TWIN: 60.1})
    differing, _ = _surrogate({TWIN: 50.0, OTHER_TWIN: 70.0})
    assert agreeing.samples([TWIN]).std() < differing.samples([TWIN]).std()


def test_a_fast_networks_latency_is_less_noisy_than_a_slow_ones() -> None:
    def spread(metric: str) -> float:
        surrogate = Surrogate(SPACE, Guess, (metric,), ())  # type: ignore[arg-type]
        surrogate.fit({TWIN: np.array([40.0]), OTHER_TWIN: np.array([60.0]), STRANGER: np.array([1.0])}, seed=0)
        fast, slow = surrogate.samples([STRANGER, TWIN]).std((1, 2))
        return float(fast / slow)

    assert spread("x_latency_ms") < 0.3 < 0.8 < spread("test_accuracy")


def test_where_twins_are_equal_another_one_brings_nothing_new() -> None:
    looked_up, _ = _surrogate({TWIN: 60.0, OTHER_TWIN: 60.0})
    np.testing.assert_array_equal(looked_up.samples([TWIN]), 60.0)
    assert looked_up.samples([STRANGER]).std() == pytest.approx(5)
    # Values that are bounded alike, because they go too far, say nothing of noise.
    bounded, _ = _surrogate({TWIN: 60.0, OTHER_TWIN: 61.0})
    bounded.fit({TWIN: np.array([80.0]), OTHER_TWIN: np.array([90.0])}, 0, np.array([[60.0], [60.0]]))
    assert bounded.samples([TWIN]).std() > 0.5


def test_a_given_metric_is_exact_and_handed_to_the_predictor() -> None:
    surrogate, guess = _surrogate({STRANGER: 60.0}, metrics=("test_accuracy", "params"), given=("params", "flops"))
    samples = surrogate.samples([TWIN, STRANGER])
    params = [SPACE.params(TWIN), SPACE.params(STRANGER)]
    np.testing.assert_array_equal(samples[:, :, 1], np.repeat(params, SAMPLES).reshape(2, SAMPLES))
    assert guess.given.keys() == {"params", "flops"}
    assert guess.told["flops"].tolist() == [SPACE.flops(STRANGER)]


def test_a_predictor_is_told_what_was_chosen_since_twins_may_differ_by_it() -> None:
    surrogate, guess = _surrogate({TWIN: 60.0, OTHER_TWIN: 61.0})
    surrogate.samples([OTHER_TWIN])
    # Only what differs can tell anything: both have a convolution.
    assert guess.told.keys() == {"test_accuracy", "none chosen", "skip_connect chosen"}
    assert guess.told["none chosen"].tolist() == [5, 4]
    assert guess.given["skip_connect chosen"].tolist() == [1]


def test_twins_are_believed_to_differ_as_they_were_predicted_to() -> None:
    class Counting(Guess):
        def predict(self, texts, metrics, given, samples, seed):  # type: ignore[no-untyped-def]
            predicted = super().predict(texts, metrics, given, samples, seed).samples
            chosen = given.get("skip_connect chosen", np.zeros(len(texts)))
            return Predictions.of_samples(metrics, predicted + 10 * chosen[:, None, None])

    surrogate = Surrogate(SPACE, Counting, ("x_ms",), ())  # type: ignore[arg-type]
    surrogate.fit({TWIN: np.array([55.0]), STRANGER: np.array([50.0]), OTHER_TWIN: np.array([65.0])}, seed=0)
    means = surrogate.samples([TWIN, OTHER_TWIN]).mean((1, 2))
    assert means[1] - means[0] == pytest.approx(10)
    assert surrogate.samples([TWIN]).std() < 3, "twins that differ as predicted do not differ by chance"


def test_metrics_that_are_all_given_need_no_predictor() -> None:
    surrogate = Surrogate(SPACE, lambda: pytest.fail("no predictor is needed"), ("params",), ("params",))
    surrogate.fit({TWIN: np.array([float(SPACE.params(TWIN))])}, seed=0)
    assert (surrogate.samples([STRANGER]) == SPACE.params(STRANGER)).all()
