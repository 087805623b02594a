"""Claims about measured latency: it grows with the work, has a spread, and names models that cannot
run.
"""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

from nas.evaluation.latency import (
    LatencyTask,
    measure_latency,
    open_session,
    random_inputs,
    time_model,
)
from search_spaces.common.errors import InputError
from search_spaces.ir.builder import Network
from search_spaces.ir.onnx import to_model

QUICK = LatencyTask(warmup=2, runs=10)


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
        < time_model(network(64), LatencyTask(batch=16, runs=10)).median
    )


def test_spread_encloses_the_median() -> None:
    latency = time_model(network(8), QUICK)
    assert 0 < latency.low <= latency.median <= latency.high
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
        LatencyTask(**{setting: 0})


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
