"""Latency on the user's device: a shell command that takes an ONNX file and prints milliseconds."""

from __future__ import annotations

import hashlib
import math
import os
import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any

import numpy as np
from filelock import lock_descriptor

from nas.evaluation.child_process import TooSlow, run_killable
from nas.evaluation.latency import Latency, with_batch
from search_spaces.common.errors import InputError, unknown

if TYPE_CHECKING:
    import onnx

PLACEHOLDER = "{model}"  # stands for the path of the ONNX file in a command
SUFFIX = "_latency_ms"
MAX_SHOWN = 200  # characters of a command's output in an error message
_NAMED = re.compile(
    r"([a-z][a-z0-9_]*)=(.*)", re.DOTALL
)  # lower case, because shell variables are in capitals
_LINE = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(?:ms)?\s*")


class DeviceError(InputError):
    """A device did not return a latency."""


@dataclass(frozen=True)
class DeviceCommand:
    """A shell command that times a network on another device.

    Each output line that is a number, with or without `ms`, is a measurement in milliseconds. Other
    lines are ignored. A call fails if the command exits with an error, prints no measurement or
    exceeds the timeout. Failed calls are repeated after 1, 2, 4, … seconds.

    Args:
        command: what the shell runs; `{model}` stands for the path of the ONNX file.
        name: of the device; its metric is `NAME_latency_ms`.
        warmup: number of first calls whose measurements are discarded.
        runs: number of calls whose measurements count.
        timeout: of one call, in seconds.
        retries: number of repetitions of a failed call.

    Raises:
        InputError: the command lacks `{model}`, or a setting is out of range.
    """

    command: str
    name: str = "device"
    warmup: int = 1
    runs: int = 3
    timeout: float = 120.0
    retries: int = 2

    def __post_init__(self) -> None:
        if PLACEHOLDER not in self.command:
            raise InputError(
                f"the latency command {self.command!r} lacks {PLACEHOLDER}, the path of the ONNX "
                "file"
            )
        for setting, least in {"warmup": 0, "runs": 1, "retries": 0}.items():
            value = getattr(self, setting)
            if not (isinstance(value, int) and value >= least):
                raise InputError(
                    f"latency command with {setting} = {value}: it must be an integer of at least "
                    f"{least}"
                )
        if not (isinstance(self.timeout, int | float) and self.timeout > 0):
            raise InputError(
                f"latency command with timeout = {self.timeout}: it must be a positive number of "
                "seconds"
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
        """Name of the measured metric."""
        return f"{self.name}{SUFFIX}"


def time_on_device(model: onnx.ModelProto, device: DeviceCommand, batch: int = 1) -> Latency:
    """Time a model with a device command.

    Processes on this machine that run the same command wait for each other, because a device times
    one network at a time.

    Args:
        model: the network as ONNX.
        device: the command.
        batch: replaces a symbolic batch size, which many devices cannot run.

    Returns:
        Median, 10 % and 90 % quantile of all measurements, in ms.

    Raises:
        DeviceError: a call failed after all retries.
    """
    with tempfile.TemporaryDirectory(prefix="nas-") as folder, _alone(device.command):
        path = Path(folder, "model.onnx")
        path.write_bytes(with_batch(model, batch).SerializeToString())
        command = device.command.replace(PLACEHOLDER, shlex.quote(str(path)))
        calls = [_times(command, device) for _ in range(device.warmup + device.runs)][
            device.warmup :
        ]
    low, median, high = np.quantile(np.concatenate(calls), [0.1, 0.5, 0.9])
    meaning = f"median, 10 % and 90 % quantile of {device.runs} calls"
    return Latency(float(median), float(low), float(high), meaning)


def _times(command: str, device: DeviceCommand) -> list[float]:
    """Measurements of one call in ms, repeated if it fails."""
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
    """What a command prints."""
    try:
        status, output, errors = run_killable(command, timeout)
    except TooSlow as error:
        raise DeviceError(f"the command took more than {timeout:g} s") from error
    if status:
        raise DeviceError(
            f"the command failed with exit status {status}{_last_line(errors or output)}"
        )
    return output


def _parse(output: str) -> list[float]:
    times = [float(match[1]) for line in output.splitlines() if (match := _LINE.fullmatch(line))]
    if not times:
        raise DeviceError(
            f"the command printed no line with a number of milliseconds{_last_line(output)}"
        )
    if wrong := [value for value in times if not 0 < value < math.inf]:
        raise DeviceError(f"the command printed {wrong[0]:g}, which is not a time in milliseconds")
    return times


def _last_line(output: str) -> str:
    """The last output line, to end an error message; `?` replaces control characters, which would
    act on a terminal.
    """
    lines = output.strip().splitlines()
    shown = lines[-1].strip()[:MAX_SHOWN] if lines else ""
    return f": {''.join(c if c.isprintable() else '?' for c in shown)}" if shown else ""


@contextmanager
def _alone(command: str) -> Iterator[None]:
    """Hold a lock that one process on this machine can hold per command."""
    digest = hashlib.sha256(command.encode()).hexdigest()[:16]
    user = (
        os.getuid() if hasattr(os, "getuid") else "own"
    )  # elsewhere, each user has a temporary folder
    path = Path(tempfile.gettempdir(), f"nas-device-{user}-{digest}.lock")
    with open(path, "w") as file:
        lock_descriptor(file.fileno())  # until the file is closed, or the process ends
        yield
