"""Claims about evaluators that look values up or predict them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from nas import PredictionEvaluator, TableEvaluator, load_benchmark
from predictors import create
from search_spaces import get_space
from search_spaces.common.errors import InputError

METRICS = ("fpga_latency_ms", "cifar10_validation_accuracy")


def test_table_evaluator_gives_the_rows_of_the_table(nas_data: Path) -> None:
    benchmark = load_benchmark("nasbench201")
    evaluate = TableEvaluator(benchmark, METRICS)
    rows = [3, 15_000, 3]
    expected = np.stack([benchmark.values(metric)[rows] for metric in METRICS], axis=1)
    np.testing.assert_array_equal(
        evaluate([benchmark.architectures[row] for row in rows]), expected
    )
    assert evaluate([]).shape == (0, 2)


def test_table_evaluator_refuses_unknown_metrics_and_architectures(nas_data: Path) -> None:
    benchmark = load_benchmark("nasbench201")
    with pytest.raises(InputError, match="did you mean 'fpga_latency_ms'"):
        TableEvaluator(benchmark, ["fpga_latency"])
    stranger = get_space("tiny-resnet").sample(np.random.default_rng(0))
    with pytest.raises(InputError):
        TableEvaluator(benchmark, METRICS)([stranger])


def test_prediction_evaluator_gives_the_median_prediction_of_the_text() -> None:
    space = get_space("tiny-resnet")
    architectures = [space.sample(np.random.default_rng(seed)) for seed in range(3)]

    def predict(texts: list[str], metrics: tuple[str, ...]) -> SimpleNamespace:
        return SimpleNamespace(
            median=np.array([[len(text)] * len(metrics) for text in texts], dtype=float)
        )

    predictor = SimpleNamespace(predict=predict, metrics=("length_ms",), reads_choices=False)
    evaluate = PredictionEvaluator(predictor, space, ["flops", "length_ms"])  # type: ignore[arg-type]
    assert evaluate.metrics == ("flops", "length_ms")
    found = evaluate(architectures)
    np.testing.assert_array_equal(found[:, 1], [len(space.to_text(a)) for a in architectures])
    np.testing.assert_array_equal(found[:, 0], [space.flops(a) for a in architectures])
    with pytest.raises(InputError, match="length_ms"):
        PredictionEvaluator(predictor, space, ["width_ms"])  # type: ignore[arg-type]


def test_a_predictor_that_reads_choices_evaluates_architectures() -> None:
    space = get_space("tiny-resnet")
    architectures = [space.sample(np.random.default_rng(seed)) for seed in range(12)]
    predictor = create("gp-choices").fit(architectures, {"x_ms": np.arange(12.0)})
    latency = predictor.predict(architectures, ["x_ms"]).median[:, 0]
    found = PredictionEvaluator(predictor, space, ["x_ms", "params"])(architectures)
    np.testing.assert_array_equal(found.T, [latency, [space.params(a) for a in architectures]])
