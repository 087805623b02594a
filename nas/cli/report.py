"""`nas report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nas.cli.console import print_json
from nas.cli.options import Json, Searched, Source, Study, output_folder


def report(
    source: Source,
    benchmark: Searched = None,
    study: Study = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the result; that of the searches by default.")] = None,
    as_json: Json = False,
) -> None:
    """Write everything about searches, finished or not: report.html, front.csv, networks, figures, summary.json."""
    from nas.comparison.runs import open_studies
    from nas.reporting.folders import save_studies

    folder = output_folder(source, out)
    studies = open_studies(source, benchmark, study)
    save_studies(folder, studies)
    print_json(studies.summary()) if as_json else print(folder / "report.html")
