"""Claims about values that do not count: huge ones, ones that are no numbers, and evaluations that
are pruned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nas import PredictorSampler, Problem, search
from nas.search.own_evaluator import FunctionEvaluator
from nas.search.study.load import read_search
from nas.search.study.result import SearchResult
from nas.search.study.trial_logger import plain_number
from nas.search.study.trials import TrialReader
from predictors import create
from predictors.metrics import MAX_VALUE, is_valid, only_valid, why_invalid
from search_spaces import Architecture, InputError, SearchSpace
from tests.nas.search.spaces import Widths

OBJECTIVES = "perplexity:min,params"
INVALID = [math.nan, math.inf, -math.inf, math.exp(400), -math.exp(400), 1.01e18, 1e100, 1.7e308]


def first_width(architecture: Architecture) -> int:
    return int(architecture.as_dict()["width0"])


class Diverging:
    """Every network with the first width 2 diverges."""

    metrics = ("perplexity", "params")

    def __init__(self, space: SearchSpace, value: float) -> None:
        self.space, self.value = space, value

    def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
        rows = [
            (self.value if first_width(a) == 2 else 3 - first_width(a) / 32, self.space.params(a))
            for a in architectures
        ]
        return np.array(rows)


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_one_bound_decides_and_squares_below_it_are_safe(value: float) -> None:
    valid = bool(is_valid(value))
    assert valid == (not math.isnan(value) and abs(value) <= MAX_VALUE)
    assert (why_invalid("loss", value) == "") == valid
    assert np.isnan(only_valid(np.array([value]))[0]) != valid
    if valid:
        squares = np.full(300, value, np.float32) ** 2
        assert np.isfinite(squares.sum(dtype=np.float32))


@pytest.mark.parametrize("value", INVALID)
@pytest.mark.parametrize("sampler", ["ridge", "tpe"])
def test_the_trial_fails_and_the_search_and_its_resumption_go_on(
    tmp_path: Path, value: float, sampler: str
) -> None:
    storage = tmp_path / "search.journal"
    for evaluations in (12, 16):
        result = search(
            Problem(Widths(), Diverging(Widths(), value), OBJECTIVES),
            sampler=sampler,
            evaluations=evaluations,
            storage=storage,
        )
    diverged = [first_width(a) == 2 for a in result.evaluated.architectures]
    assert any(diverged)
    assert not all(diverged)
    assert np.isnan(result.evaluated.values[:, 0]).tolist() == diverged
    assert len(result.failures) == sum(diverged)
    assert all("perplexity is " in failure["reason"] for failure in result.failures)


@pytest.mark.parametrize(
    "sampler", ["ridge", "tpe", "nsga2", pytest.param("forest", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("value", [math.exp(400), -math.exp(400)])
def test_a_study_that_stores_a_huge_value_resumes_and_is_reported(
    tmp_path: Path, sampler: str, value: float
) -> None:
    """An earlier version took it for a result."""
    storage, space = tmp_path / "search.journal", Widths()
    result = search(
        Problem(space, Diverging(space, 1.0), OBJECTIVES),
        sampler=sampler,
        evaluations=11,
        storage=storage,
    )
    chosen = next(a for a in space.enumerate() if a not in result.evaluated.architectures)
    parameters = optuna.distributions.CategoricalDistribution([1, 2, 3, 4])
    result.study.add_trial(
        optuna.trial.create_trial(
            params=chosen.as_dict(),
            distributions=dict.fromkeys(chosen.as_dict(), parameters),
            values=[value, 5.0],
        )
    )
    result = search(
        Problem(space, Diverging(space, 1.0), OBJECTIVES),
        sampler=sampler,
        evaluations=16,
        storage=storage,
    )
    at = result.evaluated.architectures.index(chosen)
    assert np.isnan(result.evaluated.values[at]).any()
    assert space.format(chosen) not in [row["architecture"] for row in result.front_rows]
    assert [failure["choices"] for failure in result.failures] == [str(chosen.as_dict())]
    assert "perplexity is " in result.failures[0]["reason"]
    assert len(read_search(storage).evaluated.architectures) == 16
    result.save(tmp_path / "out")


def test_a_guided_sampler_of_your_own_study_ignores_huge_values() -> None:
    space = Widths()
    sampler = PredictorSampler(
        space, lambda: create("ridge"), OBJECTIVES, n_startup=4, refit_every=2, fresh=10
    )
    study = optuna.create_study(directions=["minimize", "minimize"], sampler=sampler)
    evaluator = Diverging(space, math.exp(400))
    study.optimize(lambda trial: tuple(evaluator([space.choose(trial)])[0]), n_trials=12)
    result = SearchResult.of_study(study, TrialReader(space, sampler._reader.objectives, ()))
    assert len(result.evaluated.architectures) == 12
    assert all(first_width(space.parse(row["architecture"])) != 2 for row in result.front_rows)


def test_prior_observations_that_are_huge_are_failures() -> None:
    space = Widths()
    members = list(space.enumerate())[:6]
    prior = {a: [math.exp(400) if i % 2 else 1.0, space.params(a)] for i, a in enumerate(members)}
    result = search(
        Problem(space, Diverging(space, 2.0), OBJECTIVES),
        sampler="ridge",
        evaluations=12,
        known=prior,
    )
    assert len(result.failures) == 3
    assert len(result.evaluated.architectures) == 18


# --- what a user's function returns

NUMBERS: list[Any] = [
    3, 3.0, True, np.float32(3), np.int64(3), np.bool_(True), np.array(3.0), np.array([3]), np.array([[3.0]]),
    torch.tensor(3.0), torch.tensor([3.0]), torch.tensor([[3.0]], requires_grad=True), torch.tensor([3]),
]  # fmt: skip
NO_NUMBERS: list[Any] = [
    None, "3", "diverged", b"3", [3.0], (3.0,), {"value": 3.0}, 3j, pytest.param(object(), id="object"),
    np.array([1.0, 2.0]), np.array([]),
    torch.tensor([1.0, 2.0]), np.array("3"), np.array([None]), print,
]  # fmt: skip


@pytest.mark.parametrize("value", NUMBERS, ids=repr)
def test_arrays_with_one_element_are_numbers(value: Any) -> None:
    number = plain_number("q", value)
    assert type(number) is float
    assert number in (1.0, 3.0)


@pytest.mark.parametrize("value", NO_NUMBERS, ids=repr)
def test_what_is_no_number_is_named_with_its_type(value: Any) -> None:
    with pytest.raises(InputError) as refusal:
        plain_number("q", value)
    message = str(refusal.value)
    assert message.startswith("q is ")
    assert f"({type(value).__name__})" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        (lambda: None, "not NoneType"),
        (lambda: 0.5, "not float"),
        (lambda: {"q": None}, "q is None"),
        (lambda: {"q": "0.5"}, "q is '0.5' (str)"),
        (lambda: {"q": 0.5, "note": "diverged"}, "note is 'diverged' (str)"),
        (lambda: {"q": np.array([0.5, 0.5])}, "(ndarray)"),
        (lambda: {"q": 1e200}, "q is 1e+200"),
    ],
    ids=["None", "float", "a None", "text", "further text", "array", "huge"],
)
def test_the_trial_fails_with_the_metric_named(returned: Callable[[], Any], reason: str) -> None:
    space = Widths()

    def evaluate(model: Any, architecture: Architecture, report: Any) -> Any:
        return (
            returned()
            if first_width(architecture) == 2
            else {"q": torch.tensor([0.5]), "loss": np.array([1.0])}
        )

    result = search(
        Problem(space, FunctionEvaluator(space, evaluate, ["q"]), "q:max"),
        sampler="random",
        evaluations=10,
    )
    failed = sum(first_width(a) == 2 for a in result.evaluated.architectures)
    assert 0 < failed < 10
    assert len(result.failures) == failed
    assert reason in result.failures[0]["reason"]
    assert set(result.feasible_values[np.isfinite(result.feasible_values)]) == {0.5}


def test_a_report_of_text_fails_the_trial_with_the_metric_named() -> None:
    space = Widths()

    def evaluate(model: Any, architecture: Architecture, report: Any) -> Any:
        report(1, {"q": 0.1, "phase": "warm-up"} if first_width(architecture) == 2 else {"q": 0.1})
        return {"q": 0.5}

    result = search(
        Problem(space, FunctionEvaluator(space, evaluate, ["q"]), "q:max"),
        sampler="random",
        evaluations=10,
    )
    assert "phase is 'warm-up' (str)" in result.failures[0]["reason"]


@pytest.mark.parametrize(
    ("returned", "reason"), [(None, "returned None"), ([["good", 1]], "perplexity is 'good' (str)")]
)
def test_an_evaluator_without_numbers_fails_the_trial(returned: Any, reason: str) -> None:
    class Odd(Diverging):
        def __call__(self, architectures: Sequence[Architecture]) -> Any:
            return (
                returned if first_width(architectures[0]) == 2 else super().__call__(architectures)
            )

    result = search(
        Problem(Widths(), Odd(Widths(), 1.0), OBJECTIVES), sampler="random", evaluations=10
    )
    assert reason in result.failures[0]["reason"]
    assert len(result.evaluated.architectures) == 10


# --- pruning


@pytest.mark.parametrize(
    ("message", "reason"), [("", "the evaluator pruned it"), ("too slow", "pruned it: too slow")]
)
def test_any_number_of_evaluations_may_be_pruned(message: str, reason: str) -> None:
    class Pruning(Diverging):
        def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
            if first_width(architectures[0]) < 4:
                raise optuna.TrialPruned(message)
            return super().__call__(architectures)

    result = search(
        Problem(Widths(), Pruning(Widths(), 1.0), OBJECTIVES), sampler="random", evaluations=40
    )
    assert len(result.evaluated.architectures) == 40
    pruned = sum(first_width(a) < 4 for a in result.evaluated.architectures)
    assert len(result.failures) == pruned > 20
    assert all(failure["reason"].endswith(reason) for failure in result.failures)


def test_pruned_evaluations_do_not_hide_failures_in_a_row() -> None:
    class Failing(Diverging):
        def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
            raise (
                optuna.TrialPruned
                if first_width(architectures[0]) == 2
                else RuntimeError("no data")
            )

    with pytest.raises(InputError, match=r"10 evaluations in a row failed; the last: .*no data"):
        search(
            Problem(Widths(), Failing(Widths(), 1.0), OBJECTIVES), sampler="random", evaluations=40
        )
