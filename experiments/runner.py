"""Shared options of the experiments' commands, and the function that runs a command."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from search_spaces.common.errors import NasError

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
FirstSeed = Annotated[int, typer.Option(min=0, help="The first seed.")]
Jobs = Annotated[
    int, typer.Option(min=1, help="Processes, of one thread each. Results do not depend on it.")
]
Quick = Annotated[
    bool,
    typer.Option("--quick", help="A much smaller run, under two minutes, to see that it works."),
]
Seeds = Annotated[int, typer.Option(min=1, help="Number of seeds.")]


def run_command(main: Callable[..., None]) -> None:
    """Run `main` as a command.

    Bad input ends it with one line on standard error and exit status 1.
    """
    try:
        typer.run(main)
    except NasError as error:
        sys.exit(f"{Path(sys.argv[0]).stem}: {error}")
