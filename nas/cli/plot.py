"""`nas plot`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nas.cli.options import Searched, Source, Study, output_folder
from search_spaces.common.errors import InputError


def plot(
    source: Source,
    benchmark: Searched = None,
    study: Study = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the figures; the result folder by default.")
    ] = None,
    kind: Annotated[str, typer.Option(help="png, svg or pdf.")] = "png",
) -> None:
    """Plot fronts, hypervolume and predictions of finished or running searches."""
    from nas.comparison.runs import open_studies
    from nas.report.plots import plot_studies

    if kind not in ("png", "svg", "pdf"):
        raise InputError(f"--kind {kind}: write png, svg or pdf")
    folder = output_folder(source, out)
    for path in plot_studies(folder, open_studies(source, benchmark, study), kind):
        print(path)
