"""Hypervolume against true evaluations: `python -m experiments.pareto --first-seed 10` (hours).

Three problems of NAS-Bench-201: S1 (CIFAR-10 validation accuracy, FPGA), S2 (CIFAR-100 validation
accuracy, a Xeon Gold 6226) and S3 (CIFAR-10 validation accuracy, Raspberry Pi 4, Eyeriss). Two more
problems search among networks that this project trained and timed. There, `rlm` uses the base
`rlm-generated`, which has seen none of them. A row gives a sampler's share of the true front's
hypervolume after 20 to 500 evaluations, and the number of evaluations to 90, 95 and 99 % of it (one
more than were made if it was not reached). Finished rows are reused while the result versions of
searches and predictors stay the same.

`optuna-gp` is Optuna's Gaussian process on choices. `gp` and `gp-choices` are this project's, on
text and on choices, in the same sampler as `rlm` and `gnn`. `rlm-independent` ignores the relation
between the metrics of a sample. `qlognehvi` is BoTorch's acquisition on one-hot choices, `smac` is
SMAC3 with ParEGO, `hebo` is HEBO (`experiments.rivals`, which says how to install them): they run
if `--only` names them. So does `rlm measuring 5`, and the same of `gnn` and `gp-choices`: the costs
of five networks per evaluation are known before the choice.
"""

from __future__ import annotations

from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from experiments.rivals import BotorchSampler, HeboSampler, SmacSampler
from experiments.runner import AsJson, FirstSeed, Jobs, Seeds, run_command
from experiments.tables import (
    CURVE_PREFIX,
    Scores,
    Task,
    chosen,
    compute,
    curve_of,
    show,
    summarize,
    without_curves,
)
from experiments.variants import Independent
from nas import Problem, Reference, TableEvaluator, load_benchmark, parse_objectives, search
from nas.search.search import RESULT_VERSION
from predictors.rlm.predictor import BASE, RLM

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

    from nas import Benchmark

PROBLEMS = {
    "S1": "cifar10_validation_accuracy,fpga_latency_ms",
    "S2": "cifar100_validation_accuracy,gold_6226_latency_ms",
    "S3": "cifar10_validation_accuracy,raspi4_latency_ms,eyeriss_latency_ms",
}
UNSEEN = dict.fromkeys(
    ("digits-nasbench101", "digits-pnas"), "digits_accuracy,cpu_latency_ms,params"
)
UNSEEN_BASE = "rlm-generated"
SAMPLERS = ("random", "nsga2", "nsga3", "tpe", "optuna-gp", "gp", "gp-choices", "gnn", "rlm")
FLOORS = {"S1": 50.0, "S2": 20.0, "S3": 50.0}  # accuracy in % below which a network does not count
ABLATIONS = (
    "gnn by thompson",
    "rlm by thompson",
    "rlm-independent",
)  # run only if `--only` names them
# Costs of so many networks per evaluation are known before the choice
MEASURING = tuple(f"{name} measuring 5" for name in ("rlm", "gnn", "gp-choices"))
RIVALS = ("qlognehvi", "smac", "hebo")  # of `experiments.rivals`; run only if `--only` names them
MARKS = (10, 20, 50, 100, 200, 500)
SHARES = (0.90, 0.95, 0.99)
DRAWN = 50  # points of a curve in the plot
QUICK = ("random", "nsga2", "tpe")


