"""`make demo`: from ONNX text to Pareto fronts on digits201, in a few minutes on two cores.

The demo ranks unseen networks with the RLM and the GNN. Then it searches with four samplers (RLM,
GNN, NSGA-II and random) and compares each front with the true one.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from experiments.runner import Quick, run_command
from nas.benchmarks import Benchmark, load_benchmark
from nas.cli.console import print_table
from nas.cli.progress import progress_bar
from nas.comparison.runs import run_studies
from nas.report.folders import save_studies
from nas.report.plots import plot_kendall
from search_spaces.common.files import replacing
from search_spaces.common.progress import Progress

OBJECTIVES = "digits_accuracy,cpu_latency_ms"
FLOOR = "digits_accuracy >= 50"  # a network that guesses is useless, however fast
SAMPLERS = ("rlm", "gnn", "nsga2", "random")
METRICS = ("digits_accuracy", "cpu_latency_ms")
TRAIN, TEST = 200, 400
QUICK_TRAIN, QUICK_TEST = 30, 100
QUICK_GUIDED = {"n_startup": 5, "refit_every": 5, "fresh": 40}


def rank_unseen(
    benchmark: Benchmark, size: int, count: int, progress: Progress
) -> dict[tuple[str, str], tuple[np.ndarray, np.ndarray]]:
    """By (predictor, metric), true and predicted values (count,).

    A predictor learns `size` other networks before.
    """
    import predictors

    # 1. Which networks are learned, and which are ranked.
    texts = benchmark.load_texts(progress)
    order = np.random.default_rng(0).permutation(len(benchmark))
    train = order[:size]
    test = order[size : size + count]
    learned = [texts[i] for i in train]
    ranked = [texts[i] for i in test]
    values = {metric: benchmark.values(metric) for metric in METRICS}
    examples = {metric: column[train] for metric, column in values.items()}

    # 2. Each predictor learns and ranks.
    panels: dict[tuple[str, str], tuple[np.ndarray, np.ndarray]] = {}
    for i, name in enumerate(("rlm", "gnn")):
        progress(f"{name} learns {size} networks, ranks {count} others", i, 2)
        model = predictors.create(name, seed=0)
        model.fit(learned, examples)
        predicted = model.predict(ranked, METRICS, samples=32)
        for metric, column in values.items():
            panels[name, metric] = column[test], predicted[metric]
    return panels


def main(
    evaluations: Annotated[int, typer.Option(min=1, help="True evaluations of each search.")] = 60,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of each search.")] = 3,
    out: Annotated[Path, typer.Option(help="Result folder.")] = Path("results/demo"),
    quick: Quick = False,
) -> None:
    """Run the demonstration and write its figures, tables and networks."""
    from scipy.stats import kendalltau

    size, count, guided = TRAIN, TEST, None
    if quick:
        size, count, guided, evaluations, seeds = QUICK_TRAIN, QUICK_TEST, QUICK_GUIDED, 10, 1
    started = time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    benchmark = load_benchmark("digits201")
    with progress_bar("demo") as bar:
        panels = rank_unseen(benchmark, size, count, bar)
        studies = run_studies(
            benchmark,
            OBJECTIVES,
            SAMPLERS,
            evaluations,
            range(seeds),
            out,
            [FLOOR],
            bar,
            sampler_options=guided,
        )
    save_studies(out, studies)
    plot_kendall(out / "kendall.png", panels)
    tau = {}
    rows: dict[str, dict[str, Any]] = {}  # by predictor
    for (name, metric), (true, predicted) in panels.items():
        rounded = round(float(kendalltau(true, predicted).statistic), 4)
        tau[f"{name} {metric}"] = rounded
        rows.setdefault(name, {"predictor": name})[metric] = rounded
    summary = {**studies.summary(), "kendall_tau": tau}
    with replacing(out / "summary.json") as path:
        path.write_text(json.dumps(summary, indent=1) + "\n")
    print_table(f"Kendall's τ on {count} unseen networks after {size}", list(rows.values()))
    print_table(
        "Share of the true front's hypervolume after so many evaluations (mean ± std)",
        studies.table(),
    )
    seconds = time.perf_counter() - started
    print(f"Figures, fronts and networks: {out}/ ({seconds:.0f} s)")


if __name__ == "__main__":
    run_command(main)
