"""Energy of an inference by RAPL, the counters of x86 processors, in ONNX Runtime on the CPU.

The counters are those of whole processor packages. So the machine must be idle otherwise, and the
power of an idle package, measured just before, is subtracted.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nas.evaluation.latency import Latency, LatencyTask, open_session, random_inputs
from nas.evaluation.machine import measuring
from search_spaces.common.errors import InputError, MeasurementError

if TYPE_CHECKING:
    import onnx

METRIC = "cpu_energy_mj"
POWERCAP = Path("/sys/class/powercap")
WINDOW_S = 0.3  # the counters advance once per millisecond
WINDOWS = 5


def check_energy() -> None:
    """Raise InputError with the reason if this machine has no counters, or none that may be read."""
    domains = _domains()
    if not domains:
        raise InputError(
            f"{METRIC} needs RAPL, and {POWERCAP} has no package of a processor: virtual machines "
            "and Arm processors have none; measure with --metric-command"
        )
    try:
        _joules(domains)
    except OSError as error:
        raise InputError(
            f"{METRIC} needs to read {domains[0] / 'energy_uj'}, which is for administrators only: "
            f"sudo chmod a+r {POWERCAP}/*/energy_uj"
        ) from error


def measure_energy(model: onnx.ModelProto, task: LatencyTask) -> Latency:
    """Energy of one inference in mJ, above that of the idle machine.

    Returns the median, smallest and largest value of `WINDOWS` windows.

    Raises:
        InputError: this machine does not tell, or ONNX Runtime cannot run the model.
        MeasurementError: a busy machine drew less power than while it was idle.
    """
    check_energy()
    domains = _domains()
    session = open_session(model.SerializeToString(), task.threads)
    feed = random_inputs(session, task.batch)
    for _ in range(task.warmup):
        session.run(None, feed)
    energies = []
    with measuring():
        for _ in range(WINDOWS):
            # 1. The idle machine, then the network for as long.
            before = _joules(domains)
            start = time.perf_counter()
            time.sleep(WINDOW_S)
            idle = _difference(domains, before) / (time.perf_counter() - start)  # watts
            before = _joules(domains)
            start = time.perf_counter()
            runs = 0
            while time.perf_counter() - start < WINDOW_S:
                session.run(None, feed)
                runs += 1
            # 2. Millijoules per inference, without the idle power.
            seconds = time.perf_counter() - start
            energies.append(1e3 * (_difference(domains, before) - idle * seconds) / runs)
    low, median, high = np.quantile(energies, [0, 0.5, 1]).tolist()
    if not median > 0:
        raise MeasurementError(
            f"{METRIC}: the processor drew no more power than while it was idle; other programs "
            "compute on this machine"
        )
    meaning = f"{WINDOWS} windows, without the power of the idle processor"
    return Latency(median, low, high, meaning)


def _domains() -> list[Path]:
    """The folders of whole packages; those inside them, such as cores, have two colons."""
    return sorted(path for path in POWERCAP.glob("intel-rapl:*") if path.name.count(":") == 1)


def _joules(domains: list[Path]) -> list[float]:
    return [float((domain / "energy_uj").read_text()) / 1e6 for domain in domains]


def _difference(domains: list[Path], before: list[float]) -> float:
    """Joules since `before`, of all domains; a counter starts again at 0 after its largest value."""
    total = 0.0
    for domain, then, now in zip(domains, before, _joules(domains), strict=True):
        if now < then:
            now += float((domain / "max_energy_range_uj").read_text()) / 1e6
        total += now - then
    return total
