"""`nas train`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from nas.cli.console import print_json, print_table
from nas.cli.options import (
    Json,
    Quiet,
    Seed,
    SpaceOptions,
    TableSpace,
    given_only,
    parse_settings,
    split_names,
)
from nas.cli.progress import progress_bar
from search_spaces.common.errors import InputError

TABLE_STEPS = 300  # default optimizer steps of the rlm on a table of texts


def train(
    predictor: Annotated[
        str,
        typer.Argument(
            help="rlm, gnn, gp, gp-choices, forest, ridge, an installed predictor, an ensemble "
            "such as rlm+gp, or FILE.py:CLASS."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the checkpoint.")],
    benchmark: Annotated[
        str | None,
        typer.Option(
            help="Learn from this table of networks: digits201, nasbench201, or a CSV file."
        ),
    ] = None,
    space: TableSpace = None,
    option: SpaceOptions = None,
    metrics: Annotated[
        str | None, typer.Option(help="Comma-separated metrics of the benchmark to learn.")
    ] = None,
    size: Annotated[
        int | None, typer.Option(help="Train on this many random architectures; all by default.")
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(
            help="Learn from this .parquet, .csv or .csv.gz table: any texts for rlm, ONNX texts "
            "for others."
        ),
    ] = None,
    text: Annotated[str, typer.Option(help="Column of the --table with the texts.")] = "input",
    targets: Annotated[
        str,
        typer.Option(
            help="Comma-separated columns of the --table with numbers; a column target_type names "
            "the metric of a single target."
        ),
    ] = "target",
    test_share: Annotated[
        float,
        typer.Option(
            min=0, max=0.9, help="Share of the texts of --table that are held out for testing."
        ),
    ] = 0.1,
    base: Annotated[
        str | None,
        typer.Option(
            help="Checkpoint to start from; by default rlm-base for rlm, gnn-label-free for gnn."
        ),
    ] = None,
    backbone: Annotated[
        str | None, typer.Option(help="rlm only: a T5Gemma encoder, folder or hub name.")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Optimizer steps. Defaults: by the size of the data for gnn; 0 for rlm, which "
            f"only stores examples, or {TABLE_STEPS} with --table.",
        ),
    ] = None,
    kernel_steps: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="rlm only: steps that fit its kernels to 300 or more networks, for example 30.",
        ),
    ] = None,
    seed: Seed = 0,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train a predictor on a benchmark, or on a table of texts, and save a checkpoint."""
    import predictors
    from nas.benchmarks import load_benchmark
    from nas.benchmarks.fitting import fit_to_benchmark, fit_to_texts
    from nas.benchmarks.text_tables import read_text_table
    from nas.evaluation.journal import LOG_NAME, log_to

    _check_out(out)
    if (benchmark is None) == (table is None):
        raise InputError("give either --benchmark and --metrics, or --table")
    options = given_only(base=base, backbone=backbone, steps=steps, kernel_steps=kernel_steps)
    if benchmark is not None:
        if not metrics:
            raise InputError("--benchmark needs --metrics, the metrics to learn")
        opened = load_benchmark(benchmark, space, parse_settings(option, "--option"))
        model = predictors.create(predictor, seed=seed, **options)
        with log_to(out / LOG_NAME), progress_bar(f"training {model.kind}", quiet) as bar:
            fit_to_benchmark(model, opened, split_names(metrics), size, seed, bar)
        rows = []
    else:
        assert table is not None
        if predictor == "rlm":
            options = {"steps": TABLE_STEPS, **options}
        model = predictors.create(predictor, seed=seed, **options)
        texts = read_text_table(table, text, split_names(targets))
        with log_to(out / LOG_NAME), progress_bar(f"training {model.kind}", quiet) as bar:
            rows = fit_to_texts(model, texts, test_share, seed, bar)
    model.save(out)
    if as_json:
        print_json({"checkpoint": str(out), "tests": rows})
        return
    if rows:
        print_table(
            "Texts held out for testing", [{k: _rounded(v) for k, v in row.items()} for row in rows]
        )
    print(out)


def _check_out(out: Path) -> None:
    """Raise InputError if the folder has files that a checkpoint would overwrite.

    Files of one of this project's checkpoints may be overwritten.
    """
    from predictors.checkpoint import FILES, FORMAT

    try:
        config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        config = None
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        for name in FILES:
            if (out / name).exists():
                raise InputError(f"{out / name} is not of a checkpoint: give another --out")


def _rounded(value: Any) -> Any:
    return f"{value:.3f}" if isinstance(value, float) else value
