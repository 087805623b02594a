"""Train the own family's networks on digits and time them: `python -m experiments.own_family` (a quarter of an hour).

The table, `results/own-family/digits-own.csv.gz`, is what `experiments.unseen_spaces --families own` reads.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.runner import Quick, run_command
from nas.benchmarks.building import build
from nas.benchmarks.populations import Population
from nas.cli.progress import progress_bar

SPACE = f"{Path(__file__).parent / 'own_space.py'}:build"
FOLDER = Path("results/own-family")
NETWORKS, QUICK_NETWORKS = 200, 4


def table(folder: Path = FOLDER) -> Path:
    """Where the table is, once it is made."""
    return folder / "digits-own.csv.gz"


def main(
    out: Annotated[Path, typer.Option(help="Folder for the table and for what is measured so far.")] = FOLDER,
    quick: Quick = False,
) -> None:
    """Train and time; what is done is kept."""
    count = QUICK_NETWORKS if quick else NETWORKS
    population = Population("digits-own", SPACE, {}, count, proxies=False, latency_passes=2)
    with progress_bar("own family") as bar:
        print(build(population, out, progress=bar))


if __name__ == "__main__":
    run_command(main)
