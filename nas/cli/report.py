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
    out: Annotated[
        Path | None, typer.Option(help="Folder for the report; the result folder by default.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Report on searches or Optuna studies: a page, front.csv, networks, figures, summary.json."""
    from nas import api
    from nas.cli.measured import warn_of_missing_weights

    if option and not space:
        raise InputError("--option needs --space")
    folder = output_folder(source, out)
    with progress_bar("reporting"):
        studies = api.report(
            source,
            out=folder,
            benchmark=benchmark,
            study=study,
            space=space,
            space_options=parse_settings(option, "--option"),
            trust=trust,
        )
    if studies.not_built:
        print(f"nas: networks are not drawn: {studies.not_built}", file=sys.stderr)
    warn_of_missing_weights(studies, folder)
    print_json(studies.summary()) if as_json else print(folder / "report.html")
