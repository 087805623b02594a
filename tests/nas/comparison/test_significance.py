"""Claims about differences between predictors: paired, signed, and honest about few seeds."""

from __future__ import annotations

import numpy as np
import pytest

from nas.comparison.compare import _coverage
from nas.comparison.significance import differences


def test_a_difference_is_paired_over_seeds() -> None:
    seeds = np.arange(10) / 10  # whatever the seed makes of both
    (found,) = differences({"a": list(seeds), "b": list(seeds + 0.03)})
    assert found.mean == pytest.approx(-0.03)
    assert found.std == pytest.approx(0)
    assert found.p == pytest.approx(2 / 2**10)
    assert found.sentence("τ") == "b is better than a by 0.030 ± 0.000 τ over 10 seeds (Wilcoxon p = 0.002)"


def test_no_difference_is_claimed_where_there_is_none() -> None:
    rng = np.random.default_rng(0)
    (found,) = differences({"a": list(rng.normal(size=10)), "b": list(rng.normal(size=10))})
    assert "no clear difference" in found.sentence("τ")
    (equal,) = differences({"a": [0.5, 0.6], "b": [0.5, 0.6]})
    assert (equal.mean, equal.p) == (0, 1)


def test_five_seeds_are_too_few_to_tell() -> None:
    (found,) = differences({"a": [0.9] * 5, "b": [0.1, 0.2, 0.3, 0.4, 0.5]})
    assert found.sentence("τ").endswith("too few seeds to tell")


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
