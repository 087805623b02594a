"""`nas retrain`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nas.cli.console import print_json, print_table
from nas.cli.options import (
    Device,
    Json,
    Quiet,
    ReportedSpace,
    Source,
    Study,
    Training,
    Trust,
    given_only,
    output_folder,
    parse_settings,
)
from nas.cli.progress import progress_bar
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    from nas.comparison.studies import Studies


def retrain(
    source: Source,
    point: Annotated[int, typer.Option(min=0, help="Number of the network on the front, as in front/NN.onnx.")],
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Epochs of training; those of the search by default.")
    ] = None,
    training: Training = None,
    dataset: Annotated[
        str | None, typer.Option(help="Path of the data set, if it has moved, or if the search trained nothing.")
    ] = None,
    evaluator: Annotated[
        str | None, typer.Option(help="FILE.py:FUNCTION of the search's --evaluator on this machine; the file is run.")
    ] = None,
    device: Device = None,
    study: Study = None,
    space: ReportedSpace = None,
    trust: Trust = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the files; retrained/NN in the result folder by default.")
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Retrain a network of the front with the search's data, split and seed; write its ONNX file and scores."""
    from nas.comparison.runs import open_studies
    from nas.searching.loop import SOURCE_KEY
    from nas.searching.networks import network_name
    from nas.searching.retraining import Retraining
    from nas.searching.retraining import retrain as train_again

    studies = open_studies(source, None, study, space, trust)
    if studies.not_built:
        raise InputError(studies.not_built)
    front = studies.front_networks
    if point >= len(front):
        raise InputError(f"--point {point}: the front of {source} has networks 0 to {len(front) - 1}")
    _check_order(Path(source), studies)
    network, name = front[point], network_name(point, len(front))
    result = studies.searches[network.representative.search]
    origin = result.study.user_attrs.get(SOURCE_KEY, {})
    if trust and evaluator is None:
        evaluator = origin.get("evaluator", {}).get("function")
    settings = {**parse_settings(training, "--training"), **given_only(epochs=epochs)}
    how = Retraining(settings, device or "cpu", dataset, evaluator)
    folder = out or output_folder(source, None) / "retrained" / name
    with progress_bar(f"training network {name}", quiet) as bar:
        summary = train_again(result.space, network.architecture, origin, how, folder / name, bar)
    if as_json:
        print_json({"point": point, "folder": str(folder), "searched": network.summary(studies.objectives), **summary})
        return
    searched = {objective.name: network.values[objective.name] for objective in studies.objectives} | network.further
    rows = [
        {"metric": metric, "searched": searched.get(metric, ""), "retrained": summary["values"].get(metric, "")}
        for metric in dict.fromkeys([*summary["values"], *searched])
    ]
    print_table(f"Network {name}: {summary['architecture']}", rows)
    print(f"written to {folder}")


def _check_order(folder: Path, studies: Studies) -> None:
    """Raise InputError if `front.csv` is older than the search, so that network numbers differ."""
    import csv

    if not (folder / "front.csv").is_file():
        return
    with (folder / "front.csv").open(newline="") as file:
        written = [row["architecture"] for row in csv.DictReader(file)]
    present: list[Any] = [row["architecture"] for row in studies.front]
    if written != present:
        raise InputError(f"{folder / 'front.csv'} is older than the search: run nas report {folder} and choose again")
