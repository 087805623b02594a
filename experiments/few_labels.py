"""Accuracy from few architectures, NAS-Bench-201: `python -m experiments.few_labels --first-seed
10` (hours).

Each predictor learns the CIFAR-10 validation accuracies of N networks and ranks all others. The
ranks are compared with test accuracies. This is `nas compare`, with tables in Markdown.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.runner import AsJson, FirstSeed, Jobs, Quick, Seeds, run_command
from experiments.tables import chosen, markdown_head, markdown_line, plus_minus
from nas.benchmarks import load_benchmark
from nas.cli.console import print_json
from nas.cli.progress import progress_bar
from nas.comparison.compare import Compared, Comparison, compare
from nas.report.folders import save_comparison
from search_spaces.common.files import replacing

BENCHMARK = "nasbench201"
METRICS = ("cifar10_validation_accuracy", "cifar10_test_accuracy")
# Needs no published table
QUICK_BENCHMARK, QUICK_METRICS = "digits-resnet", ("digits_accuracy", "digits_accuracy")
FITTED = "experiments/variants.py:FittedKernels"
PREDICTORS = ("rlm", FITTED, "gnn", "gp", "gp-choices", "forest", "ridge")
SIZES, QUICK_SIZES = (78, 156, 469, 781), (8,)
SHOWN = {
    "tau": ("τ", 3),
    "tau_top": ("τ among the best 1,000", 3),
    "top10": ("true accuracy of the predicted best 10 (%)", 2),
    "regret": ("best of all less the best of these 10 (%)", 2),
}


def markdown(compared: Compared) -> str:
    """One table for each entry of `SHOWN`: a row per predictor, a column per size.

    Cells are mean ± std over the seeds.
    """
    rows = compared.rows()
    sizes = compared.comparison.sizes
    tables = []
    for measure, (title, digits) in SHOWN.items():
        cells = {}
        for row in rows:
            cell = {"mean": row[measure], "std": row[f"{measure}_std"]}
            cells[row["predictor"], row["size"]] = plus_minus(cell, digits)
        lines = markdown_head([title, *map(str, sizes)])
        for name in compared.comparison.predictors:
            of_sizes = [cells[name, size] for size in sizes]
            lines.append(markdown_line([name, *of_sizes]))
        tables.append("\n".join(lines) + "\n")
    sentences = [f"- N = {pair['size']}: {pair['sentence']}\n" for pair in compared.pairs()]
    return "\n".join([*tables, "".join(sentences)])


def main(
    out: Annotated[Path, typer.Option(help="Folder for scores, tables and figures.")] = Path(
        "results/few-labels"
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
    """Compare the predictors and write scores, tables.md and figures."""
    sizes: tuple[int, ...] = SIZES
    benchmark, metrics = BENCHMARK, METRICS
    if quick:
        sizes, seeds = QUICK_SIZES, 1
        benchmark, metrics = QUICK_BENCHMARK, QUICK_METRICS
    names = tuple(chosen(only, PREDICTORS))
    comparison = Comparison(benchmark, *metrics, names, sizes, seeds, (), first_seed)
    with progress_bar("few labels") as bar:
        compared = compare(comparison, load_benchmark(benchmark), out / "scores.jsonl", bar, jobs)
    save_comparison(out, compared)
    with replacing(out / "tables.md") as path:
        path.write_text(markdown(compared))
    if as_json:
        print_json({"predictors": compared.rows(), "pairs": compared.pairs()})
        return
    print(f"seeds {first_seed} to {first_seed + seeds - 1}\n\n{markdown(compared)}")


if __name__ == "__main__":
    run_command(main)
