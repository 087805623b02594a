"""`python -m experiments.sub_networks FOLDER`: sub-networks of trained models against pruning."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.runner import FirstSeed, Quick, Seeds, run_command
from experiments.sub_networks.comparison import (
    RIVALS,
    SAMPLERS,
    SIZES,
    Lines,
    Study,
    images,
    run_study,
)
from experiments.sub_networks.models import FAMILIES
from search_spaces.common.errors import unknown

PARTS = ("rivals", "searches", "ranks", "fresh")


def main(
    folder: Annotated[Path, typer.Argument(help="Folder for the results.")],
    families: Annotated[str, typer.Option(help="Families, separated by commas.")] = "resnet,vit",
    parts: Annotated[str, typer.Option(help="Parts, separated by commas.")] = ",".join(PARTS),
    only: Annotated[
        str, typer.Option(help="Rivals and samplers, separated by commas; all by default.")
    ] = "",
    seeds: Seeds = 5,
    first_seed: FirstSeed = 0,
    size: Annotated[
        str,
        typer.Option(help="full (hours per family and seed), medium (40 minutes) or small (ten)."),
    ] = "full",
    quick: Quick = False,
) -> None:
    """Compare sub-networks with pruned ones at equal accuracy, and short with long trainings."""
    import optuna
    import torch

    methods = only.split(",") if only else []
    chosen = {
        "size": ([size], [name for name in SIZES if name != "quick"]),
        "family": (families.split(","), list(FAMILIES)),
        "part": (parts.split(","), PARTS),
        "method": (methods, (*RIVALS, *SAMPLERS)),
    }
    for kind, (names, known) in chosen.items():
        for name in names:
            if name not in known:
                raise unknown(kind, name, known)
    sizes = SIZES["quick" if quick else size]
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    data = images(folder, sizes)
    lines = Lines(folder / "results.jsonl")
    for seed in range(first_seed, first_seed + (1 if quick else seeds)):
        for family in families.split(","):
            study = Study(family, seed, data, folder, sizes, lines, quick)
            run_study(study, parts.split(","), methods)


if __name__ == "__main__":
    run_command(main)
