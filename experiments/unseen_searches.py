"""Searches in spaces that the RLM has never seen, where trainings count and measurements are cheap:
`python -m experiments.unseen_searches` (hours; finished rows are reused).

The objectives are an accuracy and a cost that is cheap: a latency, or FLOPs. Before each training,
guided samplers know the costs of at most five networks. `rlm` starts from `rlm-generated`, which was
pretrained on generated spaces alone. Every problem has four versions:

- *plain*;
- *limit*: only networks whose number of parameters 30 % of the table keep may be trained. Samplers
  propose what they like: a network that breaks the limit is counted and not trained, and no sampler
  pays for it;
- *floor*: `accuracy >=` the tenth percentile of the table;
- *limit and floor*.

A row is a share of the hypervolume of the table's true front, among the networks that keep limit and
floor, after 10 to 100 trainings. `violators` is the number of trained networks that break the limit.
"""

from __future__ import annotations

import csv
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import typer

from experiments import own_families
from experiments.family_tables import labelled
from experiments.pareto import load_table
from experiments.rivals import BotorchSampler, SmacSampler
from experiments.runner import AsJson, FirstSeed, Jobs, Quick, Seeds, run_command
from experiments.tables import Scores, Task, chosen, compute, show, summarize
from nas import Problem, Reference, TableEvaluator, load_benchmark, search
from nas.search.objectives import parse_objectives
from nas.search.search import RESULT_VERSION
from predictors.rlm.predictor import RLM
from search_spaces import get_space

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

    from nas.benchmarks import Benchmark

BASE = "rlm-generated"
VERSIONS = ("plain", "limit", "floor", "limit and floor")
SAMPLERS = ("random", "nsga2", "tpe", "optuna-gp", "gp-choices", "gnn", "rlm")
RIVALS = ("qlognehvi", "smac")  # need `pip install '.[rivals]'`; run only if `--only` names them
GUIDED = ("gp-choices", "gnn", "rlm")  # samplers of this project, which use measured costs
MEASURED_PER_TRAINING = 5
KEPT_BY_LIMIT = 0.3  # share of the table that keeps the limit
FLOOR_QUANTILE = 0.1  # of the accuracies
MARKS = (10, 20, 50, 100)
QUICK_TRAININGS = 12


class Metrics(NamedTuple):
    """The columns of a table that a problem uses."""

    accuracy: str
    cost: str
    limited: str


DIGITS = Metrics("digits_accuracy", "cpu_latency_ms", "params")
PROBLEMS = {
    "nasbench201": Metrics("cifar10_validation_accuracy", "fpga_latency_ms", "cifar10_params"),
    "digits-nasbench101": DIGITS,
    "digits-pnas": DIGITS,
    "ofa-mbv3": Metrics("imagenet_top1_accuracy", "flops", "params"),
    **dict.fromkeys(own_families.POPULATIONS, DIGITS),
}
DEFAULT_PROBLEMS = ("nasbench201", "digits-nasbench101", "digits-pnas", "ofa-mbv3")