def score(problem: str, name: str, evaluations: int, seed: int) -> Scores:
    """Shares of the true hypervolume at `MARKS`, and evaluations to reach `SHARES`.

    For the plot, there are also shares along the search.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    # 1. The problem, and the true front.
    objectives = parse_objectives((PROBLEMS | UNSEEN)[problem])
    table = load_table() if problem in PROBLEMS else load_benchmark(problem)
    metrics = [objective.name for objective in objectives]
    values = np.stack([table.values(metric) for metric in metrics], 1)
    reference = Reference.of_table(values, objectives, FLOORS.get(problem))

    # 2. What the sampler's name says: "rlm by thompson", "gnn measuring 5".
    name, _, measured = name.partition(" measuring ")
    kind, _, acquisition = name.partition(" by ")
    options: dict[str, Any] = {"acquisition": acquisition} if acquisition else {}
    if kind.startswith("rlm"):
        base = UNSEEN_BASE if problem in UNSEEN else BASE
        options["predictor"] = partial(RLM if kind == "rlm" else Independent, base=base)
    sampler: str | BaseSampler = kind.partition("-independent")[0]

    # 3. The search.
    with TemporaryDirectory() as folder:
        if sampler == "qlognehvi":
            sampler = BotorchSampler(table.space, seed)
        elif sampler == "smac":
            sampler = SmacSampler(table.space, seed, Path(folder), evaluations)
        elif sampler == "hebo":
            sampler = HeboSampler(table.space, seed)
        costs = [o.name for o in objectives if o.kind != "accuracy"] if measured else None
        result = search(
            Problem(table.space, TableEvaluator(table, metrics, costs), objectives),
            sampler=sampler,
            evaluations=evaluations,
            seed=seed,
            sampler_options=options,
            measure=int(measured) if measured else None,
        )
    return scores(reference.curve(result.evaluated.values))


@lru_cache(maxsize=1)
def load_table() -> Benchmark:
    """NAS-Bench-201 with a lookup table instead of `to_text`.

    Writing texts takes a quarter of a search.
    """
    table = load_benchmark("nasbench201")
    texts = dict(zip(table.architectures, table.load_texts(), strict=True))
    table.space.to_text = texts.__getitem__  # type: ignore[method-assign, assignment]
    return table


def scores(curve: np.ndarray) -> Scores:
    """The row of a curve (n,) of shares of the true hypervolume after each evaluation."""
    row = {}
    for mark in MARKS:
        if mark <= len(curve):
            row[f"HV@{mark}"] = float(curve[mark - 1])
    for share in SHARES:
        reaches = [*(curve >= share), True]  # after one evaluation more, if none does
        row[f"to {share:.0%}"] = float(np.argmax(reaches) + 1)
    for place in _places(len(curve)):
        row[f"{CURVE_PREFIX}{place}"] = float(curve[place - 1])
    return row


def _places(evaluations: int) -> list[int]:
    """Numbers of evaluations at which a curve is drawn."""
    places = np.linspace(1, evaluations, min(DRAWN, evaluations)).round()
    return np.unique(places.astype(int)).tolist()


def draw(folder: Path, tasks: list[Task], rows: list[Scores]) -> None:
    """Draw a figure per problem, such as `hypervolume-S1.png`.

    It shows mean ± one standard deviation over the seeds.
    """
    from nas.report.plots import plot_hypervolume

    # 1. The curves of all seeds, by problem and sampler, each with a point per evaluation.
    curves: dict[Any, dict[Any, list[np.ndarray]]] = {}
    for (problem, name, evaluations, _), row in zip(tasks, rows, strict=True):
        numbers = np.arange(1, evaluations + 1)
        curve = np.interp(numbers, _places(evaluations), curve_of(row))
        of_problem = curves.setdefault(problem, {})
        of_problem.setdefault(name, []).append(curve)

    # 2. One figure per problem.
    for problem, of_problem in curves.items():
        stacked = {name: np.stack(of_seeds) for name, of_seeds in of_problem.items()}
        plot_hypervolume(folder / f"hypervolume-{problem}.png", stacked)


def main(
    evaluations: Annotated[int, typer.Option(min=1, help="True evaluations of each search.")] = 500,
    seeds: Seeds = 10,
    first_seed: FirstSeed = 0,
    problems: Annotated[
        str, typer.Option(help="S1, S2, S3, digits-nasbench101, digits-pnas.")
    ] = ",".join(PROBLEMS),
    only: Annotated[str, typer.Option(help="Samplers, separated by commas.")] = ",".join(SAMPLERS),
    out: Annotated[Path, typer.Option(help="Folder for finished rows and figures.")] = Path(
        "results/pareto"
    ),
    quick: Annotated[
        bool, typer.Option(help="Plain samplers, 100 evaluations, two seeds: under two minutes.")
    ] = False,
    jobs: Jobs = 1,
    as_json: AsJson = False,
) -> None:
    """Search; print means over the seeds and draw them."""
    if quick:
        evaluations = 100
        seeds = 2
        only = ",".join(QUICK)
    names = chosen(only, (*SAMPLERS, *MEASURING, *RIVALS, *ABLATIONS))
    tasks: list[Task] = [
        (problem, name, evaluations, seed)
        for problem in chosen(problems, [*PROBLEMS, *UNSEEN])
        for name in names
        for seed in range(first_seed, first_seed + seeds)
    ]
    rows = compute(tasks, score, out / f"searches-{RESULT_VERSION}", jobs)
    draw(out, tasks, rows)
    show(
        "Share of the true hypervolume",
        ("problem", "sampler", "evaluations"),
        summarize(tasks, without_curves(rows)),
        as_json,
    )


if __name__ == "__main__":
    run_command(main)
