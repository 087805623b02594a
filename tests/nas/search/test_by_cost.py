"""Claims about searches by cost: which trainings continue, what they cost, and that nothing is lost
or duplicated.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections import Counter
from collections.abc import Sequence
from multiprocessing.context import ForkServerProcess as Process
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import optuna
import pytest
import torch
from optuna.trial import FrozenTrial, TrialState
from torch import nn

from nas import Problem, search
from nas.evaluation.datasets import load_dataset
from nas.evaluation.measurement import Measurement
from nas.evaluation.tasks import TrainingTask
from nas.evaluation.trainable import Trainable
from nas.evaluation.training import train
from nas.search import policy_planner
from nas.search.acquisition import best_ratio
from nas.search.halving import Halving, best_order
from nas.search.measured_evaluator import MeasuredEvaluator
from nas.search.own_evaluator import FunctionEvaluator
from nas.search.study.result import SearchResult
from nas.search.study.schema import BEGUN_KEY, COST_KEY, FAILED_KEY, UNTIL_KEY, VALUES_KEY
from nas.search.study.storage import begin_trial, prune_trial
from nas.search.trainings import NEW, Fidelities, extrapolated
from search_spaces import Subnetworks
from search_spaces.common.errors import EvaluatorError, InputError
from tests.nas.search.spaces import Widths

OBJECTIVES = "usefulness_accuracy,params"


def _scored(model: Any, architecture: Any, report: Any) -> dict[str, float]:
    """A training whose score rises to the sum of all widths. Wide networks rise latest."""
    total, score = sum(value for _, value in architecture.choices), 0.0
    for epoch in range(1, 10):
        score = total * (1 - 0.5**epoch)
        if not report(epoch, {"usefulness_accuracy": score}):
            break
    return {"usefulness_accuracy": score}


def _search(policy: str, budget: float, function: Any = _scored, **options: Any) -> SearchResult:
    space = Widths()
    measurement = Measurement(("params",))
    evaluator = FunctionEvaluator(space, function, ["usefulness_accuracy"], measurement)
    return search(
        Problem(space, evaluator, OBJECTIVES, options.pop("constraints", None)),
        sampler=policy,
        fidelities=options.pop("fidelities", (1, 3, 9)),
        budget=budget,
        **options,
    )


def _segments(study: optuna.Study) -> Counter[tuple[str, int]]:
    """How often each network was trained to each fidelity."""
    done = study.get_trials(states=(TrialState.COMPLETE, TrialState.PRUNED))
    return Counter((str(trial.params), trial.user_attrs[UNTIL_KEY]) for trial in done)


@pytest.mark.parametrize("policy", ["asha", "hyperband", "random", "ridge"])
def test_a_budget_is_spent_and_not_exceeded(policy: str) -> None:
    found = _search(policy, 200)
    spent = sum(trial.user_attrs[COST_KEY] for trial in found.study.trials)
    assert 180 < spent <= 200
    assert max(_segments(found.study).values()) == 1
    assert (
        len(found.evaluated.architectures)
        == sum(t.state == TrialState.COMPLETE for t in found.study.trials)
        > 0
    )


def test_only_trainings_to_the_end_count() -> None:
    found = _search("asha", 150)
    for architecture, values in zip(
        found.evaluated.architectures, found.evaluated.values, strict=True
    ):
        assert values[0] == pytest.approx(sum(v for _, v in architecture.choices) * (1 - 0.5**9))


def test_curves_are_intermediate_values_of_the_study() -> None:
    trials = _search("asha", 150).study.get_trials(states=(TrialState.COMPLETE,))
    assert all(sorted(trial.intermediate_values) == list(range(1, 10)) for trial in trials)


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_optuna_draws_the_curves() -> None:
    """Each line of its figure is one trial, with the epochs of the earlier trials of its
    training.
    """
    study = _search("asha", 60).study
    axes = optuna.visualization.matplotlib.plot_intermediate_values(study)
    drawn = [
        (np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist())
        for line in axes.get_lines()
    ]
    plt.close()
    curves = [trial.intermediate_values for trial in study.trials]
    assert drawn == [([*curve], [*curve.values()]) for curve in curves]
    assert {len(epochs) for epochs, _ in drawn} == {1, 3, 9}


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_optuna_draws_one_objective_by_its_target() -> None:
    study = _search("asha", 60).study
    axes = optuna.visualization.matplotlib.plot_optimization_history(
        study, target=lambda t: t.values[0], target_name="usefulness_accuracy"
    )
    drawn = np.asarray(axes.collections[0].get_offsets())[:, 1].tolist()
    plt.close()
    complete = study.get_trials(states=(TrialState.COMPLETE,))
    assert drawn == [trial.values[0] for trial in complete]


def test_asha_trains_the_best_third_further() -> None:
    found = _search("asha", 150)
    reached = Counter(until for _, until in _segments(found.study).elements())
    assert reached[1] > 2 * reached[3] > 2 * reached[9] > 0


@pytest.mark.slow
def test_a_floor_is_one_of_the_full_training() -> None:
    """No network reaches the floor after one epoch. The best ones go on all the same."""
    floor = ["usefulness_accuracy >= 7"]  # the widest of all networks have 6 after one epoch
    free, limited = (_search("asha", 150, constraints=limits) for limits in (None, floor))
    assert _segments(limited.study) == _segments(free.study)
    assert 0 < len(limited.front) <= len(free.front)


def test_a_guided_search_needs_less_than_full_trainings() -> None:
    by_cost = _search("ridge", 200).hypervolume([0.0, 400.0])
    assert by_cost > _search("random", 200).hypervolume([0.0, 400.0])


def test_a_search_without_lower_fidelities_trains_to_the_end() -> None:
    found = _search("ridge", 200, fidelities=(9,))
    assert {trial.state for trial in found.study.trials} == {TrialState.COMPLETE}


def test_the_same_seed_makes_the_same_decisions() -> None:
    first, second = (_search("ridge", 100, seed=3) for _ in range(2))
    assert [t.params for t in first.study.trials] == [t.params for t in second.study.trials]


def test_a_failed_training_is_paid_and_not_continued() -> None:
    def fails(model: Any, architecture: Any, report: Any) -> dict[str, float]:
        if dict(architecture.choices)["width0"] == 4:
            raise RuntimeError("out of memory")
        return _scored(model, architecture, report)

    study = _search("asha", 150, fails).study
    failed = [str(trial.params) for trial in study.get_trials(states=(TrialState.FAIL,))]
    assert failed
    assert len(failed) == len(set(failed))


def test_a_training_that_raises_is_paid_up_to_the_last_epoch_that_it_reported() -> None:
    def fails(model: Any, architecture: Any, report: Any) -> dict[str, float]:
        wide = dict(architecture.choices)["width0"] == 4
        for epoch in range(1, 10):
            if wide and epoch == 3:
                raise RuntimeError("out of memory")
            if not report(epoch, {"usefulness_accuracy": 1.0}):
                break
        return {"usefulness_accuracy": 1.0}

    study = _search("random", 150, fails).study
    costs = {trial.state: set[float]() for trial in study.trials}
    for trial in study.trials:
        costs[trial.state].add(trial.user_attrs[COST_KEY])
    assert costs == {TrialState.COMPLETE: {9.0}, TrialState.FAIL: {2.0}}


def test_the_seconds_of_a_training_that_raises_are_paid() -> None:
    def fails(model: Any, architecture: Any, report: Any) -> dict[str, float]:
        time.sleep(0.02)
        if dict(architecture.choices)["width0"] == 4:
            raise RuntimeError("out of memory")
        return _scored(model, architecture, report)

    study = _search("random", 0.5, fails, cost="seconds", fidelities=(9,)).study
    assert TrialState.FAIL in {trial.state for trial in study.trials}
    assert min(trial.user_attrs[COST_KEY] for trial in study.trials) >= 0.02


def test_a_training_may_not_go_on_after_its_pause() -> None:
    def ignores(model: Any, architecture: Any, report: Any) -> dict[str, float]:
        for epoch in range(1, 10):
            report(epoch, {"usefulness_accuracy": float(epoch)})
        return {"usefulness_accuracy": 9.0}

    with pytest.raises(
        EvaluatorError, match="report returned False after epoch 1, but the evaluator trained on"
    ):
        _search("asha", 60, ignores)


def test_a_training_longer_than_the_last_fidelity_is_told_to_end_there() -> None:
    study = _search("random", 30, fidelities=(1, 3)).study
    for trial in study.trials:
        assert max(trial.intermediate_values) == 3
        assert trial.values[0] == sum(trial.params.values()) * (1 - 0.5**3), "of epoch 3"


@pytest.mark.parametrize("epochs", [range(1, 5), (3, 2), (3, 3, 4)])
def test_a_training_may_not_go_on_after_the_last_fidelity(epochs: Sequence[int]) -> None:
    def ignores(model: Any, architecture: Any, report: Any) -> dict[str, float]:
        for epoch in epochs:
            report(epoch, {"usefulness_accuracy": float(epoch)})
        return {"usefulness_accuracy": float(epoch)}

    with pytest.raises(
        EvaluatorError, match="report returned False after epoch 3, but the evaluator trained on"
    ):
        _search("random", 30, ignores, fidelities=(3,))


@pytest.mark.parametrize("epochs", [(2, 4), (4, 3, 2, 1)])
def test_the_value_of_another_epoch_is_not_stored_as_that_of_a_skipped_fidelity(
    epochs: Sequence[int],
) -> None:
    def skips(model: Any, architecture: Any, report: Any) -> dict[str, float]:
        wide = dict(architecture.choices)["width0"] == 4
        for epoch in epochs if wide else range(1, 10):
            if not report(epoch, {"usefulness_accuracy": 1.0}):
                break
        return {"usefulness_accuracy": 1.0}

    study = _search("asha", 40, skips, fidelities=(1, 3)).study
    failed = study.get_trials(states=(TrialState.FAIL,))
    assert {trial.params["width0"] for trial in failed} == {4}
    assert (
        f"the evaluator reported epoch {epochs[0]}, but not 1, where"
        in failed[0].user_attrs[FAILED_KEY]
    )
    assert failed[0].user_attrs[COST_KEY] == 1, "it is paid"


@pytest.mark.parametrize(("fidelities", "warnings"), [((1, 9), 0), ((1, 20), 1)])
def test_a_training_that_ends_before_its_fidelity_is_named_once(
    caplog: pytest.LogCaptureFixture, fidelities: tuple[int, ...], warnings: int
) -> None:
    _search("random", 60, fidelities=fidelities)
    found = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(found) == warnings
    assert all(
        "ended a training after epoch 9, but 20 epochs are paid" in message for message in found
    )


def test_seconds_are_a_cost() -> None:
    def slow(model: Any, architecture: Any, report: Any) -> dict[str, float]:
        time.sleep(0.01)
        return _scored(model, architecture, report)

    study = _search("ridge", 1.0, slow, cost="seconds", fidelities=(1, 2, 3)).study
    costs = [trial.user_attrs[COST_KEY] for trial in study.trials]
    assert min(costs) >= 0.01
    assert 0.5 < sum(costs) < 3.0


def test_a_metric_is_a_cost_of_an_epoch() -> None:
    study = _search("asha", 20_000, cost="params").study
    first = study.trials[0]
    assert (
        first.user_attrs[COST_KEY]
        == first.user_attrs["nas:values"]["params"] * first.user_attrs[UNTIL_KEY]
    )


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"fidelities": (3, 1)}, "rising whole numbers"),
        ({"cost": "dollars"}, "dollars"),
        ({"policy": "nsga2"}, "sampler of a multi-fidelity search"),
        ({"budget": 0}, "positive number of epochs"),
    ],
)
def test_bad_settings_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        _search(**{"policy": "asha", "budget": 50, **options})


# --- what is worth what


def test_a_training_that_can_be_stopped_is_worth_more_than_its_mean() -> None:
    gains = np.array([[8.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
    order = np.arange(8)[None]
    sure, further = np.array([12.0]), np.array([200.0])
    assert best_ratio(gains, order, sure, further)[0] == pytest.approx(1.0 / (12 + 200 / 8))
    assert best_ratio(gains, order[:, ::-1], sure, further)[0] == pytest.approx(1.0 / (12 + 200))


def test_a_sure_training_is_worth_its_mean_by_its_cost() -> None:
    gains = np.array([[1.0, 3.0]])
    ratio = best_ratio(gains, np.array([[1, 0]]), np.array([200.0]), np.array([0.0]))
    assert ratio[0] == pytest.approx(2.0 / 200)


def test_values_that_are_not_reached_yet_are_extrapolated_along_a_line() -> None:
    before = np.array([10.0, 20, 40, 80, np.nan])
    line = 50 + before / 2
    known = np.where([True, True, False, True, False], line, np.nan)
    assert extrapolated(before, known)[:4] == pytest.approx(line[:4])
    assert np.isnan(extrapolated(before, known)[4]), "nothing is known of its training"
    two = np.where([True, True, False, False, False], line, np.nan)
    assert np.array_equal(extrapolated(before, two), two, equal_nan=True), "too few for a line"


def test_nothing_is_extrapolated_once_many_networks_went_on() -> None:
    before = np.arange(12.0)
    known = np.where(before < 11, 50 + before, np.nan)
    assert np.array_equal(extrapolated(before, known), known, equal_nan=True)


def test_an_extrapolated_value_never_falls_as_the_value_before_rises() -> None:
    before = np.array([90.0, 91, 92, 10])
    values = extrapolated(before, np.array([97.0, 96.5, 95.5, np.nan]))
    assert values[3] <= values[:3].mean()
    scattered = extrapolated(before, np.array([96.0, 96.9, 96.1, np.nan]))
    assert scattered[3] < 60, "values that tell nothing of the slope leave it near 1"


def test_better_fronts_come_first_and_broken_constraints_last() -> None:
    losses = np.array([[2.0, 2.0], [0.0, 1.0], [np.inf, np.inf], [1.0, 0.0], [0.4, 0.8]])
    assert best_order(losses).tolist() == [1, 3, 4, 0, 2]


def test_separate_trainings_are_paid_from_the_beginning() -> None:
    assert Fidelities.of((12, 200), continues=False).rest(NEW) == 212
    assert Fidelities.of((12, 200), continues=True).rest(NEW) == 200
    assert Halving(Widths(), Fidelities.of((12, 200), False), 0, first=1).levels == (200,)


# --- checkpoints, kills, workers

TASK = TrainingTask(epochs=4)


def _measured(folder: Path) -> MeasuredEvaluator:
    data = load_dataset("digits", (1, 8, 8))
    measurement = Measurement(("digits_accuracy", "params"), data, (0,), TASK)
    return MeasuredEvaluator(Widths(), measurement, folder)


def test_a_paused_training_continues_bit_for_bit(tmp_path: Path) -> None:
    space = Widths()
    network = Trainable.of(space, space.sample(np.random.default_rng(0)))
    data, file = load_dataset("digits", (1, 8, 8)), tmp_path / "state.pt"
    whole = train(network, data, (0,), TASK)
    curve: dict[int, float] = {}

    def report(epoch: int, metrics: dict[str, float]) -> bool:
        curve[epoch] = metrics["digits_accuracy"]
        return True

    for until in (1, 2, 4):
        paused = train(network, data, (0,), TASK, checkpoint=file, report=report, until=until)
        assert max(curve) == until
    assert paused.validation == whole.validation == [curve[4]]
    assert paused.state is not None
    assert whole.state is not None
    assert all((paused.state[name] == tensor).all() for name, tensor in whole.state.items())


@pytest.mark.slow
def test_built_in_trainings_pause_and_leave_no_states_behind(tmp_path: Path) -> None:
    found = search(
        Problem(Widths(), _measured(tmp_path), "digits_accuracy,params"),
        sampler="asha",
        fidelities=(1, 4),
        budget=24,
        weights=tmp_path / "weights",
    )
    paused = found.study.get_trials(states=(TrialState.PRUNED,))
    assert len(found.evaluated.architectures) >= 1
    assert len(list(tmp_path.glob("*.pt"))) == len(paused) - len(found.evaluated.architectures)
    assert len(list((tmp_path / "weights").glob("*.safetensors"))) == len(found.front_rows)


def test_the_last_fidelity_is_the_whole_training(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a training has 4 epochs: give --epochs"):
        search(
            Problem(Widths(), _measured(tmp_path), "digits_accuracy,params"),
            sampler="asha",
            fidelities=(1, 3),
            budget=24,
        )


def test_a_training_goes_on_that_another_process_began_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rivals: list[int] = []

    def second(study: optuna.Study, template: FrozenTrial) -> optuna.Trial:
        """Another process stores and finishes each first stretch before this one stores it."""
        if template.user_attrs[BEGUN_KEY] == NEW:
            rival = begin_trial(study, template)
            rivals.append(rival.number)
            rival.set_user_attr(COST_KEY, 1.0)
            rival.set_user_attr(
                VALUES_KEY, {"usefulness_accuracy": 0.5 * sum(rival.params.values()), "params": 1.0}
            )
            prune_trial(study, rival)
        return begin_trial(study, template)

    monkeypatch.setattr(policy_planner, "begin_trial", second)
    study = _search("asha", 60).study
    reasons = [
        trial.user_attrs[FAILED_KEY] for trial in study.trials if FAILED_KEY in trial.user_attrs
    ]
    assert not reasons
    own = {trial.user_attrs[BEGUN_KEY] for trial in study.get_trials(states=(TrialState.PRUNED, TrialState.COMPLETE))
           if trial.number not in rivals}  # fmt: skip
    assert own == {1, 3}, "this process only goes on with what the other one began"


# Workers are forked from one process that has imported everything, so that each begins at once.
CONTEXT = multiprocessing.get_context("forkserver")


def _work(journal: Path, budget: int) -> None:
    """A worker of a search with slow epochs."""

    def slow(model: Any, architecture: Any, report: Any) -> dict[str, float]:
        time.sleep(0.05)
        return _scored(model, architecture, report)

    _search("asha", budget, slow, storage=journal)


def _start(journal: Path, budget: int) -> Process:
    worker = CONTEXT.Process(target=_work, args=(journal, budget))
    worker.start()
    return worker


def _written(journal: Path) -> int:
    return journal.stat().st_size if journal.is_file() else 0


@pytest.mark.slow
@pytest.mark.parametrize(("rounds", "budget"), [(3, 110), (6, 200)])
def test_kills_and_several_workers_lose_and_duplicate_nothing(
    rounds: int, budget: int, tmp_path: Path
) -> None:
    CONTEXT.set_forkserver_preload([__name__])
    journal, rng = tmp_path / "search.journal", np.random.default_rng(0)
    killed = 0
    for _ in range(rounds):
        before = _written(journal)
        workers = [_start(journal, budget), _start(journal, budget)]
        deadline = time.monotonic() + 60
        while _written(journal) == before and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.5 * rng.random())
        for worker in workers:
            worker.kill()
            worker.join()
            killed += worker.exitcode == -signal.SIGKILL
    assert killed == 2 * rounds, "all workers were killed at work"
    last = [_start(journal, budget), _start(journal, budget)]
    for worker in last:
        worker.join(240)
    assert [worker.exitcode for worker in last] == [0, 0]
    storage = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(journal))
    )
    study = optuna.load_study(study_name="search", storage=storage)
    stretches = _segments(study)
    assert max(stretches.values()) == 1
    assert not study.get_trials(states=(TrialState.RUNNING, TrialState.WAITING))
    spent = sum(
        trial.user_attrs[COST_KEY] for trial in study.trials if trial.state != TrialState.FAIL
    )
    assert budget - 20 < spent <= budget + 9  # each further worker may add one stretch
    for params, until in stretches:  # no stretch without the ones before
        assert all((params, before) in stretches for before in (1, 3, 9) if before < until)


# --- inherited weights


def _inherited(folder: Path, **options: str) -> Problem:
    """Sub-networks of a small network, which need no training to have a score."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(576, 10)
    )
    space = Subnetworks(net, torch.zeros(1, 1, 8, 8), name="net", **options)  # type: ignore[arg-type]
    metrics = ("digits_accuracy", "params")
    measurement = Measurement(metrics, load_dataset("digits"), (0,), TrainingTask(epochs=2))
    return Problem(space, MeasuredEvaluator(space, measurement, folder), "digits_accuracy,params")


