"""Evaluators and device commands from command line options."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nas.cli.options import parse_settings, pick
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    from nas.comparison.runs import Budget
    from nas.comparison.studies import Studies
    from nas.evaluation.device_command import DeviceCommand
    from nas.evaluation.devices import PredictedDevice
    from nas.evaluation.int8 import Calibration
    from nas.search.measured_evaluator import MeasuredEvaluator
    from nas.search.own_evaluator import FunctionEvaluator
    from search_spaces.ir.graph import Shape

_SHOWN = 3  # paths of missing weights in a warning
_BUILT_IN_ONLY = ("dataset", "trainings")


def open_measured(
    space: str,
    objectives: str,
    constraints: list[str],
    given: dict[str, Any],
    folder: Path,
    budget: Budget | None = None,
) -> MeasuredEvaluator | FunctionEvaluator:
    """Make the evaluator of a search's metrics: built-in training or the user's own function.

    Args:
        space: name of the space, or `FILE.py:NAME`.
        objectives: metrics separated by commas.
        constraints: such as `"cpu_latency_ms <= 8"`.
        given: options that were set on the command line.
        folder: result folder, which holds the states of trainings.
        budget: of a search by cost, whose last fidelity is the default number of epochs.

    Raises:
        InputError: an option is invalid, or does not apply to the kind of evaluator.
    """
    from nas.evaluation.devices import devices_of
    from nas.evaluation.latency import LatencyTask, check_provider
    from nas.evaluation.measurement import Measurement, known_metrics, metrics_of, trains
    from nas.evaluation.subjects import open_space
    from nas.evaluation.training import training_task
    from nas.search.measured_evaluator import MeasuredEvaluator
    from nas.search.objectives import metric_names, parse_constraints, parse_objectives
    from nas.search.own_evaluator import FunctionEvaluator

    if "provider" in given:
        check_provider(given["provider"])

    # 1. The metrics of objectives, constraints and cost, and what can measure them.
    metrics = metric_names(parse_objectives(objectives), parse_constraints(constraints))
    if budget:
        metrics = tuple(dict.fromkeys([*metrics, *budget.metrics]))
    timing = LatencyTask(**pick(given, "threads", "batch", "provider"))
    commands = device_commands(given)
    devices = devices_of(metrics, metrics_of(commands))
    elsewhere: tuple[DeviceCommand | PredictedDevice, ...] = (*commands, *devices)

    # 2. The user's function, if there is one, returns what is not measured and trains by itself.
    has_function = "evaluator" in given
    if has_function and (strange := [name for name in _BUILT_IN_ONLY if name in given]):
        raise InputError(
            f"--{strange[0]} applies to the built-in training only: the function of --evaluator "
            "trains"
        )
    settings = {**parse_settings(given.get("training"), "--training"), **pick(given, "epochs")}
    source = None
    if not has_function and trains(metrics, timing, elsewhere):
        source = given.get("dataset", "digits")
    opened, data = open_space(space, parse_settings(given.get("option"), "--option"), source)
    calibration = calibration_inputs(
        given.get("calibration"), metrics, commands, opened.input_shape
    )
    states = folder / "studies" / "training"
    if has_function:
        measurable = known_metrics(timing, None, elsewhere)
        measurement = Measurement(
            tuple(metric for metric in metrics if metric in measurable),
            latency=timing,
            commands=commands,
            devices=devices,
            calibration=calibration,
        )
        returned = [metric for metric in metrics if metric not in measurable]
        settings |= pick(given, "device")
        return FunctionEvaluator(
            opened, given["evaluator"], returned, measurement, settings, states
        )

    # 3. The built-in training, of as many epochs as the last fidelity.
    if budget:
        settings.setdefault("epochs", budget.fidelities[-1])
    measurement = Measurement(
        metrics,
        data,
        seeds=tuple(range(given.get("trainings", 1))),
        training=training_task(settings),
        latency=timing,
        device=given.get("device", "cpu"),
        commands=commands,
        devices=devices,
        calibration=calibration,
    )
    return MeasuredEvaluator(opened, measurement, states)


def calibration_inputs(
    source: str | None,
    metrics: Sequence[str],
    commands: Sequence[DeviceCommand],
    shape: Shape | None,
) -> Calibration | None:
    """The inputs of `--calibration`.

    Args:
        source: value of the option; None if it is not set.
        metrics: names of the metrics to measure.
        commands: measure on other devices.
        shape: of one input of the networks.

    Raises:
        InputError: they cannot be read, or nothing is quantized: no metric is one of a quantized
            network, and no command gets its file.
    """
    from nas.evaluation.int8 import Calibration, is_quantized

    if source is None:
        return None
    quantizes = any("int8" in command.placeholders for command in commands)
    if not quantizes and not any(map(is_quantized, metrics)):
        raise InputError(
            f"--calibration sets the ranges of networks in int8, but {', '.join(metrics)} are of "
            "floats: give a metric of int8, such as int8_accuracy or cpu_int8_latency_ms, or a "
            "command with {int8}"
        )
    return Calibration.read(source, shape)


def device_commands(given: Mapping[str, Any]) -> tuple[DeviceCommand, ...]:
    """Parse the values of `--latency-command`, `--metric-command` and `--latency-setting`.

    Raises:
        InputError: a value is invalid, or two commands measure the same metric.
    """
    from nas.evaluation.device_command import DeviceCommand

    latencies, metrics = given.get("latency_command") or (), given.get("metric_command") or ()
    if given.get("latency_setting") and not (latencies or metrics):
        raise InputError("--latency-setting needs --latency-command or --metric-command")
    settings = parse_settings(given.get("latency_setting"), "--latency-setting")
    commands = [DeviceCommand.parse(command, settings) for command in latencies]
    names = [command.name for command in commands]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(
            f"two latency commands are named {twice[0]}: write NAME=COMMAND, with a different name "
            "for each"
        )
    commands += [DeviceCommand.parse_metrics(command, settings) for command in metrics]
    measured = [metric.name for command in commands for metric in command.metrics]
    if twice := [name for name in measured if measured.count(name) > 1]:
        raise InputError(f"two commands measure {twice[0]}: leave one of them out")
    return tuple(commands)


def declare_objectives(objectives: str, commands: Sequence[DeviceCommand]) -> str:
    """Objectives with the directions that commands and stored devices declare.

    An objective that states a direction keeps it.
    """
    from nas.evaluation.devices import PredictedDevice, list_devices

    declared = [PredictedDevice(name).declared for name in list_devices()]
    declared += [metric for command in commands for metric in command.metrics]
    with_direction = {metric.name: str(metric) for metric in declared}
    return ",".join(with_direction.get(part.strip(), part) for part in objectives.split(","))


def warn_of_missing_weights(studies: Studies, folder: Path) -> None:
    """Warn on standard error of networks on the front without their trained weights.

    The files are damaged or on another machine.
    """
    from nas.search.study.files import missing_weights

    missing = missing_weights(studies.front_networks, folder)
    if missing:
        names, paths = ", ".join(map(str, missing)), list(missing.values())
        shown = ", ".join(paths[:_SHOWN]) + (", …" if len(paths) > _SHOWN else "")
        print(
            f"nas: networks {names} of the front have random weights, as their files are missing "
            f"or damaged ({shown}): copy their folder into {folder / 'studies' / 'weights'}, then "
            f"run nas report {folder}",
            file=sys.stderr,
        )
