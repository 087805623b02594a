"""Claims about the map between values and scores."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.base import as_targets
from predictors.transforms import TargetTransform, pivot_of
from search_spaces import InputError

VALUES = st.lists(st.integers(-(10**6), 10**6).map(lambda n: n / 100), min_size=1, max_size=300)
BY_RANK = st.booleans()


@given(VALUES, BY_RANK)
def test_scores_rise_strictly_with_values_also_beyond_the_knots(
    values: list[float], by_rank: bool
) -> None:
    scale = TargetTransform.fit(np.array(values), by_rank)
    span = np.ptp(values) + 1
    asked = np.linspace(min(values) - span, max(values) + span, 101)
    assert (np.diff(scale.to_z(asked)) > 0).all()


@given(VALUES, BY_RANK, st.lists(st.floats(-2, 3), min_size=1, max_size=20))
def test_a_value_comes_back_from_its_score(
    values: list[float], by_rank: bool, places: list[float]
) -> None:
    scale = TargetTransform.fit(np.array(values), by_rank)
    asked = min(values) + np.ptp(values) * np.array(places)
    size = np.ptp(values) + np.abs(asked).max() + 1
    np.testing.assert_allclose(
        scale.to_values(scale.to_z(asked)), asked, rtol=1e-6, atol=1e-7 * size
    )


def test_ranks_are_normal_scores_and_missing_values_stay_missing() -> None:
    scale = TargetTransform.fit(np.exp(np.linspace(0, 20, 1001)), by_rank=True)
    found = scale.to_z(np.array([np.exp(10.0), np.exp(18.0), np.nan]))
    np.testing.assert_allclose(found[:2], [0, 1.28], atol=0.05)
    assert np.isnan(found[2])


def test_a_map_of_many_values_goes_on_as_steeply_as_at_its_ends() -> None:
    scale = TargetTransform.fit(np.linspace(0, 1, 500), by_rank=True)
    beyond = scale.to_values(scale.z[-1] + np.array([1.0, 2.0]))
    assert 1 < beyond[0] < beyond[1] < 2


@pytest.mark.parametrize("value", [1e-13, -3e-10, 0.5, 7e8])
def test_samples_of_a_constant_stay_close_to_it_whatever_its_unit(value: float) -> None:
    scores = TargetTransform.fit(np.full(5, value), by_rank=False)
    np.testing.assert_allclose(scores.to_values(np.linspace(-4, 4, 9)), value, rtol=1e-7)


def test_a_constant_is_restored_as_it_is() -> None:
    for value in (0.0, 7.0, -1e12):
        scale = TargetTransform.fit(np.full(5, value), by_rank=True)
        np.testing.assert_allclose(
            scale.to_values(np.array([-3.0, 0.0, 3.0])), value, rtol=1e-8, atol=1e-8
        )


@pytest.mark.parametrize(
    "values",
    [
        [1e-310, 2e-310, 1.0],
        [0.0, 5e-324, 1.0, 2.0],
        [1e-310] * 3,
        [-1e18, 0.0, 1e18],
        [1.0, 1.0 + 2e-16, 1.0],
    ],
)
def test_tiny_and_huge_values_have_finite_scores(values: list[float]) -> None:
    checked = as_targets([""] * len(values), {"metric": values})["metric"]
    scale = TargetTransform.fit(checked, by_rank=True)
    assert np.isfinite(scale.to_z(checked)).all()
    assert np.isfinite(scale.to_values(np.linspace(-9.99, 9.99, 99))).all()


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([1e-310, 2e-310], "larger unit"),
        ([1e200, 0.0], "another unit"),
        ([1.1e18, 0.0], "another unit"),
        ([np.inf, 0.0], "infinite"),
        (["fast", "slow"], "not a number"),
        ([np.nan, np.nan], "no value"),
        ([1.0], "shape"),
    ],
)
def test_values_that_cannot_be_learned_are_refused_with_the_remedy(
    values: list[float], reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        as_targets(["a", "b"], {"metric": values})


@pytest.mark.parametrize("by_rank", [True, False])
def test_values_that_differ_by_rounding_are_one_value(by_rank: bool) -> None:
    values = np.nextafter(np.full(5, 0.7), [0, 1, 0, 1, 1])
    scores = TargetTransform.fit(values, by_rank)
    np.testing.assert_allclose(scores.to_z(values), 0, atol=0.01)
    np.testing.assert_allclose(scores.to_values(np.array([-1.0, 0.0, 1.0])), 0.7, rtol=1e-6)


POSITIVE = st.lists(st.floats(-6, 6).map(lambda power: 10**power), min_size=1, max_size=60)


@given(POSITIVE, BY_RANK, st.sampled_from(["a_ms", "energy_mj", "perplexity", "images_per_s"]))
def test_positive_quantities_stay_positive_however_low_the_score(
    values: list[float], by_rank: bool, metric: str
) -> None:
    known = np.array(values)
    scale = (
        TargetTransform.by_ranks(metric, known)
        if by_rank
        else TargetTransform.for_metric(metric, known)
    )
    if metric == "perplexity" and not scale.pivot:
        return  # a loss within one order of magnitude may be a signed quantity
    restored = scale.to_values(np.linspace(-9.99, 9.99, 201))
    assert (restored > 0).all()
    assert np.isfinite(restored).all()
    assert (np.diff(restored) >= 0).all()
    np.testing.assert_allclose(scale.to_values(scale.to_z(known)), known, rtol=1e-6)


def test_quantities_over_decades_are_learned_as_logarithms_and_narrow_ones_by_value() -> None:
    rng = np.random.default_rng(0)
    wide, narrow = 10 ** rng.normal(0, 0.6, 200), rng.normal(10, 1, 200)
    for name, values in (("gpu_ms", wide), ("energy_mj", wide), ("perplexity", 1 + 100 * wide)):
        assert pivot_of(name, values) == np.inf, name
    steps = np.diff(
        TargetTransform.for_metric("gpu_ms", wide).to_z(np.array([0.01, 0.1, 1.0, 10.0]))
    )
    np.testing.assert_allclose(steps, steps[0])
    steps = np.diff(
        TargetTransform.for_metric("gpu_ms", narrow).to_z(np.array([8.0, 9.0, 10.0, 11.0]))
    )
    np.testing.assert_allclose(steps, steps[0])
    for name, values in (
        ("accuracy", wide),
        ("params", wide),
        ("drop", wide - 1),
        ("x_ms", wide - 1),
    ):
        assert pivot_of(name, values) == 0, name


def test_a_few_networks_without_operators_do_not_make_a_range_wide() -> None:
    """As in NAS-Bench-201: some cells do nothing, and take a thousandth of the time of all
    others.
    """
    latencies = np.concatenate(
        [np.random.default_rng(0).normal(60, 15, 300).clip(20), [0.02, 0.03, 0.05]]
    )
    assert pivot_of("raspi4_ms", latencies) == 0.01
    assert pivot_of("raspi4_ms", 1e6 * latencies) == 1e4, "whatever the unit"


def test_the_map_has_no_kink_at_its_pivot() -> None:
    scale = TargetTransform.for_metric("x_ms", np.linspace(5.0, 9.0, 50))
    around = scale.to_values(scale.to_z(np.array([5.0]))[0] + np.array([-1e-4, 0, 1e-4]))
    slopes = np.diff(around)
    assert slopes[0] == pytest.approx(slopes[1], rel=1e-3)
    assert scale.to_z(np.array([0.0, -3.0])).tolist() == [scale.to_z(np.array([0.0]))[0]] * 2
