"""Build `digits201`: every different NAS-Bench-201 cell really trained on digits and really timed on this CPU.

One row per distinct network of `nasbench201` with effectless branches left out. Results are appended to a journal as
they come, so an interrupted build goes on where it stopped; the table is written at the end.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from search_spaces import Architecture, InputError, SearchSpace, get_space
from search_spaces.files import replacing

SPACE_OPTIONS: dict[str, Any] = {"channels": 8, "cells": 1, "input_shape": [1, 8, 8], "num_classes": 10, "prune": True}
SEEDS = (0, 1)
LATENCY_PASSES = 3
DATA = Path(__file__).parent / "data"

Progress = Callable[[str, int, int], None]


def distinct_architectures(space: SearchSpace) -> list[Architecture]:
    """The first architecture of every different text, in the order of enumeration."""
    found: dict[str, Architecture] = {}
    for arch in space.enumerate():
        found.setdefault(space.to_text(arch), arch)
    return list(found.values())


def build(folder: Path, *, stages: tuple[str, ...] = ("accuracy", "latency"), progress: Progress | None = None) -> Path:
    """Train and time everything (about two hours on one core), resuming from the journals in `folder`.

    Accuracy and latency are separate stages, because latencies want a machine that does nothing else. Returns the
    table's path; the table is written once both stages are complete.
    """
    folder.mkdir(parents=True, exist_ok=True)
    space = get_space("nasbench201", **SPACE_OPTIONS)
    archs = distinct_architectures(space)
    names = [space.format(arch) for arch in archs]
    if "accuracy" in stages:
        _accuracies(folder / "accuracy.jsonl", space, archs, names, progress)
    if "latency" in stages:
        for number in range(LATENCY_PASSES):
            _latencies(folder / f"latency{number}.jsonl", space, archs, names, progress)
    return _write(folder, space, archs, names)


def read_journal(path: Path) -> dict[str, Any]:
    """What a journal holds; a last line cut off by a kill is dropped."""
    found: dict[str, Any] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                name, value = json.loads(line)
            except ValueError:
                continue
            found[name] = value
    return found


def _missing(path: Path, names: list[str], seed: int, what: str, progress: Progress | None) -> Iterator[int]:
    """Positions that the journal lacks, in random order, so that a part of it is a random sample."""
    done = read_journal(path)
    if path.exists() and not path.read_bytes().endswith(b"\n"):
        with path.open("a") as journal:
            journal.write("\n")
    order = [int(i) for i in np.random.default_rng(seed).permutation(len(names)) if names[int(i)] not in done]
    for count, i in enumerate(order):
        if progress:
            progress(what, len(names) - len(order) + count, len(names))
        yield i


def _append(path: Path, name: str, value: object) -> None:
    with path.open("a") as journal:
        journal.write(json.dumps([name, value]) + "\n")


def _accuracies(
    path: Path, space: SearchSpace, archs: list[Architecture], names: list[str], progress: Progress | None
) -> None:
    import torch

    from nas.training import train_digits

    torch.set_num_threads(1)
    for i in _missing(path, names, 0, "training", progress):
        _append(path, names[i], train_digits(space.graph(archs[i]), SEEDS))


def _latencies(
    path: Path, space: SearchSpace, archs: list[Architecture], names: list[str], progress: Progress | None
) -> None:
    from nas.latency import measure_latency

    for i in _missing(path, names, int(path.stem[-1]), f"timing ({path.stem})", progress):
        _append(path, names[i], measure_latency(space.to_onnx(archs[i])))


def _write(folder: Path, space: SearchSpace, archs: list[Architecture], names: list[str]) -> Path:
    """The table (`digits201.csv.gz`) and the measured half of its card (`digits201.json`)."""
    accuracy = read_journal(folder / "accuracy.jsonl")
    latency = [read_journal(folder / f"latency{number}.jsonl") for number in range(LATENCY_PASSES)]
    complete = [n for n in names if n in accuracy and all(n in journal for journal in latency)]
    if len(complete) < len(names):
        raise InputError(
            f"{folder}: {len(complete)} of {len(names)} networks are trained and timed; run the build again to go on"
        )
    seeds = np.array([accuracy[n] for n in names])
    passes = np.array([[journal[n] for journal in latency] for n in names])
    rows = io.StringIO()
    writer = csv.writer(rows, lineterminator="\n")
    columns = [f"digits_accuracy_seed{s}" for s in SEEDS]
    writer.writerow(["arch", "digits_accuracy", *columns, "cpu_latency_ms", "params", "flops"])
    for i, name in enumerate(names):
        values = [f"{seeds[i].mean():.4f}", *(f"{v:.4f}" for v in seeds[i]), f"{np.median(passes[i]):.6g}"]
        writer.writerow([name, *values, space.params(archs[i]), space.flops(archs[i])])
    path = folder / "digits201.csv.gz"
    with replacing(path) as file:
        file.write_bytes(gzip.compress(rows.getvalue().encode(), mtime=0))
    with replacing(folder / "digits201.json") as file:
        file.write_text(json.dumps(_card(seeds, passes), indent=1) + "\n")
    return path


def _card(seeds: np.ndarray, passes: np.ndarray) -> dict[str, Any]:
    from dataclasses import asdict

    import onnxruntime
    import torch
    from scipy.stats import kendalltau

    from nas.training import DigitsTask

    def tau(a: np.ndarray, b: np.ndarray) -> float:
        return round(float(kendalltau(a, b).statistic), 4)

    return {
        "space": "nasbench201",
        "space_options": SPACE_OPTIONS,
        "rows": len(seeds),
        "command": "nas benchmarks build digits201",
        "accuracy": {"task": asdict(DigitsTask()), "seeds": list(SEEDS), "tau_between_seeds": tau(*seeds.T)},
        "latency": {
            "how": "ONNX Runtime, CPU, batch 1, one thread, 10 warm-up runs, median of 60 runs, median of "
            f"{LATENCY_PASSES} passes over all networks",
            "tau_between_passes": tau(passes[:, 0], passes[:, 1]),
        },
        "hardware": _processor(),
        "software": {"torch": torch.__version__, "onnxruntime": onnxruntime.__version__},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
