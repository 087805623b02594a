"""Claims about ensembles by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from predictors import create, list_predictors, load
from search_spaces import InputError, get_space

SPACE = get_space("tiny-resnet")
TEXTS = [SPACE.to_text(SPACE.sample(np.random.default_rng(seed))) for seed in range(30)]
VALUES = {"a": np.arange(30.0), "b": np.random.default_rng(0).normal(size=30)}


def test_samples_and_estimates_are_the_members_with_equal_weights(tmp_path: Path) -> None:
    joined, ridge, gp = (
        create(name, seed=2).fit(TEXTS, VALUES) for name in ("ridge+gp", "ridge", "gp")
    )
    found = joined.predict(TEXTS, ["b", "a"], samples=10, seed=1).samples
    parts = [member.predict(TEXTS, ["b", "a"], samples=5, seed=1).samples for member in (ridge, gp)]
    np.testing.assert_array_equal(found, np.concatenate(parts, 1))
    mean = (ridge.estimate(TEXTS, ["a"]) + gp.estimate(TEXTS, ["a"])) / 2
    np.testing.assert_allclose(joined.estimate(TEXTS, ["a"]), mean)
    joined.save(tmp_path)
    np.testing.assert_array_equal(
        load(tmp_path).predict(TEXTS, ["b", "a"], samples=10, seed=1).samples, found
    )


def test_an_odd_number_of_samples_is_split_between_members() -> None:
    joined = create("ridge+gp").fit(TEXTS, VALUES)
    for samples in (1, 3, 64):
        assert joined.predict(TEXTS, ["a"], samples=samples).samples.shape == (30, samples, 1)


@pytest.mark.parametrize("name", ["ridge", "gp", "ridge+gp"])
@pytest.mark.parametrize("samples", [0, -1, 1.5, 4.0])
def test_the_number_of_samples_is_whole_and_positive(name: str, samples: float) -> None:
    fitted = create(name).fit(TEXTS, VALUES)
    with pytest.raises(
        InputError, match=f"samples must be a whole number of at least 1, not {samples}"
    ):
        fitted.predict(TEXTS, ["a"], samples=samples)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gp+gp", "name every member once"),
        ("gp+ridge+gp", "name every member once"),
        ("gp+none", "unknown predictor 'none'"),
        ("gp+", "unknown predictor"),
        ("gp+gp-choices", "cannot be joined"),
    ],
)
def test_members_must_be_different_known_and_of_one_kind(name: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        create(name)


def test_all_names_can_be_made() -> None:
    assert {"rlm", "gnn", "gp", "gp-choices", "ridge", "forest"} <= set(list_predictors())
    assert all(create(name).kind == name for name in list_predictors())
