"""Claims about Pareto fronts, hypervolume and IGD+."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nas import load_benchmark
from nas.search.objectives import parse_objectives
from nas.search.pareto import Reference, hypervolume, non_dominated
from search_spaces.common.errors import InputError

OBJECTIVES = parse_objectives("cifar10_validation_accuracy,fpga_latency_ms")
FLOOR = 50.0
TABLE = np.array(
    [[90.0, 4.0], [80.0, 2.0], [70.0, 1.0], [79.0, 3.0], [10.0, 0.1]]
)  # the last is below the floor

grids = hnp.arrays(
    float, st.tuples(st.integers(0, 12), st.integers(1, 4)), elements=st.integers(0, 4).map(float)
)


@given(grids)
def test_non_dominated_agrees_with_the_definition(losses: np.ndarray) -> None:
    expected = [
        not any((other <= row).all() and (other < row).any() for other in losses) for row in losses
    ]
    assert non_dominated(losses).tolist() == expected


def test_failed_evaluations_are_never_on_a_front() -> None:
    losses = np.array([[np.nan, 0.0], [1.0, 1.0], [-np.inf, 0.0], [2.0, 2.0]])
    assert non_dominated(losses).tolist() == [False, True, False, False]
    assert hypervolume(losses, [3.0, 3.0]) == 4.0


def test_hypervolume_of_nothing_is_zero() -> None:
    assert hypervolume(np.empty((0, 2)), [1.0, 1.0]) == 0.0
    assert hypervolume(np.array([[2.0, 0.0]]), [1.0, 1.0]) == 0.0


def test_reference_keeps_the_front_above_the_floor() -> None:
    reference = Reference.of_table(TABLE, OBJECTIVES, FLOOR)
    np.testing.assert_array_equal(reference.ideal, [-90.0, 1.0])
    np.testing.assert_array_equal(reference.nadir, [-70.0, 4.0])
    assert len(reference.true_front) == 3
    assert len(Reference.of_table(TABLE, OBJECTIVES, floor=0.0).true_front) == 4
    assert len(Reference.of_table(TABLE, OBJECTIVES).true_front) == 4, (
        "no floor that nobody asked for"
    )


def test_ratio_is_the_share_of_the_true_hypervolume() -> None:
    reference = Reference.of_table(TABLE, OBJECTIVES, FLOOR)
    assert reference.ratio(TABLE) == pytest.approx(1.0)
    assert reference.ratio(np.empty((0, 2))) == 0.0
    # Scaled: (0, 1) of the true (0, 1), (1/2, 1/3), (1, 0); three slabs up to the reference point
    # (1.1, 1.1).
    true = 0.5 * (1.1 - 1) + 0.5 * (1.1 - 1 / 3) + 0.1 * 1.1
    assert reference.ratio(TABLE[:1]) == pytest.approx(1.1 * 0.1 / true)


def test_networks_below_the_floor_do_not_count() -> None:
    reference = Reference.of_table(TABLE, OBJECTIVES, FLOOR)
    assert reference.ratio(TABLE[-1:]) == 0.0
    assert reference.igd_plus(TABLE[-1:]) == np.inf


def test_a_network_at_the_floor_counts() -> None:
    reference = Reference.of_table(TABLE, OBJECTIVES, floor=70.0)
    assert len(reference.true_front) == 3
    assert reference.ratio(TABLE[2:3]) > 0


def test_igd_plus_is_zero_for_the_true_front_and_infinite_for_nothing() -> None:
    reference = Reference.of_table(TABLE, OBJECTIVES, FLOOR)
    assert reference.igd_plus(TABLE) == 0.0
    assert reference.igd_plus(TABLE[:1]) > reference.igd_plus(TABLE[:2]) > 0
    assert reference.igd_plus(np.full((2, 2), np.nan)) == np.inf


@given(
    hnp.arrays(
        float,
        st.tuples(st.integers(0, 15), st.just(2)),
        elements=st.sampled_from([60, 70, 80, 95, np.inf, -np.inf, np.nan]),
    )
)
def test_curve_is_the_ratio_of_every_prefix(values: np.ndarray) -> None:
    reference = Reference.of_table(TABLE, OBJECTIVES, FLOOR)
    values = values / [1, 20]
    curve = reference.curve(values)
    assert curve.shape == (len(values),)
    np.testing.assert_allclose(
        curve, [reference.ratio(values[: i + 1]) for i in range(len(values))]
    )


def test_a_front_of_one_point_is_reached_by_that_point() -> None:
    reference = Reference.of_table(np.array([[90.0, 1.0], [80.0, 2.0]]), OBJECTIVES)
    assert reference.ratio(np.array([[90.0, 1.0]])) == 1.0
    assert reference.ratio(np.array([[80.0, 2.0]])) == 0.0


def test_a_table_without_usable_rows_is_refused() -> None:
    with pytest.raises(InputError, match="accuracy floor of 50"):
        Reference.of_table(np.array([[10.0, 1.0], [np.nan, 1.0]]), OBJECTIVES, FLOOR)


def test_random_search_reaches_the_published_hypervolume_on_nasbench201(nas_data: Path) -> None:
    benchmark = load_benchmark("nasbench201")
    values = np.stack([benchmark.values(objective.name) for objective in OBJECTIVES], axis=1)
    reference = Reference.of_table(values, OBJECTIVES, FLOOR)
    assert len(reference.true_front) == 11
    curves = [
        reference.curve(values[np.random.default_rng(seed).permutation(len(values))[:500]])
        for seed in range(10)
    ]
    np.testing.assert_allclose(
        np.mean(curves, axis=0)[[49, 99, 199, 499]], [0.784, 0.864, 0.906, 0.934], atol=0.04
    )
