"""Networks × runtimes on this machine: `python -m experiments.runtimes OUT`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.runner import AsJson, Quick, run_command
from experiments.runtimes.measuring import BASE, measure_table
from experiments.tables import chosen
from nas.cli.progress import progress_bar
from nas.evaluation.runtimes import RUNTIMES

INSTALLED = [BASE, *(name for name, runtime in RUNTIMES.items() if runtime.is_installed)]

MEASURED = [runtime for runtime in INSTALLED if runtime != "torch_compile"]


def main(
    out: Annotated[Path, typer.Argument(help="Folder of the measurements, which are continued.")],
    networks: Annotated[int, typer.Option(min=1, help="Networks of the table.")] = 300,
    only: Annotated[str, typer.Option(help="Runtimes, separated by commas.")] = ",".join(MEASURED),
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Measure the table, then judge predictions of each runtime from few measurements."""
    runtimes = list(chosen(only, INSTALLED))
    out.mkdir(parents=True, exist_ok=True)
    with progress_bar("networks", as_json) as bar:
        measure_table(out, networks, runtimes, bar)


if __name__ == "__main__":
    run_command(main)
