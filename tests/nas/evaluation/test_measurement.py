"""Claims about measurements: only the requested metrics, in their own units, with their spread."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from nas.evaluation import measurement, training
from nas.evaluation.datasets import Dataset, digits
from nas.evaluation.latency import LatencyTask
from nas.evaluation.measurement import Measurement
from nas.evaluation.trainable import Trainable
from nas.evaluation.training import Trained, TrainingTask
from nas.search.measured_evaluator import MeasuredEvaluator
from search_spaces import SearchSpace, get_space
from search_spaces.common.errors import InputError

QUICK = TrainingTask(epochs=1, batch=32)
TIMING = LatencyTask(warmup=1, runs=5, windows=1)


@pytest.fixture(scope="module")
def data() -> Dataset:
    return digits(train_images=64)


@pytest.fixture
def space() -> SearchSpace:
    return get_space("nasbench201", channels=4, cells=1, input_shape=(1, 8, 8))


def test_everything_can_be_measured(space: SearchSpace, data: Dataset) -> None:
    metrics = ("cpu_latency_ms", "peak_memory_mb", "params", "flops", "digits_accuracy")
    arch = space.sample(np.random.default_rng(0))
    measure = Measurement(metrics, data, (0, 1), QUICK, TIMING)
    found = measure(Trainable.of(space, arch), space.to_onnx(arch)).values
    assert tuple(found) == (*metrics, "digits_test_accuracy")  # which comes with the training
    assert (found["params"].value, found["flops"].value) == (space.params(arch), space.flops(arch))
    assert all(found[name].value > 0 for name in ("cpu_latency_ms", "peak_memory_mb"))
    assert all(v.low <= v.value <= v.high for v in found.values())
    assert "2 seeds" in found["digits_accuracy"].spread


def test_nothing_but_what_is_asked_for_is_measured(
    space: SearchSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(training, "train")
    monkeypatch.delattr(measurement, "time_model")
    arch = space.sample(np.random.default_rng(0))
    found = Measurement(("flops",))(Trainable.of(space, arch), space.to_onnx(arch))
    assert {metric: v.value for metric, v in found.values.items()} == {"flops": space.flops(arch)}


def test_accuracy_is_the_mean_over_the_seeds(
    space: SearchSpace, data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        training, "train", lambda *_, **__: Trained([80.0, 90.0], [70.0, 80.0], 1, {})
    )
    arch = space.sample(np.random.default_rng(0))
    found = Measurement((data.metric,), data, (0, 1))(
        Trainable.of(space, arch), space.to_onnx(arch)
    ).values
    accuracy = found[data.metric]
    assert (accuracy.value, found[data.test_metric].value) == (85, 75)
    assert accuracy.high - accuracy.value == pytest.approx(50**0.5)


def test_unknown_metric_suggests_the_nearest(data: Dataset) -> None:
    with pytest.raises(InputError, match="did you mean 'cpu_latency_ms'"):
        Measurement(("cpu_latency",), data)
    with pytest.raises(InputError, match="unknown metric 'digits_accuracy'"):
        Measurement(("digits_accuracy",))


def test_a_test_score_cannot_be_an_objective(space: SearchSpace, data: Dataset) -> None:
    with pytest.raises(InputError, match="digits_test_accuracy is kept for the final report"):
        MeasuredEvaluator(space, Measurement(("digits_test_accuracy", "flops"), data))


def test_evaluator_measures_each_different_network_once(
    space: SearchSpace, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = []

    def train(network: object, *_: object, checkpoint: Path, **__: object) -> Trained:
        trained.append(checkpoint)
        checkpoint.parent.mkdir(exist_ok=True)
        checkpoint.touch()
        return Trained([math.nan if len(trained) == 2 else 50.0], [40.0], 0, {})

    monkeypatch.setattr(training, "train", train)
    rng = np.random.default_rng(0)
    archs = [space.sample(rng) for _ in range(2)]
    evaluator = MeasuredEvaluator(
        space, Measurement((data.metric, "params"), data), tmp_path / "training"
    )
    values = evaluator([archs[0], archs[1], archs[0]])
    np.testing.assert_array_equal(values[:, 1], [space.params(a) for a in (*archs, archs[0])])
    np.testing.assert_array_equal(values[:, 0], [50, np.nan, 50])
    assert len(set(trained)) == len(trained) == 2
    assert not list((tmp_path / "training").iterdir())  # nothing is left of finished trainings
    assert evaluator([]).shape == (0, 2)
