"""The machine and the installed versions, on which measured values depend besides the settings."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("rlm-nas", "torch", "onnxruntime", "onnx", "optuna", "numpy")


def machine(device: str = "cpu") -> dict[str, str | int]:
    """Processor, number of cores, system, and the device that networks are trained on."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "system": f"{platform.system()} {platform.machine()}",
        "device": _device_name(device),
    }


@cache
def versions() -> dict[str, str]:
    """Versions of Python and of the packages that measurements or proposals depend on."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


@cache
def _processor() -> str:
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
