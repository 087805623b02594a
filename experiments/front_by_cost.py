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
    columns = [of.table.values(objective.name) for objective in of.objectives]
    reference = Reference.of_table(np.stack(columns, 1), of.objectives, of.floor)

    # 1. The policy: a sampler, and the epochs after which it may pause a training.
    sampler = policy.removesuffix("-full")
    if policy in RIVALS:
        rivals = Path(__file__).with_name("rivals_by_cost.py")
        sampler = f"{rivals}:{RIVALS[policy]}"
    fidelities = of.fidelities
    if policy in ("rlm-full", "random"):
        fidelities = of.fidelities[-1:]

    # 2. Its search.
    evaluator = TableEvaluator(of.table, of.metrics)
    result = search(
        Problem(of.table.space, evaluator, of.objectives),
        sampler=sampler,
        fidelities=fidelities,
        budget=trainings * of.unit,
        cost=of.cost,
        seed=seed,
        predictor=lambda: predictors.create("rlm", base=of.base),
    )

    # 3. The scores; a search that never reaches 95 % needs one training more than it had.
    shares = shares_by_cost(result, reference, trainings, of.unit)
    row = {}
    for budget in BUDGETS:
        if budget <= trainings:
            row[f"HV@{budget}"] = shares[budget - 1]
    reaches = [share >= 0.95 for share in shares]
    row["to 95%"] = float(np.argmax([*reaches, True]) + 1)
    for place, share in enumerate(shares, start=1):
        row[f"{CURVE_PREFIX}{place}"] = share
    return row


def shares_by_cost(
    result: SearchResult, reference: Reference, trainings: int, unit: float
) -> list[float]:
    """Share of the true hypervolume after the cost of 1, 2, … full trainings.

    unit: the cost of a full training.
    """
    # 1. Cost and values of each trial; only full trainings have values.                      (n, m)
    m = len(reference.objectives)
    costs = []
    rows = []
    for trial in result.study.get_trials(deepcopy=False):
        if COST_KEY in trial.user_attrs:
            costs.append(trial.user_attrs[COST_KEY])
            is_full = trial.values is not None and len(trial.values) == m
            rows.append(trial.values if is_full else [np.nan] * m)
    values = np.array(rows).reshape(-1, m)

    # 2. The share after each trial, from none on: (1 + n,).
    curve = np.concatenate([[0.0], reference.curve(values)])

    # 3. The share after the last trial that each cost pays for.                        (trainings,)
    payable = unit * np.arange(1, trainings + 1)
    finished = np.searchsorted(np.cumsum(costs), payable, side="right")
    shares: list[float] = curve[finished].tolist()
    return shares


def curve_score(predictor: str, known: int, ranked: int, seed: int) -> Scores:
    """Kendall's τ of the full accuracies of `ranked` networks, from `known` others."""
    from scipy.stats import kendalltau

    import predictors

    table = load_table()
    rows = np.random.default_rng(seed).permutation(len(table))[: known + ranked]
    full = table.values(METRIC)[rows]
    low = table.values(f"{METRIC}_{LOW}epochs")[rows]
    true = full[known:]
    if predictor == "last value":
        return {"tau": float(kendalltau(low[known:], true).statistic)}

    # 1. Learn the full accuracies, and the early ones unless the curve is left out.
    texts = [table.space.to_text(table.architectures[i]) for i in rows]
    early = at_fidelity(METRIC, LOW)
    targets = {METRIC: full[:known]}
    if "without" not in predictor:
        targets[early] = low[:known]
    model = predictors.create("rlm", seed=seed).fit(texts[:known], targets)

    # 2. Rank the others. Joint samples decode the early accuracy instead of knowing it.
    metrics = [early, METRIC] if "joint" in predictor else [METRIC]
    given = {early: low[known:]} if "with curve" in predictor else None
    predictions = model.predict(texts[known:], metrics, given=given, samples=SAMPLES, seed=seed)
    predicted = predictions.mean[:, -1]
    return {"tau": float(kendalltau(predicted, true).statistic)}


def draw(folder: Path, tasks: list[Task], rows: list[Scores]) -> None:
    """Draw a figure per problem, such as `front-by-cost-S1.png`.

    It shows mean ± one standard deviation over the seeds.
    """
    from nas.report.plots import plot_hypervolume

    # 1. The curves of all seeds, by problem and policy.
    curves: dict[Any, dict[Any, list[list[float]]]] = {}
    for (problem, policy, _, _), row in zip(tasks, rows, strict=True):
        of_problem = curves.setdefault(problem, {})
        of_problem.setdefault(policy, []).append(curve_of(row))

    # 2. One figure per problem.
    for problem, of_problem in curves.items():
        shares = {policy: np.array(of_seeds) for policy, of_seeds in of_problem.items()}
        path = folder / f"front-by-cost-{problem}.png"
        plot_hypervolume(path, shares, unit="Full trainings' worth")


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
    seeds = 2 if quick else seeds
    every = range(first_seed, first_seed + seeds)
    if study == Study.curves:
        default = PREDICTORS[:1] if quick else PREDICTORS
        names = chosen(only or ",".join(default), PREDICTORS)
        tasks: list[Task] = [(name, KNOWN, RANKED, seed) for seed in every for name in names]
        rows = compute(tasks, curve_score, out / "curves", jobs)
        show(
            "Kendall's τ of full accuracies",
            ("predictor", "known", "ranked"),
            summarize(tasks, rows),
            as_json,
        )
        return
    if quick:
        trainings = 10
    policy_names: tuple[str, ...] = ("asha", "hyperband", "random") if quick else POLICIES
    policies = chosen(only or ",".join(policy_names), (*POLICIES, *RIVALS))
    tasks = [
        (problem, policy, trainings, seed)
        for seed in every
        for problem in chosen(problems, [*PROBLEMS, DIGITS])
        for policy in policies
    ]
    rows = compute(tasks, front_score, out, jobs)
    draw(out, tasks, rows)
    show(
        "Share of the true hypervolume",
        ("problem", "policy", "full trainings"),
        summarize(tasks, without_curves(rows)),
        as_json,
    )


if __name__ == "__main__":
    run_command(main)
