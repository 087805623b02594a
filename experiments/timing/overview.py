"""Overview of speed: `python -m experiments.timing.overview` (minutes)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from experiments.runner import Quick, run_command
from nas.cli.console import print_table
from search_spaces import get_space

COUNT, LEARNED = 1000, 781
QUICK_COUNT, QUICK_LEARNED = 20, 20


def _seconds(action: Callable[[], object], repeats: int = 3) -> float:
    """Shortest wall time of a few runs."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        action()
        times.append(time.perf_counter() - started)
    return min(times)


def main(quick: Quick = False) -> None:
    """Print one table of measured speeds."""
    import torch

    import predictors
    from nas.benchmarks import load_benchmark
    from predictors.base import STREAM_CHUNK

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    space = get_space("nasbench201")
    rng = np.random.default_rng(0)
    count, few = (QUICK_COUNT, QUICK_LEARNED) if quick else (COUNT, LEARNED)
    archs = [space.sample(rng) for _ in range(count)]
    texts = [space.to_text(arch) for arch in archs]
    every = texts if quick else (space.to_text(arch) for arch in space.enumerate())
    many = list(dict.fromkeys(every))
    cores = os.cpu_count() or 1
    gnn = predictors.create("gnn")
    learned = [space.sample(rng) for _ in range(few)]
    values = {"metric": np.array([float(space.flops(arch)) for arch in learned])}

    def learn() -> None:
        """Write and read the texts, fit, and estimate once."""
        gnn.fit([space.to_text(arch) for arch in learned], values).estimate(texts[:1], ["metric"])

    rlm = predictors.create("rlm").fit(
        [space.to_text(arch) for arch in learned[:500]], {"metric": values["metric"][:500]}
    )
    reading = _seconds(lambda: rlm.estimate(texts, ["metric"]), repeats=1)

    learning = _seconds(learn, repeats=1)
    # Start the processes
    list(gnn.estimate_stream(texts[:1] * STREAM_CHUNK * cores, ["metric"], jobs=cores))
    estimating = _seconds(
        lambda: list(gnn.estimate_stream(many, ["metric"], jobs=cores)), repeats=1
    )
    predicting = _seconds(lambda: gnn.predict(texts, ["metric"], samples=16), repeats=1)

    def query() -> None:
        table = load_benchmark("digits201")
        table.query(table.architectures[17])

    query()
    rows: list[tuple[str, float, str]] = [
        ("nas --help", _seconds(lambda: _run("-m", "nas.cli", "--help")), "s"),
        ("import search_spaces", _seconds(lambda: _run("-c", "import search_spaces")), "s"),
        (
            "random choices",
            count / _seconds(lambda: [space.sample(rng) for _ in range(count)]),
            "networks/s",
        ),
        (
            "choices → text",
            count / _seconds(lambda: [space.to_text(arch) for arch in archs]),
            "texts/s",
        ),
        (
            "choices → ONNX model",
            len(archs[:200]) / _seconds(lambda: [space.to_onnx(a) for a in archs[:200]]),
            "models/s",
        ),
        ("ResNet-50 of PyTorch → text", 1e3 * _seconds(_resnet_text), "ms"),
        ("digits201: load and query", 1e3 * _seconds(query), "ms"),
        ("RLM's point estimates of new texts, 500 examples", count / reading, "networks/s"),
        (
            "RLM decodes a metric, 64 samples, text read",
            count / _seconds(_decoding(rlm, texts, 64)),
            "networks/s",
        ),
        (
            "RLM decodes a metric, 16 samples, text read",
            count / _seconds(_decoding(rlm, texts, 16)),
            "networks/s",
        ),
        (f"GNN learns {few} networks, texts written and read", learning, "s"),
        (
            f"GNN's point estimates of {len(many)} different networks, {cores} processes",
            len(many) / estimating,
            "networks/s",
        ),
        ("GNN predicts a metric of new texts, 16 samples", count / predicting, "networks/s"),
        (
            "GNN predicts a metric, 16 samples, text read",
            count / _seconds(lambda: gnn.predict(texts, ["metric"], samples=16)),
            "networks/s",
        ),
    ]
    table: list[dict[str, Any]] = [
        {"what": what, "measured": value, "unit": unit} for what, value, unit in rows
    ]
    print_table("Speed", table)


def _run(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)


def _resnet_text() -> str:
    """Build a ResNet-50 module and write its text."""
    from search_spaces.ir.pytorch import record
    from search_spaces.ir.pytorch.libraries import build
    from search_spaces.ir.text import compact, write

    return write(compact(record(*build("transformers", "ResNetForImageClassification"))))


def _decoding(rlm: Any, texts: list[str], samples: int) -> Callable[[], object]:
    return lambda: rlm.predict(texts, ["metric"], samples=samples)


if __name__ == "__main__":
    run_command(main)
