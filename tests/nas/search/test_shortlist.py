"""Claims about two-stage proposals: cheap metrics of several networks are measured before one of
them is trained.
"""

from __future__ import annotations

import pickle
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState, create_trial

import nas
from nas import Problem, search
from nas.benchmarks.table import Header, Table
from nas.search.evaluators import Evaluator, Values
from nas.search.policy_planner import read_runs
from nas.search.sampler import PredictorSampler
from nas.search.shortlist import MAX_SHORTLIST, networks_per_training
from nas.search.study.schema import (
    BEGUN_KEY,
    COST_KEY,
    FAILED_KEY,
    MEASURE_SECONDS_KEY,
    MEASURED_KEY,
    NETWORK_KEY,
    VALUES_KEY,
    TrialAttributes,
)
from nas.search.study.trial_logger import EvaluationLogger
from nas.search.surrogate import Surrogate
from nas.search.trainings import NEW
from predictors.baselines import Ridge
from search_spaces import Architecture, get_space
from search_spaces.common.errors import InputError
from tests.nas.search.spaces import Widths

GOAL = "usefulness_accuracy,board_ms"
STARTUP = 10  # trainings before the first proposal of a predictor


class Board(Evaluator):
    """A training whose score is the sum of all widths, and a board whose time depends on their
    order, so that it has to be measured. Counts both for each network.
    """

    metrics = ("usefulness_accuracy", "board_ms")
    trained = ("usefulness_accuracy",)
    measured_per_training = 3

    def __init__(self, broken: int = 0) -> None:
        self.broken = broken  # measurements of networks with this first width fail
        self.trainings: Counter[Architecture] = Counter()
        self.measurements: Counter[Architecture] = Counter()

    def measure(self, architecture: Architecture, log: EvaluationLogger) -> dict[str, float]:
        self.measurements[architecture] += 1
        widths = [width for _, width in architecture.choices]
        if widths[0] == self.broken:
            raise RuntimeError("the board does not answer")
        return {"board_ms": float(np.dot(widths, range(1, len(widths) + 1)))}

    def train(
        self,
        architecture: Architecture,
        observed: Values,
        log: EvaluationLogger,
        segment: Any = None,
    ) -> dict[str, float]:
        self.trainings[architecture] += 1
        return {**observed, "usefulness_accuracy": float(sum(w for _, w in architecture.choices))}


def run(board: Board, evaluations: int = 16, constraints: str | None = None, **options: Any) -> Any:
    problem = Problem(Widths(), board, GOAL, constraints)
    return search(problem, sampler="ridge", evaluations=evaluations, **options)


def entries(study: optuna.Study) -> list[FrozenTrial]:
    return [trial for trial in study.trials if MEASURED_KEY in trial.user_attrs]


def test_three_networks_are_measured_per_training_and_only_the_chosen_ones_are_trained() -> None:
    board = Board()
    result = run(board)
    assert len(result.evaluated.architectures) == sum(board.trainings.values()) == 16
    assert max(board.measurements.values()) == 1, "what an entry knows is not measured again"
    # Two proposals, of five trainings each; the second reuses what the first one has measured.
    assert STARTUP + 3 * 5 < len(board.measurements) <= STARTUP + 2 * 3 * 5
    assert all(trial.state == TrialState.PRUNED for trial in entries(result.study))


def test_without_measuring_a_network_is_measured_when_it_is_trained() -> None:
    board = Board()
    result = run(board, measure=0)
    assert board.measurements == board.trainings
    assert not entries(result.study)


