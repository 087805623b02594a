"""`nas rank`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import typer

from nas.cli.console import print_json, print_table, warn_of_directions, with_arrows
from nas.cli.options import NETWORK, Json, Quiet, Seed
from nas.cli.progress import progress_bar
from nas.evaluation.quantiles import quantiles
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    from nas.ranking import Ranking
    from predictors import Predictor

MIN_MEASURED = 3  # networks measured on a new device; fewer give no estimate of the spread
MIN_SHARED = 0.5  # share of these networks that a known device must have, too, to be a covariate of the new one


def rank(
    networks: Annotated[list[str], typer.Argument(help=f"{NETWORK} Patterns are allowed: 'timm:resnet*'.")],
    checkpoint: Annotated[str, typer.Option(help="A checkpoint's folder, rlm-zoo, or rlm-base with --measured.")],
    objectives: Annotated[
        str, typer.Option(help="Comma-separated metrics, for example imagenet_top1_accuracy,rtx4090_ms.")
    ],
    constraint: Annotated[
        list[str] | None, typer.Option(help="A constraint, for example 'rtx4090_ms <= 1'; repeatable.")
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(help="CSV of your own measurements: a column `network` and one per metric. rlm only."),
    ] = None,
    top: Annotated[
        int, typer.Option(min=1, help="Networks to show, in addition to those named without a pattern.")
    ] = 20,
    samples: Annotated[int, typer.Option(min=1, help="Samples per network.")] = 64,
    seed: Seed = 0,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Rank known networks and your own for a device, and show the Pareto front with uncertainty."""
    from nas import ranking
    from nas.networks import matching, network_text
    from nas.searching.objectives import parse_constraints, parse_objectives
    from predictors.checkpoint import load, load_trained
    from predictors.metrics import EXACT

    goals, bounds = parse_objectives(objectives), parse_constraints(constraint)
    model = load(checkpoint) if measured is not None else load_trained(checkpoint)
    own = _own(measured) if measured is not None else None
    further = _add(model, own) if own is not None else []
    ranking.check_metrics(model, goals, bounds)
    warn_of_directions(objectives)
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
    others = ranking.covariates(model, texts, further, samples, seed)
    given = {name: np.median(values, 1) for name, values in others.items()}
    drawn = _of_new_devices(model, own, texts, others, samples, seed) if own is not None and others else None
    found = ranking.rank(model, texts, goals, bounds, given, samples, seed, drawn)
    predicted = [name for name in found.metrics if name in model.metrics and name not in EXACT]
    novelty = model.novelty(texts, predicted)
    shown = [i for place, i in enumerate(found.order) if as_json or place < top or read[i] in networks]
    rows = [_row(found, i, read[i], float(novelty[i])) for i in shown]
    if as_json:
        print_json({"networks": rows, "not read": refused})
        return
    print_table(f"{len(read)} networks", [with_arrows(_shown(row), goals) for row in rows])
    if refused:
        print(f"{len(refused)} networks could not be read; the first: {refused[0]}")


class Own(NamedTuple):
    """The user's measurements: texts of n networks, and columns (n,) with NaN for missing values."""

    texts: list[str]
    columns: dict[str, np.ndarray]


def _own(path: Path) -> Own:
    from nas.benchmarks.csv_file import parse_csv, read_bytes
    from nas.networks import network_text
    from predictors.metrics import Metric

    table = parse_csv(read_bytes(path), path, ("network",))
    texts: list[str] = []
    for line, source in zip(table.lines, table.archs, strict=True):
        try:
            text = network_text(source)
        except InputError as error:
            raise InputError(f"{path}, line {line}: {error}") from error
        if text in texts:
            raise InputError(f"{path}, line {line}: {source} is measured above: keep one row, or their means")
        texts.append(text)
    for name, values in table.columns.items():
        if Metric.parse(name).unit not in ("", "%") and (wrong := np.flatnonzero(values <= 0)).size:
            line, value = table.lines[wrong[0]], values[wrong[0]]
            raise InputError(f"{path}, line {line}: {name} is {value:g}, which is not a positive number")
    return Own(texts, dict(table.columns))


def _add(model: Predictor, own: Own) -> list[str]:
    """Add the user's measurements to the examples, and list device metrics that can be covariates of a new device."""
    from predictors.metrics import Metric

    before = model.examples_of(own.texts)
    for name, values in own.columns.items():
        count = int((~np.isnan(values)).sum())
        if name not in before and count < MIN_MEASURED:
            raise InputError(
                f"--measured: the checkpoint does not know {name}, and {count} values are too few: give at least "
                f"{MIN_MEASURED}, or better ten"
            )
    model.extend(own.texts, own.columns)
    if all(name in before for name in own.columns):
        return []
    return [
        name
        for name, values in before.items()
        if name not in own.columns and Metric.parse(name).kind == "measured" and _share(values) >= MIN_SHARED
    ]


def _of_new_devices(
    model: Predictor, own: Own, texts: list[str], others: dict[str, np.ndarray], samples: int, seed: int
) -> dict[str, np.ndarray]:
    """Samples (n, samples) of each metric of a new device.

    `others` has samples of known devices for the same n networks.
    """
    from nas.new_device import relative_samples
    from nas.ranking import covariates
    from predictors.metrics import Metric

    of_own = covariates(model, own.texts, list(others), samples, seed)
    known = np.stack([np.median(values, 1) for values in of_own.values()], 1)
    asked = np.stack(list(others.values()), 1)
    found = {}
    for name, values in own.columns.items():
        rows = np.flatnonzero(~np.isnan(values))
        if name not in others and Metric.parse(name).kind == "measured" and (values[rows] > 0).all():
            measured = [own.texts[i] for i in rows]
            found[name] = relative_samples(model, measured, values[rows], known[rows], texts, asked, samples, seed)
    return found


def _share(values: np.ndarray) -> float:
    return float(np.mean(~np.isnan(values)))


def _row(found: Ranking, i: int, source: str, novelty: float) -> dict[str, Any]:
    row: dict[str, Any] = {"network": source, "front": bool(found.on_front[i]), "front_probability": found.front[i]}
    for j, name in enumerate(found.metrics):
        values = found.samples[i, :, j]
        low, median, high = quantiles(values[None], [0.05, 0.5, 0.95])[:, 0].tolist()
        row[name] = {"median": median, "low": low, "high": high, "measured": bool(found.measured[i, j])}
    return {**row, "constraints_kept": found.kept[i], "novelty": None if novelty != novelty else novelty}


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the table: predicted medians with 90 % intervals, measured values, and exact counts."""
    from predictors.metrics import EXACT

    cells: dict[str, Any] = {"network": row["network"], "front": f"{row['front_probability']:.0%}"}
    if row["front"]:
        cells["front"] += " *"
    for name, value in row.items():
        if isinstance(value, dict) and name in EXACT:
            cells[name] = f"{value['median']:,.0f}"
        elif isinstance(value, dict):
            interval = "measured" if value["measured"] else f"{value['low']:.4g} to {value['high']:.4g}"
            cells[name] = f"{value['median']:.4g} ({interval})"
    return {**cells, "kept": f"{row['constraints_kept']:.0%}"}
