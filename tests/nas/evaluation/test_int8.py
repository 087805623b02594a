"""Claims about networks in 8-bit integers."""

from __future__ import annotations

import logging

import numpy as np
import onnx
import pytest

from nas.evaluation import int8
from nas.evaluation.datasets import load_dataset
from nas.evaluation.latency import LatencyTask, open_session
from nas.evaluation.measurement import Measurement, trains
from nas.evaluation.tasks import TrainingTask
from nas.evaluation.trainable import Trainable
from nas.search.measured_evaluator import MeasuredEvaluator
from search_spaces import InputError, get_space

SPACE = get_space("tiny-resnet", input_shape=(1, 8, 8), num_classes=10)
ARCHITECTURE = min(
    (SPACE.sample(np.random.default_rng(seed)) for seed in range(30)), key=SPACE.flops
)


def test_a_quantized_network_computes_about_the_same_in_half_the_bytes() -> None:
    model = SPACE.to_onnx(ARCHITECTURE)
    samples = np.random.default_rng(1).standard_normal((64, 1, 8, 8)).astype(np.float32)
    handlers = logging.getLogger().handlers[:]
    quantized = int8.quantize(model, samples)
    assert logging.getLogger().handlers == handlers, "the quantizer's logging is not left behind"
    operators = {node.op_type for node in onnx.load_from_string(quantized).graph.node}
    assert {"QuantizeLinear", "DequantizeLinear"} <= operators
    assert "BatchNormalization" not in operators
    assert len(quantized) < len(model.SerializeToString()) / 2
    before, after = (
        open_session(m).run(None, {"input": samples})[0]
        for m in (model.SerializeToString(), quantized)
    )
    assert 0 < np.abs(after - before).mean() < 0.1 * np.abs(before).mean()


def test_accuracy_after_quantization_is_that_of_the_trained_network() -> None:
    data = load_dataset("digits")
    metrics = ("digits_int8_accuracy", "digits_accuracy", "params", "cpu_int8_latency_ms")
    task = TrainingTask(epochs=4)
    measurement = Measurement(metrics, data, training=task, latency=LatencyTask(runs=5, windows=1))
    found = measurement(Trainable.of(SPACE, ARCHITECTURE), SPACE.to_onnx(ARCHITECTURE)).values
    assert list(found)[:4] == list(metrics)
    assert found["digits_accuracy"].value > 30, "of ten classes"
    assert abs(found["digits_int8_accuracy"].value - found["digits_accuracy"].value) < 5
    assert abs(found["digits_test_int8_accuracy"].value - found["digits_test_accuracy"].value) < 5
    assert 0 < found["cpu_int8_latency_ms"].low <= found["cpu_int8_latency_ms"].value


def test_only_the_accuracy_needs_a_training() -> None:
    assert not trains(["cpu_int8_latency_ms"], LatencyTask())
    assert trains(["digits_int8_accuracy"], LatencyTask())


def test_the_test_score_is_no_objective() -> None:
    measurement = Measurement(("digits_test_int8_accuracy",), load_dataset("digits"))
    with pytest.raises(InputError, match="search by the validation score, digits_int8_accuracy"):
        MeasuredEvaluator(SPACE, measurement)


def test_a_network_that_cannot_be_quantized_is_named() -> None:
    model = SPACE.to_onnx(ARCHITECTURE)
    del model.graph.node[3:]
    with pytest.raises(InputError, match="ONNX Runtime cannot"):
        int8.quantize(model)
