"""`nas compare`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nas.cli.console import print_json, print_table, warn_if_seen
from nas.cli.options import (
    Json,
    Quiet,
    SpaceOptions,
    TableSpace,
    parse_settings,
    parse_sizes,
    split_names,
)
from nas.cli.progress import progress_bar
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    from nas.comparison.compare import Compared


def compare(
    benchmark: Annotated[
        list[str],
        typer.Option("--benchmark", help="digits201, nasbench201, or a CSV file; repeatable."),
    ],
    metric: Annotated[
        list[str], typer.Option("--metric", help="Metric that the predictors learn; repeatable.")
    ],
    test_metric: Annotated[
        list[str] | None,
        typer.Option(
            "--test-metric",
            help="Metric of the true ranking, one per --metric, as METRIC or METRIC:min; the "
            "learned one by default.",
        ),
    ] = None,
    predictor: Annotated[
        str,
        typer.Option(
            "--predictors",
            help="Comma-separated: built-in or installed predictors, or FILE.py:CLASS.",
        ),
    ] = "rlm,gnn,gp,gp-choices,forest,ridge",
    sizes: Annotated[str, typer.Option(help="Training sizes, comma-separated.")] = "78,156,469,781",
    seeds: Annotated[int, typer.Option(help="Number of seeds.")] = 5,
    first_seed: Annotated[
        int, typer.Option(help="First seed; use fresh seeds to confirm a choice.")
    ] = 0,
    given: Annotated[
        str,
        typer.Option(
            help="Exact metrics that predictors know for all networks, for example params,flops."
        ),
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for scores, a table and figures; an interrupted comparison resumes there. "
            "With several benchmarks or metrics, each has a subfolder."
        ),
    ] = None,
    space: TableSpace = None,
    option: SpaceOptions = None,
    jobs: Annotated[
        int, typer.Option(min=1, help="Number of processes; it does not affect the scores.")
    ] = 1,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Compare predictors on unseen architectures: Kendall's τ by training size, paired by seed."""
    from nas.benchmarks import load_benchmark
    from nas.comparison.compare import Comparison
    from nas.comparison.compare import compare as run
    from nas.comparison.folders import check_free, plain_name
    from nas.evaluation.journal import LOG_NAME, log_to
    from nas.report.folders import save_comparison

    tested = test_metric or metric
    if len(tested) != len(metric):
        raise InputError(f"give one --test-metric for each of the {len(metric)} --metric, or none")
    names = tuple(split_names(predictor))
    known = tuple(split_names(given)) if given else ()
    comparisons = [
        Comparison(table, learned, ranked, names, parse_sizes(sizes), seeds, known, first_seed)
        for table in benchmark
        for learned, ranked in zip(metric, tested, strict=True)
    ]
    for table in benchmark:
        warn_if_seen(table, names)
    results = []
    for comparison in comparisons:
        folder = out
        if out and len(comparisons) > 1:
            folder = out / plain_name(
                f"{Path(comparison.benchmark).stem}-{comparison.learned.name}"
            )
        if folder:
            check_free(folder)
        label = f"{comparison.train_metric} on {comparison.benchmark}"
        log = log_to(folder / LOG_NAME) if folder else nullcontext()
        with log, progress_bar(f"comparing {label}", quiet) as bar:
            opened = load_benchmark(comparison.benchmark, space, parse_settings(option, "--option"))
            result = run(comparison, opened, folder / "scores.jsonl" if folder else None, bar, jobs)
        if folder:
            save_comparison(folder, result)
        results.append(result)
        if not as_json:
            _print_compared(result)
    if as_json:
        rows = [row for c in results for row in c.rows()]
        pairs = [pair for c in results for pair in c.pairs()]
        print_json({"predictors": rows, "pairs": pairs})


def _print_compared(result: Compared) -> None:
    """Print the means of all seeds, a row per predictor and size, then which differences are real."""
    comparison = result.comparison
    last_seed = comparison.first_seed + comparison.seeds - 1
    seeds = f"seeds {comparison.first_seed} to {last_seed}"
    metrics = f"{comparison.train_metric} → {comparison.test_metric}"
    title = f"{metrics} on {comparison.benchmark}, {seeds} (mean ± std)"
    print_table(title, [_printed(row) for row in result.rows()])
    for pair in result.pairs():
        print(f"N = {pair['size']}: {pair['sentence']}")


def _printed(row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of the printed table, from a row of `Compared.rows`."""

    def spread(name: str, mean_format: str, deviation_format: str) -> str:
        return f"{row[name]:{mean_format}}±{row[f'{name}_std']:{deviation_format}}"

    return {
        "predictor": row["predictor"],
        "N": row["size"],
        "τ": spread("tau", ".3f", ".3f").replace("0.", "."),
        "τ, best": spread("tau_top", ".3f", ".3f").replace("0.", "."),
        "best 10": spread("top10", ".4g", ".2g"),
        "regret": spread("regret", ".2g", ".2g"),
        "50/90 %": f"{100 * row['cover50']:.0f}/{100 * row['cover90']:.0f}",
        "s": f"{row['fit_seconds']:.0f}+{row['predict_seconds']:.0f}",
    }
