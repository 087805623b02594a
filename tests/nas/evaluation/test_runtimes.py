"""Runtimes besides ONNX Runtime: each installed one converts, agrees and is timed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
from onnx import helper

import nas
from nas.evaluation import child_process
from nas.evaluation.latency import LatencyTask
from nas.evaluation.measurement import Measurement
from nas.evaluation.runtimes import RUNTIME_METRICS, RUNTIMES, measuring
from nas.evaluation.runtimes.child import _difference
from nas.evaluation.runtimes.measuring import (
    RuntimeFailure,
    convert_for_runtime,
    measure_in_runtime,
    measure_memory_in_runtime,
)
from nas.evaluation.trainable import Trainable
from predictors.metrics import Metric
from search_spaces import get_space
from search_spaces.common.errors import InputError
from search_spaces.ir.builder import Network
from search_spaces.ir.onnx import to_model

QUICK = LatencyTask(warmup=1, runs=4, windows=2)


def network(width: int = 4) -> onnx.ModelProto:
    net = Network((3, 16, 16), 5)
    values = net.conv_bn_relu(net.input, width)
    return to_model(net.graph(net.classifier(net.conv_bn_relu(values, width, kernel=1))))


def without_kernel() -> onnx.ModelProto:
    """A model with an operator that no runtime knows."""
    inputs, outputs = (
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 4])] for name in "xy"
    )
    node = helper.make_node("Mystery", ["x"], ["y"], domain="unknown.example")
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("unknown.example", 1)]
    graph = helper.make_graph([node], "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.fixture(params=list(RUNTIMES))
def installed(request: pytest.FixtureRequest) -> str:
    try:
        RUNTIMES[request.param].check_installed(f"{request.param}_latency_ms")
    except InputError as error:
        pytest.skip(str(error))
    return str(request.param)


@pytest.fixture
def openvino() -> str:
    pytest.importorskip("openvino", reason="OpenVINO is not installed")
    return "openvino"


def test_compiled_networks_need_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    assert not RUNTIMES["torch_compile"].is_installed
    with pytest.raises(InputError, match=r"torch_compile_latency_ms needs a C\+\+ compiler"):
        RUNTIMES["torch_compile"].check_installed("torch_compile_latency_ms")


# --- every runtime


@pytest.mark.slow
def test_a_converted_network_computes_the_same_and_is_timed(installed: str) -> None:
    runtime = RUNTIMES[installed]
    result = measure_in_runtime(network(), installed, QUICK)
    assert 0 < result.latency.low <= result.latency.median <= result.latency.high
    assert result.difference <= runtime.tolerance
    assert (result.fallback_ops is not None) == runtime.tells_fallback
    if runtime.has_file:
        weights = 4 * (3 * 4 * 9 + 4 * 4 + 4 * 5)  # bytes of the kernels
        assert result.size_mb * 1e6 > weights


# --- what is the same for all


def test_metrics_of_runtimes_have_units_directions_and_prices() -> None:
    assert {f"{name}_latency_ms" for name in RUNTIMES} <= RUNTIME_METRICS.keys()
    for name in RUNTIME_METRICS:
        metric = Metric.parse(name)
        assert (metric.kind, metric.direction, metric.price) == ("measured", "minimize", "measured")
    assert Metric.parse("openvino_latency_ms").unit == "ms"


def test_a_larger_network_needs_more_time_and_room(openvino: str) -> None:
    small, large = (measure_in_runtime(network(width), openvino, QUICK) for width in (4, 256))
    assert large.latency.median > 1.5 * small.latency.median
    assert large.size_mb > 4 * small.size_mb


def test_peak_memory_grows_with_the_weights(openvino: str) -> None:
    net = Network((64,), 5)
    values = net.input
    for _ in range(4):
        values = net.linear(values, 1024)
    model = to_model(net.graph(net.linear(values, 5)))
    assert measure_memory_in_runtime(model, openvino) > 3 * 1024**2 * 4 / 1e6


def test_a_converted_file_is_kept_where_it_is_wanted(openvino: str, tmp_path: Path) -> None:
    model = tmp_path / "net.onnx"
    onnx.save(network(), model)
    file = convert_for_runtime(model, openvino, tmp_path)
    assert file.parent == tmp_path
    assert file.with_suffix(".bin").stat().st_size > 0


def test_an_operator_without_a_kernel_is_a_failed_measurement(openvino: str) -> None:
    with pytest.raises(RuntimeFailure, match=r"OpenVINO failed while converting: .*") as error:
        measure_in_runtime(without_kernel(), openvino, QUICK)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("import os; os.kill(os.getpid(), 11)", r"the process crashed \(SIGSEGV\)"),
        ("import sys; sys.exit('no room')", "the process failed with exit status 1: no room"),
        ("pass", "the process ended without a result"),
        ("import time; time.sleep(60)", "took more than 1 s"),
    ],
)
def test_a_converter_that_crashes_or_hangs_ends_with_a_line(
    script: str, reason: str, monkeypatch: pytest.MonkeyPatch, openvino: str
) -> None:
    monkeypatch.setattr(measuring, "CHILD", [sys.executable, "-c", script])
    begun = time.monotonic()
    with pytest.raises(RuntimeFailure, match=f"OpenVINO failed while starting: {reason}"):
        measure_in_runtime(network(), openvino, QUICK, timeout=1.0 if "sleep" in script else 60.0)
    assert time.monotonic() - begun < 30


@pytest.fixture
def pnnx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Replaces ncnn's converter by a shell script."""
    pytest.importorskip("ncnn", reason="ncnn is not installed")
    package = tmp_path / "packages" / "pnnx"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    paths = os.pathsep.join([str(package.parent), *filter(None, sys.path)])
    monkeypatch.setenv("PYTHONPATH", paths)

    def replace(script: str) -> None:
        program = package / "pnnx"
        program.write_text(f"#!/bin/sh\n{FILES_OF_PNNX}\n{script}\n")
        program.chmod(0o755)

    return replace


