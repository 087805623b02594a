"""Claims about `nas.log`: every trial with what was predicted, measured and failed; never the end
of a search.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from nas import Problem, search
from nas.comparison.runs import run_studies
from nas.evaluation.journal import _LogFile, log_to
from nas.search.progress import SearchProgress
from search_spaces import Architecture, SearchSpace

GUIDED = {"n_startup": 3, "refit_every": 1, "fresh": 5}


class Costs:
    metrics = ("params", "flops", "size_kb")

    def __init__(self, space: SearchSpace, fails: bool = False) -> None:
        self.space, self.fails = space, fails

    def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
        if self.fails and dict(architectures[0].choices)["width0"] == 2:
            raise MemoryError("too wide")
        counts = [(self.space.params(a), self.space.flops(a)) for a in architectures]
        return np.array([(params, flops, np.sqrt(params)) for params, flops in counts])


def logged(path: Path, evaluator: Costs, evaluations: int) -> list[str]:
    with log_to(path / "nas.log"):
        search(
            Problem(evaluator.space, evaluator, "params:max,size_kb"),
            sampler="ridge",
            evaluations=evaluations,
            storage=path / "j.log",
            sampler_options=GUIDED,
            name="ridge-0",
        )
    return (path / "nas.log").read_text().splitlines()


def test_every_trial_is_logged_once_with_what_was_predicted_and_measured(
    switches: SearchSpace, tmp_path: Path
) -> None:
    logged(tmp_path, Costs(switches), 4)
    lines = logged(tmp_path, Costs(switches), 6)
    numbers = [
        int(found[1])
        for line in lines
        if (found := re.search(r"INFO ridge-0, trial (\d+): params \d+", line))
    ]
    assert numbers == list(range(6))
    number = r"-?[\d.e+]+"
    # A count was no prediction
    measured = rf"params \d+, size_kb {number} \(predicted {number} ± {number}\)"
    assert re.search(
        rf"^\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d INFO .*{measured}, [\d.]+ s: {{'width0'", lines[-1]
    )
    assert "predicted" not in lines[0], "the first designs are chosen without a prediction"


def test_a_failure_is_logged_with_its_reason(switches: SearchSpace, tmp_path: Path) -> None:
    lines = logged(tmp_path, Costs(switches, fails=True), 8)
    failed = [line for line in lines if "failed: " in line]
    assert len(failed) == 4
    assert all("MemoryError: too wide" in line and "'width0': 2" in line for line in failed)


def test_a_folder_of_searches_has_one_log(tmp_path: Path) -> None:
    run_studies(
        "digits201", "digits_accuracy,cpu_latency_ms", ["random", "nsga2"], 3, (0, 1), tmp_path
    )
    lines = (tmp_path / "nas.log").read_text().splitlines()
    assert [sum(f", trial {i}: digits_accuracy" in line for line in lines) for i in range(3)] == [
        4,
        4,
        4,
    ]
    assert logging.getLogger("nas").handlers == []


def test_trials_that_ended_while_nobody_logged_them_are_logged_later(tmp_path: Path) -> None:
    def run(evaluations: int) -> list[str]:
        run_studies("digits201", "digits_accuracy", ["random"], evaluations, (0,), tmp_path)
        return (tmp_path / "nas.log").read_text().splitlines()

    lines = run(4)
    (tmp_path / "nas.log").write_text(
        "\n".join(line for line in lines if "trial 2:" not in line) + "\n"
    )
    lines = run(5)
    assert [
        sum(f"random-0, trial {i}: digits_accuracy" in line for line in lines) for i in range(5)
    ] == [1] * 5


def test_a_log_that_was_cut_in_a_character_does_not_end_the_search(tmp_path: Path) -> None:
    run_studies("digits201", "digits_accuracy", ["random"], 2, (0,), tmp_path)
    with (tmp_path / "nas.log").open("ab") as file:
        file.write("digits_accuracy 97 (predicted 96 ±".encode()[:-1])
    run_studies("digits201", "digits_accuracy", ["random"], 3, (0,), tmp_path)
    assert "trial 2: " in (tmp_path / "nas.log").read_text(errors="replace")


def test_a_log_that_cannot_be_written_any_more_does_not_end_the_search(
    switches: SearchSpace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full_disk(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_LogFile, "flush", full_disk)
    with log_to(tmp_path / "nas.log"):
        result = search(
            Problem(switches, Costs(switches), "params"), sampler="random", evaluations=3
        )
    monkeypatch.undo()
    assert len(result.evaluated.architectures) == 3
    assert "Traceback" not in capsys.readouterr().err


def test_of_two_processes_of_a_search_one_logs_until_it_ends(tmp_path: Path) -> None:
    log, path = logging.getLogger("nas.search.search"), tmp_path / "nas.log"
    with log_to(path):
        log.info("first")
        second = _LogFile(path, encoding="utf-8", delay=True)  # as another process opens it
        second.emit(
            log.makeRecord("nas", logging.INFO, "", 0, "while the first one logs", (), None)
        )
    second.emit(log.makeRecord("nas", logging.INFO, "", 0, "after it has ended", (), None))
    second.close()
    assert [line.split("INFO ")[-1] for line in path.read_text().splitlines()] == [
        "first",
        "after it has ended",
    ]


def test_a_log_that_cannot_be_opened_is_skipped(switches: SearchSpace, tmp_path: Path) -> None:
    (tmp_path / "nas.log").mkdir()
    with log_to(tmp_path / "nas.log"):
        assert (
            len(
                search(
                    Problem(switches, Costs(switches), "params"), sampler="random", evaluations=3
                ).evaluated.architectures
            )
            == 3
        )
    assert logging.getLogger("nas").handlers == []


def test_progress_names_the_best_of_each_objective(switches: SearchSpace) -> None:
    calls: list[SearchProgress] = []
    result = search(
        Problem(switches, Costs(switches), "params:max,flops"),
        sampler="random",
        evaluations=8,
        progress=calls.append,
    )
    params, flops = result.evaluated.values.T
    assert calls[-1].best == {"params": params.max(), "flops": flops.min()}
    assert f"best params {params.max():.5g}, flops {flops.min():.5g}" in str(calls[-1])
