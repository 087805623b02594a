"""Claims about the search loop: what counts, what is stored, and how it resumes and shares its
work.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import optuna
import pytest

from nas import (
    Problem,
    Reference,
    SearchResult,
    create_sampler,
    list_samplers,
    parse_objectives,
    search,
)
from nas.search.planners import MAX_REPEATS
from nas.search.progress import FRAME_POINTS, SearchProgress
from nas.search.study.schema import REPEAT_KEY
from nas.search.study.storage import open_storage
from search_spaces import Architecture, SearchSpace, get_space, to_text
from search_spaces.common.errors import InputError, StorageError

SPACE = get_space("tiny-resnet")
OBJECTIVES = "depth_accuracy,flops"


class Costs:
    """Records what it evaluates. Depth (higher is better) and FLOPs (lower is better) conflict."""

    metrics = ("flops", "params", "depth_accuracy")

    def __init__(self, space: SearchSpace = SPACE, failure: float | None = None) -> None:
        self.space = space
        self.failure = failure  # what is measured where the first kernel is 5
        self.seen: list[Architecture] = []

    def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
        self.seen += architectures
        return np.array([self._row(architecture) for architecture in architectures])

    def _row(self, a: Architecture) -> list[float]:
        depth = sum(
            int(value)
            for name, value in a.choices
            if name.endswith("blocks") or name.startswith("width")
        )
        accuracy = float(depth)
        if self.failure is not None and dict(a.choices)["stage0_kernel"] == 5:
            accuracy = self.failure
        return [self.space.flops(a), self.space.params(a), accuracy]


class Interrupted(Costs):
    """Dies in the evaluation after `lifetime` others."""

    def __init__(self, lifetime: int) -> None:
        super().__init__()
        self.lifetime = lifetime

    def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
        if len(self.seen) == self.lifetime:
            raise KeyboardInterrupt
        return super().__call__(architectures)


class Stubborn(optuna.samplers.RandomSampler):
    """Always proposes the same architecture."""

    def sample_independent(
        self, study: Any, trial: Any, param_name: str, param_distribution: Any
    ) -> Any:
        return param_distribution.to_external_repr(
            0 if hasattr(param_distribution, "choices") else 1
        )


def interrupt(
    storage: Path, lifetime: int, evaluations: int = 20, sampler: str = "nsga2"
) -> Interrupted:
    evaluator = Interrupted(lifetime)
    with pytest.raises(KeyboardInterrupt):
        search(
            Problem(SPACE, evaluator, OBJECTIVES),
            sampler=sampler,
            evaluations=evaluations,
            storage=storage,
        )
    return evaluator


# --- the loop


@pytest.mark.slow
@pytest.mark.parametrize("name", ["random", "nsga2", "nsga3", "tpe", "gp"])
def test_every_plain_sampler_evaluates_the_wanted_number_of_distinct_architectures(
    name: str,
) -> None:
    assert name in list_samplers()
    evaluator = Costs()
    result = search(Problem(SPACE, evaluator, OBJECTIVES), sampler=name, evaluations=15, seed=1)
    assert result.evaluated.architectures == evaluator.seen
    assert len(set(evaluator.seen)) == 15
    assert result.evaluated.values.tolist() == [
        [row[2], row[0]] for row in map(evaluator._row, evaluator.seen)
    ]


def test_the_same_seed_gives_the_same_result() -> None:
    def evaluated(seed: int) -> list[Architecture]:
        return search(
            Problem(SPACE, Costs(), OBJECTIVES), sampler="nsga2", evaluations=45, seed=seed
        ).evaluated.architectures

    assert evaluated(3) == evaluated(3) != evaluated(4)


def test_a_repeated_architecture_gets_its_values_and_is_neither_evaluated_nor_counted() -> None:
    evaluator = Costs()
    result = search(Problem(SPACE, evaluator, OBJECTIVES), sampler=Stubborn(), evaluations=3)
    trials = result.study.trials
    assert len(set(evaluator.seen)) == len(evaluator.seen) == 3
    assert len(trials) == 1 + 2 * (MAX_REPEATS + 1)
    repeats = [trial for trial in trials if trial.user_attrs.get(REPEAT_KEY)]
    assert len(repeats) == 2 * MAX_REPEATS
    assert all(trial.values == trials[0].values for trial in repeats)


def test_a_small_space_is_evaluated_completely_and_the_search_ends(switches: SearchSpace) -> None:
    result = search(
        Problem(switches, Costs(switches), "params,flops"), sampler="random", evaluations=100
    )
    assert sorted(map(str, result.evaluated.architectures)) == sorted(
        map(str, switches.enumerate())
    )


def test_progress_is_reported_at_the_start_and_after_every_evaluation() -> None:
    calls: list[SearchProgress] = []
    result = search(
        Problem(SPACE, Costs(), OBJECTIVES), sampler="random", evaluations=40, progress=calls.append
    )
    assert [(now.done, now.total) for now in calls] == [(i, 40) for i in range(41)]
    assert calls[-1].front == len(result.front_rows)
    # Before so many evaluations, there is no unit of the hypervolume.
    volumes = [now.hypervolume for now in calls if now.hypervolume is not None]
    assert len(volumes) == 41 - FRAME_POINTS
    assert volumes == sorted(volumes)
    assert 0 < volumes[0] < 1


@pytest.mark.parametrize("failure", [np.nan, np.inf])
def test_a_failed_evaluation_counts_but_is_not_on_the_front_and_not_repeated(
    tmp_path: Path, failure: float
) -> None:
    for evaluations in (10, 20):
        evaluator = Costs(failure=failure)
        result = search(
            Problem(SPACE, evaluator, OBJECTIVES),
            sampler="random",
            evaluations=evaluations,
            storage=tmp_path / "j.log",
        )
        assert len(evaluator.seen) == 10
    failed = np.isnan(result.evaluated.values).any(axis=1)
    assert len(set(result.evaluated.architectures)) == 20
    assert 0 < failed.sum() < 20
    assert all("'stage0_kernel': 3" in row["architecture"] for row in result.front_rows)


def test_infeasible_architectures_are_kept_off_the_front_and_marked_in_the_study() -> None:
    result = search(
        Problem(SPACE, Costs(), OBJECTIVES, "params <= 50000"), sampler="nsga2", evaluations=40
    )
    params = np.array(
        [SPACE.params(architecture) for architecture in result.evaluated.architectures]
    )
    assert (result.feasible == (params <= 50_000)).all()
    assert 0 < result.feasible.sum() < 40
    on_front = [SPACE.params(SPACE.parse(row["architecture"])) for row in result.front_rows]
    assert max(on_front) <= 50_000
    for trial in result.study.trials:
        assert (
            trial.constraints["params <= 50000"]
            == SPACE.params(SPACE.architecture(trial.params)) - 50_000
        )


def test_bad_settings_are_refused_before_anything_is_evaluated(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'depth_accuracy'"):
        search(Problem(SPACE, Costs(), "dept_accuracy,flops"), sampler="random", evaluations=5)
    with pytest.raises(InputError, match="unknown metric 'latency_ms'"):
        search(
            Problem(SPACE, Costs(), OBJECTIVES, "latency_ms <= 3"), sampler="random", evaluations=5
        )
    with pytest.raises(InputError, match="did you mean 'random'"):
        search(
            Problem(SPACE, Costs(), OBJECTIVES),
            sampler="rendom",
            evaluations=5,
            storage=tmp_path / "j.log",
        )
    assert not (tmp_path / "j.log").exists()


# --- interruption


def test_an_interrupted_evaluation_is_finished_first(tmp_path: Path) -> None:
    before = interrupt(tmp_path / "j.log", 7)
    evaluator = Costs()
    result = search(
        Problem(SPACE, evaluator, OBJECTIVES),
        sampler="nsga2",
        evaluations=20,
        storage=tmp_path / "j.log",
    )
    assert result.evaluated.architectures == before.seen + evaluator.seen
    assert len(set(result.evaluated.architectures)) == 20
    assert all(trial.state.is_finished() for trial in result.study.trials)


def test_a_resumed_sampler_does_not_start_over(tmp_path: Path) -> None:
    interrupt(tmp_path / "j.log", 12, sampler="random")
    result = search(
        Problem(SPACE, Costs(), OBJECTIVES),
        sampler="random",
        evaluations=20,
        storage=tmp_path / "j.log",
    )
    assert len(result.study.trials) < 24  # the same seed anew would repeat the first 12


@pytest.mark.slow
@pytest.mark.parametrize("url", ["{folder}/new/journal.log", "sqlite:///{folder}/study.db"])
def test_a_finished_search_can_be_continued_in_a_file_or_database(tmp_path: Path, url: str) -> None:
    storage = url.format(folder=tmp_path)
    first = search(
        Problem(SPACE, Costs(), OBJECTIVES), sampler="random", evaluations=6, storage=storage
    )
    evaluator = Costs()
    second = search(
        Problem(SPACE, evaluator, OBJECTIVES), sampler="random", evaluations=10, storage=storage
    )
    assert second.evaluated.architectures == first.evaluated.architectures + evaluator.seen
    np.testing.assert_array_equal(second.evaluated.values[:6], first.evaluated.values)


def test_a_line_that_a_killed_writer_left_unfinished_is_dropped(tmp_path: Path) -> None:
    interrupt(tmp_path / "j.log", 5)
    with open(tmp_path / "j.log", "ab") as file:
        file.write(b'{"op_code":8,"worker_id":"' + 9000 * b"x")
    result = search(
        Problem(SPACE, Costs(), OBJECTIVES),
        sampler="nsga2",
        evaluations=12,
        storage=tmp_path / "j.log",
    )
    assert len(set(result.evaluated.architectures)) == 12
    assert (
        len(
            search(
                Problem(SPACE, Costs(), OBJECTIVES),
                sampler="nsga2",
                evaluations=12,
                storage=tmp_path / "j.log",
            ).evaluated.architectures
        )
        == 12
    )


SCRIPT = """
import sys, time
import numpy as np, optuna
from nas import Problem, search
from search_spaces import get_space

