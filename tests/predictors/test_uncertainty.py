"""Claims about calibrated intervals for new groups of networks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from predictors import Predictor, create, load
from predictors.base import Metrics, Predictions
from predictors.baselines import Ridge
from predictors.uncertainty import widen, widening_factors
from search_spaces import InputError, get_space


@pytest.fixture(scope="module")
def texts() -> list[str]:
    space = get_space("tiny-resnet")
    rng = np.random.default_rng(0)
    return list(dict.fromkeys(space.to_text(space.sample(rng)) for _ in range(80)))[:40]


def test_spread_keeps_the_median() -> None:
    samples = np.array([[1.0, 2.0, 4.0], [0.0, 0.0, 3.0]])
    assert widen(samples, 2.0).tolist() == [[0.0, 2.0, 6.0], [0.0, 0.0, 6.0]]
    assert (widen(samples, 1.0) == samples).all()


class Sure:
    """Predicts 0 with far too narrow intervals."""

    def predict(
        self,
        texts: list[str],
        metrics: list[str],
        given: Metrics | None = None,
        samples: int = 64,
        seed: int = 0,
    ) -> Predictions:
        drawn = np.random.default_rng(seed).normal(scale=0.1, size=(len(texts), samples, 1))
        return Predictions.of_samples(metrics, drawn)


def test_widening_calibrates_intervals_that_are_too_narrow(texts: list[str]) -> None:
    values = np.random.default_rng(1).normal(size=len(texts))
    groups = np.arange(len(texts)) % 8
    factor = widening_factors(lambda rows, metrics: Sure(), texts, {"x": values}, groups)["x"]  # type: ignore[arg-type, return-value]
    drawn = widen(Sure().predict(texts, ["x"], seed=5).samples[:, :, 0], factor)
    low, high = np.quantile(drawn, [0.05, 0.95], axis=1)
    assert 5 < factor < 20
    assert np.mean((low <= values) & (values <= high)) >= 0.8


def test_a_metric_with_few_values_is_not_widened(texts: list[str]) -> None:
    values = np.full(len(texts), np.nan)
    values[:4] = range(4)
    assert widening_factors(
        lambda rows, metrics: Ridge(), texts, {"x": values}, np.arange(len(texts)) % 3
    ) == {"x": 1.0}


class Informed(Sure):
    """Predicts the parameters that are given, and 0 if none are."""

    def predict(
        self,
        texts: list[str],
        metrics: list[str],
        given: Metrics | None = None,
        samples: int = 64,
        seed: int = 0,
    ) -> Predictions:
        drawn = super().predict(texts, metrics, given, samples, seed).samples
        return Predictions.of_samples(
            metrics, drawn + np.asarray((given or {}).get("params", 0.0))[..., None, None]
        )


def test_exact_costs_are_given_to_measured_metrics_and_to_no_other(texts: list[str]) -> None:
    params = np.random.default_rng(1).normal(size=len(texts))
    values = {"a_ms": params, "accuracy": params, "params": params}
    learned: dict[str, list[str]] = {}

    def fit_rows(rows: np.ndarray, metrics: Sequence[str]) -> Predictor:
        learned[metrics[0]] = list(metrics)
        return Informed()  # type: ignore[return-value]

    found = widening_factors(fit_rows, texts, values, np.arange(len(texts)) % 8)
    assert learned == {"a_ms": ["a_ms", "params"], "accuracy": ["accuracy"]}
    assert found["a_ms"] == found["params"] == 1
    assert found["accuracy"] > 5


def test_costs_that_are_known_of_other_networks_alone_are_not_given(texts: list[str]) -> None:
    latencies, params = np.full((2, len(texts)), np.nan)
    latencies[:20], params[20:] = np.arange(1.0, 21.0), np.arange(1.0, len(texts) - 19.0)
    model = create("rlm").fit(texts, {"a_ms": latencies, "params": params})
    model.calibrate(texts, [str(i % 5) for i in range(len(texts))])  # type: ignore[attr-defined]
    assert np.isfinite(model.predict(texts[:2], ["a_ms"]).samples).all()


def test_an_rlm_saves_its_widening_and_accepts_further_measurements(
    texts: list[str], tmp_path: Path
) -> None:
    size = np.array([float(len(text)) for text in texts])
    groups = [str(int(n) // 40) for n in size]
    model = create("rlm").fit(texts[:30], {"a_ms": size[:30]})
    narrow = model.predict(texts[30:], ["a_ms"])
    model.calibrate(texts[:30], groups[:30])  # type: ignore[attr-defined]
    assert model._fitted.widening["a_ms"] >= 1  # type: ignore[attr-defined]
    model._fitted.widening = {"a_ms": 2.0}  # type: ignore[attr-defined]
    assert (model.predict(texts[30:], ["a_ms"]).std > narrow.std).all()
    model._fitted.widening = {"a_ms": 1e3}  # type: ignore[attr-defined]
    assert (model.predict(texts[30:], ["a_ms"]).samples > 0).all()  # as all latencies are
    model.save(tmp_path / "kept")
    kept = load(tmp_path / "kept")
    assert (
        kept.predict(texts[30:], ["a_ms"]).samples == model.predict(texts[30:], ["a_ms"]).samples
    ).all()
    kept.extend([texts[0], texts[35]], {"b_ms": [1.0, 2.0], "a_ms": [np.nan, 7.0]})
    found = kept.examples_of([texts[0], texts[35], texts[36]])
    assert found["a_ms"][:2].tolist() == [size[0], 7.0]
    assert found["b_ms"][:2].tolist() == [1.0, 2.0]
    assert np.isnan([found["a_ms"][2], found["b_ms"][2]]).all()
    twice = create("rlm").fit([texts[0], texts[0]], {"a_ms": [90.0, np.nan], "b_ms": [np.nan, 5.0]})
    assert {name: values.tolist() for name, values in twice.examples_of(texts[:1]).items()} == {
        "a_ms": [90.0], "b_ms": [5.0],
    }  # fmt: skip
    with pytest.raises(InputError, match="only a predictor that keeps its examples"):
        create("forest").extend(texts[:1], {"a_ms": [1.0]})
    with pytest.raises(InputError, match="calibrate needs the 31 examples"):
        kept.calibrate(texts[:2], ["a", "b"])  # type: ignore[attr-defined]
