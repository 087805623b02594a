"""The child process that converts a network, compares its outputs and measures it.

It reads a job (JSON) from a file and writes the result beside it. A converter may end or hang the
process: the file of the last step then says where (`nas.evaluation.runtimes.measuring`).
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from nas.evaluation.latency import LatencyTask, Timer, open_session, random_inputs, time_interleaved
from nas.evaluation.memory import resident_growth
from nas.evaluation.runtimes import get_runtime
from nas.evaluation.runtimes.base import Runtime
from search_spaces.common.errors import InputError
from search_spaces.common.files import replacing

INFERENCES = 3  # before the peak memory is read
JOB, RESULT, STEP = "job.json", "result.json", "step"


def perform(folder: Path) -> None:
    """Run the job of a folder and write its result there."""
    job = json.loads((folder / JOB).read_text())
    runtime = get_runtime(job["runtime"])
    actions = {"convert": _convert, "measure": _measure, "memory": _memory}
    action = actions[job["action"]]
    try:
        result = action(runtime, folder, job)
    except Exception as error:  # any error of a converter is a result, too
        lines = str(error).strip().splitlines()
        first_line = lines[0] if lines else type(error).__name__
        result = {"error": " ".join(first_line.split())}
    with replacing(folder / RESULT) as temporary:
        temporary.write_text(json.dumps(result))


def _convert(runtime: Runtime, folder: Path, job: dict[str, Any]) -> dict[str, Any]:
    """Convert each of the files."""
    _begin(folder, "converting")
    files = []
    for number, name in enumerate(job["models"]):
        subfolder = folder / f"converted{number}"
        subfolder.mkdir()
        model = runtime.prepare(Path(name), subfolder)
        files.append(str(runtime.convert(model, subfolder, job["task"]["batch"])))
    return {"files": files}


def _measure(runtime: Runtime, folder: Path, job: dict[str, Any]) -> dict[str, Any]:
    """Convert a file, compare its outputs with those of ONNX Runtime, and time it."""
    task = LatencyTask(**job["task"])

    # 1. The file, and the network in both runtimes.
    _begin(folder, "converting")
    model = runtime.prepare(Path(job["models"][0]), folder)
    file = runtime.convert(model, folder, task.batch)
    _begin(folder, "loading")
    session = open_session(str(model), task.threads)
    feed = random_inputs(session, task.batch)
    inputs = list(feed.values())
    network = runtime.load(file, task.threads)

    # 2. What computes something else has no latency.
    _begin(folder, "running")
    difference = _difference(session.run(None, feed), network.run(inputs))
    tolerance = job.get("tolerance", runtime.tolerance)
    if not difference <= tolerance:
        raise InputError(
            f"its outputs differ from ONNX Runtime's by {difference:.2g} of the largest output, "
            f"more than {tolerance:g}"
        )
    del session

    # 3. On one thread, the process's time counts: it leaves out waiting for a core, and has the
    # work of a runtime that computes in a thread of its own.
    clock = time.process_time if task.threads == 1 else time.perf_counter
    timer = Timer(lambda: network.run(inputs), task, clock)
    (latency,) = time_interleaved([timer], task)
    return {
        "latency_ms": list(latency),
        "fallback_ops": network.fallback_ops,
        "size_mb": _size_mb(file),
        "difference": difference,
    }


def _memory(runtime: Runtime, folder: Path, job: dict[str, Any]) -> dict[str, Any]:
    """Peak growth of the process while it loads and runs the second of two converted files.

    The first one is tiny: it brings the runtime itself into memory, which does not count.
    """
    threads = job["task"]["threads"]

    def load_and_run(number: int) -> None:
        network = runtime.load(Path(job["models"][number]), threads)
        inputs = [np.zeros(shape, dtype) for shape, dtype in job["inputs"][number]]
        for _ in range(INFERENCES):
            network.run(inputs)

    _begin(folder, "running")
    growth = resident_growth(lambda: load_and_run(0), lambda: load_and_run(1))
    return {"peak_memory_mb": growth}


def _difference(expected: list[np.ndarray], outputs: list[np.ndarray]) -> float:
    """Largest difference of outputs, relative to the largest value of each expected output."""
    if len(outputs) != len(expected):
        raise InputError(f"it has {len(outputs)} outputs, and the ONNX model {len(expected)}")
    differences = []
    for reference, output in zip(expected, outputs, strict=True):
        if reference.size != output.size:
            raise InputError(f"an output has shape {output.shape}, not {reference.shape}")
        scale = float(np.abs(reference).max(initial=0.0)) or 1.0
        converted = output.reshape(reference.shape).astype(float)
        largest = np.abs(converted - reference.astype(float)).max(initial=0.0)
        differences.append(float(largest) / scale)
    return max(differences)


def _size_mb(file: Path) -> float:
    """Size of the converted network in MB (10⁶ bytes), with the weights beside it."""
    parts = [path for path in file.parent.glob(f"{file.stem}.*") if path.suffix != ".onnx"]
    return sum(path.stat().st_size for path in parts) / 1e6


def _begin(folder: Path, step: str) -> None:
    """Note the step that begins, for the case that it ends the process."""
    with suppress(OSError):
        (folder / STEP).write_text(step)


if __name__ == "__main__":
    # One folder as an argument; or one on each line of the standard input, for many networks.
    for line in sys.argv[1:] or sys.stdin:
        perform(Path(line.strip()))
    # Some runtimes crash while Python unloads them; the results are there.
    sys.stdout.flush()
    os._exit(0)
