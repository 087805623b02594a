"""The machine that measures: what it is, who else computes on it, and a lock for measurements.

Measured values depend on processor, versions and load. A search records the first two
(`machine`, `versions`). For the third, every latency is measured under a lock (`measuring`), during
which trainings of any search of this user pause (`wait_while_measuring`), and `OtherLoad` says how
much other programs computed meanwhile.
"""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from nas.evaluation.runtimes import RUNTIMES

if TYPE_CHECKING:
    from filelock import BaseFileLock

PACKAGES = dict.fromkeys(
    [
        *("rlm-nas", "torch", "onnxruntime", "onnx", "optuna", "numpy"),
        *(package for runtime in RUNTIMES.values() for package in runtime.packages),
    ]
)
MAX_WAIT_S = 120.0  # for the lock: a measurement that hangs must not stop everything else
CHECK_EVERY_S = 0.05  # how often a training looks for a measurement; a look takes up to 0.3 ms


# --- what it is


def machine(device: str = "cpu") -> dict[str, str | int]:
    """Processor, number of cores, system, and the device that networks are trained on."""
    return {
        "processor": processor(),
        "cores": os.cpu_count() or 1,
        "system": f"{platform.system()} {platform.machine()}",
        "device": _device_name(device),
    }


@cache
def versions() -> dict[str, str]:
    """Versions of Python and of the packages that measurements or proposals depend on."""
    installed = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            installed[package] = version(package)
    return installed


@cache
def processor() -> str:
    """The processor's model."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _device_name(device: str) -> str:
    """The model of a GPU, since `cuda:1` does not identify it; else the device's name."""
    if device.startswith("cuda"):
        import torch

        with suppress(RuntimeError, AssertionError, ValueError):
            return torch.cuda.get_device_name(device)
    return device


def cache_folder() -> Path:
    """`$NAS_CACHE` if set, else the platform's cache folder of `rlm-nas`. It may not exist yet."""
    if override := os.environ.get("NAS_CACHE"):
        return Path(override)
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("rlm-nas"))


# --- one measurement at a time, and nothing of ours beside it


@contextmanager
def measuring() -> Iterator[None]:
    """Hold the machine's lock: no other process of this user measures, and trainings pause.

    After `MAX_WAIT_S` the measurement goes on without the lock, since a late value is worth more
    than none. The lock is not reentrant.
    """
    from filelock import Timeout

    lock = _lock()
    with suppress(Timeout):
        lock.acquire(timeout=MAX_WAIT_S)
    try:
        yield
    finally:
        lock.release()


class MeasurementPause:
    """Lets measurements go first: call it between the batches of a training.

    It returns at once if nobody measures, and else when the measurement is over.
    """

    def __init__(self) -> None:
        self._lock = _lock()
        self._next_look = 0.0

    def __call__(self) -> None:
        from filelock import Timeout

        if time.monotonic() < self._next_look:
            return
        with suppress(Timeout):
            self._lock.acquire(timeout=MAX_WAIT_S)
        self._lock.release()
        self._next_look = time.monotonic() + CHECK_EVERY_S


def _lock() -> BaseFileLock:
    """A handle of the lock, which the system frees if its process is killed."""
    from filelock import FileLock

    return FileLock(_lock_file(), poll_interval=0.005)


@cache
def _lock_file() -> Path:
    """In the user's cache folder; in the temporary one if that cannot be written."""
    user = os.getuid() if hasattr(os, "getuid") else "own"
    for folder in (cache_folder(), Path(tempfile.gettempdir(), f"nas-{user}")):
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                return folder / "measuring.lock"
    return Path(tempfile.gettempdir(), f"nas-{user}-measuring.lock")


# --- who else computes


class OtherLoad:
    """How many cores other programs have used on average since it was created."""

    def __init__(self) -> None:
        self._start = self._counters()

    def cores(self) -> float:
        """The mean number of cores that were busy with other processes, at least 0."""
        elapsed, busy, own = (
            now - then for now, then in zip(self._counters(), self._start, strict=True)
        )
        return max(0.0, (busy - own) / elapsed) if elapsed > 0 else 0.0

    @staticmethod
    def _counters() -> tuple[float, float, float]:
        """Seconds: since some moment, of all cores while busy, and of this process."""
        import psutil

        times = psutil.cpu_times()
        # A virtual machine's stolen seconds are those of its neighbours.
        idle = times.idle + getattr(times, "iowait", 0.0) + getattr(times, "steal", 0.0)
        guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
        return time.monotonic(), sum(times) - guests - idle, time.process_time()
