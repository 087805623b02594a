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
from typing import TYPE_CHECKING, Any

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
# Lower case, because shell variables are in capitals
_NAMED = re.compile(r"([a-z][a-z0-9_]*)=(.*)", re.DOTALL)
_DECLARED = re.compile(
    r"([a-z][a-z0-9_]*(?::[a-z]+)*(?:,[a-z][a-z0-9_]*(?::[a-z]+)*)*)=(.*)", re.DOTALL
)
_BRACES = re.compile(r"(?<!\$)\{([a-z0-9_]+)\}")
_TIME_UNITS = ("ns", "us", "ms", "s")
_LINE = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(?:ms)?\s*")


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
        names = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
        for name in _BRACES.findall(self.command):
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
        for setting, least in {"warmup": 0, "runs": 1, "retries": 0}.items():
            value = getattr(self, setting)
            if not (isinstance(value, int) and value >= least):
                raise InputError(
                    f"command with {setting} = {value}: it must be an integer of at least {least}"
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
        fields = cls._checked(settings)
        if named := _NAMED.fullmatch(text):
            fields["name"] = named[1].removesuffix(SUFFIX)
            text = named[2]
        return cls(text, **fields)

    @classmethod
    def parse_metrics(cls, text: str, settings: Mapping[str, Any] | None = None) -> DeviceCommand:
        """Parse `"METRICS=COMMAND"`, such as `"board_energy_mj:min=./measure {model}"`.

        Args:
            text: metrics with optional directions, separated by commas, and the command.
            settings: as in `parse`.

        Raises:
            InputError: there are no metrics, or one is invalid; or see `parse`.
        """
        named = _DECLARED.fullmatch(text)
        if named is None:
            raise InputError(
                f"metric command {text!r}: write METRIC:min=COMMAND, such as "
                "'board_energy_mj:min=./measure {model}'"
            )
        declared = [str(_measured_metric(part)) for part in named[1].split(",")]
        name = declared[0].partition(":")[0].removesuffix(SUFFIX)
        fields = {"name": name, "declared": tuple(declared), **cls._checked(settings)}
        return cls(named[2], **fields)

    @classmethod
    def _checked(cls, settings: Mapping[str, Any] | None) -> dict[str, Any]:
        """Settings of a user; InputError for an unknown one."""
        fixed = ("command", "name", "declared")
        allowed = [field.name for field in fields(cls) if field.name not in fixed]
        for setting in settings or ():
            if setting not in allowed:
                raise unknown("setting of a command", setting, allowed)
        return dict(settings or {})

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
        fields = asdict(self)
        return {name: value for name, value in fields.items() if name != "declared" or value}

    @classmethod
    def of_settings(cls, settings: Mapping[str, Any]) -> DeviceCommand:
        """The command with these `settings`, which JSON may have kept."""
        return cls(**{**settings, "declared": tuple(settings.get("declared", ()))})


def _measured_metric(text: str) -> Metric:
    """A declared metric, whose kind is "measured" whatever its name reads as.

    Raises:
        InputError: it is declared as trained or counted, or is one that is always counted.
    """
    metric = Metric.parse(text)
    prices = {"trained", "counted"} & {*text.split(":")}
    if prices or metric.kind == "exact":
        price = prices.pop() if prices else metric.price
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
    with tempfile.TemporaryDirectory(prefix="nas-") as folder, _alone(device.command):
        command = device.command
        for name in device.placeholders:
            path = _file(name, model, Path(folder), batch, calibration)
            command = command.replace(f"{{{name}}}", shlex.quote(str(path)))
        calls = [_values(command, device) for _ in range(device.warmup + device.runs)]
    counted = calls[device.warmup :]
    results = {}
    for metric in device.metrics:
        # Rows (measurements, 3) of value, low and high end; equal where one number was printed.
        rows = np.array([row for call in counted for row in call[metric.name]])
        low = np.quantile(rows[:, 1], 0.1)
        high = np.quantile(rows[:, 2], 0.9)
        median = float(np.median(rows[:, 0]))
        meaning = f"median, 10 % and 90 % quantile of {device.runs} calls"
        results[metric.name] = Latency(median, float(low), float(high), meaning)
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

        quantized = folder / "int8.onnx"
        integers = onnx.load_from_string(quantize(model, calibration))
        quantized.write_bytes(with_batch(integers, batch).SerializeToString())
        return quantized
    from nas.evaluation.runtimes.measuring import convert_for_runtime

    own = folder / placeholder
    own.mkdir()
    return convert_for_runtime(source, CONVERTED[placeholder], own, batch)


def check_runtimes(device: DeviceCommand) -> None:
    """Raise InputError if a runtime that converts for the command is not installed."""
    for name in device.placeholders:
        if name in CONVERTED:
            RUNTIMES[CONVERTED[name]].check_installed(f"{{{name}}} of a command")


# --- what a call prints


def _values(command: str, device: DeviceCommand) -> dict[str, list[list[float]]]:
    """Measurements of one call, repeated if it fails: for each metric rows of value, low and high
    end.
    """
    for failures in range(device.retries + 1):
        try:
            return _parse(_output(command, device.timeout), device.metrics)
        except DeviceError as error:
            failure = error
        if failures < device.retries:
            sleep(2.0**failures)
    tries = f" ({device.retries + 1} tries)" if device.retries else ""
    raise DeviceError(f"{device.name}: {failure}{tries}")


def _output(command: str, timeout: float) -> str:
    """What a command prints."""
    try:
        finished = run_killable(command, timeout)
    except TooSlow as error:
        raise DeviceError(f"the command took more than {timeout:g} s") from error
    if finished.failure:
        raise DeviceError(f"the command {finished.failure}")
    return finished.output


def _parse(output: str, metrics: Sequence[Metric]) -> dict[str, list[list[float]]]:
    """The measurements that a call printed, as `_values` returns them."""
    lines = output.splitlines()
    rows: dict[str, list[list[float]]] = {metric.name: [] for metric in metrics}
    for line in lines:
        for name, value in _json_object(line).items():
            if name in rows:
                rows[name] += _rows(name, value)
    if len(metrics) == 1:
        numbers = [float(match[1]) for line in lines if (match := _LINE.fullmatch(line))]
        rows[metrics[0].name] += [[number] * 3 for number in numbers]

    for metric in metrics:
        of = "milliseconds" if metric.unit == "ms" else metric.name
        if not rows[metric.name]:
            raise DeviceError(
                f"the command printed no line with a number of {of}{last_line(output)}"
            )
        for value in np.ravel(rows[metric.name]).tolist():
            if not math.isfinite(value) or (metric.unit in _TIME_UNITS and value <= 0):
                kind = f"a time in {of}" if metric.unit in _TIME_UNITS else f"a value of {of}"
                raise DeviceError(f"the command printed {value:g}, which is not {kind}")
    return rows


def _json_object(line: str) -> dict[str, Any]:
    """The JSON object that a line is; {} for any other line."""
    try:
        value = json.loads(line) if line.lstrip().startswith("{") else {}
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _rows(metric: str, value: Any) -> list[list[float]]:
    """Rows of value, low and high end from a JSON value."""
    try:
        if isinstance(value, dict):
            middle = float(value["value"])
            spread = float(value.get("spread", 0.0))
            low = value.get("low", middle - spread)
            high = value.get("high", middle + spread)
            return [[middle, float(low), float(high)]]
        return [[float(number)] * 3 for number in (value if isinstance(value, list) else [value])]
    except (TypeError, ValueError, KeyError) as error:
        raise DeviceError(
            f"the command printed {json.dumps(value)[:MAX_SHOWN]} for {metric}, which is no number"
        ) from error


@contextmanager
def _alone(command: str) -> Iterator[None]:
    """Hold a lock that one process on this machine can hold per command."""
    digest = hashlib.sha256(command.encode()).hexdigest()[:16]
    # Elsewhere, each user has a temporary folder
    user = os.getuid() if hasattr(os, "getuid") else "own"
    path = Path(tempfile.gettempdir(), f"nas-device-{user}-{digest}.lock")
    with open(path, "w") as file:
        lock_descriptor(file.fileno())  # until the file is closed, or the process ends
        yield
