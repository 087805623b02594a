"""Measured latency of an ONNX model in ONNX Runtime."""

from __future__ import annotations

import time

import numpy as np
import onnx


def measure_latency(
    model: onnx.ModelProto, *, batch: int = 1, threads: int = 1, warmup: int = 10, runs: int = 60
) -> float:
    """Median wall time of one inference on the CPU in milliseconds, after warm-up, all graph optimizations on."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    feed = {
        i.name: rng.standard_normal([batch if isinstance(d, str) else d for d in i.shape]).astype(np.float32)
        for i in session.get_inputs()
    }
    for _ in range(warmup):
        session.run(None, feed)
    times = np.empty(runs)
    for i in range(runs):
        start = time.perf_counter()
        session.run(None, feed)
        times[i] = time.perf_counter() - start
    return float(np.median(times) * 1e3)
