"""A forest on proxies: `python -m experiments.proxy_forest results/proxies/nasbench201-proxies.csv` (a minute).

What the metrics that `experiments.pretraining.cell_proxies` adds tell by themselves, with parameters and FLOPs: a
random forest reads nothing else and learns the CIFAR-10 validation accuracies of N networks. Figures are Kendall's τ
with test accuracy on all others, on the splits of `nas compare`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from experiments.pretraining.corpus import PROXIES
from experiments.runner import AsJson, FirstSeed, Seeds, run_command
from experiments.tables import Scores, compute, show, summarize
from nas.benchmarks import load_benchmark

LEARNED, RANKED = "cifar10_validation_accuracy", "cifar10_test_accuracy"
TREES = 500


def score(table: str, size: int, seed: int) -> Scores:
    """τ of a forest that has learned `size` networks."""
    from scipy.stats import kendalltau
    from sklearn.ensemble import RandomForestRegressor

    benchmark = load_benchmark(table)
    inputs = np.stack([benchmark.values(name) for name in ("cifar10_params", "cifar10_flops", *PROXIES)], 1)
    train, test = np.split(np.random.default_rng(seed).permutation(len(benchmark)), [size])
    forest = RandomForestRegressor(TREES, random_state=seed).fit(inputs[train], benchmark.values(LEARNED)[train])
    return {"tau": float(kendalltau(forest.predict(inputs[test]), benchmark.values(RANKED)[test]).statistic)}


def main(
    table: Annotated[Path, typer.Argument(help="The table that `experiments.pretraining.cell_proxies` wrote.")],
    out: Annotated[Path, typer.Option(help="Folder in which finished rows are kept.")] = Path("results/proxy-forest"),
    seeds: Seeds = 5,
    first_seed: FirstSeed = 10,
    as_json: AsJson = False,
) -> None:
    """Train and rank; a table of means over the seeds."""
    tasks = [(str(table), n, seed) for n in (78, 156, 469, 781) for seed in range(first_seed, first_seed + seeds)]
    show("Forest on proxies", ("table", "trained on"), summarize(tasks, compute(tasks, score, out)), as_json)


if __name__ == "__main__":
    run_command(main)
