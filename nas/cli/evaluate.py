"""`nas evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nas.cli.console import print_json, print_table
from nas.cli.options import (
    Batch,
    Calibration,
    DataSet,
    Device,
    Epochs,
    Json,
    LatencyCommand,
    LatencySetting,
    MetricCommand,
    Provider,
    Quiet,
    Seed,
    SpaceOptions,
    Threads,
    Training,
    given_only,
    parse_settings,
    split_names,
)
from nas.cli.progress import progress_bar
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    from nas.evaluation.measurement import Measured


def evaluate(
    network: Annotated[
        str,
        typer.Argument(help="An .onnx file, a space name, or FILE.py:NAME of a class or function."),
    ],
    arch: Annotated[
        str | None,
        typer.Option(
            help="Architecture in the space's notation; a random one of --seed by default."
        ),
    ] = None,
    option: SpaceOptions = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated metrics; by default all that the data allow, except int8, energy and "
            "runtimes besides ONNX Runtime. torch_compile_latency_ms takes about half a minute."
        ),
    ] = None,
    dataset: DataSet = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="Number of trainings, each with its own seed.")
    ] = 1,
    epochs: Epochs = None,
    training: Training = None,
    calibration: Calibration = None,
    device: Device = None,
    threads: Threads = None,
    batch: Batch = None,
    provider: Provider = None,
    latency_command: LatencyCommand = None,
    metric_command: MetricCommand = None,
    latency_setting: LatencySetting = None,
    seed: Seed = 0,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the training state; an interrupted training resumes from it."
        ),
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Measure a network: train it from scratch, time it, and count its parameters and FLOPs."""
    from nas.cli.measured import calibration_inputs, device_commands
    from nas.evaluation.devices import devices_of
    from nas.evaluation.energy import METRIC as ENERGY
    from nas.evaluation.latency import LatencyTask
    from nas.evaluation.measurement import Measurement, known_metrics, metrics_of, trains
    from nas.evaluation.metrics import FIDELITY, LANGUAGE_METRICS
    from nas.evaluation.runtimes import RUNTIME_METRICS
    from nas.evaluation.subjects import subject_of_file, subject_of_space
    from nas.evaluation.training import training_task
    from search_spaces.ir.text import fingerprint

    timing = LatencyTask(**given_only(threads=threads, batch=batch, provider=provider))
    task = training_task({**parse_settings(training, "--training"), **given_only(epochs=epochs)})
    commands = device_commands(
        given_only(
            latency_command=latency_command,
            metric_command=metric_command,
            latency_setting=latency_setting,
        )
    )
    requested = split_names(metrics) if metrics else []
    devices = devices_of(requested, metrics_of(commands))
    source = (
        (dataset or "digits")
        if not requested or trains(requested, timing, (*commands, *devices))
        else None
    )
    if network.endswith(".onnx"):
        if arch or option:
            raise InputError(
                f"{network} is a single network: --arch and --option apply to spaces only"
            )
        subject = subject_of_file(network, source)
    else:
        subject = subject_of_space(network, parse_settings(option, "--option"), source, arch, seed)
    known = [
        metric
        for metric in known_metrics(timing, subject.data, commands)
        if "int8" not in metric and metric not in (*RUNTIME_METRICS, *LANGUAGE_METRICS, ENERGY)
    ]
    if subject.network.teacher is None or (subject.data and subject.data.labelled):
        # Fidelity needs a trained model, and its training is another one than that for labels.
        known = [metric for metric in known if metric != FIDELITY]
    numbers = tuple(range(seed, seed + seeds))
    measurement = Measurement(
        tuple(requested or known),
        subject.data,
        numbers,
        task,
        timing,
        device or "cpu",
        commands,
        devices,
        calibration_inputs(calibration, requested or known, commands, subject.input_shape),
    )
    checkpoint = resume / f"{fingerprint(subject.network.text)}.pt" if resume else None
    with progress_bar("measuring", quiet) as bar:
        results = measurement(subject.network, subject.model, checkpoint, bar).values
    if as_json:
        print_json(
            {
                "network": subject.name,
                **{metric: _plain(value) for metric, value in results.items()},
            }
        )
        return
    rows = []
    for metric, measured in results.items():
        low, high = (measured.low, measured.high) if measured.low < measured.high else ("", "")
        rows.append(
            {
                "metric": metric,
                "value": measured.value,
                "low": low,
                "high": high,
                "spread": measured.spread,
            }
        )
    print_table(subject.name, rows)


def _plain(measured: Measured) -> dict[str, Any]:
    """A measured value for JSON, with None for NaN."""
    return {name: None if value != value else value for name, value in measured._asdict().items()}
