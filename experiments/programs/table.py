"""Make a table of programs for `nas train rlm --table`: `python -m experiments.programs.table`.

Each generated program is compiled and run several times. Only one program runs at a time.

    nas train rlm --table experiments/programs/programs.csv.gz --targets run_time_ms,peak_memory_kib
    --out results/rlm
"""

from __future__ import annotations

import csv
import gzip
import io
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from experiments.programs.measuring import Measured, build_launcher, measure
from experiments.programs.writing import programs
from experiments.runner import run_command
from nas.cli.progress import progress_bar
from search_spaces.common.files import replacing

SHIPPED = Path(__file__).with_name("programs.csv.gz")
COLUMNS = ("identifier", "space", "families", "input", *Measured._fields)


def main(
    out: Annotated[Path, typer.Option(help="The table, a .csv.gz file.")] = Path(
        "results/programs.csv.gz"
    ),
    count: Annotated[int, typer.Option(min=1, help="Number of programs.")] = 390,
    repeats: Annotated[int, typer.Option(min=2, help="Runs of each program.")] = 7,
    seed: Annotated[int, typer.Option(help="Seed of the programs.")] = 0,
) -> None:
    """Write and measure programs. A row has the medians of a program's runs."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    with tempfile.TemporaryDirectory() as name, progress_bar("programs") as bar:
        launcher = build_launcher(Path(name))
        for i, program in enumerate(programs(count, seed)):
            bar(f"{program.language}: {program.families}", i, count)
            measured = measure(program, launcher, Path(name), repeats)
            values = [f"{value:.6g}" for value in measured]
            writer.writerow(
                [f"program-{i}", program.language, program.families, program.text, *values]
            )
    with replacing(out) as path:
        path.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))
    print(out)


if __name__ == "__main__":
    run_command(main)
