"""Metrics of the user's devices: a shell command that takes a network's file and prints numbers.

`NAME=COMMAND` prints milliseconds and gives `NAME_latency_ms`. `METRICS=COMMAND` declares metrics
with directions, such as `board_energy_mj:min,board_ram_kb:min`, and prints a number, or JSON.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from filelock import lock_descriptor

from nas.evaluation.child_process import MAX_SHOWN, TooSlow, last_line, run_killable
from nas.evaluation.latency import Latency, with_batch
from nas.evaluation.runtimes import RUNTIMES
from predictors.metrics import Metric
from search_spaces.common.errors import InputError, unknown

if TYPE_CHECKING:
    import onnx

    from nas.evaluation.int8 import Samples

# What stands for the path of a file in a command, and the runtime that converts to it.
CONVERTED = {
    "tflite": "litert",
    "openvino": "openvino",
    "ncnn": "ncnn",
    "mnn": "mnn",
    "pte": "executorch",
}
PLACEHOLDERS = ("model", "int8", *CONVERTED)  # the ONNX file, and that in 8-bit integers
SUFFIX = "_latency_ms"
SPREAD = (0.1, 0.9)  # quantiles of the measurements that are stored as low and high end
_TIME_UNITS = ("ns", "us", "ms", "s")

_NAME = r"[a-z][a-z0-9_]*"  # lower case, because shell variables are in capitals
_METRIC = rf"{_NAME}(?::[a-z]+)*"  # a name and what is declared of it: `board_energy_mj:min`
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_NAMED_COMMAND = re.compile(rf"({_NAME})=(.*)", re.DOTALL)
_METRICS_COMMAND = re.compile(rf"({_METRIC}(?:,{_METRIC})*)=(.*)", re.DOTALL)
_PLACEHOLDER = re.compile(r"(?<!\$)\{([a-z0-9_]+)\}")  # and no `${variable}` of the shell
_NUMBER_LINE = re.compile(rf"\s*({_NUMBER})\s*(?:ms)?\s*")


class DeviceError(InputError):
    """A device did not return a value of a metric."""


@dataclass(frozen=True)
class DeviceCommand:
    """A shell command that measures a network on another device.

    Each output line that is a number, with or without `ms`, is a measurement of the command's only
    metric; in milliseconds, unless the metric is declared. A line of JSON has values by metric: a
    number, a list of repeated measurements, or `{"value": …, "low": …, "high": …}`. Other lines
    are ignored. A call fails if the command exits with an error, prints no value of a metric or
    exceeds the timeout. Failed calls are repeated after 1, 2, 4, … seconds.

    Args:
        command: what the shell runs. `{model}` stands for the path of the ONNX file, and other
            `PLACEHOLDERS` for that of a file which is made from it.
        name: of the device; its metric is `NAME_latency_ms`.
        warmup: number of first calls whose measurements are discarded.
        runs: number of calls whose measurements count.
        timeout: of one call, in seconds.
        retries: number of repetitions of a failed call.
        declared: the metrics instead of `NAME_latency_ms`, as `predictors.Metric.parse` reads them:
            `("board_energy_mj:min", "board_ram_kb")`.

    Raises:
        InputError: the command has no placeholder or an unknown one, or a setting is out of range.
    """

    command: str
    name: str = "device"
    warmup: int = 1
    runs: int = 3
    timeout: float = 120.0
    retries: int = 2
    declared: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # 1. The command gets a file, and asks for no other than those that there are.
        names = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
        for name in _PLACEHOLDER.findall(self.command):
            if name not in PLACEHOLDERS:
                raise InputError(
                    f"the command {self.command!r} has the placeholder {{{name}}}, which is none of "
                    f"{names}; other braces need a space inside: {{ {name} }}"
                )
        if not self.placeholders:
            raise InputError(
                f"the command {self.command!r} lacks {{model}}, the path of the ONNX file, or "
                f"another of {names}"
            )

        # 2. Settings are in range.
        minima = {"warmup": 0, "runs": 1, "retries": 0}
        for setting, minimum in minima.items():
            value = getattr(self, setting)
            if not (isinstance(value, int) and value >= minimum):
                raise InputError(
                    f"command with {setting} = {value}: it must be an integer of at least {minimum}"
                )
        if not (isinstance(self.timeout, int | float) and self.timeout > 0):
            raise InputError(
                f"command with timeout = {self.timeout}: it must be a positive number of seconds"
            )

    @classmethod
    def parse(cls, text: str, settings: Mapping[str, Any] | None = None) -> DeviceCommand:
        """Parse `"NAME=COMMAND"`, such as `"pi=ssh pi ./bench {model}"`, or a command alone.

        Args:
            text: the command, with or without a name.
            settings: values of the other fields, by name.

        Raises:
            InputError: a setting is unknown or invalid.
        """
        checked = cls._checked(settings)
        named = _NAMED_COMMAND.fullmatch(text)
        if named is None:
            return cls(text, **checked)
        name, command = named.groups()
        return cls(command, name.removesuffix(SUFFIX), **checked)

    @classmethod
    def parse_metrics(cls, text: str, settings: Mapping[str, Any] | None = None) -> DeviceCommand:
        """Parse `"METRICS=COMMAND"`, such as `"board_energy_mj:min=./measure {model}"`.

        Args:
            text: metrics with optional directions, separated by commas, and the command.
            settings: as in `parse`.

        Raises:
            InputError: there are no metrics, or one is invalid; or see `parse`.
        """
        match = _METRICS_COMMAND.fullmatch(text)
        if match is None:
            raise InputError(
                f"metric command {text!r}: write METRIC:min=COMMAND, such as "
                "'board_energy_mj:min=./measure {model}'"
            )
        metrics, command = match.groups()
        declared = [_measured_metric(part) for part in metrics.split(",")]
        name = declared[0].name.removesuffix(SUFFIX)
        return cls(command, name, declared=tuple(map(str, declared)), **cls._checked(settings))

    @classmethod
    def _checked(cls, settings: Mapping[str, Any] | None) -> dict[str, Any]:
        """A copy of a user's settings; InputError for an unknown one."""
        checked = dict(settings or {})
        not_settings = ("command", "name", "declared")
        allowed = [field.name for field in fields(cls) if field.name not in not_settings]
        for setting in checked:
            if setting not in allowed:
                raise unknown("setting of a command", setting, allowed)
        return checked

    @cached_property
    def metrics(self) -> tuple[Metric, ...]:
        """The measured metrics."""
        if not self.declared:
            return (Metric(f"{self.name}{SUFFIX}"),)
        return tuple(map(Metric.parse, self.declared))

    @property
    def metric(self) -> str:
        """Name of the only or first metric."""
        return self.metrics[0].name

    @property
    def placeholders(self) -> tuple[str, ...]:
        """The files that the command gets."""
        return tuple(name for name in PLACEHOLDERS if f"{{{name}}}" in self.command)

    @property
    def settings(self) -> dict[str, Any]:
        """The fields, as plain values."""
        values = asdict(self)
        if not self.declared:
            del values["declared"]
        return values

    @classmethod
    def of_settings(cls, settings: Mapping[str, Any]) -> DeviceCommand:
        """The command with these `settings`."""
        declared = tuple(settings.get("declared", ()))  # JSON has made a list of it
        return cls(**{**settings, "declared": declared})


