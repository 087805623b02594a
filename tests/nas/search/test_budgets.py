"""Claims about the start and end of a search: prior observations, time limit, patience."""

from __future__ import annotations

import csv
import math
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import sqlalchemy
from typer.testing import CliRunner

from nas import Evaluator, Problem, search
from nas.benchmarks import load_benchmark
from nas.cli import app
from nas.comparison.runs import open_studies
from nas.search.objectives import parse_objectives
from nas.search.prior import add_prior_observations, read_prior_observations
from nas.search.study.storage import open_storage
from nas.search.study.trials import TrialReader
from nas.search.trainings import Fidelities, Segment
from search_spaces import Architecture, SearchSpace, get_space
from search_spaces.common.errors import InputError

SPACE = get_space("tiny-resnet")
OBJECTIVES = "params,flops:max"


class Counting:
    """Costs that record their architectures. Each evaluation takes `seconds`."""

    metrics = ("flops", "params")

    def __init__(self, seconds: float = 0.0) -> None:
        self.seen: list[Architecture] = []
        self.seconds = seconds

    def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
        time.sleep(self.seconds)
        self.seen += architectures
        return np.array([[SPACE.flops(a), SPACE.params(a)] for a in architectures], float)


def _some(count: int, space: SearchSpace = SPACE) -> list[Architecture]:
    rng = np.random.default_rng(0)
    return list(dict.fromkeys(space.sample(rng) for _ in range(3 * count)))[:count]


def test_prior_observations_are_used_and_not_counted(tmp_path: Path) -> None:
    known = {a: [1.0, 2.0] for a in _some(4)}
    for _ in range(2):  # resuming takes them over once
        evaluator = Counting()
        result = search(
            Problem(SPACE, evaluator, OBJECTIVES),
            sampler="random",
            evaluations=6,
            storage=tmp_path / "s.journal",
            known=known,
        )
        assert len(result.evaluated.architectures) == 10
        assert result.evaluated.architectures[:4] == list(known)
        assert result.evaluated.values[:4].tolist() == [[2.0, 1.0]] * 4
        assert not set(evaluator.seen) & set(known)


def test_prior_observations_are_marked_where_they_were_added(tmp_path: Path) -> None:
    storage, known = tmp_path / "s.journal", {a: [1.0, 2.0] for a in _some(2)}
    first = search(
        Problem(SPACE, Counting(), OBJECTIVES), sampler="random", evaluations=3, storage=storage
    )
    added = len(known.keys() - set(first.evaluated.architectures))
    result = search(
        Problem(SPACE, Counting(), OBJECTIVES),
        sampler="random",
        evaluations=5,
        storage=storage,
        known=known,
    )
    assert added
    assert result.prior.tolist() == [False] * 3 + [True] * added + [False] * 2


def test_equal_seeds_with_equal_prior_observations_evaluate_the_same() -> None:
    known = {a: [1.0, 2.0] for a in _some(4)}
    runs = [
        search(
            Problem(SPACE, Counting(), OBJECTIVES),
            sampler="random",
            evaluations=6,
            seed=3,
            known=known,
        )
        for _ in range(2)
    ]
    assert runs[0].evaluated.architectures == runs[1].evaluated.architectures


def test_a_journal_waits_for_the_disk_once_for_all_prior_observations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[int] = []
    monkeypatch.setattr(os, "fsync", waited.append)
    known = {a: [1.0, 2.0] for a in _some(40)}
    result = search(
        Problem(SPACE, Counting(), OBJECTIVES),
        sampler="random",
        evaluations=2,
        storage=tmp_path / "s.journal",
        known=known,
    )
    assert len(result.evaluated.architectures) == 42
    proposed = (
        len(result.study.trials) - 40
    )  # two evaluations and repeats, which a random sampler may propose
    assert len(waited) == 1 + proposed


@pytest.mark.slow
def test_an_sqlite_file_is_written_once_for_all_prior_observations(tmp_path: Path) -> None:
    study = optuna.create_study(
        storage=open_storage(f"sqlite:///{tmp_path}/s.db"), directions=["minimize"] * 2
    )
    commits: list[object] = []
    backend: Any = study._storage
    sqlalchemy.event.listen(backend._backend.engine, "commit", commits.append)
    reader = TrialReader(SPACE, parse_objectives("params,flops"), ())
    add_prior_observations(study, reader, {a: [1.0, 2.0] for a in _some(40)}, ["params", "flops"])
    assert len(commits) <= 2  # another one for the reading before
    again = optuna.load_study(
        study_name=study.study_name, storage=open_storage(f"sqlite:///{tmp_path}/s.db")
    )
    assert [trial.values for trial in again.trials] == [[1.0, 2.0]] * 40
    study.tell(study.ask(), [3.0, 4.0])
    assert len(again.trials) == 41, "afterwards each trial is written by itself again"


def test_a_search_ends_when_its_time_is_over() -> None:
    evaluator = Counting(seconds=0.2)
    result = search(
        Problem(SPACE, evaluator, OBJECTIVES), sampler="random", evaluations=1000, seconds=1.0
    )
    assert 1 <= len(result.evaluated.architectures) <= 6