def score(problem: str, version: str, name: str, trainings: int, seed: int) -> Scores:
    """Shares of the true hypervolume after `MARKS` trainings.

    A further score is how many trained networks break the limit.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    # 1. The table, and bounds from its quantiles.
    table = _table(problem)
    accuracy, cost, limited = PROBLEMS[problem]
    objectives = parse_objectives(f"{accuracy}:max,{cost}:min")
    largest = float(np.quantile(table.values(limited), KEPT_BY_LIMIT))
    lowest = float(np.quantile(table.values(accuracy), FLOOR_QUANTILE))
    has_limit = "limit" in version
    has_floor = "floor" in version
    constraints = [f"{limited} <= {largest!r}"] if has_limit else []
    constraints += [f"{accuracy} >= {lowest!r}"] if has_floor else []

    # 2. The true front of the networks that keep them.
    values = np.stack([table.values(accuracy), table.values(cost)], 1)  # (n, 2)
    allowed = table.values(limited) <= largest if has_limit else np.ones(len(values), bool)
    reference = Reference.of_table(values[allowed], objectives, lowest if has_floor else None)

    # 3. The search.
    cheap = [cost, limited] if has_limit else [cost]
    evaluator = TableEvaluator(table, [accuracy, *cheap], cheap)
    options: dict[str, Any] = {"predictor": partial(RLM, base=BASE)} if name == "rlm" else {}
    with TemporaryDirectory() as folder:
        sampler: str | BaseSampler = name
        if name == "qlognehvi":
            sampler = BotorchSampler(table.space, seed)
        elif name == "smac":
            sampler = SmacSampler(table.space, seed, Path(folder), trainings)
        result = search(
            Problem(table.space, evaluator, objectives, constraints),
            sampler=sampler,
            evaluations=trainings,
            seed=seed,
            sampler_options=options,
            measure=MEASURED_PER_TRAINING if name in GUIDED else None,
        )

    # 4. The hypervolume along the search.
    curve = reference.curve(result.evaluated.values)
    limited_of = dict(zip(table.architectures, table.values(limited), strict=True))
    trained = [limited_of[architecture] for architecture in result.evaluated.architectures]
    violators = np.count_nonzero(np.array(trained) > largest) if has_limit else 0
    shares = {f"HV@{mark}": float(curve[mark - 1]) for mark in MARKS if mark <= len(curve)}
    return {**shares, "violators": float(violators)}


@lru_cache(maxsize=1)
def _table(problem: str) -> Benchmark:
    if problem == "nasbench201":
        return load_table()
    if problem in own_families.POPULATIONS:
        return own_families.load(problem)
    return _once_for_all() if problem == "ofa-mbv3" else load_benchmark(problem)


def _once_for_all() -> Benchmark:
    """The published accuracies of once-for-all MobileNetV3; its other metrics are counted."""
    rows = labelled("ofa_mbv3_accuracy", "accuracy")
    accuracy = PROBLEMS["ofa-mbv3"].accuracy
    space = get_space("ofa-mbv3")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "ofa-mbv3.csv"
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["arch", accuracy])
            # Some networks are published twice: the first value counts.
            cells: dict[str, float] = {}
            for architecture, value in zip(rows.architectures, rows.values, strict=True):
                cells.setdefault(space.format(architecture), value)
            writer.writerows(cells.items())
        return load_benchmark(path, "ofa-mbv3")


def main(
    trainings: Annotated[int, typer.Option(min=1, help="Trainings of each search.")] = 100,
    seeds: Seeds = 20,
    first_seed: FirstSeed = 0,
    problems: Annotated[
        str, typer.Option(help=f"Of {', '.join(PROBLEMS)}; separated by commas.")
    ] = ",".join(DEFAULT_PROBLEMS),
    versions: Annotated[
        str, typer.Option(help=f"Of {', '.join(VERSIONS)}; separated by commas.")
    ] = ",".join(VERSIONS),
    only: Annotated[str, typer.Option(help="Samplers, separated by commas.")] = ",".join(SAMPLERS),
    out: Annotated[Path, typer.Option(help="Folder for finished rows.")] = Path(
        "results/unseen-searches"
    ),
    jobs: Jobs = 1,
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Search; print means over the seeds."""
    names = chosen(only, (*SAMPLERS, *RIVALS))
    picked = chosen(problems, tuple(PROBLEMS))
    kinds = chosen(versions, VERSIONS)
    if quick:
        trainings = QUICK_TRAININGS
        seeds = 1
        picked = ["digits-pnas"]
        names = ["random", "rlm"]
    tasks: list[Task] = [
        (problem, version, name, trainings, seed)
        for seed in range(first_seed, first_seed + seeds)
        for problem in picked
        for version in kinds
        for name in names
    ]
    rows = compute(tasks, score, out / f"searches-{RESULT_VERSION}", jobs)
    show(
        "Share of the true hypervolume",
        ("problem", "version", "sampler", "trainings"),
        summarize(tasks, rows),
        as_json,
    )


if __name__ == "__main__":
    run_command(main)
