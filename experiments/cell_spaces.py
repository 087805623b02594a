"""Five cell spaces, a few labels each: `python -m experiments.cell_spaces`.

For each of NASNet, Amoeba, PNAS, ENAS and DARTS, a predictor learns the digits accuracy of 16 of
the population's networks (DARTS: 100) and ranks the others. It also learns the trained populations
of the *other* spaces, except in rows named `alone`. The RLM was pretrained on generated spaces
only. The ceiling is Kendall's τ between the accuracies of two training seeds.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from experiments.runner import AsJson, FirstSeed, Jobs, Quick, Seeds, run_command
from experiments.tables import Scores, chosen, compute, pivot, publish, show, summarize
from nas.benchmarks import load_benchmark

SPACES = ("nasnet", "amoeba", "pnas", "enas", "darts")
OTHERS = (*SPACES, "nasbench101")
METRIC = "digits_accuracy"
LABELS = {"darts": 100}
KINDS = ("rlm", "gnn", "gp", "forest", "ridge")
PREDICTORS = tuple(name for kind in KINDS for name in (kind, f"{kind} alone"))
BASE = "rlm-generated"
MAX_NETWORKS, QUICK_MAX_NETWORKS = 500, 40  # of each other space, and to test on
SAMPLES = 32


def score(predictor: str, space: str, max_networks: int, seed: int) -> Scores:
    """Kendall's τ on at most `max_networks` other networks of `space`.

    At most `max_networks` networks of each other space are learned.
    """
    from scipy.stats import kendalltau

    import predictors

    n_labelled = LABELS.get(space, 16)
    texts, accuracy = _population(space, n_labelled + max_networks)
    order = np.random.default_rng(seed).permutation(len(texts))
    train, test = np.split(order, [n_labelled])
    test = test[:max_networks]
    kind, _, alone = predictor.partition(" ")
    others = ([], np.empty(0)) if alone else _others(space, max_networks)
    model = predictors.create(kind, seed=seed, **({"base": BASE} if kind == "rlm" else {}))
    labels = {METRIC: np.concatenate([others[1], accuracy[train]])}
    model.fit([*others[0], *(texts[i] for i in train)], labels)
    predicted = model.predict([texts[i] for i in test], [METRIC], samples=SAMPLES, seed=seed)
    return {"tau": float(kendalltau(predicted[METRIC], accuracy[test]).statistic)}


def ceiling(space: str) -> float:
    """Kendall's τ between the accuracies of two training seeds."""
    from scipy.stats import kendalltau

    table = load_benchmark(f"digits-{space}")
    return float(
        kendalltau(table.values(f"{METRIC}_seed0"), table.values(f"{METRIC}_seed1")).statistic
    )


@cache
def _population(space: str, max_networks: int) -> tuple[list[str], np.ndarray]:
    """Texts (n) and accuracies (n,) in % of the first `max_networks` networks.

    They are those of all networks if there are fewer. The texts of a whole table are cached on
    disk. Those of a part are written here, since that is faster.
    """
    table = load_benchmark(f"digits-{space}")
    accuracies = table.values(METRIC)[:max_networks]
    if max_networks >= len(table):
        return table.load_texts(), accuracies
    texts = [table.space.to_text(arch) for arch in table.architectures[:max_networks]]
    return texts, accuracies


def _others(space: str, max_networks: int) -> tuple[list[str], np.ndarray]:
    """Texts and accuracies of all populations except that of `space`.

    There are at most `max_networks` of each population.
    """
    texts: list[str] = []
    accuracies = []
    for other in OTHERS:
        if other != space:
            of_other, accuracy = _population(other, max_networks)
            texts += of_other
            accuracies.append(accuracy)
    return texts, np.concatenate(accuracies)


def main(
    out: Annotated[Path, typer.Option(help="Folder for finished rows and tables.")] = Path(
        "results/cell-spaces"
    ),
    seeds: Seeds = 5,
    first_seed: FirstSeed = 0,
    only: Annotated[str, typer.Option(help="Predictors, separated by commas.")] = ",".join(
        PREDICTORS
    ),
    jobs: Jobs = 1,
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Train and rank; print a table of means over the seeds."""
    names = chosen(only, PREDICTORS)
    spaces, max_networks, seeds = (
        (SPACES[:1], QUICK_MAX_NETWORKS, 1) if quick else (SPACES, MAX_NETWORKS, seeds)
    )
    tasks = [
        (predictor, space, max_networks, seed)
        for space in spaces
        for predictor in names
        for seed in range(first_seed, first_seed + seeds)
    ]
    rows = compute(tasks, score, out, jobs)
    for row, (_, space, *_) in zip(rows, tasks, strict=True):
        row["ceiling"] = ceiling(space)
    about = ("predictor", "space", "of each space")
    summary = summarize(tasks, rows)
    table = pivot(summary, "tau")
    table["two training seeds"] = {space: {"mean": ceiling(space), "std": 0.0} for space in spaces}
    publish(out, table, "Kendall's τ")
    show("Kendall's τ in five cell spaces", about, summary, as_json)


if __name__ == "__main__":
    run_command(main)
