"""Claims about objectives and constraints as strings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nas.evaluation.metrics import check_metrics
from nas.search.objectives import (
    Constraint,
    parse_constraints,
    parse_objectives,
    to_losses,
    unclear_directions,
)
from predictors.metrics import Metric
from search_spaces.common.errors import InputError


def test_direction_follows_from_the_name() -> None:
    accuracy, latency, params = parse_objectives(
        "cifar10_validation_accuracy, pixel3_latency_ms,params"
    )
    assert accuracy == Metric("cifar10_validation_accuracy", "accuracy", "maximize", "%")
    assert latency == Metric("pixel3_latency_ms", "measured", "minimize", "ms")
    assert params == Metric("params", "exact", "minimize", "")


def test_names_that_say_nothing_of_their_direction_are_known() -> None:
    clear = (
        "params, macs_m, pi_latency_ms, energy, peak_memory_mb, top1, val_loss, fps, "
        "usefulness:min, usefulness:max"
    )
    assert unclear_directions(clear.split(",")) == []
    assert unclear_directions(["usefulness", " cells ", "top1"]) == ["usefulness", "cells"]


def test_direction_and_kind_can_be_declared_and_survive_printing() -> None:
    objectives = parse_objectives(
        ["sparsity:max", "loss_of_accuracy:min", "usefulness:accuracy:max"]
    )
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


DIRECTIONS = {"max": "maximize", "maximize": "maximize", "min": "minimize", "minimize": "minimize"}
NAMES = st.sampled_from(
    ["params", "quality", "top1", "pixel3_latency_ms", "accuracy", "val_loss", "flops"]
)


@given(st.dictionaries(NAMES, st.sampled_from(sorted(DIRECTIONS)), min_size=1), st.booleans())
def test_a_dictionary_gives_each_metric_its_direction(
    directions: dict[str, str], loud: bool
) -> None:
    written = {f" {name} ": word.upper() if loud else word for name, word in directions.items()}
    objectives = parse_objectives(written)
    assert [(o.name, o.direction) for o in objectives] == [
        (n, DIRECTIONS[word]) for n, word in directions.items()
    ]
    assert parse_objectives([f"{name}:{word}" for name, word in directions.items()]) == objectives
    assert parse_objectives([str(objective) for objective in objectives]) == objectives


@pytest.mark.parametrize(
    "objectives",
    [
        None,
        5,
        b"params",
        {"params", "flops"},  # without an order
        frozenset({"params"}),
        {"params": 1},
        {"params": True},
        {"params": None},
        {"params": "up"},
        {"params": "min:max"},
        {"params": {"direction": "max"}},
        {"params:min": "max"},
        {1: "max"},
        {"": "max"},
        {},
        [None],
        [("params", "max")],
        [["params"]],
        [{"params": "max"}],
        "params:min:max",
        "params:exact:accuracy",
        {"params": "max", "params ": "min"},
    ],
)
def test_what_is_no_objective_is_refused_in_one_line(objectives: Any) -> None:
    with pytest.raises(InputError) as refusal:
        parse_objectives(objectives)
    assert "\n" not in str(refusal.value)


@given(
    st.dictionaries(
        NAMES, st.tuples(st.sampled_from(["<=", ">="]), st.integers(-99, 99)), min_size=1
    )
)
def test_a_dictionary_gives_each_metric_its_bound(bounds: dict[str, tuple[str, int]]) -> None:
    constraints = parse_constraints(
        {metric: f"{op} {bound}" for metric, (op, bound) in bounds.items()}
    )
    assert {c.metric: (c.op, c.bound) for c in constraints} == bounds
    assert parse_constraints(", ".join(map(str, constraints))) == constraints


@pytest.mark.parametrize(
    "constraints",
    [
        5,
        {"params <= 1"},
        {"params": 2e5},
        {"params": ("<=", 2e5)},
        {"params": "2e5"},
        {"params": "< 2e5"},
        {"params": "= 2e5"},
        {"params": "<= nan"},
        {"params": "<= 1 <= 2"},
        {1: "<= 2"},
        [None],
        [("params", "<=", 2)],
        "1 <= params <= 2",
    ],
)
def test_what_is_no_constraint_is_refused_in_one_line(constraints: Any) -> None:
    with pytest.raises(InputError) as refusal:
        parse_constraints(constraints)
    assert "\n" not in str(refusal.value)


def test_one_metric_or_constraint_is_a_list_of_one() -> None:
    assert parse_objectives(Metric.parse("params")) == parse_objectives("params")
    assert parse_constraints(Constraint("params", "<=", 2)) == parse_constraints("params <= 2")


def test_unknown_metric_names_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'fpga_latency_ms'"):
        check_metrics(["fgpa_latency_ms"], ("fpga_latency_ms", "cifar10_validation_accuracy"))


def test_losses_are_minimized_in_every_objective() -> None:
    objectives = parse_objectives("test_accuracy,params")
    values = np.array([[90.0, 5.0], [np.nan, 7.0]])
    np.testing.assert_array_equal(to_losses(values, objectives), [[-90.0, 5.0], [np.nan, 7.0]])


@pytest.mark.parametrize(
    "text", ["fpga_latency_ms <= 3.5", "fpga_latency_ms<=3.5", "  fpga_latency_ms  <=  3.5 "]
)
def test_constraints_are_parsed_with_any_spacing(text: str) -> None:
    assert Constraint.parse(text) == Constraint("fpga_latency_ms", "<=", 3.5)


def test_a_rate_may_have_a_bound() -> None:
    assert Constraint.parse("imgs/s >= 100") == Constraint("imgs/s", ">=", 100)


def test_a_metric_with_any_characters_may_have_a_bound() -> None:
    assert Constraint.parse("Énergie [mJ]<=2") == Constraint("Énergie [mJ]", "<=", 2)


@pytest.mark.parametrize(
    "text", ["fpga_latency_ms", "fpga_latency_ms < 3", "fpga_latency_ms <= fast", "a <= nan", ""]
)
def test_bad_constraints_say_what_to_do(text: str) -> None:
    with pytest.raises(InputError, match="bad constraint"):
        parse_constraints([text])


@given(
    op=st.sampled_from(["<=", ">="]),
    bound=st.integers(-1000, 1000),
    value=st.integers(-1000, 1000),
)
def test_violation_is_positive_exactly_if_the_bound_is_violated(
    op: str, bound: int, value: int
) -> None:
    constraint = Constraint.parse(f"metric {op} {bound}")
    violation = float(constraint.violation(np.array(float(value))))
    assert (violation <= 0) == (value <= bound if op == "<=" else value >= bound)
    assert constraint.value(violation) == value
    assert Constraint.parse(str(constraint)) == constraint
