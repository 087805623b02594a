"""Searches by cost of other packages choose valid networks in our loop, or are refused clearly."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import rivals_by_cost
from nas import Problem, search
from nas.evaluation.measurement import Measurement
from nas.search.own_evaluator import FunctionEvaluator
from nas.search.study.result import SearchResult
from nas.search.study.schema import COST_KEY, UNTIL_KEY
from search_spaces.common.errors import InputError
from tests.nas.search.spaces import Widths

FILE = Path(rivals_by_cost.__file__)
STUBBORN = """
from experiments.rivals_by_cost import AskAndTell, Proposal

class Stubborn(AskAndTell):
    "Asks for the same network again and again."

    told = []

    def ask(self):
        return Proposal(next(iter(self.space.enumerate())), self.fidelities.last, "trial")

    def tell(self, proposal, losses):
        self.told.append(losses)
"""


def _train(model: Any, architecture: Any, report: Any) -> dict[str, float]:
    total = sum(value for _, value in architecture.choices)
    score = 0.0
    for epoch in range(1, 10):
        score = total * (1 - 0.5**epoch)
        if not report(epoch, {"usefulness_accuracy": score}):
            break
    return {"usefulness_accuracy": score}


def _search(policy: str, budget: float = 150) -> SearchResult:
    space = Widths()
    evaluator = FunctionEvaluator(space, _train, ["usefulness_accuracy"], Measurement(("params",)))
    problem = Problem(space, evaluator, "usefulness_accuracy,params")
    return search(problem, sampler=policy, fidelities=(1, 3, 9), budget=budget)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "package", "budget"),
    [("MoAsha", "syne_tune", 150), ("MoAshaRanked", "syne_tune", 150), ("PriMo", "neps", 60)],
)
def test_a_policy_of_others_trains_each_network_once_within_the_budget(
    policy: str, package: str, budget: int
) -> None:
    pytest.importorskip(package, exc_type=ImportError)
    found = _search(f"{FILE}:{policy}", budget)
    trials = found.study.trials
    spent = sum(trial.user_attrs[COST_KEY] for trial in trials)
    segments = Counter((str(trial.params), trial.user_attrs[UNTIL_KEY]) for trial in trials)
    assert budget - 20 < spent <= budget
    assert max(segments.values()) == 1
    reached = Counter(until for _, until in segments)
    assert reached[1] > reached[3] > 0
    assert len(found.networks) > 3, "some are trained to the end"


@pytest.mark.parametrize(
    ("policy", "package", "name"),
    [("MoAsha", "syne_tune", "Syne Tune is missing"), ("PriMo", "neps", "NePS cannot be imported")],
)
def test_a_missing_package_is_named(
    policy: str, package: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [key for key in sys.modules if key.split(".")[0] == package] + [package]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=name):
        _search(f"{FILE}:{policy}")


def test_a_repeated_proposal_costs_nothing_and_makes_room_for_random_networks(
    tmp_path: Path,
) -> None:
    file = tmp_path / "stubborn.py"
    file.write_text(STUBBORN)
    found = _search(f"{file}:Stubborn", budget=14)
    ends = [trial.user_attrs[UNTIL_KEY] for trial in found.study.trials]
    assert ends == [9, 1, 1, 1, 1, 1], "the network that it asks for, then random ones"
    assert len({str(trial.params) for trial in found.study.trials}) == 6


def test_scaled_losses_span_0_to_1_without_networks_that_failed() -> None:
    losses = np.array([[2.0, 300.0], [4.0, 100.0], [rivals_by_cost.WORST] * 2])
    assert rivals_by_cost._scaled(losses).tolist() == [[0, 1], [1, 0], [1, 1]]
