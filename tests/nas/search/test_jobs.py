"""Claims about helper processes that one command starts for one search."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest

from nas import Problem, search
from nas.search import progress
from nas.search.own_evaluator import FunctionEvaluator
from nas.search.progress import SearchProgress
from nas.search.study import workers
from nas.search.study.storage import open_storage
from search_spaces import InputError, get_space

SPACE = get_space(
    "fbnet", input_shape=(1, 32, 32), width=0.1
)  # so large that two processes do not choose the same
FUNCTION = """
import os, time

def evaluate(model, architecture, report, log, device="cpu", seconds=0.1, processes=1):
    with open(log, "a") as file:
        file.write(f"{os.getpid()} {os.environ.get('CUDA_VISIBLE_DEVICES')}\\n")
    time.sleep(seconds)
    for _ in range(1200):  # a further process takes seconds to begin: the first does not do all the work until then
        if len({line.split()[0] for line in open(log)}) >= processes:
            break
        time.sleep(0.1)
    return {"size": sum(weight.numel() for weight in model.parameters())}
"""
PARENT = """
import sys
from nas import Problem, search
from nas.search.own_evaluator import FunctionEvaluator
from search_spaces import get_space

space = get_space("fbnet", input_shape=(1, 32, 32), width=0.1)
options = {"log": sys.argv[2], "seconds": 0.5}
evaluator = FunctionEvaluator(space, "mine.py:evaluate", ["size"], options=options)
search(Problem(space, evaluator, "size:min"), sampler="random", evaluations=500, storage=sys.argv[1], jobs=2)
"""


@pytest.fixture
def evaluator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., FunctionEvaluator]:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(FUNCTION)

    def make(**options: object) -> FunctionEvaluator:
        return FunctionEvaluator(
            SPACE, "mine.py:evaluate", ["size"], options={"log": "log", **options}
        )

    return make


def begun() -> dict[str, str]:
    """The GPU that each process saw, by process id."""
    return (
        dict(line.split(maxsplit=1) for line in Path("log").read_text().splitlines())
        if Path("log").exists()
        else {}
    )


@pytest.mark.slow
def test_jobs_share_a_search_and_its_gpus(
    evaluator: Callable[..., FunctionEvaluator], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "visible_gpus", lambda: ["3", "7"])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    wanted, evaluate = 6, evaluator(device="cuda", processes=2)
    told: list[SearchProgress] = []
    result = search(
        Problem(SPACE, evaluate, "size:min"),
        sampler="random",
        evaluations=wanted,
        storage="s.journal",
        jobs=2,
        progress=told.append,
    )
    assert told[-1].done >= wanted, "what the other process evaluated last counts, too"
    assert begun() == {
        str(os.getpid()): "None",
        next(pid for pid in begun() if pid != str(os.getpid())): "7",
    }
    found = result.evaluated.architectures
    assert wanted <= len(set(found)) == len(found) <= wanted + 1
    assert all(trial.state.is_finished() for trial in result.study.trials), (
        "the search waits for all its processes"
    )
    assert not result.failures


@pytest.mark.slow
def test_progress_counts_what_other_processes_finish_in_the_meantime(
    evaluator: Callable[..., FunctionEvaluator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process evaluates one network for as long as the other one takes for five."""
    monkeypatch.setattr(progress, "WATCH_SECONDS", 0.05)
    Path("mine.py").write_text(
        "import os, time\n"
        "def evaluate(model, architecture, report, main):\n"
        "    with open('done', 'a') as file:\n"
        "        if os.getpid() != main:\n"
        "            file.write('x')\n"
        "    while os.getpid() == main and len(open('done').read()) < 6:\n"
        "        time.sleep(0.05)\n"
        "    return {'size': sum(weight.numel() for weight in model.parameters())}\n"
    )
    function = FunctionEvaluator(SPACE, "mine.py:evaluate", ["size"], options={"main": os.getpid()})
    done: list[int] = []

    def note(progress: SearchProgress) -> None:
        done.append(progress.done)

    search(
        Problem(SPACE, function, "size:min"),
        sampler="random",
        evaluations=8,
        storage="s.journal",
        jobs=2,
        progress=note,
    )
    assert done == sorted(done), "it never falls"
    assert len({1, 2, 3, 4} & {*done}) >= 2, (
        "not only when this process has finished its first, when five are done"
    )
    assert done[-1] >= 8


@pytest.mark.slow
def test_helper_processes_end_with_the_main_one_and_return_their_trials(
    evaluator: Callable[..., FunctionEvaluator],
) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, "s.journal", "log"], env=os.environ)
    while len(begun()) < 2:
        assert parent.poll() is None
        time.sleep(0.1)
    (helper,) = [int(pid) for pid in begun() if pid != str(parent.pid)]
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 180  # on a busy machine
    while (
        Path(f"/proc/{helper}").exists() and " Z " not in Path(f"/proc/{helper}/stat").read_text()
    ):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    study = optuna.load_study(study_name="search", storage=open_storage("s.journal"))
    owners = [t.user_attrs.get("nas:worker", "") for t in study.trials if not t.state.is_finished()]
    assert not any(f":{helper}:" in owner for owner in owners)
    before = len(study.get_trials(states=(optuna.trial.TrialState.COMPLETE,)))
    found = search(
        Problem(SPACE, evaluator(seconds=0.5), "size:min"),
        sampler="random",
        evaluations=before + 2,
        storage="s.journal",
    )
    assert not found.failures


def test_a_process_that_lost_an_interrupt_or_ignores_them_is_interrupted_again() -> None:
    code = (
        "import contextlib, signal, time\n"
        "from nas.search import helper\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "helper.INTERRUPT_SECONDS = 0.3\n"
        "helper.end_with_input()\n"
        "with contextlib.suppress(KeyboardInterrupt):\n"
        "    time.sleep(60)\n"
        "time.sleep(60)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=50
    )
    assert b"KeyboardInterrupt" in ended.stderr


def test_a_search_that_cannot_be_shared_is_refused(
    evaluator: Callable[..., FunctionEvaluator],
) -> None:
    own = FunctionEvaluator(SPACE, lambda model, architecture, report: {"size": 1.0}, ["size"])
    chosen = optuna.samplers.RandomSampler()
    cases = (
        (own, "random", "s.journal"),
        (evaluator(), "random", None),
        (evaluator(), chosen, "s.journal"),
    )
    for evaluation, sampler, storage in cases:
        with pytest.raises(InputError, match="2 jobs need a storage, a sampler given by name"):
            search(
                Problem(SPACE, evaluation, "size:min"),
                sampler=sampler,
                evaluations=3,
                storage=storage,
                jobs=2,
            )
    with pytest.raises(InputError, match="jobs must be at least 1"):
        search(Problem(SPACE, evaluator(), "size:min"), sampler="random", evaluations=3, jobs=0)


def test_visible_gpus_are_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, GPU-5f")
    assert workers.visible_gpus() == ["2", "GPU-5f"]
