"""Train `rlm-nasbench201` or `gnn-nasbench201` on the whole table, in minutes.

Command: `python -m experiments.pretraining.whole_table`.

The predictor learns the test accuracies of CIFAR-10 and CIFAR-100 and the latencies on all devices
from nine tenths of the table's different networks, and is tested on the rest. The RLM keeps 2,150
of them as examples. The checkpoints are for use, never for comparisons: they have learned the
table.
"""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from experiments.runner import Quick, run_command
from experiments.tables import at_rows
from nas.cli.console import print_table
from nas.cli.progress import progress_bar
from search_spaces.common.files import replacing

ACCURACIES = ("cifar10_test_accuracy", "cifar100_test_accuracy")
HELD_OUT, QUICK_NETWORKS = 0.1, 200
SAMPLES = 16
MAX_KEPT = 2150  # examples of the RLM, which keep its checkpoint below 12 MB


class Kind(StrEnum):
    """The predictor that learns the table."""

    rlm = "rlm"
    gnn = "gnn"


def main(
    out: Annotated[Path, typer.Option(help="Folder for the checkpoints.")] = Path(
        "results/whole-table"
    ),
    kind: Annotated[Kind, typer.Option(help="The predictor to train.")] = Kind.rlm,
    steps: Annotated[int, typer.Option(min=2, help="gnn: steps of training.")] = 2000,
    seed: Annotated[
        int, typer.Option(help="Seed of weights, batches and the held-out networks.")
    ] = 0,
    quick: Quick = False,
) -> None:
    """Train the predictor, save it, and print Kendall's τ and Spearman's ρ on held-out networks."""
    import predictors
    from nas.benchmarks import load_benchmark

    table = load_benchmark("nasbench201")
    texts = table.load_texts()
    if quick:
        texts, steps = texts[:QUICK_NETWORKS], 2
    latencies = [name for name in table.metrics if name.endswith("_latency_ms")]
    metrics = {name: table.values(name)[: len(texts)] for name in (*ACCURACIES, *latencies)}
    train, test = held_out(texts, seed)
    with progress_bar(f"{kind.value}-nasbench201") as bar:
        own: dict[str, Any] = {}
        if kind == Kind.gnn:
            own = {"steps": steps, "progress": bar}
        else:
            train = np.sort(np.random.default_rng(seed).permutation(train)[:MAX_KEPT])
        model = predictors.create(kind.value, seed=seed, **own)
        model.fit([texts[i] for i in train], at_rows(metrics, train))
    folder = out / f"{kind.value}-nasbench201"
    model.save(folder)
    rows = _test(model, [texts[i] for i in test], at_rows(metrics, test))
    with replacing(folder / "tests.json") as path:
        path.write_text(json.dumps(rows, indent=1))
    shown = []
    for row in rows:
        shown.append({name: _short(value) for name, value in row.items()})
    print_table(f"{folder}, on {len(test)} networks held out", shown)


def held_out(texts: list[str], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to learn from, and rows to test on. Equal networks are on the same side."""
    distinct = list(dict.fromkeys(texts))
    order = np.random.default_rng(seed).permutation(len(distinct))
    size = round(HELD_OUT * len(distinct))
    tested = {distinct[i] for i in order[:size]}
    is_test = np.array([text in tested for text in texts])
    return np.flatnonzero(~is_test), np.flatnonzero(is_test)


def _test(model: Any, texts: list[str], metrics: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    from scipy.stats import kendalltau, spearmanr

    rows = []
    for name, values in metrics.items():
        predicted = model.predict(texts, [name], samples=SAMPLES)[name]
        rows.append(
            {
                "metric": name,
                "tau": float(kendalltau(predicted, values).statistic),
                "spearman": float(spearmanr(predicted, values).statistic),
            }
        )
    return rows


def _short(value: Any) -> Any:
    return f"{value:.3f}" if isinstance(value, float) else value


if __name__ == "__main__":
    run_command(main)
