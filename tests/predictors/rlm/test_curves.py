"""Claims about learning curves: metrics at several fidelities, decoded in order."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import kendalltau

import predictors
from nas import load_benchmark

N, QUERIES = 50, 60


@pytest.fixture(scope="module")
def curves() -> tuple[list[str], np.ndarray, np.ndarray]:
    """Texts of digits201, values at fidelity 4, and final values: correlated, with independent
    noise.
    """
    benchmark = load_benchmark("digits201")
    rng = np.random.default_rng(0)
    rows = rng.permutation(len(benchmark))[: N + QUERIES]
    early = np.log(benchmark.values("flops"))[rows] + rng.standard_normal(len(rows))
    return (
        [benchmark.space.to_text(benchmark.architectures[i]) for i in rows],
        early,
        early + 0.3 * rng.standard_normal(len(rows)),
    )


def test_known_early_values_improve_predictions_of_the_end(
    curves: tuple[list[str], np.ndarray, np.ndarray],
) -> None:
    texts, early, late = curves
    model = predictors.create("rlm").fit(texts[:N], {"top1@4": early[:N], "top1": late[:N]})
    alone = model.predict(texts[N:], ["top1"], samples=8).mean[:, 0]
    given = model.predict(texts[N:], ["top1"], given={"top1@4": early[N:]}, samples=8).mean[:, 0]
    assert kendalltau(given, late[N:]).statistic > kendalltau(alone, late[N:]).statistic + 0.2


def test_unfinished_trainings_are_examples_for_early_values(
    curves: tuple[list[str], np.ndarray, np.ndarray],
) -> None:
    texts, early, late = curves
    late = np.where(np.arange(len(late)) < 12, late, np.nan)
    model = predictors.create("rlm").fit(texts[:N], {"top1": late[:N], "top1@4": early[:N]})
    few = predictors.create("rlm").fit(texts[:12], {"top1": late[:12], "top1@4": early[:12]})
    taus = [
        kendalltau(m.predict(texts[N:], ["top1@4"]).mean[:, 0], early[N:]).statistic
        for m in (model, few)
    ]
    assert taus[0] > taus[1]


def test_a_curve_is_one_joint_sample(curves: tuple[list[str], np.ndarray, np.ndarray]) -> None:
    texts, early, late = curves
    model = predictors.create("rlm").fit(texts[:N], {"top1": late[:N], "top1@4": early[:N]})
    samples = model.predict(texts[N : N + 20], ["top1", "top1@4"], samples=32).samples
    correlations = [np.corrcoef(drawn.T)[0, 1] for drawn in samples]
    assert np.mean(correlations) > 0.5
