"""Claims about measured latency: it grows with the work, has a spread, and names models that cannot
run.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from threading import Event, Thread
from time import sleep
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from nas.evaluation import latency
from nas.evaluation.latency import (
    LatencyTask,
    measure_latency,
    open_session,
    random_inputs,
    time_model,
    time_serialized,
)
from nas.evaluation.machine import MeasurementPause, OtherLoad, measuring
from search_spaces.common.errors import InputError
from search_spaces.ir.builder import Network
from search_spaces.ir.onnx import to_model

QUICK = LatencyTask(warmup=2, runs=10, windows=2)


def network(width: int, size: int = 16) -> onnx.ModelProto:
    net = Network((3, size, size), 10)
    return to_model(net.graph(net.classifier(net.conv(net.conv(net.input, width), width))))


def one_node(op: str, shape: list[int | str], kind: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """A model of a single operator."""
    values = [helper.make_tensor_value_info(name, kind, shape) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"])], "g", values[:1], values[1:])
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])


def test_more_work_takes_longer() -> None:
    assert 3 * time_model(network(4), QUICK).median < time_model(network(128), QUICK).median
    assert (
        time_model(network(64), QUICK).median
        < time_model(network(64), LatencyTask(batch=16, runs=10, windows=2)).median
    )


def test_spread_encloses_the_median() -> None:
    measured = time_model(network(8), QUICK)
    assert 0 < measured.low <= measured.median <= measured.high
    assert measure_latency(network(8)) > 0


def test_metric_is_named_after_the_provider() -> None:
    assert LatencyTask().metric == "cpu_latency_ms"
    assert LatencyTask(provider="CUDAExecutionProvider").metric == "cuda_latency_ms"


def test_provider_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(InputError, match=r"'AbacusExecutionProvider'.*CPUExecutionProvider"):
        time_model(network(4), LatencyTask(provider="AbacusExecutionProvider"))


@pytest.mark.parametrize("setting", ["batch", "threads", "runs"])
def test_settings_must_be_positive(setting: str) -> None:
    with pytest.raises(InputError, match=f"{setting} = 0: it must be at least 1"):
        LatencyTask(**dict[str, Any]({setting: 0}))


def test_model_that_cannot_be_run_is_refused() -> None:
    with pytest.raises(InputError, match="ONNX Runtime cannot run the model"):
        time_model(one_node("NoSuchOperator", ["N", 3]), QUICK)


def test_integer_inputs_are_supported() -> None:
    session = open_session(one_node("Identity", ["N", 3], TensorProto.INT64).SerializeToString())
    assert random_inputs(session, 2)["x"].tolist() == [[0, 0, 0]] * 2


@pytest.mark.parametrize(
    ("shape", "kind", "message"),
    [
        (["N", "height"], TensorProto.FLOAT, "fix all sizes except the batch"),
        ([3, 4], TensorProto.FLOAT, "measure with batch = 3"),
        (["N", 2], TensorProto.STRING, "only numeric inputs"),
    ],
)
def test_inputs_that_cannot_be_generated_are_named(
    shape: list[int | str], kind: int, message: str
) -> None:
    with pytest.raises(InputError, match=f"input x .*{message}"):
        time_model(one_node("Identity", shape, kind), QUICK)


def test_several_networks_are_measured_in_one_interleaved_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[int] = []
    window = latency.Timer.window

    def noting(timer: latency.Timer) -> np.ndarray:
        order.append(id(timer))
        return window(timer)

    monkeypatch.setattr(latency.Timer, "window", noting)
    models = [network(width).SerializeToString() for width in (4, 8)]
    first, second = time_serialized(models, QUICK)
    names = {timer: "RAB"[i] for i, timer in enumerate(dict.fromkeys(order))}
    assert "".join(names[timer] for timer in order).endswith("RARBRRARBR")
    assert " windows differ by ±" in first.meaning
    assert first.median > 0 < second.median


def test_latency_is_relative_to_a_reference_beside_it_so_that_a_slower_machine_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    speed = [1.0]

    class Steady(latency.Timer):
        def __init__(self, ms: float) -> None:
            self.ms, self.last = ms, np.full(5, ms)

        def run(self, times: int) -> None: ...

        def window(self) -> np.ndarray:
            return np.full(5, self.ms * speed[0])

    monkeypatch.setattr(latency, "onnx_timer", lambda model, task: Steady(float(model)))
    monkeypatch.setattr(latency, "_reference_timer", lambda provider, threads: Steady(0.5))
    monkeypatch.setattr(latency, "reference_latency", lambda provider, threads: 0.5)
    quiet = time_serialized([b"2.0", b"3.0"], LatencyTask(windows=3))
    speed[0] = 1.7
    slow = time_serialized([b"2.0", b"3.0"], LatencyTask(windows=3))
    assert [one.median for one in quiet] == pytest.approx([2, 3])
    assert [one.median for one in slow] == pytest.approx([2, 3])


def test_interval_covers_later_measurements_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)

    def measured(spread: float) -> latency.Latency:
        drift = latency.DRIFT * rng.standard_normal()
        windows = np.exp(drift + spread * rng.standard_normal(latency.WINDOWS))
        return latency._latency(windows, np.ones(6), "")

    for spread in (0.01, 0.1):
        pairs = [(measured(spread), measured(spread)) for _ in range(400)]
        covered = np.mean([one.low <= later.median <= one.high for one, later in pairs])
        assert 0.85 <= covered <= 0.96


def test_windows_during_which_the_speed_changed_do_not_count_and_others_are_added() -> None:
    steady, disturbed = (0.7, 0.01), (1.5, 0.4)
    assert latency._is_enough([steady] * 3, 3)
    assert not latency._is_enough([steady, steady, disturbed], 3), "one more is needed"
    assert latency._is_enough([steady, steady, disturbed, steady], 3)
    assert not latency._is_enough([(0.5, 0.0), (0.9, 0.0), (0.7, 0.0)], 3), "they differ"
    assert latency._steadiest([disturbed, steady, steady, steady], 3).tolist() == [0.7] * 3
    assert latency._steadiest([disturbed, steady], 2).tolist() == [0.7, 1.5], "if there are no more"


def test_reference_is_measured_once_per_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAS_CACHE", str(tmp_path))
    monkeypatch.setattr(latency, "CALIBRATION_WINDOWS", 2)
    first = latency.reference_latency.__wrapped__()
    assert first == latency.reference_latency.__wrapped__()
    (tmp_path / "latency_reference.json").write_text("damaged")
    assert latency.reference_latency.__wrapped__() > 0


def test_trainings_wait_while_a_latency_is_measured() -> None:
    is_measured, done, finished = Event(), Event(), Event()

    def train() -> None:
        pause = MeasurementPause()
        is_measured.wait(10)
        pause()
        assert done.is_set()
        finished.set()

    thread = Thread(target=train)
    thread.start()
    with measuring():
        is_measured.set()
        sleep(0.3)
        done.set()
    thread.join(10)
    assert finished.is_set()


def test_result_says_that_other_programs_computed() -> None:
    assert latency._noted(0.1) == ""
    assert latency._noted(1.26) == "; other programs used 1.3 cores meanwhile"


def test_load_of_other_programs_is_counted_and_own_is_not() -> None:
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        load = OtherLoad()
        sleep(0.6)
        assert load.cores() > 0.2
    finally:
        busy.kill()
        busy.wait()