def test_fidelity_0_is_the_score_of_inherited_weights(tmp_path: Path) -> None:
    problem = _inherited(tmp_path)
    found = search(problem, sampler="asha", fidelities=(0, 2), budget=4)
    trials = [trial for trial in found.study.trials if trial.user_attrs[UNTIL_KEY] == 0]
    assert len(trials) >= 3, "of every three networks one goes on"
    assert {trial.user_attrs[COST_KEY] for trial in trials} == {0}
    assert all(list(trial.intermediate_values) == [0] for trial in trials)
    first = problem.space.architecture(trials[0].params)
    data = load_dataset("digits")
    scored = train(Trainable.of(problem.space, first), data, task=TrainingTask(epochs=0))
    assert trials[0].user_attrs[VALUES_KEY]["digits_accuracy"] == pytest.approx(
        scored.validation[0]
    )
    begun = {t.user_attrs[UNTIL_KEY]: t.user_attrs[BEGUN_KEY] for t in found.study.trials}
    assert begun == {0: NEW, 2: 0}
    assert sum(trial.user_attrs[COST_KEY] for trial in found.study.trials) <= 4


def test_fidelity_0_needs_inherited_weights(tmp_path: Path) -> None:
    problem = _inherited(tmp_path, start="fresh")
    with pytest.raises(InputError, match="fidelity 0 is a score before any training"):
        search(problem, sampler="asha", fidelities=(0, 2), budget=3)


# --- a policy of one's own

BACKWARDS = '''
from nas.search.trainings import NEW, Job

class Backwards:
    """Trains the networks of a space to the end, the last one first."""

    def __init__(self, space, reader, fidelities, seed):
        self.fidelities = fidelities
        self.architectures = list(space.enumerate())

    def decide(self, runs, epochs_left):
        last = self.fidelities.last
        left = [one for one in self.architectures if one not in runs.runs]
        return Job(left[-1], NEW, last) if left and last <= epochs_left else None
'''


def test_a_policy_in_a_file_decides_what_is_trained(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(BACKWARDS)
    found = _search(f"{file}:Backwards", 30)
    trained = [found.space.architecture(trial.params) for trial in found.study.trials]
    assert trained == list(Widths().enumerate())[:-4:-1]
    assert found.settings["sampler"] == f"{file}:Backwards"


def test_a_class_that_is_neither_predictor_nor_policy_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("class Nothing:\n    pass\n")
    with pytest.raises(InputError, match="Nothing cannot be the predictor"):
        _search(f"{file}:Nothing", 30)
