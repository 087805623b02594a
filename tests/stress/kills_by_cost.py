"""Searches by cost survive SIGKILL: `python -m tests.stress.kills_by_cost` (minutes).

A search with fidelities and its worker train tiny networks. One of the two is killed at a random
moment and restarted, many times. In the end, the journal must contain each part of a training once,
none without the parts before it, and curves and weights that equal those of uninterrupted trainings
bit for bit.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from multiprocessing.context import ForkServerProcess as Process
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import optuna
import torch
import typer
from optuna.trial import TrialState

from experiments.runner import AsJson, run_command
from nas import Problem, search
from nas.cli.console import print_json, print_table
from nas.cli.progress import progress_bar
from nas.evaluation.measurement import Measurement
from nas.evaluation.trainable import Trainable
from nas.search.own_evaluator import FunctionEvaluator
from nas.search.study.result import SearchResult
from nas.search.study.schema import FAILED_KEY, FURTHER_KEY, UNTIL_KEY
from nas.search.study.trials import TrialReader
from search_spaces import get_space
from search_spaces.common.errors import InputError

FIDELITIES = (1, 3, 9)
SLOW = 0.05  # seconds per epoch at least, so that some kills interrupt one
CONTEXT = multiprocessing.get_context("forkserver")


def evaluate(
    model: Any, architecture: Any, report: Any, checkpoint: Path | None = None
) -> dict[str, float]:
    """A tiny training. `digest` is a number that depends on each bit of the trained weights."""
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    values: dict[str, float] = {}
    first = 1
    if checkpoint and checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        values, first = state["values"], state["epoch"] + 1
        if not report(
            state["epoch"], values
        ):  # the process was killed after it had saved the last epoch
            return {**values, "digest": _digest(model)}
    for epoch in range(first, FIDELITIES[-1] + 1):
        x = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(epoch))
        loss = (model(x) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(SLOW)
        values = {"fit_loss": loss.item()}
        if checkpoint:
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "epoch": epoch,
                "values": values,
            }
            partial = checkpoint.with_suffix(".part")
            torch.save(state, partial)
            partial.replace(checkpoint)
        if not report(epoch, values):
            break
    return {**values, "digest": _digest(model)}


def _digest(model: Any) -> float:
    bits = b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())
    return float(int.from_bytes(hashlib.sha256(bits).digest()[:6], "big"))


def _evaluator(folder: Path | None) -> FunctionEvaluator:
    space = get_space("tiny-resnet", input_shape=(1, 8, 8))
    return FunctionEvaluator(space, evaluate, ["fit_loss"], Measurement(("params",)), {}, folder)


def work(folder: Path, budget: float) -> SearchResult:
    """Start or resume the search in this process."""
    torch.set_num_threads(1)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    evaluator = _evaluator(folder / "training")
    journal = folder / "search.journal"
    return search(
        Problem(evaluator.space, evaluator, "fit_loss,params"),
        sampler="asha",
        fidelities=FIDELITIES,
        budget=budget,
        storage=journal,
    )


def _start(folder: Path, budget: float) -> Process:
    process = CONTEXT.Process(target=work, args=(folder, budget))
    process.start()
    return process


def survive(folder: Path, budget: float, kills: int, rng: np.random.Generator) -> int:
    """Kill the search or its worker at `kills` random moments, then let both finish.

    Each moment is the next growth of the journal plus up to two seconds.

    Returns:
        The number of kills that hit a running process.
    """
    CONTEXT.set_forkserver_preload([__name__])
    journal, killed = folder / "search.journal", 0
    processes = [_start(folder, budget), _start(folder, budget)]
    for _ in range(kills):
        before, deadline = _size(journal), time.monotonic() + 30
        while _size(journal) == before and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(2 * rng.random())
        place = int(rng.integers(2))
        processes[place].kill()
        processes[place].join()
        killed += processes[place].exitcode == -signal.SIGKILL
        processes[place] = _start(folder, budget)
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise InputError("the search failed after it was restarted")
    return killed


def _size(journal: Path) -> int:
    return journal.stat().st_size if journal.exists() else 0


def judged(found: SearchResult) -> dict[str, Any]:
    """Compare a search's journal with uninterrupted trainings."""
    trials = found.study.get_trials(states=(TrialState.COMPLETE, TrialState.PRUNED))
    stretches = Counter((str(trial.params), trial.user_attrs[UNTIL_KEY]) for trial in trials)
    lost = sum(
        (at, low) not in stretches for at, until in stretches for low in FIDELITIES if low < until
    )
    complete = found.study.get_trials(states=(TrialState.COMPLETE,))
    return {
        "stretches": len(stretches),
        "doubled": stretches.total() - len(stretches),
        "lost": lost + sum(not trial.state.is_finished() for trial in found.study.trials),
        "failed": sum(FAILED_KEY in trial.user_attrs for trial in found.study.trials),
        "trained to the end": len(complete),
        "equal bit for bit": sum(_is_equal(found, trial) for trial in complete),
    }


def _is_equal(found: SearchResult, trial: optuna.trial.FrozenTrial) -> bool:
    """True if an uninterrupted training has the same curve and weights."""
    evaluator = _evaluator(None)
    architecture = TrialReader(evaluator.space, found.objectives, []).architecture(trial.params)
    assert architecture is not None
    curve: dict[int, float] = {}

    def report(epoch: int, metrics: Mapping[str, float]) -> bool:
        curve[epoch] = metrics["fit_loss"]
        return True

    network = Trainable.of(evaluator.space, architecture)
    values = evaluator.train_network(network, architecture, report).values
    return (
        curve == trial.intermediate_values
        and values["digest"] == trial.user_attrs[FURTHER_KEY]["digest"]
    )


def main(
    kills: Annotated[int, typer.Option(min=1)] = 20,
    budget: Annotated[float, typer.Option(min=1, help="Budget in epochs.")] = 800,
    seed: Annotated[int, typer.Option(help="Seed of the moments.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Kill a search by cost and its worker repeatedly, resume them, and check their journal."""
    with tempfile.TemporaryDirectory() as name, progress_bar("killing"):
        folder = Path(name)
        killed = survive(folder, budget, kills, np.random.default_rng(seed))
        row = {"killed": killed, **judged(work(folder, budget))}
    print_json(row) if as_json else print_table("After the last kill", [row])


if __name__ == "__main__":
    run_command(main)
