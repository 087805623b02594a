"""Train and time networks of `own_spaces` on digits: `python -m experiments.own_families` (an
hour).

`experiments.unseen_spaces` reads the tables, `results/own-families/own-*/digits-own-*.csv.gz`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.runner import Quick, run_command
from experiments.tables import chosen
from nas.benchmarks.building import build
from nas.benchmarks.populations import Population
from nas.cli.progress import progress_bar
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    from nas.benchmarks import Benchmark

FOLDER = Path("results/own-families")
QUICK_NETWORKS, QUICK_TASK = 2, {"epochs": 1}


def _population(space: str, count: int, epochs: int) -> Population:
    """`count` networks of a space of `own_spaces`, trained for `epochs`.

    With few epochs, two trainings hardly agree.
    """
    file = Path(__file__).parent / "own_spaces" / f"{space.replace('-', '_')}.py"
    name = f"digits-own-{space}"
    task = {"epochs": epochs}
    return Population(name, f"{file}:build", {}, count, proxies=False, task=task)


POPULATIONS = {
    "own-inverted-residuals": _population("inverted-residuals", 200, 6),
    "own-layers": _population("layers", 200, 6),
    "own-widths": _population("widths", 160, 12),
    "own-transformer": _population("transformer", 160, 16),
}


def table(family: str, folder: Path = FOLDER) -> Path:
    """Path of a family's table in a folder."""
    return folder / family / f"{POPULATIONS[family].name}.csv.gz"


def load(family: str) -> Benchmark:
    """The table of a family; InputError if it was not made."""
    from nas.benchmarks import load_benchmark

    if not table(family).exists():
        raise InputError(
            f"{table(family)} does not exist: run `python -m experiments.own_families --only "
            f"{family}`"
        )
    return load_benchmark(table(family), POPULATIONS[family].space)


def main(
    out: Annotated[
        Path, typer.Option(help="Folder for the tables and for finished measurements.")
    ] = FOLDER,
    only: Annotated[str, typer.Option(help="Families, separated by commas.")] = ",".join(
        POPULATIONS
    ),
    quick: Quick = False,
) -> None:
    """Train and time the networks. An interrupted run resumes."""
    with progress_bar("own families") as bar:
        for family in chosen(only, tuple(POPULATIONS)):
            population = POPULATIONS[family]
            if quick:
                population = replace(population, count=QUICK_NETWORKS, task=QUICK_TASK)
            print(build(population, out / family, progress=bar))


if __name__ == "__main__":
    run_command(main)
