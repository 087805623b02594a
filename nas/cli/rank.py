"""`nas rank`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from nas.cli.console import print_json, print_table
from nas.cli.options import NETWORK, Json, Quiet, Seed
from nas.cli.progress import progress_bar
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    from nas.ranking import Ranking
    from predictors import Predictor

MIN_SHARED = 0.5  # of the measured networks: another device that was measured on so many tells of a new one


def rank(
    networks: Annotated[list[str], typer.Argument(help=f"{NETWORK} A pattern: 'timm:resnet*'.")],
    checkpoint: Annotated[str, typer.Option(help="A checkpoint's folder, or a shipped one.")],
    objectives: Annotated[str, typer.Option(help="Comma-separated metrics, as imagenet_top1_accuracy,rtx4090_ms.")],
    constraint: Annotated[
        list[str] | None, typer.Option(help="A bound that must be kept, as 'rtx4090_ms <= 1'; repeatable.")
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(help="CSV of your own measurements: a column `network`, and one for each metric. rlm only."),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Networks to show, beside those named without a pattern.")] = 20,
    samples: Annotated[int, typer.Option(min=1, help="Samples per network.")] = 64,
    seed: Seed = 0,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Rank known networks and your own for a device: the front, with uncertainty."""
    import predictors
    from nas import ranking
    from nas.networks import matching, network_text
    from nas.searching.objectives import parse_constraints, parse_objectives

    goals, bounds = parse_objectives(objectives), parse_constraints(constraint)
    model = predictors.load(checkpoint)
    further = _add(model, measured) if measured is not None else []
    sources = list(dict.fromkeys(found for source in networks for found in matching(source)))
    texts, read, refused = [], [], []
    with progress_bar("reading networks", quiet) as bar:
        for i, source in enumerate(sources):
            try:
                texts.append(network_text(source))
                read.append(source)
            except InputError as error:
                if source in networks:
                    raise
                refused.append(str(error))
            bar(source, i + 1, len(sources))
    if not texts:
        raise InputError(f"none of the networks could be read; the first: {refused[0]}")
    given = ranking.covariates(model, texts, further)
    found = ranking.rank(model, texts, goals, bounds, given, samples, seed)
    novelty = model.novelty(texts)
    shown = [i for place, i in enumerate(found.order) if as_json or place < top or read[i] in networks]
    rows = [_row(found, i, read[i], float(novelty[i])) for i in shown]
    if as_json:
        print_json({"networks": rows, "not read": refused})
        return
    print_table(f"{len(read)} networks", [_shown(row) for row in rows])
    if refused:
        print(f"{len(refused)} networks could not be read; the first: {refused[0]}")


def _add(model: Predictor, path: Path) -> list[str]:
    """Put own measurements into the context; the metrics that other predictions of a new device may depend on."""
    from nas.benchmarks.csv_file import parse_csv, read_bytes
    from nas.networks import network_text
    from predictors.metrics import Metric

    table = parse_csv(read_bytes(path), path, ("network",))
    texts = [network_text(source) for source in table.archs]
    before = model.examples_of(texts)
    model.extend(texts, table.columns)
    if all(name in before for name in table.columns):
        return []
    return [
        name
        for name, values in before.items()
        if name not in table.columns and Metric.parse(name).kind == "measured" and _share(values) >= MIN_SHARED
    ]


def _share(values: np.ndarray) -> float:
    return float(np.mean(~np.isnan(values)))


def _row(found: Ranking, i: int, source: str, novelty: float) -> dict[str, Any]:
    row: dict[str, Any] = {"network": source, "front": bool(found.on_front[i]), "front_probability": found.front[i]}
    for j, name in enumerate(found.metrics):
        values = found.samples[i, :, j]
        low, median, high = np.quantile(values, [0.05, 0.5, 0.95]).tolist()
        row[name] = {"median": median, "low": low, "high": high, "measured": bool(found.measured[i, j])}
    return {**row, "constraints_kept": found.kept[i], "novelty": None if novelty != novelty else novelty}


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """A row for people: medians with 90 % intervals, measured values as they are."""
    cells: dict[str, Any] = {"network": row["network"], "front": f"{row['front_probability']:.0%}"}
    if row["front"]:
        cells["front"] += " *"
    for name, value in row.items():
        if isinstance(value, dict):
            interval = "measured" if value["measured"] else f"{value['low']:.4g} to {value['high']:.4g}"
            cells[name] = f"{value['median']:.4g} ({interval})"
    return {**cells, "kept": f"{row['constraints_kept']:.0%}"}
