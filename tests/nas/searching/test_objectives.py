"""Claims about objectives and constraints as strings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nas.evaluation.metrics import check_metrics
from nas.searching.objectives import (
    Constraint,
    parse_constraints,
    parse_objectives,
    to_losses,
    unclear_directions,
)
from predictors.metrics import Metric
from search_spaces.common.errors import InputError


def test_direction_follows_from_the_name() -> None:
    accuracy, latency, params = parse_objectives("cifar10_validation_accuracy, pixel3_latency_ms,params")
    assert accuracy == Metric("cifar10_validation_accuracy", "accuracy", "maximize", "%")
    assert latency == Metric("pixel3_latency_ms", "measured", "minimize", "ms")
    assert params == Metric("params", "exact", "minimize", "")


def test_names_that_say_nothing_of_their_direction_are_known() -> None:
    clear = "params, macs_m, pi_latency_ms, energy, peak_memory_mb, top1, val_loss, fps, usefulness:min, usefulness:max"
    assert unclear_directions(clear.split(",")) == []
    assert unclear_directions(["usefulness", " cells ", "top1"]) == ["usefulness", "cells"]


def test_direction_and_kind_can_be_declared_and_survive_printing() -> None:
    objectives = parse_objectives(["sparsity:max", "loss_of_accuracy:min", "usefulness:accuracy:max"])
    assert [objective.direction for objective in objectives] == ["maximize", "minimize", "maximize"]
    assert objectives[2].kind == "accuracy"
    assert parse_objectives([str(objective) for objective in objectives]) == objectives


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty metric"),
        ("a,,b", "empty metric"),
        ("a:up", "use a:max or a:min"),
        ("a,b,a", "'a' is given twice"),
        ([], "at least one metric"),
    ],
)
def test_bad_objectives_say_what_to_do(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_objectives(text)


def test_unknown_metric_names_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'fpga_latency_ms'"):
        check_metrics(["fgpa_latency_ms"], ("fpga_latency_ms", "cifar10_validation_accuracy"))


def test_losses_are_minimized_in_every_objective() -> None:
    objectives = parse_objectives("test_accuracy,params")
    values = np.array([[90.0, 5.0], [np.nan, 7.0]])
    np.testing.assert_array_equal(to_losses(values, objectives), [[-90.0, 5.0], [np.nan, 7.0]])


@pytest.mark.parametrize("text", ["fpga_latency_ms <= 3.5", "fpga_latency_ms<=3.5", "  fpga_latency_ms  <=  3.5 "])
def test_constraints_are_parsed_with_any_spacing(text: str) -> None:
    assert Constraint.parse(text) == Constraint("fpga_latency_ms", "<=", 3.5)


def test_a_rate_may_have_a_bound() -> None:
    assert Constraint.parse("imgs/s >= 100") == Constraint("imgs/s", ">=", 100)


def test_a_metric_with_any_characters_may_have_a_bound() -> None:
    assert Constraint.parse("Énergie [mJ]<=2") == Constraint("Énergie [mJ]", "<=", 2)


@pytest.mark.parametrize("text", ["fpga_latency_ms", "fpga_latency_ms < 3", "fpga_latency_ms <= fast", "a <= nan", ""])
def test_bad_constraints_say_what_to_do(text: str) -> None:
    with pytest.raises(InputError, match="bad constraint"):
        parse_constraints([text])


@given(
    op=st.sampled_from(["<=", ">="]),
    bound=st.integers(-1000, 1000),
    value=st.integers(-1000, 1000),
)
def test_violation_is_positive_exactly_if_the_bound_is_violated(op: str, bound: int, value: int) -> None:
    constraint = Constraint.parse(f"metric {op} {bound}")
    violation = float(constraint.violation(np.array(float(value))))
    assert (violation <= 0) == (value <= bound if op == "<=" else value >= bound)
    assert constraint.value(violation) == value
    assert Constraint.parse(str(constraint)) == constraint
