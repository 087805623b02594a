"""Claims about differences between predictors: paired, signed, and honest about few seeds."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from scipy.stats import ttest_rel

from nas.cli.compare import compare
from nas.comparison.compare import _coverage
from nas.comparison.significance import differences


def test_a_difference_is_paired_over_seeds() -> None:
    seeds = np.arange(10) / 10  # whatever the seed makes of both
    advantage = np.array([0.02, 0.04] * 5)
    (found,) = differences({"a": list(seeds), "b": list(seeds + advantage)})
    assert found.mean == pytest.approx(-0.03)
    assert found.std == pytest.approx(advantage.std(ddof=1))
    assert found.p == pytest.approx(ttest_rel(seeds, seeds + advantage).pvalue)
    assert (
        found.sentence("τ")
        == "b is better than a by 0.030 ± 0.011 τ over 10 seeds (paired t-test, p < 0.0001)"
    )


def test_no_difference_is_claimed_where_there_is_none() -> None:
    rng = np.random.default_rng(0)
    (found,) = differences({"a": list(rng.normal(size=10)), "b": list(rng.normal(size=10))})
    assert "no clear difference" in found.sentence("τ")
    (equal,) = differences({"a": [0.5, 0.6], "b": [0.5, 0.6]})
    assert (equal.mean, equal.p) == (0, 1)
    assert "are level" in equal.sentence("τ")


def test_the_default_number_of_seeds_can_tell() -> None:
    seeds = inspect.signature(compare).parameters["seeds"].default
    rng = np.random.default_rng(0)
    shared, sentences = rng.normal(0.7, 0.02, seeds), []
    for advantage in (0.03, 0.0):  # clearly better, and equally good
        values = {
            "a": list(shared + rng.normal(advantage, 0.005, seeds)),
            "b": list(shared + rng.normal(0, 0.005, seeds)),
        }
        sentences += [difference.sentence("τ") for difference in differences(values)]
    assert sentences[0].startswith("a is better than b")
    assert "better" not in sentences[1]
    assert not any("too few" in sentence for sentence in sentences)


def test_equal_predictors_differ_as_rarely_as_the_level_says() -> None:
    rng = np.random.default_rng(0)
    values = {str(name): list(rng.normal(size=5)) for name in range(60)}  # 1,770 pairs
    found = differences(values)
    assert np.mean([difference.p < 0.05 for difference in found]) == pytest.approx(0.05, abs=0.02)


def test_one_seed_cannot_tell() -> None:
    (found,) = differences({"a": [0.9], "b": [0.1]})
    assert (
        found.sentence("τ") == "a is ahead of b by 0.800 τ with one seed: give two or more to tell"
    )


def test_a_constant_difference_is_one() -> None:
    (found,) = differences({"a": [0.75, 0.5], "b": [0.5, 0.25]})
    assert "a is better than b" in found.sentence("τ")


def test_every_pair_is_compared() -> None:
    found = differences({"a": [1.0], "b": [2.0], "c": [3.0]})
    assert [(d.first, d.second) for d in found] == [("a", "b"), ("a", "c"), ("b", "c")]


def test_coverage_of_samples_from_the_true_distribution_is_the_share() -> None:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=4000)
    truth = centres + rng.normal(size=4000)
    samples = centres[:, None] + rng.normal(size=(4000, 500))
    for share in (0.5, 0.9):
        assert _coverage(samples, truth, share) == pytest.approx(share, abs=0.03)
