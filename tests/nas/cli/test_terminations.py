"""Claims about real signals: a termination ends every command as Ctrl-C does, and loses nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from optuna.trial import TrialState

from nas.search.study.load import read_search
from search_spaces import get_space

pytestmark = pytest.mark.slow
SPACE = """
import time
from pathlib import Path
from torch import nn
import torch

def build(trial):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, trial.suggest_int("width", 1, 500)), nn.ReLU(), nn.LazyLinear(10))

build.example_input = torch.zeros(1, 1, 8, 8)

def evaluate(model, architecture, report):
    Path("begun").touch()
    time.sleep(3600)
    return {"accuracy": 1.0}
"""
SEARCH = (
    "search",
    "--space",
    "mine.py:build",
    "--objectives",
    "accuracy,params",
    "--evaluator",
    "mine.py:evaluate",
    # Fmt: skip
    "--sampler",
    "random",
    "--evaluations",
    "20",
    "--storage",
    "s.journal",
    "--out",
    "found",
)


def nas(*arguments: str) -> subprocess.Popen[str]:
    """The command in the present folder, in a process group of its own, as a shell starts it."""
    command = [sys.executable, "-m", "nas.cli", *arguments]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
        start_new_session=True,
    )


SECONDS_TO_END, TRIES = 60, 4  # on a busy machine


def wait_for(condition: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 300  # on a busy machine
    while not condition.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def ended(process: subprocess.Popen[str], number: signal.Signals) -> str:
    """Send a signal to the process alone. Returns its errors.

    The signal is repeated, as users press Ctrl-C again: Python drops one that arrives while it
    finalizes an object.
    """
    children = psutil.Process(process.pid).children(recursive=True)
    for _ in range(TRIES):
        process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            errors = process.communicate(timeout=SECONDS_TO_END)[1]
            break
    else:
        process.kill()
        raise AssertionError(
            f"the process did not end after {TRIES} signals: {process.communicate()[1]}"
        )
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "nas: interrupted; run the same command again to continue"
    assert "Traceback" not in errors
    assert not psutil.wait_procs(children, timeout=60)[1], "no child process is left"
    return errors


@pytest.fixture(autouse=True)
def interrupts() -> Iterator[None]:
    """Processes that the tests start heed interrupts: a shell starts background jobs with
    interrupts ignored.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(SPACE)


@pytest.mark.parametrize(
    ("number", "jobs"), [(signal.SIGTERM, "1"), (signal.SIGTERM, "2"), (signal.SIGINT, "1")]
)
def test_a_terminated_search_and_worker_give_their_trials_back(
    number: signal.Signals, jobs: str
) -> None:
    search = nas(*SEARCH, "--jobs", jobs)
    wait_for(Path("begun"), search)
    ended(search, number)
    study = read_search("s.journal", "search-random-0", trust=True).study
    assert not study.get_trials(states=(TrialState.RUNNING,))
    assert study.get_trials(states=(TrialState.WAITING,))
    Path("begun").unlink()
    worker = nas("worker", "--storage", "s.journal", "--trust")
    wait_for(Path("begun"), worker)
    ended(worker, number)
    trials = read_search("s.journal", "search-random-0", trust=True).study.trials
    assert not any(trial.state == TrialState.RUNNING for trial in trials)
    assert any(trial.state == TrialState.WAITING for trial in trials)


def test_a_termination_counts_where_interrupts_are_ignored() -> None:
    before = signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # as a shell starts background jobs of a script
    try:
        search = nas(*SEARCH)
    finally:
        signal.signal(signal.SIGINT, before)
    wait_for(Path("begun"), search)
    ended(search, signal.SIGTERM)
    assert read_search("s.journal", "search-random-0", trust=True).study.get_trials(
        states=(TrialState.WAITING,)
    )


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_terminated_comparison_ends_at_once_and_keeps_its_scores(jobs: str) -> None:
    space = get_space("nasbench201")
    rows = [
        f"{space.format(a)},{i * i % 17}"
        for i, a in zip(range(20), space.enumerate(), strict=False)
    ]
    Path("table.csv").write_text("\n".join(["arch,x_accuracy", *rows]))
    Path("slow.py").write_text(
        "import time\nfrom pathlib import Path\nfrom predictors.baselines import Ridge\n\nclass "
        "Slow(Ridge):\n"
        "    kind = 'slow'\n\n    def fit(self, architectures, metrics):\n"
        "        if self.seed:\n            Path('begun').touch()\n            time.sleep(3600)\n"
        "        return super().fit(architectures, metrics)\n"
    )
    command = (
        "compare",
        "--benchmark",
        "table.csv",
        "--metric",
        "x_accuracy",
        "--predictors",
        "slow.py:Slow",
    )
    comparison = nas(*command, "--sizes", "5", "--seeds", "4", "--out", "compared", "--jobs", jobs)
    wait_for(Path("begun"), comparison)
    while (
        len(Path("compared/scores.jsonl").read_text().splitlines()) < 2
    ):  # the settings and the first score
        time.sleep(0.1)
    ended(comparison, signal.SIGTERM)
    assert len(Path("compared/scores.jsonl").read_text().splitlines()) == 2
