"""Train and time networks of `own_space.py` on digits: `python -m experiments.own_family` (15 minutes).

`experiments.unseen_spaces --families own` reads the table, `results/own-family/digits-own.csv.gz`.
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
    """Path of the table in a folder."""
    return folder / "digits-own.csv.gz"


def main(
    out: Annotated[Path, typer.Option(help="Folder for the table and for finished measurements.")] = FOLDER,
    quick: Quick = False,
) -> None:
    """Train and time the networks. An interrupted run resumes."""
    count = QUICK_NETWORKS if quick else NETWORKS
    population = Population("digits-own", SPACE, {}, count, proxies=False, latency_passes=2)
    with progress_bar("own family") as bar:
        print(build(population, out, progress=bar))


if __name__ == "__main__":
    run_command(main)
