"""Hypervolume against cost: `python -m experiments.front_by_cost --study front` (hours).

`front`: the three problems of `experiments.pareto`, with trainings of 12 or 200 epochs. A 12-epoch
accuracy costs 12, a full one 200, and only full ones count. A row is a policy's share of the true
front's hypervolume after each budget of one search. `rlm-full` is the same policy with full
trainings only. `mo-asha` and `primo` are those of Syne Tune and NePS (`experiments.rivals_by_cost`);
they run if `--only` names them. `--problems digits` uses the population `digits-resnet`, whose
trainings pause after 1, 2, 4 and 8 of 16 epochs and cost their measured seconds. The RLM is
`rlm-generated` there, which has seen none of these networks.

`curves`: Kendall's τ of the full accuracy, from 100 fully trained networks. Predictors are the last
value (the 12-epoch accuracy), the RLM with text and 12-epoch accuracy, the RLM with text alone, and
the RLM with text and joint samples, in which it decodes the 12-epoch accuracy first.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import typer

from experiments.pareto import FLOORS, PROBLEMS, load_table
from experiments.runner import AsJson, FirstSeed, Jobs, Quick, Seeds, run_command
from experiments.tables import Scores, Task, chosen, compute, show, summarize
from nas import (
    Benchmark,
    Problem,
    Reference,
    TableEvaluator,
    load_benchmark,
    parse_objectives,
    search,
)
from nas.search.study.schema import COST_KEY
from nas.search.trainings import EPOCHS
from predictors.metrics import Metric, at_fidelity
from predictors.rlm.predictor import BASE

if TYPE_CHECKING:
    from nas import SearchResult

LOW, FULL = 12, 200  # epochs of NAS-Bench-201
# The population with curves, and the epochs of its fidelities
DIGITS, CURVE = "digits", (1, 2, 4, 8, 16)
EPOCH_SECONDS = "epoch_s"
BUDGETS = (5, 10, 20, 50)  # in full trainings
POLICIES = ("rlm", "rlm-full", "asha", "hyperband", "random")
RIVALS = {  # classes of experiments.rivals_by_cost; run only if `--only` names them
    "mo-asha": "MoAsha",
    "mo-asha-ranked": "MoAshaRanked",
    "primo": "PriMo",
    "primo-redrawn": "PriMoRedrawn",
}
PREDICTORS = ("last value", "rlm with curve", "rlm without curve", "rlm joint")
METRIC = "cifar10_validation_accuracy"
KNOWN, RANKED, SAMPLES = 100, 1000, 16


class Study(StrEnum):
    """The two studies of this module."""

    front = "front"
    curves = "curves"


class CostProblem(NamedTuple):
    """A search problem on a table, with the costs of trainings.

    Attributes:
        table: the table of trained networks.
        objectives: m objectives.
        floor: accuracy in % below which a network does not count.
        fidelities: epochs after which a training may pause.
        cost: see `nas.search`.
        unit: cost of one full training.
        base: the RLM's checkpoint, which has seen no network of the table.
    """

    table: Benchmark
    objectives: tuple[Metric, ...]
    floor: float | None
    fidelities: tuple[int, ...]
    cost: str
    unit: float
    base: str

    @classmethod
    def named(cls, name: str) -> CostProblem:
        """The problem S1, S2, S3 or digits."""
        if name != DIGITS:
            return cls(
                load_table(),
                parse_objectives(PROBLEMS[name]),
                FLOORS[name],
                (LOW, FULL),
                EPOCHS,
                FULL,
                BASE,
            )
        table = load_benchmark("digits-resnet")
        epochs = CURVE[-1] * float(table.values(EPOCH_SECONDS).mean())
        goal = parse_objectives("digits_accuracy,cpu_latency_ms")
        return cls(table, goal, None, CURVE, EPOCH_SECONDS, epochs, "rlm-generated")

    @property
    def metrics(self) -> list[str]:
        """The objectives' names, and the cost if it is a metric."""
        names = [objective.name for objective in self.objectives]
        return names if self.cost == EPOCHS else [*names, self.cost]


def front_score(problem: str, policy: str, trainings: int, seed: int) -> Scores:
    """Shares of the true hypervolume after each of `BUDGETS`.

    The scores `at 1`, `at 2`, … are the shares after each cost of a full training.
    """
    import optuna

    import predictors

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    of = CostProblem.named(problem)
    values = np.stack([of.table.values(objective.name) for objective in of.objectives], 1)
    reference = Reference.of_table(values, of.objectives, of.floor)
    sampler = policy.removesuffix("-full")
    if policy in RIVALS:
        sampler = f"{Path(__file__).with_name('rivals_by_cost.py')}:{RIVALS[policy]}"
    fidelities = of.fidelities[-1:] if policy in ("rlm-full", "random") else of.fidelities
    result = search(
        Problem(of.table.space, TableEvaluator(of.table, of.metrics), of.objectives),
        sampler=sampler,
        fidelities=fidelities,
        budget=trainings * of.unit,
        cost=of.cost,
        seed=seed,
        predictor=lambda: predictors.create("rlm", base=of.base),
    )
    shares = shares_by_cost(result, reference, trainings, of.unit)
    row = {f"HV@{budget}": shares[budget - 1] for budget in BUDGETS if budget <= trainings}
    row["to 95%"] = float(np.argmax([*(np.array(shares) >= 0.95), True]) + 1)
    return row | {f"at {place}": share for place, share in enumerate(shares, 1)}