def _measured_metric(text: str) -> Metric:
    """A declared metric, whose kind is "measured" whatever its name reads as.

    Raises:
        InputError: it is declared as trained or counted, or is one that is always counted.
    """
    metric = Metric.parse(text)
    declared_prices = {"trained", "counted"} & set(text.split(":"))
    if declared_prices or metric.kind == "exact":
        price = declared_prices.pop() if declared_prices else metric.price
        raise InputError(f"{metric.name}: a command measures it without training, not {price!r}")
    return Metric(metric.name, kind="measured", direction=metric.direction, unit=metric.unit)


def time_on_device(
    model: onnx.ModelProto,
    device: DeviceCommand,
    batch: int = 1,
    calibration: Samples | None = None,
) -> Latency:
    """The only or first metric of `measure_on_device`."""
    return measure_on_device(model, device, batch, calibration)[device.metric]


def measure_on_device(
    model: onnx.ModelProto,
    device: DeviceCommand,
    batch: int = 1,
    calibration: Samples | None = None,
) -> dict[str, Latency]:
    """Measure a model with a device command.

    Processes on this machine that run the same command wait for each other, because a device
    measures one network at a time.

    Args:
        model: the network as ONNX.
        device: the command.
        batch: replaces a symbolic batch size, which many devices cannot run.
        calibration: inputs that set the ranges of activations in the file `{int8}`, see
            `nas.evaluation.int8.quantize`; None for noise.

    Returns:
        For each metric the median, 10 % and 90 % quantile of all measurements, or of the ends that
        the command printed, in the metric's unit.

    Raises:
        DeviceError: a call failed after all retries.
        MeasurementError: the model cannot be converted to a file that the command gets.
    """
    # 1. The files that the command gets, and its calls.
    with tempfile.TemporaryDirectory(prefix="nas-") as folder, _alone(device.command):
        command = device.command
        for placeholder in device.placeholders:
            path = _file(placeholder, model, Path(folder), batch, calibration)
            command = command.replace(f"{{{placeholder}}}", shlex.quote(str(path)))
        calls = [_readings(command, device) for _ in range(device.warmup + device.runs)]

    # 2. All readings of the calls that count are one sample of the metric.
    counted = calls[device.warmup :]
    meaning = f"median, 10 % and 90 % quantile of {device.runs} calls"
    results = {}
    for metric in device.metrics:
        readings = [reading for call in counted for reading in call[metric.name]]
        values, lows, highs = np.transpose(readings)  # (readings,) each
        median = float(np.median(values))
        low = float(np.quantile(lows, SPREAD[0]))
        high = float(np.quantile(highs, SPREAD[1]))
        results[metric.name] = Latency(median, low, high, meaning)
    return results


