"""Spaces that nobody has seen: `python -m experiments.unseen_spaces`.

Every predictor learns a few networks of one space and ranks the others (Kendall's τ). The RLM is `rlm-generated`: it
has read generated spaces alone, so texts, labels and skeletons of all families here are new to it. `gp-choices` is what
a user would try first. The GNN begins with `gnn-label-free`, which has seen all families here, label-free.
The tables of `$NAS_DATA` are measured where it is set.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from experiments.accuracy_tables import FAMILIES, POPULATIONS, labelled
from experiments.runner import AsJson, FirstSeed, Jobs, Quick, Seeds, run_command
from experiments.tables import Scores, chosen, compute, pivot, publish, show, summarize

PREDICTORS = ("rlm", "rlm+gp", "gnn", "gp", "gp-choices", "forest", "ridge")
BASE = "rlm-generated"
SIZES: tuple[int, ...] = (16, 50, 100)
QUICK_SIZES = (16,)
MAX_TESTED, QUICK_TESTED = 2000, 60
SAMPLES = 32


def score(predictor: str, family: str, size: int, tested: int, seed: int) -> Scores:
    """Kendall's τ on at most `tested` of the networks that were not learned."""
    from scipy.stats import kendalltau

    table = labelled(family)
    order = np.random.default_rng(seed).permutation(len(table.texts))
    train, test = order[:size], order[size:][:tested]
    model = _created(predictor, seed)
    inputs: Sequence[Any] = table.architectures if model.reads_choices else table.texts
    model.fit([inputs[i] for i in train], {"accuracy": table.accuracy[train]})
    predicted = model.predict([inputs[i] for i in test], ["accuracy"], samples=SAMPLES, seed=seed)["accuracy"]
    return {"tau": float(np.nan_to_num(kendalltau(predicted, table.accuracy[test]).statistic))}


def _created(predictor: str, seed: int) -> Any:
    """The predictor; an RLM, alone or in an ensemble, with the base that has seen no published space."""
    import predictors
    from predictors.ensemble import Ensemble
    from predictors.rlm.predictor import RLM

    model = predictors.create(predictor, seed=seed)
    for part in model.parts if isinstance(model, Ensemble) else [model]:
        if isinstance(part, RLM):
            part.base = BASE
    return model


def main(
    out: Annotated[Path, typer.Option(help="Folder in which finished rows are kept.")] = Path("results/unseen-spaces"),
    seeds: Seeds = 5,
    first_seed: FirstSeed = 0,
    families: Annotated[str | None, typer.Option(help="Families, separated by commas; all by default.")] = None,
    only: Annotated[str, typer.Option(help="Predictors, separated by commas.")] = ",".join(PREDICTORS),
    jobs: Jobs = 1,
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Learn and rank; a table of means over the seeds for every size."""
    known = FAMILIES if "NAS_DATA" in os.environ else POPULATIONS
    names, tables = chosen(only, PREDICTORS), chosen(families or ",".join(known), FAMILIES)
    sizes, tested = SIZES, MAX_TESTED
    if quick:
        sizes, tested, tables, seeds = QUICK_SIZES, QUICK_TESTED, tables[:1], 1
    numbers = range(first_seed, first_seed + seeds)
    tasks = [(p, f, n, tested, s) for f in tables for n in sizes for s in numbers for p in names]
    rows = compute(tasks, score, out, jobs)
    summary = summarize(tasks, rows)
    for size in sizes:
        of_size = [row for row in summary if row["task2"] == size]
        publish(out / str(size), pivot(of_size, "tau"), f"Kendall's τ, {size} labels")
    show("Kendall's τ in unseen spaces", ("predictor", "family", "labels", "tested"), summary, as_json)


if __name__ == "__main__":
    run_command(main)
