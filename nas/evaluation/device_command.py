"""Latency on a device of the user's own: a shell command that gets an ONNX file and prints milliseconds."""

from __future__ import annotations

import fcntl
import hashlib
import math
import os
import re
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any

import numpy as np

from nas.evaluation.latency import Latency
from search_spaces.common.errors import InputError, unknown

if TYPE_CHECKING:
    import onnx

PLACE = "{model}"  # in a command: the path of the ONNX file
SUFFIX = "_latency_ms"
MAX_SHOWN = 200  # characters of a command's output in a message
_NAMED = re.compile(r"([a-z][a-z0-9_]*)=(.*)", re.DOTALL)  # no variable of the shell: these are in capitals
_LINE = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(?:ms)?\s*")


class DeviceError(InputError):
    """A device that could not time a network."""


@dataclass(frozen=True)
class DeviceCommand:
    """How a network is timed elsewhere: `command` is run by the shell, with `{model}` for the path of the ONNX file.

    Each line of its output that is a number, with or without `ms`, is a measurement in milliseconds; other lines do not
    matter. A call fails by its exit status, without a measurement, or after `timeout` seconds. It is then tried again,
    up to `retries` times, after 1, 2, 4, … seconds.

    name: of the device, which gives the metric `NAME_latency_ms`. warmup: calls whose measurements are thrown away.
    runs: calls whose measurements count.
    """

    command: str
    name: str = "device"
    warmup: int = 1
    runs: int = 3
    timeout: float = 120.0
    retries: int = 2

    def __post_init__(self) -> None:
        if PLACE not in self.command:
            raise InputError(f"the latency command {self.command!r} has no {PLACE}, the place of the ONNX file")
        for setting, least in {"warmup": 0, "runs": 1, "retries": 0}.items():
            value = getattr(self, setting)
            if not (isinstance(value, int) and value >= least):
                raise InputError(
                    f"latency command with {setting} = {value}: it must be a whole number, {least} or more"
                )
        if not (isinstance(self.timeout, int | float) and self.timeout > 0):
            raise InputError(f"latency command with timeout = {self.timeout}: it must be more than 0 seconds")

    @classmethod
    def parse(cls, text: str, settings: Mapping[str, Any] | None = None) -> DeviceCommand:
        """`"pi=ssh pi ./bench {model}"`, or a command alone. settings: of the others, by name."""
        known = [field.name for field in fields(cls) if field.name not in ("command", "name")]
        for setting in settings or ():
            if setting not in known:
                raise unknown("setting of a latency command", setting, known)
        given = dict(settings or {})
        if named := _NAMED.fullmatch(text):
            given["name"], text = named[1].removesuffix(SUFFIX), named[2]
        return cls(text, **given)

    @property
    def metric(self) -> str:
        return f"{self.name}{SUFFIX}"


def time_on_device(model: onnx.ModelProto, device: DeviceCommand, batch: int = 1) -> Latency:
    """Median, 10 % and 90 % quantile of a model's measured times; DeviceError where the device does not give them.

    batch: what the file has in place of an open batch size, which many devices cannot run. Processes of this machine
    that run the same command wait for each other: a device times one network at a time.
    """
    with tempfile.TemporaryDirectory(prefix="nas-") as folder, _alone(device.command):
        path = Path(folder, "model.onnx")
        path.write_bytes(_with_batch(model, batch).SerializeToString())
        command = device.command.replace(PLACE, shlex.quote(str(path)))
        calls = [_times(command, device) for _ in range(device.warmup + device.runs)][device.warmup :]
    low, median, high = np.quantile(np.concatenate(calls), [0.1, 0.5, 0.9])
    return Latency(float(median), float(low), float(high))


def _with_batch(model: onnx.ModelProto, batch: int) -> onnx.ModelProto:
    """A copy whose inputs and outputs have this batch size, if theirs is open."""
    fixed = type(model).FromString(model.SerializeToString())
    for value in [*fixed.graph.input, *fixed.graph.output]:
        dims = value.type.tensor_type.shape.dim
        if dims and dims[0].dim_param:
            dims[0].dim_value = batch
    return fixed


def _times(command: str, device: DeviceCommand) -> list[float]:
    """Measurements in ms of one call, or of the first that does not fail."""
    for failures in range(device.retries + 1):
        try:
            return _parse(_output(command, device.timeout))
        except DeviceError as error:
            failure = error
        if failures < device.retries:
            sleep(2.0**failures)
    tries = f" ({device.retries + 1} tries)" if device.retries else ""
    raise DeviceError(f"{device.name}: {failure}{tries}")


def _output(command: str, timeout: float) -> str:
    """What a command prints. It is ended with all that it has started, if it takes too long or we are interrupted."""
    process = subprocess.Popen(
        command, shell=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        errors="replace", start_new_session=True,
    )  # fmt: skip
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise DeviceError(f"the command took more than {timeout:g} s") from None
    finally:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode:
        raise DeviceError(f"the command failed with exit status {process.returncode}{_last_line(errors or output)}")
    return output


def _parse(output: str) -> list[float]:
    times = [float(match[1]) for line in output.splitlines() if (match := _LINE.fullmatch(line))]
    if not times:
        raise DeviceError(f"the command printed no line that is a number of milliseconds{_last_line(output)}")
    if wrong := [value for value in times if not 0 < value < math.inf]:
        raise DeviceError(f"the command printed {wrong[0]:g}, which is no time in milliseconds")
    return times


def _last_line(output: str) -> str:
    """The end of a message: what was printed last, with `?` for control characters, which would change a terminal."""
    lines = output.strip().splitlines()
    shown = lines[-1].strip()[:MAX_SHOWN] if lines else ""
    return f": {''.join(c if c.isprintable() else '?' for c in shown)}" if shown else ""


@contextmanager
def _alone(command: str) -> Iterator[None]:
    """A context that one process of this machine is in at a time, for each command."""
    digest = hashlib.sha256(command.encode()).hexdigest()[:16]
    path = Path(tempfile.gettempdir(), f"nas-device-{os.getuid()}-{digest}.lock")
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