def _file(
    placeholder: str,
    model: onnx.ModelProto,
    folder: Path,
    batch: int,
    calibration: Samples | None,
) -> Path:
    """Write the file that a placeholder stands for."""
    source = folder / "model.onnx"
    source.write_bytes(with_batch(model, batch).SerializeToString())
    if placeholder == "model":
        return source

    if placeholder == "int8":
        import onnx

        from nas.evaluation.int8 import quantize

        integers = onnx.load_from_string(quantize(model, calibration))
        quantized = folder / "int8.onnx"
        quantized.write_bytes(with_batch(integers, batch).SerializeToString())
        return quantized

    from nas.evaluation.runtimes.measuring import convert_for_runtime

    own_folder = folder / placeholder
    own_folder.mkdir()
    return convert_for_runtime(source, CONVERTED[placeholder], own_folder, batch)


def check_runtimes(device: DeviceCommand) -> None:
    """Raise InputError if a runtime that converts for the command is not installed."""
    for placeholder in device.placeholders:
        if placeholder in CONVERTED:
            runtime = RUNTIMES[CONVERTED[placeholder]]
            runtime.check_installed(f"{{{placeholder}}} of a command")


# --- what a call prints


class _Reading(NamedTuple):
    """A measurement with the ends of its spread, which are equal where one number was printed."""

    value: float
    low: float
    high: float


_Readings = dict[str, list[_Reading]]
"""Readings by the names of the command's metrics."""


def _readings(command: str, device: DeviceCommand) -> _Readings:
    """Readings of one call, which is repeated after growing pauses if it fails."""
    tries = device.retries + 1
    for attempt in range(tries):
        if attempt > 0:
            sleep(2.0 ** (attempt - 1))
        try:
            return _parse(_output(command, device.timeout), device.metrics)
        except DeviceError as error:
            failure = error
    counted = f" ({tries} tries)" if tries > 1 else ""
    raise DeviceError(f"{device.name}: {failure}{counted}") from failure


def _output(command: str, timeout: float) -> str:
    """What a command prints."""
    try:
        finished = run_killable(command, timeout)
    except TooSlow as error:
        raise DeviceError(f"the command took more than {timeout:g} s") from error
    if finished.failure:
        raise DeviceError(f"the command {finished.failure}")
    return finished.output


def _parse(output: str, metrics: Sequence[Metric]) -> _Readings:
    """The readings that a call printed.

    Raises:
        DeviceError: a metric has none, or one that is no value of it.
    """
    readings: _Readings = {metric.name: [] for metric in metrics}
    lines = output.splitlines()

    # 1. Lines of JSON; what a program prints besides the metrics is its own affair.
    for line in lines:
        for name, value in _json_object(line).items():
            if name in readings:
                readings[name] += _parse_value(name, value)

    # 2. Lines that are a number say of which metric only if there is one.
    if len(metrics) == 1:
        for line in lines:
            if match := _NUMBER_LINE.fullmatch(line):
                number = float(match[1])
                readings[metrics[0].name].append(_Reading(number, number, number))

    # 3. Each metric has values, and they are possible ones.
    for metric in metrics:
        is_time = metric.unit in _TIME_UNITS
        shown = "milliseconds" if metric.unit == "ms" else metric.name
        if not readings[metric.name]:
            raise DeviceError(
                f"the command printed no line with a number of {shown}{last_line(output)}"
            )
        for reading in readings[metric.name]:
            for number in reading:
                if not math.isfinite(number) or (is_time and number <= 0):
                    kind = f"a time in {shown}" if is_time else f"a value of {shown}"
                    raise DeviceError(f"the command printed {number:g}, which is not {kind}")
    return readings


def _json_object(line: str) -> dict[str, Any]:
    """The JSON object that a line is; {} for any other line."""
    if not line.lstrip().startswith("{"):
        return {}
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _parse_value(metric: str, value: Any) -> list[_Reading]:
    """Readings from a JSON value: an object with its spread, a number, or a list of numbers.

    Raises:
        DeviceError: it is none of these.
    """
    try:
        if isinstance(value, dict):
            middle = float(value["value"])
            spread = float(value.get("spread", 0.0))
            low = float(value.get("low", middle - spread))
            high = float(value.get("high", middle + spread))
            return [_Reading(middle, low, high)]
        repeated = value if isinstance(value, list) else [value]
        numbers = [float(number) for number in repeated]
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise DeviceError(
            f"the command printed {json.dumps(value)[:MAX_SHOWN]} for {metric}, which is no number"
        ) from error
    return [_Reading(number, number, number) for number in numbers]


@contextmanager
def _alone(command: str) -> Iterator[None]:
    """Hold a lock that one process on this machine can hold per command."""
    digest = hashlib.sha256(command.encode()).hexdigest()[:16]
    # Users share the temporary folder of Unix; elsewhere, each has an own one.
    user = os.getuid() if hasattr(os, "getuid") else "own"
    path = Path(tempfile.gettempdir(), f"nas-device-{user}-{digest}.lock")
    with open(path, "w") as file:
        lock_descriptor(file.fileno())  # until the file is closed, or the process ends
        yield
