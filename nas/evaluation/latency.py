"""Latency of ONNX models in ONNX Runtime, measured so that the value holds.

Sixty inferences in a row last milliseconds, and say nothing of the next minute: clock rate, caches
and neighbours change. So a measurement here is made of several short windows:

    window 1:  reference, network A, reference, network B, reference, …
    window 2:  reference, network A, …

1. Windows are spread over time, and interleaved over networks if there are several.
2. Each network's window stands between two of a reference network, the same on every machine. Their
   ratio stays when the machine as a whole gets slower. The latency is the median ratio, times
   the reference's latency, which is measured once per machine and kept in the user's cache folder.
3. Windows count if the reference was as fast after them as before. More are made while these are
   few, or differ.
4. On one thread of a CPU, the thread's own time counts, which leaves out waiting for a core. On an
   idle machine this is the wall time. A window's value is the 10 % quantile of its inferences.
5. The interval is for a later measurement. It follows from the spread between the windows, and from
   what changes within hours (`DRIFT`).
6. Nothing of ours computes meanwhile (`nas.evaluation.machine.measuring`). If other programs do,
   the result says so.

`experiments/latencies.py` measures how well it holds.
"""

from __future__ import annotations

import io
import json
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nas.evaluation.machine import OtherLoad, cache_folder, measuring, processor, versions
from search_spaces.common.errors import InputError, unknown
from search_spaces.common.files import replacing
from search_spaces.common.progress import Progress

if TYPE_CHECKING:
    import onnx
    import onnxruntime

CPU = "CPUExecutionProvider"
WINDOWS = 6
MAX_ROUNDS = 4  # so many times as many windows, if they are disturbed or differ
STEADY = 0.05  # change of the reference, as a logarithm, during a window that counts
TARGET_ERROR = 0.01  # standard error of a measurement, above which windows are added
WINDOW_S = 0.015  # a window has enough inferences to last this long
PAUSE_S = 0.05  # between two rounds of windows
WINDOW_WARMUP = 2  # untimed inferences that begin each window
TYPICAL = 0.1  # quantile of a window's inferences that is its value
CALIBRATION_WINDOWS = 30  # of the reference network, once per machine
DRIFT = 0.025  # standard deviation of log latency between hours that windows do not show
COVERAGE = 0.9  # of the interval for a later measurement
BUSY_CORES = 0.5  # cores used by others, above which a result says so
_TYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16}
_INTEGERS = {"tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": np.bool_}

log = logging.getLogger(__name__)


class Latency(NamedTuple):
    """Time of one inference in milliseconds, with an interval.

    Attributes:
        median: median over the windows, or over the measurements of a device's command.
        low: lower end of the interval that `meaning` describes.
        high: its upper end.
        meaning: what the interval is.
    """

    median: float
    low: float
    high: float
    meaning: str = ""


@dataclass(frozen=True)
class LatencyTask:
    """How latency is measured.

    Args:
        batch: samples per inference.
        threads: threads of ONNX Runtime.
        warmup: untimed inferences before the first window.
        runs: timed inferences, at least; fast networks get more.
        provider: execution provider of ONNX Runtime.
        windows: least number of windows, which share the runs. From one window, the interval is only
            the 10 % and 90 % quantile of its inferences.

    Raises:
        InputError: a number is out of range.
    """

    batch: int = 1
    threads: int = 1
    warmup: int = 10
    runs: int = 60
    provider: str = CPU
    windows: int = WINDOWS

    def __post_init__(self) -> None:
        for name, least in {"batch": 1, "threads": 1, "warmup": 0, "runs": 1, "windows": 1}.items():
            if getattr(self, name) < least:
                raise InputError(
                    f"latency with {name} = {getattr(self, name)}: it must be at least {least}"
                )

    @property
    def metric(self) -> str:
        """Metric name of the latency on this provider: `cpu_latency_ms`, `cuda_latency_ms`, …"""
        return f"{self.provider.removesuffix('ExecutionProvider').lower()}_latency_ms"


def measure_latency(model: onnx.ModelProto) -> float:
    """Time of one inference in ms: one sample on one CPU thread."""
    return time_model(model).median


def time_model(model: onnx.ModelProto, task: LatencyTask | None = None) -> Latency:
    """Measure the latency of a model on Gaussian noise, with all graph optimizations.

    Raises:
        InputError: the provider is not available, or ONNX Runtime cannot run the model.
    """
    return time_serialized([model.SerializeToString()], task or LatencyTask())[0]


