"""A real search with clocks: `python -m experiments.real_search FOLDER` (an hour per seed).

Networks of `own_spaces.images32` are trained on `composed_images` (32×32) and timed in ONNX Runtime
on one thread: nothing is looked up. `rlm`, `tpe` and `random` search the space with forty trainings
each; `scaling` trains one network at thirteen widths and three depths, as people do without a
search. All train alike. A search goes on where it was interrupted.

A row is one method with one seed: the share of the hypervolume of all methods' common front after 10
to 40 trainings (validation accuracy and latency), the trainings and minutes until the share at which
random search ends, and the lowest latency among networks whose *test* accuracy is within 1 and 3
points of the best one of any method.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import typer

from experiments.images import write_images
from experiments.own_spaces import images32
from experiments.runner import AsJson, FirstSeed, Quick, Seeds, run_command
from experiments.tables import chosen, show, summarize
from nas import Metric, Problem, Reference, SearchResult, search
from nas.evaluation.datasets import Dataset, load_dataset
from nas.evaluation.measurement import Measurement
from nas.evaluation.tasks import TrainingTask
from nas.search.study.schema import FURTHER_KEY

METHODS = ("rlm", "tpe", "random", "scaling")
LATENCY = "cpu_latency_ms"
MARKS = (10, 20, 40)
DROPS = (1.0, 3.0)  # points of test accuracy below the best network
IMAGES, QUICK_IMAGES = 2500, 200
TRAININGS, QUICK_TRAININGS = 40, 3
EPOCHS, QUICK_EPOCHS = 8, 1
SPACE = str(images32.__file__)


class Trained(NamedTuple):
    """The n networks of a search, in the order of their trainings."""

    values: np.ndarray  # (n, 2) validation accuracy, latency
    test: np.ndarray  # (n,) accuracies
    minutes: np.ndarray  # (n,) since the start, proposals included


def run(method: str, seed: int, data: Dataset, folder: Path, quick: bool) -> Trained:
    """Search, or go on with a search, and read what was trained."""
    name = "scaled" if method == "scaling" else "build"
    objectives = {data.metric: "max", LATENCY: "min"}
    task = TrainingTask(epochs=QUICK_EPOCHS if quick else EPOCHS, learning_rate=0.1, noise=0)
    measurement = Measurement((data.metric, LATENCY), data, (seed,), task)
    problem = Problem(f"{SPACE}:{name}", measurement, objectives)
    trainings = QUICK_TRAININGS if quick else TRAININGS
    result = search(
        problem,
        # The scaled networks are fewer than the trainings: in any order, all of them are trained.
        sampler="random" if method == "scaling" else method,
        evaluations=min(trainings, problem.space.size or trainings),
        seed=seed,
        out=folder / f"{method}-{seed}",
    )
    return _trained(result, data)


def _trained(result: SearchResult, data: Dataset) -> Trained:
    first = [trials[0] for trials in result.trials]
    test = [trial.user_attrs[FURTHER_KEY][data.test_metric] for trial in first]
    # A trial begins with its proposal, and ends with what is measured after the training.
    seconds = [trial.duration.total_seconds() for trial in first if trial.duration]
    return Trained(result.evaluated.values, np.array(test), np.cumsum(seconds) / 60)


def rows_of(trained: dict[str, Trained], data: Dataset) -> dict[str, dict[str, float]]:
    """The row of each method, of one seed."""
    # 1. The common front of all methods, from half of the best accuracy on.
    objectives = [Metric(data.metric), Metric(LATENCY)]
    together = np.concatenate([one.values for one in trained.values()])
    reference = Reference.of_table(together, objectives, floor=together[:, 0].max() / 2)
    curves = {method: reference.curve(one.values) for method, one in trained.items()}
    goal = curves["random"][-1] if "random" in curves else 1.0
    best = max(one.test.max() for one in trained.values())

    # 2. Shares along the search, when it reaches the goal, and the fastest accurate networks.
    rows = {}
    for method, one in trained.items():
        curve = curves[method]
        row = {f"HV@{mark}": float(curve[min(mark, len(curve)) - 1]) for mark in MARKS}
        reached = np.flatnonzero(curve >= goal)
        row["trainings"] = float(reached[0] + 1) if len(reached) else np.nan
        row["minutes"] = float(one.minutes[reached[0]]) if len(reached) else np.nan
        row["all minutes"] = float(one.minutes[-1])
        for drop in DROPS:
            fast = one.values[one.test >= best - drop, 1]
            row[f"ms within {drop:g}"] = float(fast.min()) if len(fast) else np.nan
        rows[method] = row
    return rows


def main(
    folder: Annotated[Path, typer.Argument(help="Folder for the searches.")],
    seeds: Seeds = 3,
    first_seed: FirstSeed = 0,
    only: Annotated[str, typer.Option(help="Methods, separated by commas.")] = ",".join(METHODS),
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Search with every method and seed; print means over the seeds."""
    import optuna
    import torch

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    torch.set_num_threads(1)
    methods = chosen(only, METHODS)
    folder.mkdir(parents=True, exist_ok=True)
    images = folder / "images.npz"
    if not images.exists():
        write_images(images, QUICK_IMAGES if quick else IMAGES)
    data = load_dataset(images)
    tasks, rows = [], []
    for seed in range(first_seed, first_seed + (1 if quick else seeds)):
        trained = {method: run(method, seed, data, folder, quick) for method in methods}
        for method, row in rows_of(trained, data).items():
            tasks.append((method, seed))
            rows.append(row)
    show("A real search", ("method",), summarize(tasks, rows), as_json)


if __name__ == "__main__":
    run_command(main)
