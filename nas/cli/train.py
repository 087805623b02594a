"""`nas train`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nas.cli.console import print_json, print_table, progress_bar
from nas.cli.options import Json, Seed, given_only, split_names
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    from predictors.base import Predictor


def train(
    predictor: Annotated[str, typer.Argument(help="rlm, gnn, ridge, forest, an installed one, or FILE.py:CLASS")],
    out: Annotated[Path, typer.Option(help="Folder for the checkpoint.")],
    benchmark: Annotated[
        str | None, typer.Option(help="Learn from this table of networks: digits201, nasbench201, or a CSV file.")
    ] = None,
    metrics: Annotated[str | None, typer.Option(help="The benchmark's metrics to learn, comma-separated.")] = None,
    size: Annotated[int | None, typer.Option(help="Train on this many random architectures; all by default.")] = None,
    table: Annotated[
        Path | None,
        typer.Option(help="Learn from this .parquet, .csv or .csv.gz instead: any texts for rlm, ONNX for others."),
    ] = None,
    text: Annotated[str, typer.Option(help="The table's column with the texts.")] = "input",
    targets: Annotated[
        str, typer.Option(help="The table's columns with numbers, comma-separated; target_type names a single one's.")
    ] = "target",
    test_share: Annotated[
        float, typer.Option(min=0, max=0.9, help="Share of the table's texts to keep for testing.")
    ] = 0.1,
    base: Annotated[
        str | None,
        typer.Option(help="Checkpoint to begin with. rlm: rlm-base, none for a table; gnn: gnn-label-free by default."),
    ] = None,
    backbone: Annotated[str | None, typer.Option(help="rlm: a T5Gemma to read with, folder or hub name.")] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="rlm, gnn: optimizer steps; by the data's size by default.")
    ] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Train a predictor on a benchmark, or on a table of texts, and save a checkpoint."""
    import predictors

    if (benchmark is None) == (table is None):
        raise InputError("give either --benchmark with --metrics, or --table")
    options = given_only(base=base, backbone=backbone, steps=steps)
    if benchmark is not None:
        if not metrics:
            raise InputError("--benchmark needs --metrics, the ones to learn")
        model = predictors.create(predictor, seed=seed, **options)
        _train_on_benchmark(model, benchmark, split_names(metrics), size, seed)
        rows = []
    else:
        assert table is not None
        if predictor == "rlm":
            options = {"base": None, **options}
        model = predictors.create(predictor, seed=seed, **options)
        rows = _train_on_table(model, table, text, split_names(targets), test_share, seed)
    model.save(out)
    if as_json:
        print_json({"checkpoint": str(out), "tests": rows})
        return
    if rows:
        print_table("Texts that were not trained on", [{k: _rounded(v) for k, v in row.items()} for row in rows])
    print(out)


def _train_on_benchmark(model: Predictor, benchmark: str, names: list[str], size: int | None, seed: int) -> None:
    import numpy as np

    from nas.benchmarks import load_benchmark
    from nas.comparison.compare import known_metrics

    table = load_benchmark(benchmark)
    count = len(table) if size is None else size
    if not 1 <= count <= len(table):
        raise InputError(f"--size {count}: {benchmark} has {len(table)} architectures")
    rows = np.random.default_rng(seed).permutation(len(table))[:count]
    columns = known_metrics(table, [n for n in names if n in ("params", "flops")])
    columns |= {n: table.values(n) for n in names if n not in columns}
    with progress_bar(f"training {model.kind}") as bar:
        texts = table.load_texts(bar)
        bar("fitting", 0, 1)
        model.fit([texts[i] for i in rows], {n: v[rows] for n, v in columns.items()})


def _train_on_table(
    model: Predictor, path: Path, text: str, targets: list[str], test_share: float, seed: int
) -> list[dict[str, Any]]:
    """Rank correlations on the texts that were kept for testing."""
    from nas.benchmarks.text_tables import rank_correlations, read_text_table, split

    training, tests = split(read_text_table(path, text, targets), test_share, seed)
    with progress_bar(f"training {model.kind}") as bar:
        bar("fitting", 0, 1)
        model.fit(training.texts, training.metrics)
        bar("testing", 0, 1)
        return rank_correlations(model, tests, seed=seed) if tests.texts else []


def _rounded(value: Any) -> Any:
    return f"{value:.3f}" if isinstance(value, float) else value
