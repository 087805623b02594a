"""Claims about which networks a search by cost trains: none that violates a known constraint, and
none twice.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optuna.trial import TrialState, create_trial

from nas import Problem, search
from nas.benchmarks.table import Benchmark, Header, Table
from nas.evaluation.latency import LatencyTask
from nas.evaluation.measurement import Measurement
from nas.search import search as search_loop
from nas.search.candidates import repeat_exactly
from nas.search.evaluators import TableEvaluator
from nas.search.own_evaluator import FunctionEvaluator
from nas.search.study.result import SearchResult
from nas.search.study.schema import BEGUN_KEY, COST_KEY, RULED_OUT_KEY, SPREAD_KEY, UNTIL_KEY
from nas.search.study.storage import begin_trial
from predictors.baselines import Ridge
from search_spaces import SearchSpace, get_space
from search_spaces.ir.builder import Network, Tensor
from tests.nas.search.spaces import Widths


class Duplicates(Widths):
    """32 networks, each twice: `idle` changes nothing."""

    def build(self, trial: Any, net: Network) -> Tensor:
        trial.suggest_categorical("idle", [1, 2])
        x = net.conv_bn_relu(net.input, trial.suggest_categorical("first", [1, 2, 3, 4]))
        x = net.conv_bn_relu(x, trial.suggest_categorical("second", [1, 2, 3, 4, 5, 6, 7, 8]))
        return net.classifier(x)


class Few(Widths):
    """8 networks."""

    size = 8

    def build(self, trial: Any, net: Network) -> Tensor:
        return net.classifier(net.conv_bn_relu(net.input, trial.suggest_int("width", 1, 8)))


class Trainings:
    """A training whose score rises to the sum of all widths. `begun` counts the starts of each
    network.
    """

    def __init__(self, noise: float = 0.0) -> None:
        self.begun: Counter[str] = Counter()
        self.rng, self.noise = np.random.default_rng(0), noise

    def __call__(self, model: Any, architecture: Any, report: Any) -> dict[str, float]:
        self.begun[str(model)] += 1
        total, score = sum(v for name, v in architecture.choices if name != "idle"), 0.0
        total += self.noise * self.rng.random()
        for epoch in range(1, 10):
            score = total * (1 - 0.5**epoch)
            if not report(epoch, {"usefulness_accuracy": score}):
                break
        return {"usefulness_accuracy": score}


def _search(
    policy: str,
    trainings: Trainings,
    space: SearchSpace,
    budget: float = 200,
    metric: str = "params",
    **options: Any,
) -> SearchResult:
    measurement = Measurement((metric,), latency=LatencyTask(runs=3, windows=1))
    evaluator = FunctionEvaluator(space, trainings, ["usefulness_accuracy"], measurement)
    goal = f"usefulness_accuracy,{metric}"
    return search(
        Problem(space, evaluator, goal, options.pop("constraints", None)),
        sampler=policy,
        fidelities=options.pop("fidelities", (1, 3, 9)),
        budget=budget,
        **options,
    )


POLICIES = ["asha", "hyperband", "random", "ridge"]


@pytest.mark.parametrize(
    ("early", "paid"), [("top1_accuracy@1", [1, 2]), ("top1_accuracy_1epochs", [1, 3])]
)
def test_columns_of_a_table_decide_whether_trainings_continue(
    tmp_path: Path, early: str, paid: list[int]
) -> None:
    space = get_space("tiny-resnet")
    names = [space.format(space.sample(np.random.default_rng(seed))) for seed in range(12)]
    scores = np.arange(12.0)
    columns = {"top1_accuracy": scores, early: scores / 2, "latency_ms": scores[::-1] + 1}
    Table(Header("few", "tiny-resnet"), names, columns).save(tmp_path / "few.safetensors")
    table = Benchmark(tmp_path / "few.safetensors")
    evaluator = TableEvaluator(table, ["top1_accuracy", "latency_ms"])
    found = search(
        Problem(table.space, evaluator, "top1_accuracy,latency_ms"),
        sampler="asha",
        fidelities=(1, 3),
        budget=24,
    )
    assert sorted({trial.user_attrs[COST_KEY] for trial in found.study.trials}) == paid


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_a_network_that_violates_an_exact_constraint_costs_no_epoch(policy: str) -> None:
    space, trainings = Widths(), Trainings()
    found = _search(policy, trainings, space, constraints="params <= 250")
    ruled_out = [trial for trial in found.study.trials if RULED_OUT_KEY in trial.user_attrs]
    trained = [trial for trial in found.study.trials if RULED_OUT_KEY not in trial.user_attrs]
    assert ruled_out
    assert all(
        trial.user_attrs[COST_KEY] == 0 and not trial.intermediate_values for trial in ruled_out
    )
    assert len({str(trial.params) for trial in ruled_out}) == len(ruled_out), (
        "none is measured again"
    )
    assert sum(trainings.begun.values()) == len(trained)
    assert max(space.params(space.architecture(trial.params)) for trial in trained) <= 250
    assert 180 < sum(trial.user_attrs[COST_KEY] for trial in trained) <= 200, (
        "the budget goes to the others"
    )


def test_a_network_that_violates_a_measured_constraint_is_not_trained() -> None:
    trainings = Trainings()
    found = _search(
        "ridge", trainings, Widths(), 40, "cpu_latency_ms", constraints="cpu_latency_ms <= 1e-9"
    )
    assert not trainings.begun
    assert len(found.study.trials) == 64
    assert (
        found.study.trials[0]
        .user_attrs[RULED_OUT_KEY]
        .startswith("cpu_latency_ms <= 1e-09: it is 0.0")
    )


def test_a_search_ends_if_no_network_satisfies_the_constraints(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(search_loop, "MAX_RULED_OUT", 5)
    found = _search("random", Trainings(), Widths(), constraints="params <= 1")
    assert [trial.state for trial in found.study.trials] == [TrialState.PRUNED] * 5


def test_a_network_has_the_spread_of_its_latency_in_the_end() -> None:
    found = _search("asha", Trainings(), Widths(), 60, "cpu_latency_ms", fidelities=(1, 9))
    whole = found.study.get_trials(states=(TrialState.COMPLETE,))
    assert whole
    assert all("cpu_latency_ms" in trial.user_attrs[SPREAD_KEY] for trial in whole)


def test_of_the_first_networks_four_are_trained_to_the_end() -> None:
    """20 trainings start, which takes 20 epochs. Only those that serve as examples of a whole curve
    continue.
    """
    study = _search("ridge", Trainings(), Widths(), 20 + 4 * (3 + 9)).study
    assert len(study.get_trials(states=(TrialState.COMPLETE,))) == 4
    assert len(study.trials) == 20 + 4 * 2


def test_a_predictor_of_the_user_decides() -> None:
    made: list[Ridge] = []

    def make() -> Ridge:
        made.append(Ridge(seed=1))
        return made[-1]

    _search("ridge", Trainings(), Widths(), 100, predictor=make)
    _, *fitted = made  # the first one is created for the first design
    assert fitted
    assert all(ridge.metrics for ridge in fitted)


def test_a_space_smaller_than_the_first_design_is_trained_to_the_end() -> None:
    study = _search("ridge", Trainings(), Few()).study
    assert len(study.get_trials(states=(TrialState.COMPLETE,))) >= 4


def test_duplicates_are_trained_until_one_repeats_exactly() -> None:
    trainings = Trainings()
    _search("ridge", trainings, Duplicates(), 400, fidelities=(9,))
    repeated = [network for network, count in trainings.begun.items() if count > 1]
    assert len(trainings.begun) == 32
    assert 0 < len(repeated) <= 5


def test_duplicates_that_differ_are_trained_further() -> None:
    trainings = Trainings(noise=1.0)
    _search("ridge", trainings, Duplicates(), 400, fidelities=(9,))
    assert sum(trainings.begun.values()) == 44


def test_duplicates_repeat_exactly_only_if_all_did() -> None:
    assert not repeat_exactly([("a", [1.0]), ("b", [2.0])])
    assert repeat_exactly([("a", [1.0]), ("b", [2.0]), ("a", [1.0])])
    assert not repeat_exactly([("a", [1.0]), ("a", [1.0]), ("b", [2.0]), ("b", [2.5])])
    nearly = float(np.nextafter(90.3, 100))
    assert repeat_exactly([("a", [90.3]), ("a", [nearly])]), "another machine rounds differently"
    assert not repeat_exactly([("a", [90.3]), ("a", [90.31])])


def test_only_the_front_keeps_weights_after_a_resumption_too(tmp_path: Path) -> None:
    journal, weights = tmp_path / "search.journal", tmp_path / "weights"
    evaluator = FunctionEvaluator(Few(), Trainings(), ["usefulness_accuracy"])
    for budget in (1, 3, 8):
        options: dict[str, Any] = {"storage": journal, "weights": weights}
        study = search(
            Problem(Few(), evaluator, "usefulness_accuracy"),
            sampler="random",
            fidelities=(1,),
            budget=budget,
            **options,
        ).study
        assert [path.stem for path in weights.iterdir()] == [str(study.best_trial.number)]
    assert study.best_trial.number > 0, "the first network was on the front only until then"


def test_of_two_unfinished_trials_of_one_segment_the_first_counts(tmp_path: Path) -> None:
    """Two processes may make the same decision, and be killed before the second one gives up."""
    journal, trainings = tmp_path / "search.journal", Trainings()
    study = _search("asha", trainings, Few(), 3, storage=journal).study
    seen = {trial.params["width"] for trial in study.trials}
    chosen = create_trial(
        state=TrialState.RUNNING,
        params={"width": next(width for width in range(1, 9) if width not in seen)},
        distributions=study.trials[0].distributions,
        user_attrs={BEGUN_KEY: 0, UNTIL_KEY: 1},
    )
    twice = [begin_trial(study, chosen).number for _ in range(2)]
    done = _search("asha", trainings, Few(), 5, storage=journal).study.trials
    assert [done[number].state for number in twice] == [TrialState.PRUNED, TrialState.FAIL]
    assert max(trainings.begun.values()) == 1
