"""Measures the peak memory of an ONNX model in ONNX Runtime, in a separate process."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from nas.evaluation.child_process import TooSlow, default_timeout, last_line, run_killable
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    import onnx

METRIC = "peak_memory_mb"
INFERENCES = 3  # of each model
_STATUS = Path("/proc/self/status")


def measure_memory(model: onnx.ModelProto, *, batch: int = 1, threads: int = 1) -> float:
    """Peak growth of a fresh process that loads and runs a model on the CPU, in MB (10⁶ bytes).

    It covers weights, activations and the runtime's buffers for them. The runtime itself does not
    count, because the process runs a tiny network first.

    Args:
        model: the network as ONNX.
        batch: samples per inference.
        threads: threads of ONNX Runtime.

    Raises:
        InputError: the system is not Linux, or ONNX Runtime cannot run the model within
            `default_timeout()`.
    """
    check_linux(METRIC)
    timeout = default_timeout()
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, name) for name in ("tiny.onnx", "model.onnx")]
        for path, content in zip(paths, (tiny_model(), model), strict=True):
            path.write_bytes(content.SerializeToString())
        command = [
            sys.executable,
            "-m",
            "nas.evaluation.memory",
            *map(str, paths),
            str(batch),
            str(threads),
        ]
        try:
            finished = run_killable(command, timeout)
        except TooSlow as error:
            raise InputError(
                f"{METRIC} could not be measured: it took more than {timeout:g} s"
            ) from error
    if finished.failure:
        reason = last_line(finished.errors) or f": the process {finished.failure}"
        raise InputError(f"{METRIC} could not be measured{reason}")
    return float(finished.output)


def check_linux(metric: str) -> None:
    """Raise InputError where the system does not tell the memory of a process as Linux does."""
    if not _STATUS.exists():
        raise InputError(f"{metric} can be measured on Linux only: leave it out")


def tiny_model() -> onnx.ModelProto:
    """A network that needs next to no memory itself."""
    from search_spaces.ir.builder import Network
    from search_spaces.ir.onnx import to_model

    net = Network((1, 8, 8), 2)
    return to_model(net.graph(net.classifier(net.conv_bn_relu(net.input, 4))))


def resident_growth(prepare: Callable[[], object], run: Callable[[], object]) -> float:
    """Peak growth of this process's resident set in MB (10⁶ bytes) while it runs.

    Args:
        prepare: called before, and does not count.
        run: what is measured.
    """
    prepare()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _resident("VmRSS")
    run()
    return (_resident("VmHWM") - before) / 1e6


def _run(path: str, batch: int, threads: int) -> None:
    from nas.evaluation.latency import open_session, random_inputs

    session = open_session(path, threads)
    feed = random_inputs(session, batch)
    for _ in range(INFERENCES):
        session.run(None, feed)


def _resident(field: str) -> int:
    """Bytes of the resident set: now (VmRSS) or at its peak (VmHWM)."""
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    try:
        tiny, model = sys.argv[1:3]
        batch, threads = map(int, sys.argv[3:5])
        print(resident_growth(lambda: _run(tiny, 1, threads), lambda: _run(model, batch, threads)))
    except InputError as error:
        sys.exit(str(error))