def time_serialized(
    models: Sequence[bytes],
    task: LatencyTask,
    progress: Progress | None = None,
) -> list[Latency]:
    """Measure the latencies of n serialized models in one interleaved pass.

    Args:
        models: the serialized models, which all stay open.
        task: how they are measured.
        progress: called with "windows", the number of finished rounds of windows and the number
            of rounds.

    Raises:
        InputError: the provider is not available, or ONNX Runtime cannot run a model.
    """
    return time_interleaved([onnx_timer(model, task) for model in models], task, progress)


def time_interleaved(
    timers: Sequence[Timer],
    task: LatencyTask,
    progress: Progress | None = None,
) -> list[Latency]:
    """Measure n networks in windows that alternate with those of the reference network.

    Args:
        timers: run the networks, in ONNX Runtime or another runtime.
        task: how they are measured. Its provider and threads are those of the reference network.
        progress: see `time_serialized`.
    """
    for timer in timers:
        timer.run(task.warmup)
    nominal = reference_latency(task.provider, task.threads)
    reference = _reference_timer(task.provider, task.threads)

    # For each network its windows: logarithm of the ratio to the reference, and how much the speed
    # of the reference changed meanwhile.
    windows: list[list[tuple[float, float]]] = [[] for _ in timers]
    with measuring():
        load = OtherLoad()
        for number in range(1 if task.windows == 1 else MAX_ROUNDS * task.windows):
            if number >= task.windows and all(_is_enough(own, task.windows) for own in windows):
                break
            if progress:
                progress("windows", min(number, task.windows), task.windows)
            if number:
                time.sleep(PAUSE_S)
            before = _typical(reference.window())
            for timer, own in zip(timers, windows, strict=True):
                times = timer.window()
                after = _typical(reference.window())
                # The geometric mean of both neighbours cancels a steady change of speed.
                ratio = math.log(_typical(times) / math.sqrt(before * after))
                own.append((ratio, abs(math.log(after / before))))
                timer.last = times
                before = after
        others = load.cores()
    return [
        _latency(nominal * np.exp(_steadiest(own, task.windows)), timer.last, _noted(others))
        for timer, own in zip(timers, windows, strict=True)
    ]


def _is_enough(windows: Sequence[tuple[float, float]], least: int) -> bool:
    """True if the steady windows are as many as requested, and agree."""
    steady = np.array([ratio for ratio, change in windows if change <= STEADY])
    if len(steady) < least:
        return False
    return bool(_deviation(steady) / math.sqrt(len(steady)) <= TARGET_ERROR)


def _steadiest(windows: Sequence[tuple[float, float]], least: int) -> np.ndarray:
    """Logarithms of the ratios (w,) of windows during which the machine's speed stayed.

    At least `least` are returned, those of the smallest change.
    """
    ordered = sorted(windows, key=lambda window: window[1])
    steady = [ratio for ratio, change in ordered if change <= STEADY]
    return np.array(steady if len(steady) >= least else [ratio for ratio, _ in ordered[:least]])


def _deviation(logarithms: np.ndarray) -> float:
    """Standard deviation of logarithms (w,) around their median; 0 for one value."""
    deviations = logarithms - np.median(logarithms)
    return float(np.sqrt((deviations**2).sum() / max(1, len(logarithms) - 1)))


def _latency(windows: np.ndarray, inferences: np.ndarray, note: str) -> Latency:
    """The latency from its windows.

    Args:
        windows: (w,) latency of each window in ms.
        inferences: (r,) times of the last window's inferences.
        note: what to add to the meaning of the interval.
    """
    from scipy.special import ndtri, stdtrit  # of scipy.stats, which takes a second to import

    median = float(np.median(windows))
    if len(windows) == 1:
        quantiles = np.quantile(inferences, [0.1, 0.9]) / _typical(inferences)
        low, high = (median * quantiles).tolist()
        meaning = f"10 % and 90 % quantile of {len(inferences)} runs in one window{note}"
        return Latency(median, min(low, median), max(high, median), meaning)

    # 1. Spread of the windows around their median, as a standard deviation of logarithms.
    between = _deviation(np.log(windows))
    # 2. Standard errors of a measurement: of a median of windows (√(π/2) that of a mean), estimated
    # from few, and of the drift, which is known.
    error = between * math.sqrt(math.pi / 2 / len(windows))
    quantile = (1 + COVERAGE) / 2
    students_t = stdtrit(len(windows) - 1, quantile)
    width = math.hypot(students_t * error, ndtri(quantile) * DRIFT)
    # 3. A later measurement varies as this one does: their difference has twice its variance.
    width *= math.sqrt(2)
    meaning = (
        f"{COVERAGE:.0%} interval for a later measurement; {len(windows)} windows differ by "
        f"±{between:.1%}{note}"
    ).replace("%", " %")
    return Latency(median, median * math.exp(-width), median * math.exp(width), meaning)


