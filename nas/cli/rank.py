"""`nas rank`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from nas.cli.console import print_json, print_table, warn_of_directions, with_arrows
from nas.cli.options import NETWORK, Json, Quiet, Seed
from nas.cli.progress import progress_bar


def rank(
    networks: Annotated[
        list[str], typer.Argument(help=f"{NETWORK} Patterns are allowed: 'timm:resnet*'.")
    ],
    checkpoint: Annotated[
        str, typer.Option(help="A checkpoint's folder, rlm-zoo, or rlm-base with --measured.")
    ],
    objectives: Annotated[
        str,
        typer.Option(
            help="Comma-separated metrics, for example imagenet_top1_accuracy,rtx4090_ms."
        ),
    ],
    constraint: Annotated[
        list[str] | None,
        typer.Option(help="A constraint, for example 'rtx4090_ms <= 1'; repeatable."),
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(
            help="CSV of your own measurements: a column `network` and one per metric. rlm only."
        ),
    ] = None,
    top: Annotated[
        int,
        typer.Option(min=1, help="Networks to show, in addition to those named without a pattern."),
    ] = 20,
    samples: Annotated[int, typer.Option(min=1, help="Samples per network.")] = 64,
    seed: Seed = 0,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Rank known networks and your own for a device, and show the Pareto front with uncertainty."""
    from nas.ranking import rank_networks
    from nas.search.objectives import parse_objectives

    warn_of_directions(objectives)
    with progress_bar("reading networks", quiet) as bar:
        ranked = rank_networks(
            networks,
            checkpoint=checkpoint,
            objectives=objectives,
            constraints=constraint,
            measured=measured,
            samples=samples,
            seed=seed,
            progress=bar,
        )
    if as_json:
        print_json({"networks": ranked.networks, "not read": ranked.not_read})
        return
    shown = [
        row
        for place, row in enumerate(ranked.networks)
        if place < top or row["network"] in networks
    ]
    count = len(ranked.networks)
    goals = parse_objectives(objectives)
    print_table(f"{count} networks", [with_arrows(_shown(row), goals) for row in shown])
    if ranked.not_read:
        print(f"{len(ranked.not_read)} networks could not be read; the first: {ranked.not_read[0]}")


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the table, as text.

    It has predicted medians with 90 % intervals, measured values, and exact counts.
    """
    from predictors.metrics import EXACT

    cells: dict[str, Any] = {"network": row["network"], "front": f"{row['front_probability']:.0%}"}
    if row["front"]:
        cells["front"] += " *"
    for name, value in row.items():
        if isinstance(value, dict) and name in EXACT:
            cells[name] = f"{value['median']:,.0f}"
        elif isinstance(value, dict):
            interval = (
                "measured" if value["measured"] else f"{value['low']:.4g} to {value['high']:.4g}"
            )
            cells[name] = f"{value['median']:.4g} ({interval})"
    return {**cells, "kept": f"{row['constraints_kept']:.0%}"}
