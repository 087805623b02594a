"""Measures the latency of an ONNX model in ONNX Runtime."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from search_spaces.common.errors import InputError, unknown

if TYPE_CHECKING:
    import onnx
    import onnxruntime

CPU = "CPUExecutionProvider"
_TYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16}
_INTEGERS = {"tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": np.bool_}


class Latency(NamedTuple):
    """Wall time of one inference in milliseconds: median, 10 % and 90 % quantile over the runs."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class LatencyTask:
    """How latency is measured.

    Args:
        batch: samples per inference.
        threads: threads of ONNX Runtime.
        warmup: untimed inferences before the timed ones.
        runs: timed inferences.
        provider: execution provider of ONNX Runtime.

    Raises:
        InputError: a number is out of range.
    """

    batch: int = 1
    threads: int = 1
    warmup: int = 10
    runs: int = 60
    provider: str = CPU

    def __post_init__(self) -> None:
        for name, least in {"batch": 1, "threads": 1, "warmup": 0, "runs": 1}.items():
            if getattr(self, name) < least:
                raise InputError(
                    f"latency with {name} = {getattr(self, name)}: it must be at least {least}"
                )

    @property
    def metric(self) -> str:
        """Metric name of the latency on this provider: `cpu_latency_ms`, `cuda_latency_ms`, …"""
        return f"{self.provider.removesuffix('ExecutionProvider').lower()}_latency_ms"


def time_model(model: onnx.ModelProto, task: LatencyTask | None = None) -> Latency:
    """Time inferences on Gaussian noise after warm-up, with all graph optimizations.

    Raises:
        InputError: the provider is not available, or ONNX Runtime cannot run the model.
    """
    return time_serialized(model.SerializeToString(), task or LatencyTask())


def time_serialized(model: bytes, task: LatencyTask) -> Latency:
    """`time_model` for a serialized model."""
    session = open_session(model, task.threads, task.provider)
    feed = random_inputs(session, task.batch)
    for _ in range(task.warmup):
        session.run(None, feed)
    times = np.empty(task.runs)
    for i in range(task.runs):
        start = time.perf_counter()
        session.run(None, feed)
        times[i] = time.perf_counter() - start
    low, median, high = np.quantile(times * 1e3, [0.1, 0.5, 0.9])
    return Latency(float(median), float(low), float(high))


def measure_latency(model: onnx.ModelProto) -> float:
    """Median wall time of one inference in ms: one sample on one CPU thread."""
    return time_model(model).median


def check_provider(provider: str) -> None:
    """Raise InputError for an execution provider that ONNX Runtime lacks here."""
    import onnxruntime

    if provider not in onnxruntime.get_available_providers():
        raise unknown("execution provider", provider, onnxruntime.get_available_providers())


def open_session(
    model: bytes | str, threads: int = 1, provider: str = CPU
) -> onnxruntime.InferenceSession:
    """Open an inference session.

    Args:
        model: a serialized model or the path of a file.
        threads: intra-op and inter-op threads.
        provider: execution provider.

    Raises:
        InputError: the provider is not available, or ONNX Runtime cannot run the model.
    """
    import onnxruntime

    check_provider(provider)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = threads
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(model, options, providers=[provider])
    except Exception as error:  # ONNX Runtime's errors share no public base class
        raise InputError(
            f"ONNX Runtime cannot run the model: {' '.join(str(error).split())[:200]}"
        ) from error


def random_inputs(session: onnxruntime.InferenceSession, batch: int) -> dict[str, np.ndarray]:
    """Random values for every input of a session: Gaussian noise for floats, zeros for integers and
    booleans.

    The first dimension of each input is the batch.

    Raises:
        InputError: an input has another fixed batch size, a symbolic size beyond the batch, or a
            non-numeric type.
    """
    rng = np.random.default_rng(0)
    feed = {}
    for info in session.get_inputs():
        first, *rest = info.shape or [batch]
        if not all(isinstance(size, int) for size in rest):
            raise InputError(
                f"input {info.name} has shape {info.shape}: fix all sizes except the batch"
            )
        if isinstance(first, int) and first != batch:
            raise InputError(
                f"input {info.name} has shape {info.shape} with a fixed batch size: measure with "
                f"batch = {first}"
            )
        if info.type in _TYPES:
            feed[info.name] = rng.standard_normal((batch, *rest)).astype(_TYPES[info.type])
        elif info.type in _INTEGERS:
            feed[info.name] = np.zeros((batch, *rest), _INTEGERS[info.type])
        else:
            raise InputError(
                f"input {info.name} has type {info.type}; only numeric inputs are supported"
            )
    return feed
