"""Searches that are killed: `python -m experiments.checks.killed` (minutes).

A search of NAS-Bench-201's architectures by their costs is killed by SIGKILL at random moments and run again until it
is done. What counts is what the journal then holds: every architecture once, as many as were asked for, and a front
that is the one of the same evaluations computed directly.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import optuna
import typer

from experiments.runner import AsJson, run_command
from nas.cli.console import print_json, print_table
from nas.cli.progress import progress_bar
from nas.searching.joining import read_search
from nas.searching.loop import search
from nas.searching.objectives import to_losses
from nas.searching.pareto import non_dominated
from nas.searching.result import SearchResult
from search_spaces import Architecture, get_space
from search_spaces.common.errors import InputError

OBJECTIVES = "params:max,flops"
SLOW = 0.01  # seconds that an evaluation takes, so that kills meet it, too


class Costs:
    """Parameters and FLOPs, after a while."""

    metrics: tuple[str, ...] = ("params", "flops")

    def __init__(self, space: str) -> None:
        self.space = get_space(space)

    def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
        time.sleep(SLOW)
        return np.array([[self.space.params(a), self.space.flops(a)] for a in architectures], dtype=float)


def work(journal: Path, evaluations: int, sampler: str, space: str) -> None:
    """One process's search; the next one goes on where it was killed."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    search(get_space(space), OBJECTIVES, Costs(space), sampler, evaluations, storage=journal)


def survive(journal: Path, evaluations: int, kills: int, rng: np.random.Generator, sampler: str, space: str) -> int:
    """Kill a search at so many random moments and let it end; returns how often it was killed before it had ended.

    A moment is a number of journal lines and a few milliseconds more, in its part of the search, so that kills are
    spread over all of it.
    """
    killed = 0
    for kill in range(kills):
        process = _started(journal, evaluations, sampler, space)
        done = (kill + rng.random()) / (kills + 1) * evaluations
        while _finished(journal) < done and process.poll() is None:
            time.sleep(0.005)
        time.sleep(rng.random() * 3 * SLOW)
        os.kill(process.pid, signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
    if _started(journal, evaluations, sampler, space).wait():
        raise InputError("the search failed when it was run again")
    return killed


def judged(found: SearchResult, space: str) -> dict[str, Any]:
    """What a search's journal holds, beside what the same architectures give when they are evaluated directly."""
    archs, values = found.evaluated
    direct = Costs(space)(archs)
    best = direct[non_dominated(to_losses(direct, found.objectives))]
    front = [[row["params"], row["flops"]] for row in found.front]
    return {
        "evaluations": len(archs),
        "distinct": len(set(archs)),
        "values equal": bool((values == direct).all()),
        "front equal": sorted(front) == sorted(best.tolist()),
        "unfinished trials": sum(not trial.state.is_finished() for trial in found.study.trials),
    }


def _started(journal: Path, evaluations: int, sampler: str, space: str) -> subprocess.Popen[bytes]:
    arguments = ["--journal", str(journal), "--evaluations", str(evaluations), "--sampler", sampler, "--space", space]
    return subprocess.Popen([sys.executable, "-m", "experiments.checks.killed", *arguments])


def _finished(journal: Path) -> int:
    """Trials that a journal says are finished: lines with a state and values."""
    return journal.read_bytes().count(b'"values":[') if journal.exists() else 0


def main(
    kills: Annotated[int, typer.Option(min=1)] = 20,
    evaluations: Annotated[int, typer.Option(min=1)] = 200,
    sampler: Annotated[str, typer.Option()] = "nsga2",
    space: Annotated[str, typer.Option()] = "nasbench201",
    seed: Annotated[int, typer.Option(help="Of the moments.")] = 0,
    journal: Annotated[Path | None, typer.Option(hidden=True, help="Search there, as a process to be killed.")] = None,
    as_json: AsJson = False,
) -> None:
    """Kill a search, resume it, and look at what is left."""
    if journal is not None:
        work(journal, evaluations, sampler, space)
        return
    with tempfile.TemporaryDirectory() as folder, progress_bar("killing"):
        path = Path(folder) / "search.journal"
        killed = survive(path, evaluations, kills, np.random.default_rng(seed), sampler, space)
        row = {"killed": killed, **judged(read_search(path), space)}
    print_json(row) if as_json else print_table("After the last kill", [row])


if __name__ == "__main__":
    run_command(main)
