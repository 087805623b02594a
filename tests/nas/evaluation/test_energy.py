"""Energy by RAPL, with counters that a thread advances as a processor's do."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from nas.evaluation import energy
from nas.evaluation.energy import measure_energy
from nas.evaluation.latency import LatencyTask
from nas.evaluation.measurement import Measurement
from search_spaces import InputError, get_space

SPACE = get_space("tiny-resnet")
IDLE_W, BUSY_W = 10.0, 30.0


@pytest.fixture
def powercap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(energy, "POWERCAP", tmp_path)
    return tmp_path


@pytest.fixture
def package(powercap: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of 10 W, and of 30 W while this process computes; its counter overflows."""
    domain = powercap / "intel-rapl:0"
    (domain / "intel-rapl:0:0").mkdir(parents=True)
    (domain / "max_energy_range_uj").write_text("2000000")
    monkeypatch.setattr(energy, "WINDOW_S", 0.1)
    joules, last = [1.0], [time.perf_counter()]
    sleeping, sleep = [False], time.sleep

    def counted() -> str:
        now = time.perf_counter()
        joules[0] += (IDLE_W if sleeping[0] else BUSY_W) * (now - last[0])
        last[0] = now
        return str(1e6 * (joules[0] % 2.0))

    def idle(seconds: float) -> None:
        counted()
        sleeping[0] = True
        sleep(seconds)
        counted()
        sleeping[0] = False

    monkeypatch.setattr("time.sleep", idle)
    read = Path.read_text
    monkeypatch.setattr(
        Path,
        "read_text",
        lambda path, *args, **kwargs: (
            counted() if path.name == "energy_uj" else read(path, *args, **kwargs)
        ),
    )
    return domain


def test_energy_is_that_of_the_inferences_alone(package: Path) -> None:
    model = SPACE.to_onnx(SPACE.sample(np.random.default_rng(0)))
    begun = time.perf_counter()
    measured = measure_energy(model, LatencyTask(warmup=1))
    assert measured.low <= measured.median <= measured.high
    # An inference lasts some milliseconds at 20 W more than idle.
    assert 0.1 < measured.median < 20 * 1e3 * (time.perf_counter() - begun)


def test_a_machine_without_counters_is_refused_with_the_reason(powercap: Path) -> None:
    with pytest.raises(InputError, match=r"needs RAPL, .* virtual machines .* --metric-command"):
        Measurement(("cpu_energy_mj",))


def test_counters_that_may_not_be_read_are_refused_with_the_remedy(powercap: Path) -> None:
    (powercap / "intel-rapl:0").mkdir()
    with pytest.raises(InputError, match="for administrators only: sudo chmod"):
        Measurement(("cpu_energy_mj",))
