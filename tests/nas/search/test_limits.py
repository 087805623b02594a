"""Claims about limits: a network whose measured metrics break one is never trained, whatever the
sampler.
"""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optuna.trial import TrialState

import nas
from nas import Evaluator, Problem, search
from nas.evaluation.measurement import Measurement
from nas.search import search as search_loop
from nas.search.own_evaluator import FunctionEvaluator
from nas.search.study.result import SearchResult
from nas.search.study.schema import RULED_OUT_KEY, TrialAttributes
from nas.search.study.trials import TrialReader
from search_spaces.common.errors import EvaluatorError
from tests.nas.search.spaces import Widths

GOAL = "usefulness_accuracy,params"
LIMIT = 250


class Trainings:
    """A training whose score is the sum of all widths. `begun` counts those of each network."""

    def __init__(self) -> None:
        self.begun: Counter[str] = Counter()

    def __call__(self, model: Any, architecture: Any, report: Any) -> dict[str, float]:
        self.begun[str(architecture.choices)] += 1
        return {"usefulness_accuracy": float(sum(width for _, width in architecture.choices))}


def run(trainings: Trainings, sampler: str = "random", **options: Any) -> SearchResult:
    space = Widths()
    evaluator = FunctionEvaluator(
        space, trainings, ["usefulness_accuracy"], Measurement(("params",))
    )
    constraints = options.pop("constraints", f"params <= {LIMIT}")
    return search(
        Problem(space, evaluator, GOAL, constraints),
        sampler=sampler,
        evaluations=options.pop("evaluations", 12),
        **options,
    )


@pytest.mark.parametrize("sampler", ["random", "nsga2", "tpe", "ridge"])
def test_no_violator_is_trained(sampler: str) -> None:
    trainings = Trainings()
    result = run(trainings, sampler)
    assert sum(trainings.begun.values()) == len(result.evaluated.architectures) == 12
    assert max(map(result.space.params, result.evaluated.architectures)) <= LIMIT
    assert result.ruled_out, "the limit was met, and the evaluations went to other networks"
    notations = [network.notation for network in result.ruled_out]
    assert len(notations) == len(set(notations))


def test_the_table_of_networks_has_what_was_measured_of_a_violator(tmp_path: Path) -> None:
    result = run(Trainings(), out=tmp_path)
    rows = result.networks[result.networks["evaluations"] == 0]
    assert len(rows) == len(result.ruled_out) > 0
    assert (rows["params"] > LIMIT).all()
    assert rows["usefulness_accuracy"].isna().all()
    with (tmp_path / "networks.csv").open(newline="") as file:
        written = [row for row in csv.DictReader(file) if row["evaluations"] == "0"]
    assert [float(row["params"]) for row in written] == rows["params"].tolist()


def test_samplers_read_partial_values_of_a_violator() -> None:
    result = run(Trainings())
    problem = Problem(Widths(), lambda model, architecture, report: {}, GOAL, f"params <= {LIMIT}")
    reader = TrialReader(result.space, problem.objectives, problem.constraints)
    trial = next(t for t in result.study.trials if RULED_OUT_KEY in t.user_attrs)
    assert trial.state == TrialState.PRUNED
    accuracy, params = reader.values(trial)
    assert np.isnan(accuracy)
    assert params == TrialAttributes.of(trial).values["params"] > LIMIT
    assert reader.violation(reader.values(trial)) == pytest.approx((params - LIMIT) / LIMIT)


def test_a_search_that_resumes_measures_no_violator_again(tmp_path: Path) -> None:
    storage = tmp_path / "s.journal"
    first = run(Trainings(), evaluations=6, storage=storage)
    second = run(Trainings(), evaluations=12, storage=storage)
    assert {n.notation for n in first.ruled_out} <= {n.notation for n in second.ruled_out}
    assert len(second.ruled_out) == len({n.notation for n in second.ruled_out})
    assert len(second.evaluated.architectures) == 12


def test_a_search_whose_limit_nothing_keeps_ends_with_a_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(search_loop, "MAX_RULED_OUT", 5)
    trainings = Trainings()
    result = run(trainings, constraints="params <= 1")
    assert not trainings.begun
    assert len(result.ruled_out) == 5
    assert "5 networks in a row broke a constraint before their training" in caplog.text


def test_a_space_whose_networks_are_trained_or_ruled_out_is_exhausted() -> None:
    trainings = Trainings()
    result = run(trainings, evaluations=1000)
    assert len(trainings.begun) + len(result.ruled_out) == Widths.size


def test_of_a_table_accuracies_cost_a_training() -> None:
    table = nas.load_benchmark("digits201")
    problem = table.problem("digits_accuracy,cpu_latency_ms", "cpu_latency_ms <= 0.02")
    result = search(problem, sampler="random", evaluations=10)
    assert len(result.evaluated.architectures) == 10
    assert result.feasible.all()
    assert all(network.values["cpu_latency_ms"] > 0.02 for network in result.ruled_out)


def test_an_evaluator_without_cheap_metrics_rules_nothing_out() -> None:
    class Params(Evaluator):
        metrics = ("params",)

        def __call__(self, architectures: Any) -> np.ndarray:
            return np.array([[float(space.params(a))] for a in architectures])

    space = Widths()
    result = search(
        Problem(space, Params(), "params", "params <= 1"), sampler="random", evaluations=5
    )
    assert len(result.evaluated.architectures) == 5
    assert not result.feasible.any()


def test_an_evaluator_of_the_users_own_measures_before_it_trains() -> None:
    class Board(Evaluator):
        metrics = ("board_ms", "score_accuracy")
        trained = ("score_accuracy",)
        seen = 0

        def measure(self, architecture: Any, log: Any) -> dict[str, float]:
            return {"board_ms": float(architecture.as_dict()["width0"])}

        def train(
            self, architecture: Any, observed: Any, log: Any, segment: Any = None
        ) -> dict[str, float]:
            self.seen += 1
            return {**observed, "score_accuracy": observed["board_ms"] + 1}

    board, space = Board(), Widths()
    problem = Problem(space, board, "board_ms,score_accuracy", "board_ms <= 2")
    result = search(problem, sampler="random", evaluations=8)
    assert board.seen == 8
    assert result.networks["score_accuracy"].max() == 3
    assert board([space.sample(np.random.default_rng(0))]).shape == (1, 2)
    with pytest.raises(EvaluatorError, match="must define __call__, or measure and train"):
        type("Empty", (Evaluator,), {"metrics": ("x",)})()([space.sample(np.random.default_rng(0))])