optuna.logging.set_verbosity(optuna.logging.ERROR)
storage, log, evaluations, sampler, seconds = sys.argv[1:]
space = get_space("tiny-resnet")

class Slow:
    metrics = ("params", "flops")

    def __call__(self, architectures):
        with open(log, "a") as file:
            file.write(space.format(architectures[0]) + "\\n")
        time.sleep(float(seconds))
        return np.array([[space.params(a), space.flops(a)] for a in architectures], dtype=float)

problem = Problem(space, Slow(), ("params:max", "flops"))
search(problem, sampler=sampler, evaluations=int(evaluations), storage=storage)
"""


def start(
    storage: Path, log: Path, evaluations: int, sampler: str, seconds: float = 0.005
) -> subprocess.Popen[bytes]:
    arguments = [str(storage), str(log), str(evaluations), sampler, str(seconds)]
    return subprocess.Popen([sys.executable, "-c", SCRIPT, *arguments])


def lines(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


@pytest.mark.slow
@pytest.mark.parametrize(("kills", "apart"), [(2, 10), (4, 25)])  # evaluations between two kills
def test_killing_a_search_loses_and_repeats_nothing(kills: int, apart: int, tmp_path: Path) -> None:
    storage, log, wanted = tmp_path / "j.log", tmp_path / "evaluations.txt", 20 + apart * kills
    rng = np.random.default_rng()  # other moments in every run
    starts = [0]
    for kill in range(kills):
        process = start(storage, log, wanted, "nsga2")
        target = apart * kill + int(rng.integers(apart))
        while len(lines(log)) <= target and process.poll() is None:
            time.sleep(0.002)
        time.sleep(rng.random() * 0.03)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "the search ended before it was killed"
        starts.append(len(lines(log)))
    assert start(storage, log, wanted, "nsga2").wait() == 0

    evaluated = lines(log)
    # Only what was being evaluated at a kill may be evaluated again, and then at once.
    resumed = {i for i in starts[1:] if evaluated[i] == evaluated[i - 1]}
    counted = [line for i, line in enumerate(evaluated) if i not in resumed]
    assert len(set(counted)) == len(counted) == wanted
    study = optuna.load_study(study_name="search", storage=open_storage(storage))
    finished = [SPACE.format(SPACE.architecture(trial.params)) for trial in study.trials]
    assert list(dict.fromkeys(finished)) == counted
    assert all(trial.state == optuna.trial.TrialState.COMPLETE for trial in study.trials)


@pytest.mark.slow
def test_a_search_that_is_killed_in_its_first_evaluation_repeats_it(tmp_path: Path) -> None:
    storage, log = tmp_path / "j.log", tmp_path / "evaluations.txt"
    process = start(storage, log, 3, "nsga2", seconds=60)
    while not lines(log):
        assert process.poll() is None, "the search ended by itself"
        time.sleep(0.002)
    process.kill()
    process.wait()
    assert start(storage, log, 3, "nsga2").wait() == 0
    first, *others = lines(log)
    assert others[0] == first
    assert len(set(others)) == len(others) == 3


@pytest.mark.slow
def test_two_processes_share_a_search_and_leave_each_other_alone(tmp_path: Path) -> None:
    storage, log = tmp_path / "j.log", tmp_path / "evaluations.txt"
    processes = [start(storage, log, 60, "random") for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    assert (
        60 <= len(set(lines(log))) <= 61
    )  # the other may still be evaluating when one has counted to 60
    study = optuna.load_study(study_name="search", storage=open_storage(storage))
    assert all(trial.state == optuna.trial.TrialState.COMPLETE for trial in study.trials)


# --- storages that do not fit


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seed": 2}, "seed 1, not 2"),
        ({"sampler": "tpe"}, "sampler 'random', not 'tpe'"),
        ({"objectives": "depth_accuracy,params"}, "objectives"),
        ({"constraints": "params <= 5"}, "constraints"),
        ({"space": get_space("nasbench201")}, "space 'tiny-resnet', not 'nasbench201'"),
    ],
)
def test_resuming_with_other_settings_is_refused(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    goal: dict[str, Any] = {"space": SPACE, "evaluate": Costs(), "objectives": OBJECTIVES}
    settings: dict[str, Any] = {
        "sampler": "random",
        "evaluations": 3,
        "seed": 1,
        "storage": tmp_path / "j.log",
    }
    search(Problem(**goal), **settings)
    for name, value in changed.items():
        (goal if name in ("space", "objectives", "constraints") else settings)[name] = value
    with pytest.raises(InputError, match=message):
        search(Problem(**goal), **settings)


def test_a_study_of_another_origin_is_refused(tmp_path: Path) -> None:
    study = optuna.create_study(study_name="search", storage=open_storage(tmp_path / "j.log"))
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)
    with pytest.raises(InputError, match="was not made by a search"):
        search(
            Problem(SPACE, Costs(), OBJECTIVES),
            sampler="random",
            evaluations=3,
            storage=tmp_path / "j.log",
        )


@pytest.mark.parametrize("content", [b"precious notes", b"line\nline\n", b'{"a": 1}'])
def test_a_file_that_is_no_journal_is_refused_and_left_as_it_is(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(InputError, match="not the journal of a search"):
        search(
            Problem(SPACE, Costs(), OBJECTIVES),
            sampler="random",
            evaluations=3,
            storage=tmp_path / "file",
        )
    assert (tmp_path / "file").read_bytes() == content


def test_a_journal_damaged_in_the_middle_is_refused(tmp_path: Path) -> None:
    search(
        Problem(SPACE, Costs(), OBJECTIVES),
        sampler="random",
        evaluations=3,
        storage=tmp_path / "j.log",
    )
    content = (tmp_path / "j.log").read_bytes()
    (tmp_path / "j.log").write_bytes(content[:300] + b"\0\0" + content[302:])
    with pytest.raises(StorageError, match="damaged"):
        search(
            Problem(SPACE, Costs(), OBJECTIVES),
            sampler="random",
            evaluations=3,
            storage=tmp_path / "j.log",
        )


def test_a_storage_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for storage in (tmp_path, tmp_path / "file" / "j.log"):
        with pytest.raises(StorageError, match=str(storage)):
            search(
                Problem(SPACE, Costs(), OBJECTIVES),
                sampler="random",
                evaluations=3,
                storage=storage,
            )
    for url in ("sqlite:////nowhere/at/all.db", "nodb://user:secret@host/db"):
        with pytest.raises(InputError, match="cannot open the database") as caught:
            search(
                Problem(SPACE, Costs(), OBJECTIVES), sampler="random", evaluations=3, storage=url
            )
        assert "secret" not in str(caught.value)


def test_a_full_disk_stops_the_search_and_keeps_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Filling(Costs):
        def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
            if len(self.seen) == 5:
                monkeypatch.setattr(os, "fsync", full_disk)
            return super().__call__(architectures)

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageError, match=r"j\.log: No space left on device"):
        search(
            Problem(SPACE, Filling(), OBJECTIVES),
            sampler="random",
            evaluations=20,
            storage=tmp_path / "j.log",
        )
    monkeypatch.undo()
    assert (
        len(
            search(
                Problem(SPACE, Costs(), OBJECTIVES),
                sampler="random",
                evaluations=20,
                storage=tmp_path / "j.log",
            ).evaluated.values
        )
        == 20
    )


# --- the result


@pytest.fixture(scope="module")
def result() -> SearchResult:
    return search(Problem(SPACE, Costs(), OBJECTIVES), sampler="nsga2", evaluations=60)


def test_the_front_is_sorted_best_first_and_no_row_dominates_another(result: SearchResult) -> None:
    depth = [row["depth_accuracy"] for row in result.front_rows]
    flops = [row["flops"] for row in result.front_rows]
    assert len(result.front_rows) > 1
    assert depth == sorted(depth, reverse=True)
    assert flops == sorted(flops, reverse=True)
    assert list(result.front_rows[0]) == ["architecture", "depth_accuracy", "flops"]


def test_hypervolume_takes_a_table_reference_or_a_point(result: SearchResult) -> None:
    values = result.evaluated.values
    reference = Reference.of_table(values, parse_objectives(OBJECTIVES))
    assert result.hypervolume(reference) == pytest.approx(1)
    depth, flops = values[0]
    assert result.hypervolume([values[:, 0].max() - 1, values[:, 1].min()]) == 0
    with pytest.raises(InputError, match="the reference point has shape"):
        result.hypervolume([1.0])
    assert result.hypervolume([depth - 1, flops + 10]) >= 10


def test_saved_files_hold_the_front(result: SearchResult, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "run"
    result.save(folder)
    with open(folder / "front.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["architecture"] for row in rows] == [
        row["architecture"] for row in result.front_rows
    ]
    assert [float(row["flops"]) for row in rows] == [row["flops"] for row in result.front_rows]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["front"] == result.front_rows
    assert (summary["evaluations"], summary["sampler"], summary["seed"]) == (60, "nsga2", 0)
    for i, row in enumerate(result.front_rows):
        text = (folder / "front" / f"{i:02d}.txt").read_text()
        assert text == SPACE.to_text(SPACE.parse(row["architecture"]))
        assert to_text(onnx.load(folder / "front" / f"{i:02d}.onnx")) == text


def test_saving_again_replaces_the_older_front(result: SearchResult, tmp_path: Path) -> None:
    result.save(tmp_path)
    search(Problem(SPACE, Costs(), "flops"), sampler="random", evaluations=5).save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "front",
        "front.csv",
        "networks.csv",
        "summary.json",
    ]
    assert sorted(path.name for path in (tmp_path / "front").iterdir()) == ["00.onnx", "00.txt"]


def test_searches_that_save_at_the_same_time_in_one_folder_leave_a_whole_front(
    result: SearchResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one has moved the older front away when the second one writes its own."""
    result.save(tmp_path)
    replace = os.replace

    def while_another_saves(source: Path, target: Path) -> None:
        replace(source, target)
        if source == tmp_path / "front":
            monkeypatch.setattr(os, "replace", replace)
            result.save(tmp_path)

    monkeypatch.setattr(os, "replace", while_another_saves)
    result.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "front",
        "front.csv",
        "networks.csv",
        "summary.json",
    ]
    assert len(list((tmp_path / "front").glob("*.onnx"))) == len(result.front_rows)


def test_a_refused_save_leaves_the_older_result_whole(
    result: SearchResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result.save(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def full_disk(path: Path, text: str, encoding: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full_disk)
    with pytest.raises(InputError, match="No space left on device"):
        result.save(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    with pytest.raises(InputError, match="cannot write"):
        result.save(tmp_path / "front.csv")


def test_an_optuna_sampler_object_can_be_given() -> None:
    sampler = create_sampler("tpe", SPACE, OBJECTIVES, seed=1)
    assert (
        len(
            search(
                Problem(SPACE, Costs(), OBJECTIVES), sampler=sampler, evaluations=12
            ).evaluated.architectures
        )
        == 12
    )