FILES_OF_PNNX = """
for argument in "$@"; do
    case $argument in ncnnparam=*) param=${argument#*=};; ncnnbin=*) weights=${argument#*=};; esac
done
"""
NO_KERNEL = r"7767517\n2 2\nInput in0 0 1 in0\nMystery m 1 1 in0 out0\n"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            "echo 'no op Mystery' >&2; exit 1",
            "converting: pnnx failed with exit status 1: no op Mystery",
        ),
        ("kill -SEGV $$", r"converting: pnnx crashed \(SIGSEGV\)"),
        ("exit 0", "converting: pnnx wrote no file"),
        (
            ": > $param; : > $weights",
            "loading: ncnn cannot read the converted network: parse magic",
        ),
        (
            f"printf '{NO_KERNEL}' > $param",
            "loading: ncnn cannot read the converted network: .*Mystery",
        ),
    ],
)
def test_what_goes_wrong_in_a_converter_of_its_own_is_said_in_a_line(
    script: str, reason: str, pnnx: Callable[[str], None]
) -> None:
    pnnx(script)
    with pytest.raises(RuntimeFailure, match=f"^ncnn failed while {reason}") as error:
        measure_in_runtime(network(), "ncnn", QUICK)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_a_converter_that_hangs_is_ended_with_what_it_started(
    pnnx: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "pid"
    pnnx(f"sleep 600 & echo $! > {own}; wait")
    for seconds in (4, 12, 60):  # on a busy machine, the converter starts later
        monkeypatch.setenv(child_process.TIMEOUT, str(seconds))
        with pytest.raises(RuntimeFailure, match=f": took more than {seconds} s") as error:
            measure_in_runtime(network(), "ncnn", QUICK)
        if own.exists() and own.read_text():
            break
    assert "ncnn failed while converting" in str(error.value)
    state = Path(f"/proc/{own.read_text().strip()}/stat")
    assert not state.exists() or ") Z " in state.read_text()


@pytest.mark.slow
def test_a_converter_ends_when_the_search_that_started_it_is_killed(
    pnnx: Callable[[str], None], tmp_path: Path
) -> None:
    own = tmp_path / "pid"
    pnnx(f"echo $$ > {own}.part; mv {own}.part {own}; exec sleep 600")
    code = (
        "from search_spaces import get_space\n"
        "from nas.evaluation.runtimes.measuring import measure_in_runtime\n"
        "space = get_space('tiny-resnet')\n"
        "measure_in_runtime(space.to_onnx(next(space.enumerate())), 'ncnn')\n"
    )
    search = subprocess.Popen([sys.executable, "-c", code], env=os.environ)
    deadline = time.monotonic() + 300  # on a busy machine
    while not own.exists():
        assert search.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    converter = psutil.Process(int(own.read_text()))
    search.kill()
    search.wait()
    assert not psutil.wait_procs([converter], timeout=20)[1], "the converter outlived the search"


def test_the_time_limit_of_converters_is_a_number_of_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(child_process.TIMEOUT, raising=False)
    assert child_process.default_timeout() == child_process.TIMEOUT_S
    monkeypatch.setenv(child_process.TIMEOUT, "90")
    assert child_process.default_timeout() == 90
    for text in ("soon", "0", "-1", "nan", "inf"):
        monkeypatch.setenv(child_process.TIMEOUT, text)
        with pytest.raises(InputError, match=rf"NAS_RUNTIME_TIMEOUT={text}: .* number of seconds"):
            child_process.default_timeout()


def test_outputs_are_compared_relative_to_the_largest_one() -> None:
    expected = [np.array([[1.0, -4.0]])]
    assert _difference(expected, [np.array([1.0, -4.4])]) == pytest.approx(0.1)
    with pytest.raises(InputError, match="2 outputs, and the ONNX model 1"):
        _difference(expected, [np.zeros(2), np.zeros(2)])
    with pytest.raises(InputError, match=r"shape \(3,\), not \(1, 2\)"):
        _difference(expected, [np.zeros(3)])
    assert np.isnan(_difference(expected, [np.array([np.nan, 0.0])]))


def test_a_missing_runtime_is_refused_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(type(RUNTIMES["openvino"]), "modules", ("not_installed_here",))
    with pytest.raises(
        InputError, match=r"openvino_size_mb needs OpenVINO .*pip install 'rlm-nas\[openvino\]'"
    ):
        Measurement(("params", "openvino_size_mb"))


# --- in a measurement and in a search


def test_one_measurement_tells_all_quantities_of_a_runtime(openvino: str) -> None:
    space = get_space("tiny-resnet")
    architecture = space.sample(np.random.default_rng(0))
    metrics = ("openvino_latency_ms", "openvino_size_mb", "size_mb", "params")
    measured = Measurement(metrics, latency=QUICK)
    values = measured(Trainable.of(space, architecture), space.to_onnx(architecture)).values
    assert list(values) == list(metrics)
    assert values["openvino_latency_ms"].low < values["openvino_latency_ms"].high
    assert values["size_mb"].value == pytest.approx(4e-6 * space.params(architecture), rel=0.2)


def test_networks_that_cannot_be_converted_are_not_trained(
    monkeypatch: pytest.MonkeyPatch, openvino: str
) -> None:
    """Every second network crashes its converter."""
    from nas.evaluation.runtimes.measuring import RuntimeResult

    trained: list[object] = []
    latency = nas.evaluation.latency.Latency(1.0, 0.9, 1.1)

    def measure(model: onnx.ModelProto, name: str, task: LatencyTask) -> RuntimeResult:
        if len(model.graph.node) % 2:
            raise RuntimeFailure("OpenVINO failed while converting: no kernel for Odd")
        return RuntimeResult(latency, None, 1.0, 0.0)

    def evaluate(model: object, architecture: object, report: object) -> dict[str, float]:
        trained.append(architecture)
        return {"accuracy": 50.0 + len(trained)}

    monkeypatch.setattr(measuring, "measure_in_runtime", measure)
    objectives = {"accuracy": "max", "openvino_latency_ms": "min"}
    problem = nas.Problem("tiny-resnet", evaluate, objectives)
    result = nas.search(problem, sampler="random", evaluations=4)
    assert len(trained) == 4
    assert len(result.failures) > 0
    for failure in result.failures:
        assert failure["reason"].endswith("OpenVINO failed while converting: no kernel for Odd")
    assert not result.ruled_out


# What the converter does in a search: it crashes, hangs and writes half of a file, then works.
TROUBLE = """
echo >> {calls}
case $(wc -l < {calls}) in
    1) kill -SEGV $$;;
    2) sleep 600;;
    3) {pnnx} "$@"; head -c 100 $param > half; mv half $param;;
    4) {pnnx} "$@"; head -c 100 $weights > half; mv half $weights;;
    *) exec {pnnx} "$@";;
esac
"""


@pytest.mark.slow
def test_a_search_goes_on_after_a_converter_in_trouble_and_reports_it(
    pnnx: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = find_spec("pnnx")
    assert spec is not None
    assert spec.origin is not None
    program = Path(spec.origin).parent / "pnnx"
    pnnx(TROUBLE.format(calls=tmp_path / "calls", pnnx=program))
    monkeypatch.setenv(child_process.TIMEOUT, "20")
    trained: list[object] = []

    def evaluate(model: object, architecture: object, report: object) -> dict[str, float]:
        trained.append(architecture)
        return {"accuracy": 50.0 + len(trained)}

    problem = nas.Problem("tiny-resnet", evaluate, {"accuracy": "max", "ncnn_latency_ms": "min"})
    journal = tmp_path / "s.journal"
    result = nas.search(problem, sampler="random", evaluations=2, storage=journal)

    assert len(trained) == len(result.networks) == 2, "failed measurements cost no training"
    assert (result.networks["ncnn_latency_ms"] > 0).all()
    failures = nas.report(journal, out=tmp_path / "report").failures
    beginnings = [
        "converting: pnnx crashed (SIGSEGV)",
        "converting: took more than 20 s",
        "loading: ncnn cannot read the converted network: ",
        "loading: ncnn cannot read the converted weights: ",
    ]
    for failure, beginning in zip(failures, beginnings, strict=True):
        assert failure["reason"].startswith(f"ncnn failed while {beginning}")
    page = (tmp_path / "report" / "report.html").read_text()
    for failure in failures:
        assert json.dumps(failure["reason"]) in page
