"""Measures a table of networks × runtimes, resumable.

Networks of eleven spaces take turns, so that a table that was stopped early has all of them. For each
network all runtimes are measured one after the other, each beside the reference network. A process
per runtime serves many networks, because imports take longer than most measurements; one that
crashes or exceeds its time is replaced.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx

from nas.evaluation.int8 import quantize
from nas.evaluation.journal import Journal
from nas.evaluation.latency import LatencyTask, time_serialized, with_batch
from nas.evaluation.runtimes import RUNTIMES
from nas.evaluation.runtimes.child import JOB, RESULT, STEP
from nas.evaluation.runtimes.measuring import CHILD
from search_spaces import Architecture, SearchSpace, get_space
from search_spaces.common.errors import InputError
from search_spaces.common.progress import Progress

BASE = "onnxruntime"  # measured in this process
# Columns of networks in 8-bit integers: the same runtime with the file that ONNX Runtime quantized
INT8 = "-int8"
INT8_RUNTIMES = (BASE, "openvino")  # that read quantized ONNX files
# Runtimes round in another order, and networks with random weights amplify it: a file that is
# converted wrongly is off by more than this share of the largest output.
INT8_TOLERANCE = 0.3
TASK = LatencyTask(warmup=5, runs=30)
TIMEOUT_S = 240.0
OWN = Path(__file__).parents[1] / "own_spaces"
# Images of 64 pixels for timm, mobile networks and the ResNets, else those of the spaces.
SPACES: dict[str, dict[str, Any]] = {
    "nasbench201": {},
    "ofa-mbv3": {"resolution": 64},
    "tiny-resnet": {},
    "ofa-proxyless": {"resolution": 64},
    f"{OWN / 'widths.py'}:build": {},
    "fbnet": {},
    f"{OWN / 'inverted_residuals.py'}:build": {},
    "ofa-resnet50": {"resolution": 64},
    "two-path": {},
    f"{OWN / 'transformer.py'}:build": {},
    f"{Path(__file__).parent / 'timm_networks.py'}:build": {},
}
TABLE = "measurements.jsonl"
MIN_NETWORKS = 20


class Candidate(NamedTuple):
    """A network of the table: a short name of its space, the space, and the architecture."""

    label: str
    space: SearchSpace
    architecture: Architecture

    @property
    def name(self) -> str:
        return f"{self.label} {self.space.format(self.architecture)}"


def candidates() -> Iterator[Candidate]:
    """Distinct random networks, the same in every call.

    The spaces take turns, as long as they have one left.
    """
    drawn: list[Iterator[Candidate]] = []
    for name, options in SPACES.items():
        label = Path(name.removesuffix(":build")).stem
        drawn.append(_distinct(label, get_space(name, **options)))
    for of_space in cycle(drawn):
        yield from islice(of_space, 1)


def _distinct(label: str, space: SearchSpace) -> Iterator[Candidate]:
    rng = np.random.default_rng(0)
    seen: set[Architecture] = set()
    while space.size is None or len(seen) < space.size:
        architecture = space.sample(rng)
        if architecture not in seen:
            seen.add(architecture)
            yield Candidate(label, space, architecture)


def measure_table(folder: Path, count: int, runtimes: list[str], step: Progress) -> None:
    """Measure what the folder's table lacks of `count` networks.

    A line has the name of a runtime and a network, and median, low and high end in ms, or the
    reason why there are none.
    """
    journal = Journal(folder / TABLE)
    workers = {name: _Worker(name) for name in runtimes if _engine(name) != BASE}
    try:
        for done, network in enumerate(islice(candidates(), count)):
            for runtime in runtimes:
                key = f"{runtime} {network.name}"
                if key in journal.known:
                    continue
                step(f"{network.label}, {runtime}", done, count)
                try:
                    model = _file(network, runtime)
                except InputError as error:  # ONNX Runtime cannot quantize it
                    journal.append(key, {"error": str(error)[:200]})
                    continue
                if runtime in workers:
                    journal.append(key, workers[runtime].measure(model))
                else:
                    latency = time_serialized([model], TASK)[0]
                    journal.append(key, {"ms": list(latency[:3])})
    finally:
        for worker in workers.values():
            worker.close()
    step("", count, count)


def _engine(column: str) -> str:
    """The runtime of a column of the table, whatever the precision."""
    return column.removesuffix(INT8)


def _file(network: Candidate, column: str) -> bytes:
    """The ONNX file that a column measures, for one sample.

    Raises:
        InputError: ONNX Runtime cannot quantize the network.
    """
    model = network.space.to_onnx(network.architecture)
    if column.endswith(INT8):
        model = onnx.load_from_string(quantize(model))
    return with_batch(model, 1).SerializeToString()


class _Worker:
    """A process that measures one column of the table, network after network."""

    def __init__(self, column: str) -> None:
        self._runtime = _engine(column)
        RUNTIMES[self._runtime].check_installed(f"{self._runtime}_latency_ms")
        self._job: dict[str, Any] = {
            "action": "measure",
            "runtime": self._runtime,
            "task": asdict(TASK),
        }
        if column.endswith(INT8):
            self._job["tolerance"] = INT8_TOLERANCE
        self._process: subprocess.Popen[str] | None = None

    def measure(self, model: bytes) -> dict[str, Any]:
        """Median, low and high end in ms, or an error."""
        with tempfile.TemporaryDirectory(prefix="nas-") as name:
            folder = Path(name)
            (folder / "model.onnx").write_bytes(model)
            job = {**self._job, "models": [str(folder / "model.onnx")]}
            (folder / JOB).write_text(json.dumps(job))
            process = self._started()
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # it has ended
                process.stdin.write(f"{folder}\n")
                process.stdin.flush()
            result = folder / RESULT
            begun = time.monotonic()
            while not result.exists():
                if process.poll() is not None:
                    return {"error": f"crashed ({process.returncode}) while {_step(folder)}"}
                if time.monotonic() - begun > TIMEOUT_S:
                    self.close()
                    return {"error": f"took more than {TIMEOUT_S:g} s while {_step(folder)}"}
                time.sleep(0.05)
            measured = json.loads(result.read_text())
        if "error" in measured:
            return {"error": measured["error"][:200]}
        further = {key: measured[key] for key in ("difference", "fallback_ops", "size_mb")}
        return {"ms": measured["latency_ms"][:3], **further}

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                CHILD,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                text=True,
                env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            )
        return self._process

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _step(folder: Path) -> str:
    return (folder / STEP).read_text() if (folder / STEP).exists() else "starting"


class Table(NamedTuple):
    """Measured networks, those that every runtime could run.

    Attributes:
        networks: n networks.
        runtimes: r names.
        latency: (n, r) in ms.
        failed: number of failed measurements by runtime.
    """

    networks: list[Candidate]
    runtimes: list[str]
    latency: np.ndarray
    failed: dict[str, int]


def read_table(folder: Path, runtimes: list[str]) -> Table:
    """The table of a folder.

    Raises:
        InputError: fewer than `MIN_NETWORKS` networks are complete.
    """
    measured = Journal(folder / TABLE).known
    rows = []
    networks = []
    failed = dict.fromkeys(runtimes, 0)
    for network in candidates():
        values = [measured.get(f"{runtime} {network.name}", {}) for runtime in runtimes]
        if not any(values):
            break
        for runtime, value in zip(runtimes, values, strict=True):
            failed[runtime] += "error" in value
        if all("ms" in value for value in values):
            networks.append(network)
            rows.append([value["ms"][0] for value in values])
    if len(rows) < MIN_NETWORKS:
        raise InputError(
            f"{folder / TABLE}: {len(rows)} networks have values in all of {', '.join(runtimes)}; "
            f"{MIN_NETWORKS} are needed"
        )
    return Table(networks, runtimes, np.array(rows), failed)
