"""Spaces that nobody has seen: `python -m experiments.unseen_spaces`.

Every predictor learns a few networks of one space and ranks the others (Kendall's τ). The RLM is `rlm-generated`: it
has read generated spaces alone, so texts, labels and skeletons of all families here are new to it. `gp-choices` is what
a user would try first. The GNN begins with `gnn-label-free`, which has seen all families here, label-free.
The tables of `$NAS_DATA` are measured where it is set.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import typer

from experiments.runner import AsJson, FirstSeed, Jobs, Quick, Seeds, run_command
from experiments.tables import Scores, chosen, compute, pivot, publish, show, summarize
from search_spaces import get_space

if TYPE_CHECKING:
    from search_spaces import Architecture

POPULATIONS = tuple(f"digits-{n}" for n in ("fbnet", "nasbench101", "nasnet", "amoeba", "pnas", "enas", "darts"))
TABLES = ("nasbench201", "darts", "ofa_mbv3_accuracy", "nasbench101")  # files of $NAS_DATA
FAMILIES = (*POPULATIONS, *TABLES)
PREDICTORS = ("rlm", "rlm+gp", "gnn", "gp", "gp-choices", "forest", "ridge")
BASE = "rlm-generated"
SIZES: tuple[int, ...] = (16, 50, 100)
QUICK_SIZES = (16,)
MAX_TESTED, QUICK_TESTED = 2000, 60
SAMPLES = 32


class Labelled(NamedTuple):
    """n architectures, their texts and accuracies (n,)."""

    architectures: Sequence[Architecture]
    texts: list[str]
    accuracy: np.ndarray


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


@lru_cache(maxsize=2)
def labelled(family: str) -> Labelled:
    """One family's table; networks without an accuracy are left out."""
    from nas.benchmarks import load_benchmark

    if family in POPULATIONS:
        table = load_benchmark(family)
        return Labelled(table.architectures, table.load_texts(), table.values("digits_accuracy"))
    rows = _rows(family)
    space, parse, column = _READERS[family]()
    architectures = [parse(row) for row in rows]
    texts = [space.to_text(architecture) for architecture in architectures]
    return Labelled(architectures, texts, np.array([float(row[column]) for row in rows]))


def _rows(family: str) -> list[dict[str, str]]:
    with gzip.open(Path(os.environ["NAS_DATA"]) / f"{family}.csv.gz", "rt") as file:
        rows = list(csv.DictReader(file))
    return [rows[i] for i in np.random.default_rng(0).permutation(len(rows))[:3000]]


Reader = tuple[Any, Callable[[dict[str, str]], "Architecture"], str]


def _nasbench201() -> Reader:
    space = get_space("nasbench201")
    return space, lambda row: space.parse(row["arch"]), "cifar10_validation_accuracy"


def _nasbench101() -> Reader:
    space = get_space("nasbench101")

    def parse(row: dict[str, str]) -> Architecture:
        return space.parse(json.dumps({"matrix": json.loads(row["matrix"]), "ops": json.loads(row["operations"])}))

    return space, parse, "cifar10_validation_accuracy"


def _darts() -> Reader:
    space = get_space("darts", width=32, cells=8)
    return space, lambda row: space.parse(row["genotype"]), "surrogate_cifar10_validation_accuracy"


def _once_for_all() -> Reader:
    space = get_space("ofa-mbv3")

    def parse(row: dict[str, str]) -> Architecture:
        lists = {"ks": "kernel_sizes", "e": "expand_ratios", "d": "depths"}
        native: dict[str, Any] = {k: [int(v) for v in row[name].split("_")] for k, name in lists.items()}
        return space.parse(str({**native, "r": int(row["resolution"])}))

    return space, parse, "imagenet_top1_accuracy"


_READERS: dict[str, Callable[[], Reader]] = {
    "nasbench201": _nasbench201,
    "nasbench101": _nasbench101,
    "darts": _darts,
    "ofa_mbv3_accuracy": _once_for_all,
}


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
