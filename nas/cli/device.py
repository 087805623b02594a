"""`nas device`: add, list, remove."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nas.cli.console import print_json, print_table
from nas.cli.options import (
    Batch,
    Calibration,
    Json,
    LatencySetting,
    Quiet,
    Seed,
    Space,
    SpaceOptions,
    parse_settings,
)
from nas.cli.progress import progress_bar
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    from nas.evaluation.device_command import DeviceCommand
    from nas.evaluation.devices import PredictedDevice
    from nas.evaluation.int8 import Samples
    from search_spaces import SearchSpace

Name = Annotated[
    str, typer.Argument(help="Name of the device, in lower case: pi gives pi_latency_ms.")
]


def device_add(
    name: Name,
    space: Space,
    option: SpaceOptions = None,
    latency_command: Annotated[
        str | None,
        typer.Option(
            help="Shell command that receives an ONNX file, {model}, and prints milliseconds."
        ),
    ] = None,
    metric_command: Annotated[
        str | None,
        typer.Option(
            help="Instead of latencies, METRIC:min=COMMAND for another metric, such as "
            "'board_energy_mj:min=./measure {model}'."
        ),
    ] = None,
    latency_setting: LatencySetting = None,
    batch: Batch = None,
    calibration: Calibration = None,
    measurements: Annotated[
        Path | None,
        typer.Option(
            help="Instead of a command, a CSV file of measurements: architecture and "
            "NAME_latency_ms."
        ),
    ] = None,
    networks: Annotated[
        int, typer.Option(min=3, help="Networks to measure, including those of earlier calls.")
    ] = 20,
    seed: Seed = 0,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Measure a few networks on a device, to predict the latencies of all others, or another metric.

    The networks with the most uncertain predictions are measured. An interrupted command can be
    repeated.
    """
    from nas.evaluation.device_measuring import draw_pool, measure, quality
    from nas.evaluation.devices import MIN_MEASURED, PredictedDevice
    from search_spaces import get_space

    # 1. The device, and the one source of its measurements.
    device = PredictedDevice(name)
    opened = get_space(space, **parse_settings(option, "--option"))
    sources = [one for one in (latency_command, metric_command, measurements) if one is not None]
    if len(sources) != 1:
        raise InputError(
            "give one of --latency-command and --metric-command, to measure, or --measurements, a "
            "CSV file"
        )
    if measurements is not None and (latency_setting or batch or calibration):
        raise InputError(
            "--batch, --calibration and --latency-setting belong to a command: leave them out"
        )

    # 2. Measurements, from the file or by the command.
    with progress_bar(f"measuring {name}", quiet) as bar:
        if measurements is not None:
            _read_measurements(device, opened, measurements)
        else:
            command = _command(name, latency_command, metric_command, latency_setting)
            inputs = _begin(device, opened, command, batch or 1, calibration)
            measure(device, opened, command, networks, seed, batch or 1, inputs, bar)

    # 3. How well each measured network is predicted from the others.
    if len(device.texts) < MIN_MEASURED:
        raise InputError(
            f"device {name!r} has {len(device.texts)} measured networks: measure at least "
            f"{MIN_MEASURED}"
        )
    others = [text for text in draw_pool(opened, seed) if text not in device.tried]
    summary = {**_row(device), **quality(device, others)._asdict()}
    if as_json:
        print_json(
            {key: None if value != value else value for key, value in summary.items()}
            | {"failures": device.failures}
        )
        return
    _print_quality(device, opened, summary)


def _command(
    name: str,
    latency_command: str | None,
    metric_command: str | None,
    latency_setting: list[str] | None,
) -> DeviceCommand:
    """The command that measures the device; one for latencies has the device's name."""
    from nas.cli.measured import device_commands

    (command,) = device_commands(
        {
            "latency_command": [latency_command] if latency_command else None,
            "metric_command": [metric_command] if metric_command else None,
            "latency_setting": latency_setting,
        }
    )
    if len(command.metrics) > 1:
        raise InputError(
            f"a device predicts one metric, not {len(command.metrics)}: add a device for each"
        )
    return command if command.declared else replace(command, name=name)


def _begin(
    device: PredictedDevice,
    space: SearchSpace,
    command: DeviceCommand,
    batch: int,
    calibration: str | None,
) -> Samples | None:
    """Note how the device is measured.

    Returns:
        The inputs of `--calibration`.
    """
    from nas.cli.measured import calibration_inputs
    from nas.evaluation.device_command import check_runtimes

    check_runtimes(command)
    inputs = calibration_inputs(calibration, [command.metric], [command], space.input_shape)
    about: dict[str, Any] = {"command": command.command, "batch": batch}
    if command.declared:
        about["metric"] = str(command.metrics[0])
    if inputs is not None:
        about["calibration"] = inputs.settings
    device.begin(about)
    return inputs.samples if inputs else None


def _read_measurements(device: PredictedDevice, space: SearchSpace, file: Path) -> None:
    """Add the measurements of a CSV file."""
    from nas.search.prior import read_prior_observations

    observations = read_prior_observations(file, space, [device.metric])
    if (least := min([value for (value,) in observations.values()], default=1.0)) <= 0:
        raise InputError(
            f"{file}: {device.metric} is {least:g}, which is not a positive time in milliseconds"
        )
    device.begin({"measurements": "given"})
    for architecture, (value,) in observations.items():
        text = space.to_text(architecture)
        times = [value, value, value]
        if device.tried.get(text, {}).get("ms") != times:
            device.add(text, space.format(architecture), times)


def _print_quality(device: PredictedDevice, space: SearchSpace, summary: dict[str, Any]) -> None:
    count = summary["measured"]
    what = {
        "measured networks": str(count),
        "failed networks": f"{len(device.failures)}{f'; the last: {device.failures[-1]}' if device.failures else ''}",
        "Spearman's correlation, leave-one-out": f"{summary['spearman']:.3f}",
        "median error, leave-one-out": f"{summary['error']:.1%}",
        "measurements within the predicted 80 % interval": f"{summary['covered']:.0%}",
        f"uncertainty of other networks of {space.name}": f"± {summary['uncertainty']:.1%}",
        "spread of the measurements": f"± {summary['spread']:.1%}",
    }
    print_table(
        f"{device.metric}, predicted from {count} networks",
        [{"what": k, "value": v} for k, v in what.items()],
    )
    print(
        f"{device.metric} is now a metric of nas search, evaluate and predict; stored in "
        f"{device.folder}"
    )


def device_list(as_json: Json = False) -> None:
    """List the devices whose latencies can be predicted."""
    from nas.evaluation.devices import PredictedDevice, devices_folder, list_devices

    rows = [_row(PredictedDevice(name)) for name in list_devices()]
    if as_json:
        print_json(rows)
    elif rows:
        print_table(f"Devices in {devices_folder()}", rows)
    else:
        print(f"no devices in {devices_folder()}: add one with `nas device add`")


def device_remove(name: Name) -> None:
    """Remove a device and its measurements."""
    from nas.evaluation.devices import PredictedDevice

    device = PredictedDevice(name)
    count = len(device.texts)
    device.remove()
    print(f"removed {name} and its {count} measured networks")


def _row(device: PredictedDevice) -> dict[str, Any]:
    about = device.about
    return {
        "device": device.name,
        "metric": device.metric,
        "measured": len(device.texts),
        "failed": len(device.failures),
        "measured by": about.get("command", "a CSV file"),
    }