def test_measured_networks_are_no_evaluations_and_stand_last_in_the_table(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    result = run(Board(), out=tmp_path)
    untrained = result.networks[result.networks["evaluations"] == 0]
    assert len(untrained) == len(result.measured_only) > 0
    assert untrained["usefulness_accuracy"].isna().all()
    assert untrained["board_ms"].notna().all()
    assert result.networks["evaluations"].tolist()[-len(untrained) :] == [0] * len(untrained)
    assert not set(result.front["architecture"]) & set(untrained["architecture"])
    again = nas.load_search(tmp_path).networks
    assert again["architecture"].tolist() == result.networks["architecture"].tolist()
    assert caplog.text.count(": measured only, ") == len(entries(result.study))


def test_a_resumed_search_measures_nothing_again(tmp_path: Path) -> None:
    storage = tmp_path / "search.journal"
    first, second = Board(), Board()
    run(first, evaluations=15, storage=storage)
    result = run(second, evaluations=20, storage=storage)
    assert len(result.evaluated.architectures) == 20
    assert not first.measurements.keys() & second.measurements.keys()


def test_a_trained_network_takes_over_what_its_entry_knows() -> None:
    result = run(Board())
    of_entry = {str(trial.params): trial for trial in entries(result.study)}
    trained = [t for t in result.study.trials if t.state == TrialState.COMPLETE]
    later = [trial for trial in trained if str(trial.params) in of_entry]
    assert later
    for trial in later:
        attributes = of_entry[str(trial.params)].user_attrs
        assert trial.values[1] == attributes[VALUES_KEY]["board_ms"]
        assert trial.user_attrs[MEASURE_SECONDS_KEY] == 0
        assert trial.user_attrs.get(NETWORK_KEY) is not None


def test_a_network_that_breaks_a_limit_falls_out_of_the_shortlist() -> None:
    board = Board()
    result = run(board, constraints="board_ms <= 15")
    assert len(board.trainings) == 16
    times = [board.measure(one, EvaluationLogger())["board_ms"] for one in board.trainings]
    assert max(times) <= 15
    ruled_out = [t for t in entries(result.study) if TrialAttributes.of(t).ruled_out]
    assert ruled_out
    assert {trial.constraints["board_ms <= 15"] > 0 for trial in ruled_out} == {True}


def test_a_network_that_cannot_be_measured_falls_out_and_counts_nowhere(
    caplog: pytest.LogCaptureFixture,
) -> None:
    board = Board(broken=4)
    board.measured_per_training = 5
    result = run(board, evaluations=25)
    failed = [t for t in entries(result.study) if FAILED_KEY in t.user_attrs]
    assert failed, "the widest first layer scores best, so it was shortlisted"
    assert len(result.evaluated.architectures) == 25
    assert len(result.failures) >= len(failed), "those of the initial design are among them"
    assert "the board does not answer" in caplog.text
    assert len({str(t.params) for t in failed}) == len(failed), "none is proposed again"


def test_known_values_are_those_of_all_samples_and_stay_with_their_network() -> None:
    space = Widths()
    surrogate = Surrogate(space, Ridge, ("usefulness_accuracy", "board_ms"), ())
    rng = np.random.default_rng(0)
    networks = list(dict.fromkeys(space.sample(rng) for _ in range(30)))
    board = Board()
    evaluated = {
        one: np.array(
            [sum(w for _, w in one.choices), board.measure(one, EvaluationLogger())["board_ms"]]
        )
        for one in networks[:12]
    }
    known, other = networks[12], networks[13]
    surrogate.fit(evaluated, 0, {known: np.array([np.nan, 7.5])})
    samples = surrogate.samples([known, other])
    assert (samples[0, :, 1] == 7.5).all()
    assert np.ptp(samples[0, :, 0]) > 0
    assert np.ptp(samples[1, :, 1]) > 0
    surrogate.condition({other: np.array([np.nan, 3.0])})
    assert (surrogate.samples([other])[0, :, 1] == 3.0).all()
    assert surrogate.estimates([other])[0, 1] == 3.0


def timed(seconds: float, measuring: float, measured_only: bool = False) -> FrozenTrial:
    """A finished trial of so many seconds, or the entry of a measurement."""
    trial = create_trial(
        state=TrialState.PRUNED if measured_only else TrialState.COMPLETE,
        values=None if measured_only else [0.0],
        user_attrs={MEASURED_KEY if measured_only else MEASURE_SECONDS_KEY: measuring},
    )
    trial.datetime_start = datetime(2026, 1, 1)
    trial.datetime_complete = trial.datetime_start + timedelta(seconds=seconds)
    return trial


@pytest.mark.parametrize(
    ("training", "measuring", "networks"), [(60, 1, 5), (10, 1, 3), (2, 1, 1), (60, 0.001, 5)]
)
def test_the_default_is_what_the_seconds_of_trainings_pay_for(
    training: float, measuring: float, networks: int
) -> None:
    trials = [timed(training + measuring, measuring) for _ in range(4)]
    assert networks_per_training(trials) == networks
    assert networks_per_training(trials[:2]) == 1, "too few trainings to tell"
    slow = [timed(0, 30.0, measured_only=True) for _ in range(5)]
    assert networks_per_training([*trials, *slow]) == 1


def test_a_table_knows_cheap_columns_ahead_only_if_they_are_named() -> None:
    table = nas.load_benchmark("digits-resnet")
    goal = "digits_accuracy,cpu_latency_ms"
    plain = search(table.problem(goal), sampler="gp-choices", evaluations=12)
    assert not entries(plain.study)
    cheap = search(
        table.problem(goal, cheap=["cpu_latency_ms"]), sampler="gp-choices", evaluations=12
    )
    assert len(cheap.evaluated.architectures) == 12
    assert 2 * 5 < len(entries(cheap.study)) <= MAX_SHORTLIST
    with pytest.raises(InputError, match="unknown cheap metric 'params'"):
        table.problem(goal, cheap=["params"])


def test_counted_costs_need_no_shortlist_where_the_predictor_counts_them() -> None:
    table = nas.load_benchmark("digits-resnet")
    goal = "digits_accuracy,flops"
    for sampler, is_measured in {"ridge": False, "gp-choices": True}.items():
        result = search(table.problem(goal, cheap=["flops"]), sampler=sampler, evaluations=12)
        assert bool(entries(result.study)) == is_measured


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_samplers_that_choose_among_nothing_refuse_measurements(sampler: str) -> None:
    problem = Problem(Widths(), Board(), GOAL)
    with pytest.raises(InputError, match="does not apply to"):
        search(problem, sampler=sampler, evaluations=2, measure=3)
    with pytest.raises(InputError, match="from 0"):
        search(problem, sampler="ridge", evaluations=2, measure=-1)


def test_a_search_by_cost_measures_before_it_trains(tmp_path: Path) -> None:
    space = get_space("tiny-resnet")
    rng = np.random.default_rng(0)
    networks = list(dict.fromkeys(space.sample(rng) for _ in range(150)))
    scores = np.array([float(space.params(one)) for one in networks]) ** 0.5
    columns = {
        "top1_accuracy": scores,
        "top1_accuracy@1": scores / 2,
        "board_ms": rng.permutation(len(networks)) + 1.0,
    }
    notations = [space.format(one) for one in networks]
    Table(Header("few", "tiny-resnet"), notations, columns).save(tmp_path / "few.safetensors")
    table = nas.Benchmark(tmp_path / "few.safetensors")
    problem = table.problem("top1_accuracy,board_ms", "board_ms <= 100", ["board_ms"])
    result = search(problem, sampler="ridge", fidelities=(1, 3), budget=110)
    begun = {
        str(trial.params)
        for trial in result.study.trials
        if trial.user_attrs.get(BEGUN_KEY) == NEW and not TrialAttributes.of(trial).ruled_out
    }
    measured = {str(trial.params) for trial in entries(result.study)}
    assert begun & measured, "some of the measured networks are trained"
    assert measured - begun, "and others are not"
    assert sum(trial.user_attrs.get(COST_KEY, 0.0) for trial in result.study.trials) <= 110
    limits = [trial.constraints["board_ms <= 100"] for trial in entries(result.study)]
    assert max(limits) > 0, "the limit was met"
    read = read_runs(result)
    assert all(
        run.ruled_out for run in read.runs.values() if run.values.keys() == {NEW} and run.ended
    )
    assert any(run.is_measured_only for run in read.runs.values())


def test_a_violator_in_a_study_of_the_users_own_is_not_trained_and_teaches_the_sampler() -> None:
    space, trained = Widths(), list[float]()
    seen: list[np.ndarray] = []

    class Watching(Ridge):
        def fit(self, architectures: Any, metrics: Any) -> Any:
            seen.append(np.array(list(metrics.values())))
            return super().fit(architectures, metrics)

    def objective(trial: optuna.Trial) -> tuple[float, float]:
        architecture = space.choose(trial)
        board = float(np.dot([width for _, width in architecture.choices], [1, 2, 3]))
        nas.check_limits(trial, {"board_ms": board}, ["board_ms <= 12", "usefulness_accuracy >= 1"])
        trained.append(board)
        trial.set_constraint("usefulness_accuracy >= 1", -1.0)
        return float(sum(width for _, width in architecture.choices)), board

    limits = ["board_ms <= 12", "usefulness_accuracy >= 1"]
    sampler = PredictorSampler(space, Watching, GOAL, n_startup=8, constraints=limits)
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
    study.optimize(objective, n_trials=20)
    pruned = [trial for trial in study.trials if trial.state == TrialState.PRUNED]
    assert max(trained) <= 12
    assert len(trained) + len(pruned) == 20
    assert pruned
    assert any(np.isnan(columns).any() for columns in seen), "it learns from partial values"


def test_a_sampler_of_the_user_can_be_copied_after_a_search_that_measured() -> None:
    sampler = PredictorSampler(Widths(), Ridge, GOAL)
    search(Problem(Widths(), Board(), GOAL), sampler=sampler, evaluations=14)
    assert sampler.shortlist is not None
    assert pickle.loads(pickle.dumps(sampler)).shortlist is None
