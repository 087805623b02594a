"""Accuracy from few architectures, NAS-Bench-201: `python -m experiments.few_labels --first-seed 10` (hours).

Every predictor learns CIFAR-10 validation accuracies of N networks and ranks all others by test accuracy: from the text
alone (`text`), and with ten metrics given that need no training (`given`), of which eight are zero-cost proxies. Both
are what `nas compare` does; this makes the table with the proxies first, and writes the README's tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from experiments.pretraining.cell_proxies import write_table
from experiments.pretraining.corpus import PROXIES
from experiments.runner import AsJson, FirstSeed, Jobs, Quick, Seeds, run_command
from nas.benchmarks import load_benchmark
from nas.cli.console import print_json, progress_bar
from nas.comparison.compare import Compared, Comparison, compare
from nas.reporting.folders import save_comparison
from search_spaces.common.files import replacing

BENCHMARK = "nasbench201"
METRICS = ("cifar10_validation_accuracy", "cifar10_test_accuracy")
PREDICTORS = ("rlm", "gnn", "forest", "ridge")
SIZES, QUICK_SIZES = (78, 156, 469, 781), (8,)
GIVEN = ("params", "flops", *PROXIES)
SHOWN = {
    "tau": ("τ", 3),
    "tau_top": ("τ among the best 1,000", 3),
    "top10": ("true accuracy of the predicted best 10 (%)", 2),
    "regret": ("best of all less the best of these 10 (%)", 2),
}


def markdown(compared: Compared) -> str:
    """A table for each of `SHOWN`: a row per predictor, a column per size, mean ± standard deviation over the seeds."""
    rows, sizes = compared.rows(), compared.comparison.sizes
    tables = []
    for measure, (title, digits) in SHOWN.items():
        values = {(row["predictor"], row["size"]): (row[measure], row[f"{measure}_std"]) for row in rows}
        cells = {key: f"{mean:.{digits}f} ± {std:.{digits}f}" for key, (mean, std) in values.items()}
        lines = [_line([title, *map(str, sizes)]), "|---" * (1 + len(sizes)) + "|"]
        lines += [_line([name, *(cells[name, size] for size in sizes)]) for name in compared.comparison.predictors]
        tables.append("\n".join(lines) + "\n")
    sentences = [f"- N = {pair['size']}: {pair['sentence']}\n" for pair in compared.pairs()]
    return "\n".join([*tables, "".join(sentences)])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main(
    out: Annotated[Path, typer.Option(help="Folder for scores, tables and figures.")] = Path("results/few-labels"),
    seeds: Seeds = 5,
    first_seed: FirstSeed = 0,
    jobs: Jobs = 1,
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Compare with the text alone and with cheap metrics given; a folder with tables.md and figures for each."""
    sizes, seeds = (QUICK_SIZES, 1) if quick else (SIZES, seeds)
    with_proxies = str(write_table(BENCHMARK, out, quick))
    wanted = {"text": (with_proxies if quick else BENCHMARK, ()), "given": (with_proxies, GIVEN)}
    results = {}
    for name, (benchmark, given) in wanted.items():
        comparison = Comparison(benchmark, *METRICS, PREDICTORS, sizes, seeds, given, first_seed)
        with progress_bar(name) as bar:
            compared = compare(comparison, load_benchmark(benchmark), out / name / "scores.jsonl", bar, jobs)
        save_comparison(out / name, compared)
        with replacing(out / name / "tables.md") as path:
            path.write_text(markdown(compared))
        results[name] = compared
    if as_json:
        print_json({name: {"predictors": c.rows(), "pairs": c.pairs()} for name, c in results.items()})
        return
    for name, compared in results.items():
        print(f"{name}, seeds {first_seed} to {first_seed + seeds - 1}\n\n{markdown(compared)}")


if __name__ == "__main__":
    run_command(main)
