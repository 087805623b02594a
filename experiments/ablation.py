"""What pretraining and cheap metrics bring: `python -m experiments.ablation results/proxies/nasbench201-proxies.csv`.

The RLM and the GNN learn CIFAR-10 validation accuracies of N of NAS-Bench-201's networks and rank all others by test
accuracy: from nothing and from the base that has learned the same label-free corpus, from the text alone and with ten
metrics given that need no training (parameters, FLOPs and the proxies that `experiments.pretraining.cell_proxies`
adds), to learn from and to rank. Figures are Kendall's τ, on the splits of `nas compare`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from experiments.pretraining.corpus import PROXIES
from experiments.runner import AsJson, FirstSeed, Jobs, Seeds, run_command
from experiments.tables import Scores, Task, chosen, compute, show, summarize
from nas.benchmarks import load_benchmark
from nas.benchmarks.costs import exact_costs
from search_spaces.common.errors import InputError

ACCURACIES = ("cifar10_validation_accuracy", "cifar10_test_accuracy")
QUICK_TABLE, QUICK_ACCURACIES = "digits-nasbench101", ("digits_accuracy", "digits_accuracy")
NOTHING = "nothing"
BASES = {"rlm": "rlm-label-free", "gnn": "gnn-label-free"}
GIVEN = {"text": (), "text and cheap metrics": ("params", "flops", *PROXIES)}
SIZES = (78, 469)
SAMPLES = 32


def score(predictor: str, base: str, sees: str, table: str, size: int, seed: int) -> Scores:
    """τ on all networks that were not learned."""
    from scipy.stats import kendalltau

    import predictors

    benchmark = load_benchmark(table)
    texts = benchmark.load_texts()
    learned, ranked = (benchmark.values(name) for name in _accuracies(table))
    known = exact_costs(benchmark, GIVEN[sees])
    train, test = np.split(np.random.default_rng(seed).permutation(len(benchmark)), [size])
    model = predictors.create(predictor, seed=seed, base=None if base == NOTHING else base)
    model.fit([texts[i] for i in train], {"accuracy": learned[train], **{n: v[train] for n, v in known.items()}})
    given = {name: values[test] for name, values in known.items()}
    predicted = model.predict([texts[i] for i in test], ["accuracy"], given=given, samples=SAMPLES, seed=seed)
    return {"tau": float(kendalltau(predicted["accuracy"], ranked[test]).statistic)}


def _accuracies(table: str) -> tuple[str, str]:
    """Metrics of the table that are learned and ranked by."""
    return QUICK_ACCURACIES if table == QUICK_TABLE else ACCURACIES


def tasks_of(names: list[str], table: str, sizes: tuple[int, ...], seeds: range) -> list[Task]:
    """Every predictor from nothing and from its base, with and without cheap metrics."""
    return [
        (predictor, base, sees, table, size, seed)
        for seed in seeds
        for size in sizes
        for predictor in names
        for base in (NOTHING, BASES[predictor])
        for sees in GIVEN
    ]


def main(
    table: Annotated[
        Path | None,
        typer.Argument(help="The table that `experiments.pretraining.cell_proxies` wrote; none is needed for --quick."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder in which finished rows are kept.")] = Path("results/ablation"),
    only: Annotated[str, typer.Option(help="Predictors, separated by commas.")] = ",".join(BASES),
    seeds: Seeds = 5,
    first_seed: FirstSeed = 10,
    jobs: Jobs = 1,
    quick: Annotated[bool, typer.Option("--quick", help="16 networks of a small table, one seed: minutes.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train and rank; a table of means over the seeds."""
    if table is None and not quick:
        raise InputError("name the table that `python -m experiments.pretraining.cell_proxies` writes, or give --quick")
    names = chosen(only, tuple(BASES))
    if quick:
        tasks = tasks_of(names, QUICK_TABLE, (16,), range(first_seed, first_seed + 1))
    else:
        tasks = tasks_of(names, str(table), SIZES, range(first_seed, first_seed + seeds))
    about = ("predictor", "base", "sees", "table", "trained on")
    show("Kendall's τ by what is known before", about, summarize(tasks, compute(tasks, score, out, jobs)), as_json)


if __name__ == "__main__":
    run_command(main)