def _noted(cores: float) -> str:
    """A note for a measurement on a machine that was busy otherwise; "" for an idle one."""
    if cores < BUSY_CORES:
        return ""
    _warn_once("other programs compute on this machine: latencies are less certain")
    return f"; other programs used {cores:.1f} cores meanwhile"


@cache
def _warn_once(text: str) -> None:
    log.warning(text)


# --- windows


class Timer:
    """Times inferences of one network.

    Args:
        infer: runs one inference.
        task: how many runs a window has at least.
        clock: returns seconds: the wall's, or those that a core has computed.
    """

    def __init__(
        self, infer: Callable[[], object], task: LatencyTask, clock: Callable[[], float]
    ) -> None:
        self._infer, self._clock = infer, clock
        self._least = -(-task.runs // task.windows)  # inferences per window
        self.last = np.empty(0)  # (r,) times of the last window

    def run(self, times: int) -> None:
        for _ in range(times):
            self._infer()

    def window(self) -> np.ndarray:
        """(r,) times of inferences in ms."""
        self.run(WINDOW_WARMUP)
        times: list[float] = []
        end = time.perf_counter() + WINDOW_S
        while len(times) < self._least or time.perf_counter() < end:
            start = self._clock()
            self._infer()
            times.append(self._clock() - start)
        return 1e3 * np.array(times)


def onnx_timer(model: bytes, task: LatencyTask) -> Timer:
    """Times a serialized model in ONNX Runtime, on Gaussian noise.

    Raises:
        InputError: the provider is not available, or ONNX Runtime cannot run the model.
    """
    session = open_session(model, task.threads, task.provider)
    feed = random_inputs(session, task.batch)
    is_alone = task.provider == CPU and task.threads == 1
    clock = time.thread_time if is_alone else time.perf_counter
    return Timer(lambda: session.run(None, feed), task, clock)


def _typical(times: np.ndarray) -> float:
    """A window's value: most of its inferences are undisturbed, some are interrupted."""
    return float(np.quantile(times, TYPICAL))


# --- the reference network


@cache
def _reference_timer(provider: str, threads: int) -> Timer:
    """A convolutional network of 0.1 to 1 ms on a processor of today."""
    from search_spaces.ir.builder import Network
    from search_spaces.ir.onnx import write_model

    net = Network((3, 32, 32), 10)
    values = net.input
    for _ in range(4):
        values = net.conv_bn_relu(values, 16)
    model = io.BytesIO()
    write_model(net.graph(net.classifier(values)), model)  # a user's limit of weights is not for it
    timer = onnx_timer(model.getvalue(), LatencyTask(threads=threads, provider=provider, runs=1))
    timer.run(50)
    return timer


@cache
def reference_latency(provider: str = CPU, threads: int = 1) -> float:
    """Latency of the reference network on this machine in ms.

    It is measured once and kept in the user's cache folder, so that all latencies of a machine have
    the same unit. Machines that share this folder share the values of equal processors.
    """
    name = f"{processor()}, ONNX Runtime {versions()['onnxruntime']}, {provider}, {threads} threads"
    path = cache_folder() / "latency_reference.json"
    if name in (stored := _stored_references(path)):
        return stored[name]
    timer = _reference_timer(provider, threads)
    with measuring():
        stored = _stored_references(path)  # another process may have measured it meanwhile
        if name in stored:
            return stored[name]
        windows = []
        for _ in range(CALIBRATION_WINDOWS):
            time.sleep(PAUSE_S)
            windows.append(_typical(timer.window()))
        stored[name] = float(np.quantile(windows, TYPICAL))
        try:
            with replacing(path) as temporary:
                temporary.write_text(json.dumps(stored, indent=1) + "\n")
        except InputError as error:  # every process then has a unit of its own
            log.warning("%s: latencies of several processes differ more", error)
    return stored[name]


def _stored_references(path: Path) -> dict[str, float]:
    """Latencies of the reference network by machine; none if the file is missing or damaged."""
    try:
        return {str(name): float(value) for name, value in json.loads(path.read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


# --- sessions


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
    """Random values for every input of a session.

    Floats are Gaussian noise, integers and booleans are zeros. The first dimension of each input is
    the batch.

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


def with_batch(model: onnx.ModelProto, batch: int) -> onnx.ModelProto:
    """A copy in which this batch size replaces symbolic ones of inputs and outputs."""
    fixed = type(model).FromString(model.SerializeToString())
    for value in [*fixed.graph.input, *fixed.graph.output]:
        dims = value.type.tensor_type.shape.dim
        if dims and dims[0].dim_param:
            dims[0].dim_value = batch
    return fixed
