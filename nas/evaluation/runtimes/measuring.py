"""Measures a network in a runtime: latency, operators that fall back, size and peak memory.

Conversion and measurement happen in a child process with a time limit, because converters crash
and hang. A network that a runtime cannot convert, or whose outputs differ from ONNX Runtime's, has
no value there: `RuntimeFailure`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nas.evaluation.child_process import (
    MAX_SHOWN,
    TooSlow,
    default_timeout,
    printable,
    run_killable,
)
from nas.evaluation.latency import CPU, Latency, LatencyTask, with_batch
from nas.evaluation.runtimes import get_runtime
from nas.evaluation.runtimes.base import Runtime, read_inputs
from search_spaces.common.errors import MeasurementError
from search_spaces.ir.onnx import load_model

if TYPE_CHECKING:
    import onnx

CHILD = [sys.executable, "-m", "nas.evaluation.runtimes.child"]


class RuntimeFailure(MeasurementError):
    """A runtime could not convert or run a network, or computes something else."""


class RuntimeResult(NamedTuple):
    """What one measurement in a runtime says.

    Attributes:
        latency: of one inference, in ms.
        fallback_ops: operators outside of the runtime's own kernels; None if it does not tell.
        size_mb: of the converted files, in MB (10⁶ bytes).
        difference: largest difference from ONNX Runtime's outputs, relative to the largest output.
    """

    latency: Latency
    fallback_ops: int | None
    size_mb: float
    difference: float


def measure_in_runtime(
    model: onnx.ModelProto,
    name: str,
    task: LatencyTask | None = None,
    timeout: float | None = None,
) -> RuntimeResult:
    """Convert a network, compare its outputs with ONNX Runtime's on Gaussian noise, and time it.

    Args:
        model: the network as ONNX.
        name: of the runtime, as `nas.evaluation.runtimes.RUNTIMES` has it.
        task: how it is timed. Its provider is not used.
        timeout: of the child process, in seconds; `default_timeout()` by default.

    Raises:
        RuntimeFailure: the runtime cannot convert or run the network within the timeout, or its
            outputs differ by more than `Runtime.tolerance`.
        InputError: the runtime is not installed.
    """
    runtime = get_runtime(name)
    runtime.check_installed(f"{name}_latency_ms")
    task = replace(task or LatencyTask(), provider=CPU)
    with tempfile.TemporaryDirectory(prefix="nas-") as folder:
        path = _written(model, Path(folder), "model.onnx", task.batch)
        job = {"action": "measure", "models": [str(path)], "task": asdict(task)}
        result = _run(runtime, Path(folder), job, timeout)
    return RuntimeResult(
        Latency(*result["latency_ms"]),
        result["fallback_ops"],
        result["size_mb"],
        result["difference"],
    )


def measure_memory_in_runtime(
    model: onnx.ModelProto, name: str, task: LatencyTask | None = None
) -> float:
    """Peak growth of a fresh process that loads and runs the converted network, in MB (10⁶ bytes).

    As `nas.evaluation.memory.measure_memory`, it covers weights, activations and buffers, and not
    the runtime itself. Arguments and errors are those of `measure_in_runtime`.
    """
    from nas.evaluation.memory import check_linux, tiny_model

    metric = f"{name}_peak_memory_mb"
    check_linux(metric)
    runtime = get_runtime(name)
    runtime.check_installed(metric)
    task = replace(task or LatencyTask(), provider=CPU)
    with tempfile.TemporaryDirectory(prefix="nas-") as name_of_folder:
        folder = Path(name_of_folder)

        # 1. A process converts both networks: converters need much memory themselves.
        paths = [
            _written(tiny_model(), folder, "tiny.onnx", task.batch),
            _written(model, folder, "model.onnx", task.batch),
        ]
        models = [str(path) for path in paths]
        job: dict[str, Any] = {"action": "convert", "models": models, "task": asdict(task)}
        converted = _run(runtime, folder, job)["files"]

        # 2. A fresh process runs them.
        inputs = [read_inputs(path, task.batch) for path in paths]
        job = {"action": "memory", "models": converted, "inputs": inputs, "task": asdict(task)}
        return float(_run(runtime, folder, job)["peak_memory_mb"])


def convert_for_runtime(model: Path, name: str, folder: Path, batch: int = 1) -> Path:
    """Convert an ONNX file and keep the result in a folder.

    Args:
        model: the file.
        name: of the runtime.
        folder: an existing folder for the converted files.
        batch: replaces a symbolic batch size.

    Returns:
        The file to load; weights may lie beside it.

    Raises:
        RuntimeFailure: the runtime cannot convert the network within the timeout.
        InputError: the runtime is not installed.
    """
    runtime = get_runtime(name)
    runtime.check_installed(f"conversion for {name}")
    with tempfile.TemporaryDirectory(prefix="nas-") as temporary:
        task = asdict(LatencyTask(batch=batch))
        path = _written(load_model(str(model)), Path(temporary), "model.onnx", batch)
        job = {"action": "convert", "models": [str(path)], "task": task}
        (name_of_file,) = _run(runtime, Path(temporary), job)["files"]
        converted = Path(name_of_file)
        for part in converted.parent.glob(f"{converted.stem}.*"):  # weights beside it
            shutil.copy(part, folder / part.name)
    return folder / converted.name


def _written(model: onnx.ModelProto, folder: Path, name: str, batch: int) -> Path:
    """Write a model whose batch size is fixed, which most converters need."""
    path = folder / name
    path.write_bytes(with_batch(model, batch).SerializeToString())
    return path


def _run(
    runtime: Runtime, folder: Path, job: dict[str, Any], timeout: float | None = None
) -> dict[str, Any]:
    """Run a job in a child process.

    Raises:
        RuntimeFailure: with the step at which it failed, and why.
        InputError: `$NAS_RUNTIME_TIMEOUT` is no number of seconds.
    """
    from nas.evaluation.runtimes.child import JOB, RESULT, STEP

    timeout = default_timeout() if timeout is None else timeout

    # 1. The job, for a process with its number of threads.
    (folder / JOB).write_text(json.dumps({"runtime": runtime.name, **job}))
    (folder / RESULT).unlink(missing_ok=True)
    threads = str(job["task"]["threads"])
    environment = os.environ | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}

    # 2. It may hang, or end without a result or with an error.
    try:
        finished = run_killable([*CHILD, str(folder)], timeout, environment)
    except TooSlow as error:
        raise _failure(runtime, folder / STEP, f"took more than {timeout:g} s") from error
    if not (folder / RESULT).exists():
        end = finished.failure or "ended without a result"
        raise _failure(runtime, folder / STEP, f"the process {end}")
    result: dict[str, Any] = json.loads((folder / RESULT).read_text())
    if "error" in result:
        raise _failure(runtime, folder / STEP, result["error"])
    return result


def _failure(runtime: Runtime, step: Path, reason: str) -> RuntimeFailure:
    """The error that names the step at which a process failed, and the reason in one line."""
    at = step.read_text() if step.exists() else "starting"
    shown = printable(reason)[:MAX_SHOWN]
    return RuntimeFailure(f"{runtime.title} failed while {at}: {shown}")