def shares_by_cost(
    result: SearchResult, reference: Reference, trainings: int, unit: float
) -> list[float]:
    """Share of the true hypervolume after the cost of 1, 2, … full trainings.

    unit: the cost of a full training.
    """
    trials = [
        trial for trial in result.study.get_trials(deepcopy=False) if COST_KEY in trial.user_attrs
    ]
    spent = np.cumsum([trial.user_attrs[COST_KEY] for trial in trials])
    full = [trial.values for trial in trials]
    m = len(reference.objectives)
    values = np.array([row if row and len(row) == m else [np.nan] * m for row in full]).reshape(
        -1, m
    )
    curve = np.concatenate([[0.0], reference.curve(values)])
    return [
        float(curve[np.searchsorted(spent, at * unit, side="right")])
        for at in range(1, trainings + 1)
    ]


def curve_score(predictor: str, known: int, ranked: int, seed: int) -> Scores:
    """Kendall's τ of the full accuracies of `ranked` networks, from `known` others."""
    from scipy.stats import kendalltau

    import predictors

    table = load_table()
    rows = np.random.default_rng(seed).permutation(len(table))[: known + ranked]
    full, low = (table.values(name)[rows] for name in (METRIC, f"{METRIC}_{LOW}epochs"))
    if predictor == "last value":
        return {"tau": float(kendalltau(low[known:], full[known:]).statistic)}
    texts = [table.space.to_text(table.architectures[i]) for i in rows]
    early = at_fidelity(METRIC, LOW)
    targets = {METRIC: full[:known]} | ({} if "without" in predictor else {early: low[:known]})
    model = predictors.create("rlm", seed=seed).fit(texts[:known], targets)
    metrics = [early, METRIC] if "joint" in predictor else [METRIC]
    given = {early: low[known:]} if "with curve" in predictor else None
    predictions = model.predict(texts[known:], metrics, given=given, samples=SAMPLES, seed=seed)
    return {"tau": float(kendalltau(predictions.mean[:, -1], full[known:]).statistic)}


def draw(folder: Path, tasks: list[Task], rows: list[Scores]) -> None:
    """Draw a figure per problem, such as `front-by-cost-S1.png`.

    It shows mean ± one standard deviation over the seeds.
    """
    from nas.report.plots import plot_hypervolume

    for problem in dict.fromkeys(task[0] for task in tasks):
        curves: dict[str, list[list[float]]] = {}
        for (of, policy, _, _), row in zip(tasks, rows, strict=True):
            if of == problem:
                curves.setdefault(policy, []).append(
                    [v for name, v in row.items() if name.startswith("at ")]
                )
        stacked = {policy: np.array(shares) for policy, shares in curves.items()}
        plot_hypervolume(
            folder / f"front-by-cost-{problem}.png", stacked, unit="Full trainings' worth"
        )


def main(
    study: Annotated[Study, typer.Option(help="The study to run.")] = Study.front,
    trainings: Annotated[
        int, typer.Option(min=1, help="Budget of each search, in full trainings.")
    ] = BUDGETS[-1],
    seeds: Seeds = 10,
    first_seed: FirstSeed = 0,
    problems: Annotated[
        str, typer.Option(help="Of S1, S2, S3, digits; separated by commas.")
    ] = ",".join(PROBLEMS),
    only: Annotated[
        str | None, typer.Option(help="Policies or predictors, separated by commas.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for finished rows and figures.")] = Path(
        "results/front-by-cost"
    ),
    quick: Quick = False,
    jobs: Jobs = 1,
    as_json: AsJson = False,
) -> None:
    """Search or rank; print means over the seeds and draw them."""
    every = range(first_seed, first_seed + (2 if quick else seeds))
    if study == Study.curves:
        names = chosen(only or ",".join(PREDICTORS[:1] if quick else PREDICTORS), PREDICTORS)
        tasks: list[Task] = [(name, KNOWN, RANKED, seed) for seed in every for name in names]
        rows = compute(tasks, curve_score, out / "curves", jobs)
        show(
            "Kendall's τ of full accuracies",
            ("predictor", "known", "ranked"),
            summarize(tasks, rows),
            as_json,
        )
        return
    trainings, default = (10, "asha,hyperband,random") if quick else (trainings, ",".join(POLICIES))
    tasks = [
        (problem, policy, trainings, seed)
        for seed in every
        for problem in chosen(problems, [*PROBLEMS, DIGITS])
        for policy in chosen(only or default, (*POLICIES, *RIVALS))
    ]
    rows = compute(tasks, front_score, out, jobs)
    draw(out, tasks, rows)
    shown: list[dict[str, Any]] = [
        {k: v for k, v in row.items() if not k.startswith("at ")} for row in rows
    ]
    show(
        "Share of the true hypervolume",
        ("problem", "policy", "full trainings"),
        summarize(tasks, shown),
        as_json,
    )


if __name__ == "__main__":
    run_command(main)
