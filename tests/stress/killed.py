"""Searches survive SIGKILL: `python -m tests.stress.killed` (minutes).

A search in NAS-Bench-201 by costs is killed at random moments and restarted until it is finished.
In the end, the journal must contain each architecture once, as many as requested, and the front
that follows from a direct computation.
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
from nas import Problem, search
from nas.cli.console import print_json, print_table
from nas.cli.progress import progress_bar
from nas.search.objectives import to_losses
from nas.search.pareto import non_dominated
from nas.search.study.load import read_search
from nas.search.study.result import SearchResult
from search_spaces import Architecture, get_space
from search_spaces.common.errors import InputError

OBJECTIVES = "params:max,flops"
SLOW = 0.01  # seconds per evaluation, so that some kills interrupt one


class Costs:
    """A slow evaluator of parameters and FLOPs."""

    metrics: tuple[str, ...] = ("params", "flops")

    def __init__(self, space: str) -> None:
        self.space = get_space(space)

    def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
        time.sleep(SLOW)
        return np.array(
            [[self.space.params(a), self.space.flops(a)] for a in architectures], dtype=float
        )


def work(journal: Path, evaluations: int, sampler: str, space: str) -> None:
    """Start or resume the search in this process."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    search(
        Problem(get_space(space), Costs(space), OBJECTIVES),
        sampler=sampler,
        evaluations=evaluations,
        storage=journal,
    )


def survive(
    journal: Path, evaluations: int, kills: int, rng: np.random.Generator, sampler: str, space: str
) -> int:
    """Kill a search at `kills` random moments, then let it finish.

    Each moment is a number of finished trials, in its own part of the search, plus a few
    milliseconds. Hence kills are spread over the whole search.

    Returns:
        The number of kills that hit a running search.
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
        raise InputError("the search failed after it was restarted")
    return killed


def judged(found: SearchResult, space: str) -> dict[str, Any]:
    """Compare a search's result with a direct evaluation of its architectures."""
    archs, values = found.evaluated
    direct = Costs(space)(archs)
    best = direct[non_dominated(to_losses(direct, found.objectives))]
    front = [[row["params"], row["flops"]] for row in found.front_rows]
    return {
        "evaluations": len(archs),
        "distinct": len(set(archs)),
        "values equal": bool((values == direct).all()),
        "front equal": sorted(front) == sorted(best.tolist()),
        "unfinished trials": sum(not trial.state.is_finished() for trial in found.study.trials),
    }


def _started(journal: Path, evaluations: int, sampler: str, space: str) -> subprocess.Popen[bytes]:
    arguments = [
        "--journal",
        str(journal),
        "--evaluations",
        str(evaluations),
        "--sampler",
        sampler,
        "--space",
        space,
    ]
    return subprocess.Popen([sys.executable, "-m", "tests.stress.killed", *arguments])


def _finished(journal: Path) -> int:
    """Number of finished trials in a journal: lines with values."""
    return journal.read_bytes().count(b'"values":[') if journal.exists() else 0


def main(
    kills: Annotated[int, typer.Option(min=1)] = 20,
    evaluations: Annotated[int, typer.Option(min=1)] = 200,
    sampler: Annotated[str, typer.Option()] = "nsga2",
    space: Annotated[str, typer.Option()] = "nasbench201",
    seed: Annotated[int, typer.Option(help="Seed of the moments.")] = 0,
    journal: Annotated[
        Path | None, typer.Option(hidden=True, help="Run the search that is killed.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Kill a search repeatedly, resume it, and check its journal."""
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
