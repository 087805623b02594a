"""`nas report`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from nas.cli.console import print_json
from nas.cli.options import (
    Json,
    ReportedSpace,
    Searched,
    Source,
    SpaceOptions,
    Study,
    Trust,
    output_folder,
    parse_settings,
)
from nas.cli.progress import progress_bar
from search_spaces.common.errors import InputError


def report(
    source: Source,
    benchmark: Searched = None,
    study: Study = None,
    space: ReportedSpace = None,
    option: SpaceOptions = None,
    trust: Trust = False,
    out: Annotated[Path | None, typer.Option(help="Folder for the report; the result folder by default.")] = None,
    as_json: Json = False,
) -> None:
    """Report on searches or Optuna studies: report.html, front.csv, networks, figures and summary.json."""
    from nas.cli.measured import warn_of_missing_weights
    from nas.comparison.folders import check_free
    from nas.comparison.runs import open_studies
    from nas.reporting.folders import save_studies

    if option and not space:
        raise InputError("--option needs --space")
    folder = output_folder(source, out)
    studies = open_studies(source, benchmark, study, space, trust, parse_settings(option, "--option"))
    if folder != Path(source):
        check_free(folder, [result.study for group in studies.results.values() for result in group])
    if studies.not_built:
        print(f"nas: networks are not drawn: {studies.not_built}", file=sys.stderr)
    with progress_bar("reporting"):
        save_studies(folder, studies)
    warn_of_missing_weights(studies, folder)
    print_json(studies.summary()) if as_json else print(folder / "report.html")