def test_a_search_ends_when_the_front_stays_as_it_is() -> None:
    known = {
        a: [math.inf if i else 1e18, 0.0] for i, a in enumerate(_some(5))
    }  # nothing is better than the first
    result = search(
        Problem(SPACE, Counting(), OBJECTIVES),
        sampler="random",
        evaluations=1000,
        known=known,
        patience=7,
    )
    assert len(result.evaluated.architectures) == 5 + 7
    endless = search(
        Problem(SPACE, Counting(), OBJECTIVES), sampler="random", evaluations=20, known=known
    )
    assert len(endless.evaluated.architectures) == 25


@pytest.mark.slow
def test_the_front_of_one_search_is_the_prior_of_another(tmp_path: Path) -> None:
    goals = [
        "--benchmark",
        "digits201",
        "--objectives",
        "digits_accuracy,params",
        "--sampler",
        "random",
    ]
    first, second = tmp_path / "first", tmp_path / "second"
    for arguments in (
        ["--evaluations", "20", "--out", str(first)],
        [
            "--evaluations",
            "3",
            "--known",
            str(first / "front.csv"),
            "--out",
            str(second),
            "--patience",
            "50",
        ],
    ):
        result = CliRunner().invoke(app, ["search", *goals, *arguments])
        assert result.exit_code == 0, result.output
    before, after = open_studies(first).first, open_studies(second).first
    assert len(after.evaluated.architectures) == len(before.front_rows) + 3
    assert after.hypervolume([0.0, 1e9]) >= before.hypervolume([0.0, 1e9])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("architecture,params\nx,1\n", "no column 'digits_accuracy'"),
        ("network,params\nx,1\n", "no column 'arch' or 'architecture'"),
        ("architecture,digits_accuracy\nnonsense,1\n", "line 2: .*nonsense"),
        ("architecture,digits_accuracy\nx,high\n", "line 2, column 'digits_accuracy': 'high'"),
    ],
)
def test_measurements_that_cannot_be_read_are_named(
    tmp_path: Path, content: str, message: str
) -> None:
    path = tmp_path / "known.csv"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        read_prior_observations(path, load_benchmark("digits201").space, ["digits_accuracy"])


def test_rows_without_a_value_are_no_prior_observations(tmp_path: Path) -> None:
    space = load_benchmark("digits201").space
    one, two = map(space.format, _some(2, space))
    path = tmp_path / "known.csv"
    path.write_text(f"architecture,digits_accuracy,cpu_latency_ms\n{one},80,\n{two},81,7\n")
    known = read_prior_observations(path, space, ["digits_accuracy", "cpu_latency_ms"])
    assert known == {space.parse(two): [81.0, 7.0]}


@pytest.mark.parametrize(
    "columns", ["digits_accuracy\n{},80\n", "digits_accuracy,params\n{},80,7\n"]
)
def test_parameters_of_prior_observations_are_counted(tmp_path: Path, columns: str) -> None:
    space = load_benchmark("digits201").space
    one = _some(1, space)[0]
    path = tmp_path / "known.csv"
    path.write_text("architecture," + columns.format(space.format(one)))
    known = read_prior_observations(path, space, ["digits_accuracy", "params"])
    assert known == {one: [80.0, space.params(one)]}


class Board(Evaluator):
    """A device of the user's, whose metric needs no training, and an accuracy that needs one."""

    metrics = ("board_ms", "score_accuracy")
    trained = ("score_accuracy",)

    def __init__(self) -> None:
        self.measurements, self.trainings = list[Architecture](), list[Architecture]()

    def measure(self, architecture: Architecture, log: Any) -> dict[str, float]:
        self.measurements.append(architecture)
        return {"board_ms": float(SPACE.params(architecture))}

    def train(
        self, architecture: Architecture, observed: Any, log: Any, segment: Segment | None = None
    ) -> dict[str, float]:
        self.trainings.append(architecture)
        score = float(SPACE.flops(architecture)) / 1e9
        if segment:
            score *= 1 - 0.5**segment.until
        return {**observed, "score_accuracy": score}

    def fidelities(self, levels: Sequence[int]) -> Fidelities:
        return Fidelities.of(levels, continues=True)


@pytest.mark.parametrize("limits", [{"evaluations": 3}, {"fidelities": (1, 3), "budget": 12}])
def test_accuracies_stay_valid_for_a_new_device(tmp_path: Path, limits: dict[str, Any]) -> None:
    known, path = _some(6), tmp_path / "networks.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["architecture", "score_accuracy"])
        rows.writerows([SPACE.format(a), 90 + i] for i, a in enumerate(known))
    board = Board()
    problem = Problem(SPACE, board, "score_accuracy,board_ms")
    sampler = "asha" if "budget" in limits else "random"
    result = search(problem, sampler=sampler, known=path, **limits)
    assert result.prior.sum() == 6
    assert board.measurements[:6] == known, "they are measured on the device"
    assert not {*known} & {*board.trainings}, "and not trained again"
    assert result.prior.tolist()[:6] == [True] * 6
    assert result.evaluated.values[:6, 0].tolist() == [90.0 + i for i in range(6)]
    assert result.front["score_accuracy"][0] == 95.0


def test_a_known_network_that_cannot_be_measured_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Unplugged(Board):
        def measure(self, architecture: Architecture, log: Any) -> dict[str, float]:
            raise RuntimeError("no such device")

    known = {_some(1)[0]: [float("nan"), 90.0]}
    problem = Problem(SPACE, Unplugged(), "score_accuracy,board_ms")
    search(problem, sampler="random", evaluations=1, known=known)
    assert re.search("is no prior observation: .*no such device", caplog.text)
