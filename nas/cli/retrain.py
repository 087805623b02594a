"""`nas retrain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
    output_folder,
    parse_settings,
)
from nas.cli.progress import progress_bar


def retrain(
    source: Source,
    point: Annotated[
        int, typer.Option(min=0, help="Number of the network on the front, as in front/NN.onnx.")
    ],
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Epochs of training; those of the search by default.")
    ] = None,
    training: Training = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            help="Path of the data set, if it has moved, or if the search trained nothing."
        ),
    ] = None,
    evaluator: Annotated[
        str | None,
        typer.Option(
            help="FILE.py:FUNCTION of the search's --evaluator on this machine; the file is run."
        ),
    ] = None,
    device: Device = None,
    study: Study = None,
    space: ReportedSpace = None,
    trust: Trust = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the files; retrained/NN in the result folder by default."),
    ] = None,
    int8: Annotated[
        bool,
        typer.Option(
            "--int8",
            help="Also write NN.int8.onnx, the network in 8-bit integers, and measure this file.",
        ),
    ] = False,
    int8_epochs: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Epochs of quantization-aware fine-tuning where static quantization loses more "
            "than 1 % of the score; 2 by default, 0 for none.",
        ),
    ] = None,
    calibration: Annotated[
        str | None,
        typer.Option(
            help="Inputs that set the ranges of activations: a data set, or FILE.py:NAME of an "
            "array or a function that returns one; inputs of the training by default."
        ),
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Retrain a network of the front with the search's data, split and seed; write its ONNX file
    and scores, with --int8 also its quantized file.
    """
    from nas import api

    settings = parse_settings(training, "--training")
    if out is None:
        output_folder(source, None)
    with progress_bar(f"training network {point}", quiet) as bar:
        summary = api.retrain(
            source,
            point,
            epochs=epochs,
            training=settings,
            dataset=dataset,
            evaluator=evaluator,
            device=device or "cpu",
            study=study,
            space=space,
            out=out,
            trust=trust,
            progress=bar,
            int8=int8,
            int8_epochs=int8_epochs,
            calibration=calibration,
        )
    if as_json:
        print_json({"point": point, **summary})
        return
    searched = summary["searched"]
    quantized = summary.get("int8")
    values = summary["values"] | (quantized["values"] if quantized else {})
    measured = {metric: value for metric, value in searched.items() if isinstance(value, float)}
    rows = [
        {
            "metric": metric,
            "searched": measured.get(metric, ""),
            "retrained": values.get(metric, ""),
        }
        for metric in dict.fromkeys([*values, *measured])
    ]
    print_table(f"Network {summary['name']}: {summary['architecture']}", rows)
    if quantized:
        print(f"int8: {quantized['method']}")
    print(f"written to {summary['folder']}")
