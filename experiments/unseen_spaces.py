"""Few labels in unseen spaces: `python -m experiments.unseen_spaces`.

Each predictor learns a few networks of one space and ranks the others (Kendall's τ). The RLM is
`rlm-generated`: it was pretrained on generated spaces alone, so texts, labels and skeletons of all
families here are new to it. `gp-choices` is what a user would try first. The GNN starts from
`gnn-label-free`, which has seen networks of the published families but no accuracies. The metric is
an accuracy or, with `--metric latency`, the latency on one device. Beside τ stands the median
error: in points of an accuracy, in % of a latency. `--only` also takes LightGBM
(`experiments.rivals`) and NN-Former (`experiments.nn_former`). Tables of `$NAS_DATA` are included
if the variable is set, and families `own-…` if `experiments.own_families` has trained them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from experiments.family_tables import FAMILIES, available, labelled
from experiments.runner import AsJson, FirstSeed, Jobs, Quick, Seeds, run_command
from experiments.tables import Scores, chosen, compute, integers, pivot, publish, show, summarize

PREDICTORS = ("rlm", "rlm+gp", "gnn", "gp", "gp-choices", "forest", "ridge")
# LightGBM is of `.[rivals]`; NN-Former reads the cells of NAS-Bench-201 and NAS-Bench-101 alone
RIVALS = ("experiments/rivals.py:LightGBM", "experiments/nn_former.py:NNFormer")
BASE = "rlm-generated"
SIZES: tuple[int, ...] = (16, 50, 100)
QUICK_SIZES = (16,)
MAX_TESTED, QUICK_TESTED = 2000, 60
SAMPLES = 32


class Learned(StrEnum):
    """The metric that is learned and ranked."""

    accuracy = "accuracy"
    latency = "latency"


def score(predictor: str, family: str, size: int, tested: int, metric: str, seed: int) -> Scores:
    """Kendall's τ and the median error on at most `tested` other networks.

    They are those after learning `size` networks.
    """
    from scipy.stats import kendalltau

    table = labelled(family, metric)
    order = np.random.default_rng(seed).permutation(len(table.texts))
    train, test = order[:size], order[size:][:tested]
    model = _created(predictor, seed)
    inputs: Sequence[Any] = table.architectures if model.reads_choices else table.texts
    model.fit([inputs[i] for i in train], {metric: table.values[train]})
    predicted = model.predict([inputs[i] for i in test], [metric], samples=SAMPLES, seed=seed)[
        metric
    ]
    true = table.values[test]
    errors = np.abs(predicted - true)
    return {
        "tau": float(np.nan_to_num(kendalltau(predicted, true).statistic)),
        "error": float(np.median(100 * errors / true if metric == "latency" else errors)),
    }


def _created(predictor: str, seed: int) -> Any:
    """Create a predictor. RLMs, alone or in an ensemble, get the base `rlm-generated`."""
    import predictors
    from predictors.ensemble import Ensemble
    from predictors.rlm.predictor import RLM

    model = predictors.create(predictor, seed=seed)
    for part in model.parts if isinstance(model, Ensemble) else [model]:
        if isinstance(part, RLM):
            part.base = BASE
    return model


def main(
    out: Annotated[Path, typer.Option(help="Folder for finished rows and tables.")] = Path(
        "results/unseen-spaces"
    ),
    seeds: Seeds = 5,
    first_seed: FirstSeed = 0,
    families: Annotated[
        str | None, typer.Option(help="Families, separated by commas; all by default.")
    ] = None,
    metric: Annotated[Learned, typer.Option(help="The metric to learn.")] = Learned.accuracy,
    only: Annotated[str, typer.Option(help="Predictors, separated by commas.")] = ",".join(
        PREDICTORS
    ),
    most_tested: Annotated[
        int, typer.Option("--tested", min=2, help="Tested networks at most.")
    ] = MAX_TESTED,
    labels: Annotated[str, typer.Option(help="Numbers of labels, separated by commas.")] = ",".join(
        map(str, SIZES)
    ),
    jobs: Jobs = 1,
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Learn and rank; print a table of means over the seeds."""
    names = chosen(only, (*PREDICTORS, *RIVALS))
    tables = chosen(families or ",".join(available(metric)), FAMILIES[metric])
    sizes = integers(labels)
    tested = most_tested
    if quick:
        sizes = list(QUICK_SIZES)
        tested = QUICK_TESTED
        tables = tables[:1]
        seeds = 1
    numbers = range(first_seed, first_seed + seeds)
    tasks = [
        (p, f, n, tested, metric.value, s)
        for f in tables
        for n in sizes
        for s in numbers
        for p in names
    ]
    rows = compute(tasks, score, out, jobs)
    summary = summarize(tasks, rows)
    for size in sizes:
        of_size = [row for row in summary if row["task2"] == size]
        publish(
            out / metric / str(size),
            pivot(of_size, "tau"),
            f"Kendall's τ of {metric}, {size} labels",
        )
    title = f"Kendall's τ of {metric} in unseen spaces"
    show(title, ("predictor", "family", "labels", "tested", "metric"), summary, as_json)


if __name__ == "__main__":
    run_command(main)
