"""Claims about the surrogate of a guided search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import pytest

from nas.search.surrogate import SAMPLES, Surrogate
from predictors import Predictions, create
from search_spaces import Architecture, get_space

SPACE = get_space("nasbench201", cells=1)
# `none` after a pooling or a skip connection: the same network, twice.
DUPLICATE, OTHER_DUPLICATE = (
    SPACE.parse(f"|{first}~0|+|none~0|none~1|+|nor_conv_3x3~0|none~1|none~2|")
    for first in ("none", "skip_connect")
)
STRANGER = SPACE.parse("|none~0|+|none~0|none~1|+|nor_conv_1x1~0|none~1|none~2|")


class Guess:
    """Predicts 50 ± 5 for every network, and records its training data."""

    reads_choices = False

    def fit(self, texts: Sequence[str], metrics: dict[str, np.ndarray]) -> Self:
        self.told = metrics
        return self

    def predict(
        self,
        texts: Sequence[str],
        metrics: Sequence[str],
        given: dict[str, np.ndarray],
        samples: int,
        seed: int,
    ) -> Predictions:
        self.given = given
        draws = np.random.default_rng(seed).standard_normal((len(texts), samples, len(metrics)))
        standard = (draws - draws.mean(axis=1, keepdims=True)) / draws.std(axis=1, keepdims=True)
        return Predictions.of_samples(metrics, 50 + 5 * standard)


def _surrogate(
    evaluated: dict[Architecture, float],
    metrics: Sequence[str] = ("test_accuracy",),
    given: Sequence[str] = (),
) -> tuple[Surrogate, Guess]:
    guess = Guess()
    surrogate = Surrogate(SPACE, lambda: guess, metrics, given)  # type: ignore[arg-type, return-value]
    surrogate.fit({a: np.array([value] * len(metrics)) for a, value in evaluated.items()}, seed=0)
    return surrogate, guess


def test_duplicates_have_one_text() -> None:
    assert SPACE.to_text(DUPLICATE) == SPACE.to_text(OTHER_DUPLICATE) != SPACE.to_text(STRANGER)


def test_samples_are_those_of_the_predictor() -> None:
    surrogate, _ = _surrogate({DUPLICATE: 60.0})
    samples = surrogate.samples([OTHER_DUPLICATE, STRANGER])
    assert samples.shape == (2, SAMPLES, 1)
    assert samples.mean((1, 2)) == pytest.approx(50)
    assert samples.std((1, 2)) == pytest.approx(5)


def test_a_predictor_that_reads_choices_gets_architectures() -> None:
    class ReadsChoices(Guess):
        reads_choices = True

        def fit(self, texts, metrics):  # type: ignore[no-untyped-def]
            assert list(texts) == [DUPLICATE]
            return super().fit(texts, metrics)

    surrogate = Surrogate(SPACE, ReadsChoices, ("x_ms",), ())  # type: ignore[arg-type]
    surrogate.fit({DUPLICATE: np.array([55.0])}, seed=0)
    assert surrogate.samples([STRANGER]).shape == (1, SAMPLES, 1)


def test_an_rlm_predicts_the_measured_value_for_a_duplicate() -> None:
    rng = np.random.default_rng(0)
    values = {
        architecture: np.array([rng.normal(50, 5)])
        for architecture in map(SPACE.sample, [rng] * 30)
    }
    values |= {DUPLICATE: np.array([95.0])}
    surrogate = Surrogate(SPACE, lambda: create("rlm"), ("test_accuracy",), ())
    surrogate.fit(values, seed=0)
    duplicate, stranger = surrogate.samples([OTHER_DUPLICATE, STRANGER]).mean((1, 2))
    assert duplicate > stranger


def test_a_given_metric_is_exact_and_handed_to_the_predictor() -> None:
    surrogate, guess = _surrogate(
        {STRANGER: 60.0}, metrics=("test_accuracy", "params"), given=("params", "flops")
    )
    samples = surrogate.samples([DUPLICATE, STRANGER])
    params = [SPACE.params(DUPLICATE), SPACE.params(STRANGER)]
    np.testing.assert_array_equal(samples[:, :, 1], np.repeat(params, SAMPLES).reshape(2, SAMPLES))
    assert guess.given.keys() == {"params", "flops"}
    assert guess.told["flops"].tolist() == [SPACE.flops(STRANGER)]


def test_metrics_that_are_all_given_need_no_predictor() -> None:
    surrogate = Surrogate(
        SPACE, lambda: pytest.fail("no predictor is needed"), ("params",), ("params",)
    )
    surrogate.fit({DUPLICATE: np.array([float(SPACE.params(DUPLICATE))])}, seed=0)
    assert (surrogate.samples([STRANGER]) == SPACE.params(STRANGER)).all()


def test_networks_of_one_text_are_predicted_once() -> None:
    asked: list[str] = []

    class Counting(Guess):
        def predict(self, texts, metrics, given, samples, seed):  # type: ignore[no-untyped-def]
            asked.extend(texts)
            return super().predict(texts, metrics, given, samples, seed)

    surrogate = Surrogate(SPACE, Counting, ("x_ms",), ())  # type: ignore[arg-type]
    surrogate.fit({STRANGER: np.array([50.0])}, seed=0)
    duplicates = surrogate.samples([DUPLICATE, OTHER_DUPLICATE, DUPLICATE])
    assert asked == [SPACE.to_text(DUPLICATE)]
    np.testing.assert_array_equal(duplicates[0], duplicates[1])


def test_what_has_been_observed_is_not_estimated() -> None:
    surrogate, guess = _surrogate({STRANGER: 61.0}, ("test_accuracy", "board_ms"))
    estimated: list[int] = []

    def estimate(texts: Sequence[str], metrics: Sequence[str], given: object) -> np.ndarray:
        estimated.append(len(texts))
        return np.full((len(texts), len(metrics)), 50.0)

    guess.estimate = estimate  # type: ignore[attr-defined]
    assert surrogate.estimates([STRANGER]).tolist() == [[61.0, 61.0]]
    assert not estimated
    surrogate.condition({DUPLICATE: np.array([np.nan, 3.0])})
    assert surrogate.estimates([DUPLICATE, STRANGER]).tolist() == [[50.0, 3.0], [61.0, 61.0]]
    assert estimated == [1]
