"""Conformance suite for predictors: checks the interface of `predictors.base` on small spaces.

from predictors.testing import check_predictor
check_predictor(MyPredictor)

A predictor with `reads_choices` gets architectures, any other gets their texts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from predictors.base import STREAM_CHUNK, Inputs, Metrics, Predictions, Predictor
from predictors.registry import load
from search_spaces import InputError, get_space
from search_spaces.space import SearchSpace

TRAIN, TEST = 60, 60
_EASY_TAU = 0.5


def check_predictor(factory: Callable[[], Predictor]) -> None:
    """Check a predictor by training it several times on up to 60 architectures.

    Args:
        factory: returns a new untrained predictor, always with the same settings and seed.

    Raises:
        AssertionError: if a check fails; the message says what to change.
    """
    for space in _spaces():
        _check_learning(factory, space)
    choices = factory().reads_choices
    inputs = [item for space in _spaces() for item in _sample(space, 12, 1, choices)[0]]
    _check_contract(factory, inputs)
    _check_refusals(factory, inputs)
    _check_small_data(factory, inputs)


@cache
def _spaces() -> tuple[SearchSpace, ...]:
    return get_space("tiny-resnet"), get_space("nasbench201", channels=4, cells=1)


@cache
def _sample(
    space: SearchSpace,
    n: int,
    seed: int,
    as_choices: bool,
) -> tuple[list[Any], np.ndarray]:
    """n architectures, or their texts, and their numbers of parameters."""
    rng = np.random.default_rng(seed)
    architectures = [space.sample(rng) for _ in range(n)]
    sizes = np.array([float(space.params(a)) for a in architectures])
    if as_choices:
        return architectures, sizes
    return [space.to_text(a) for a in architectures], sizes


def _check_learning(factory: Callable[[], Predictor], space: SearchSpace) -> None:
    """Check that an easy target is learned, whatever its unit."""
    from scipy.stats import kendalltau

    # 1. The logarithm of the number of parameters, in a small and in a large unit.
    inputs, sizes = _sample(space, TRAIN + TEST, 0, factory().reads_choices)
    targets = {
        "small": 1e-3 * np.log(sizes),
        "large": 1e6 * np.log(sizes),
    }
    predictor = factory()
    fitted = predictor.fit(
        inputs[:TRAIN],
        {name: values[:TRAIN] for name, values in targets.items()},
    )
    assert fitted is predictor, "fit must return the predictor itself"
    assert set(targets) <= set(predictor.metrics), "metrics must name the trained metrics"

    # 2. It orders unseen architectures, and is better than the mean.
    predictions = predictor.predict(inputs[TRAIN:], ["large", "small"])
    for name, values in targets.items():
        truth = values[TRAIN:]
        tau = kendalltau(predictions[name], truth)[0]
        assert tau > _EASY_TAU, (
            f"{space.name}: Kendall tau {tau:.2f} on log(params) is not above {_EASY_TAU}"
        )
        error = np.mean((predictions[name] - truth) ** 2)
        assert error < np.var(truth), (
            f"{space.name}: predictions of {name} are worse than its mean; check its unit"
        )
    assert (predictions.std > 0).all(), "the std of an unseen architecture must be above 0"


def _check_contract(factory: Callable[[], Predictor], inputs: list[Any]) -> None:
    """Check what holds for any targets: here, noise with missing values."""
    rng = np.random.default_rng(0)
    n = len(inputs)
    metrics = {
        "first": rng.normal(size=n),
        "second": 100 + rng.normal(size=n),
        "third": rng.normal(size=n),
    }
    metrics["first"][::3] = np.nan
    metrics["second"][::2] = np.nan
    names = ["third", "first"]
    predictor = factory().fit(inputs, metrics)

    def predict(
        of_inputs: Sequence[Any] = inputs,
        seed: int = 3,
        by: Predictor = predictor,
    ) -> Predictions:
        return by.predict(of_inputs, names, samples=5, seed=seed)

    # 1. Predictions depend on the training data and the seed alone.
    base = predict()
    _check_shapes(base, n, tuple(names), 5)
    _check_same(base, predict(), "the same seed must give the same samples")
    again = factory().fit(inputs, metrics)
    _check_same(base, predict(by=again), "training must be reproducible")
    other = predict(seed=4)
    assert not np.array_equal(base.samples, other.samples), "another seed must give other samples"

    # 2. They do not depend on the other architectures.
    streamed = list(predictor.predict_stream(iter(inputs), names, samples=5, seed=3))
    assert len(streamed) == 1, f"predict_stream must predict {STREAM_CHUNK} architectures at a time"
    _check_same(base, streamed[0], "predict_stream must give the same predictions as predict")
    order = rng.permutation(n)
    shuffled = predict([inputs[i] for i in order])
    assert _close(shuffled.mean, base.mean[order]), (
        "predictions must not depend on the order of the architectures"
    )
    twice = predict([inputs[0], inputs[0]])
    assert _close(twice.mean[0], twice.mean[1]), "equal architectures must get equal predictions"
    _check_shapes(predictor.predict([], names, samples=2), 0, tuple(names), 2)

    # 3. Nor on the form of an architecture.
    if not predictor.reads_choices:
        space = get_space("tiny-resnet")
        arch = space.sample(np.random.default_rng(5))
        forms: list[Any] = [space.to_text(arch), space.to_onnx(arch)]
        mixed = predictor.predict(forms, names, samples=3)
        assert _close(mixed.mean[0], mixed.mean[1]), (
            "a model and its text must get the same prediction"
        )
    _check_estimates(predictor, base, inputs)
    _check_given(predictor, inputs)
    _check_saving(predictor, base, inputs, names)


def _check_shapes(
    predictions: Predictions,
    n: int,
    metrics: tuple[str, ...],
    samples: int,
) -> None:
    assert predictions.metrics == metrics, (
        f"metrics must be the requested {metrics}, not {predictions.metrics}"
    )
    shapes = {
        "mean": (n, len(metrics)),
        "median": (n, len(metrics)),
        "std": (n, len(metrics)),
        "samples": (n, samples, len(metrics)),
    }
    for name, shape in shapes.items():
        array = getattr(predictions, name)
        assert array.shape == shape, f"{name} must have shape {shape}, not {array.shape}"
        assert array.dtype == np.float64, f"{name} must be float64, not {array.dtype}"
        assert np.isfinite(array).all(), f"{name} has NaN or infinite values"


def _check_same(
    one: Predictions,
    other: Predictions,
    claim: str,
) -> None:
    for name in ("mean", "median", "std", "samples"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), f"{claim} ({name} differs)"


def _close(one: np.ndarray, other: np.ndarray) -> bool:
    return np.allclose(one, other, rtol=1e-3, atol=1e-4)


def _check_estimates(
    predictor: Predictor,
    base: Predictions,
    inputs: list[Any],
) -> None:
    estimates = predictor.estimate(inputs, base.metrics)
    assert estimates.shape == base.mean.shape, (
        f"estimates must have shape {base.mean.shape}, not {estimates.shape}"
    )
    assert np.isfinite(estimates).all(), "estimates have NaN or infinite values"
    of_nothing = predictor.estimate([], base.metrics)
    assert of_nothing.shape == (0, len(base.metrics)), "no architecture, no estimate"

    # Every other value of the second metric is given.
    is_missing = np.arange(len(inputs)) % 2
    values = np.where(is_missing, np.nan, 0.5)
    given = {base.metrics[1]: values}
    with_values = predictor.estimate(inputs, base.metrics, given=given)[:, 1]
    assert np.allclose(with_values[::2], 0.5), (
        "the estimate of a given value must be the given value"
    )
    assert _close(with_values[1::2], estimates[1::2, 1]), "a given NaN must not change the estimate"


def _check_given(predictor: Predictor, inputs: list[Any]) -> None:
    n = len(inputs)
    values = np.linspace(-1, 1, n)
    values[::2] = np.nan
    is_given = ~np.isnan(values)
    nothing = np.full(n, np.nan)
    conditions: list[Metrics] = [
        {"first": values},
        {"first": values, "second": nothing},
        {"first": values, "second": values},
    ]
    for given in conditions:
        other = predictor.predict(inputs, ["third"], given=given, samples=4)
        _check_shapes(other, n, ("third",), 4)
        same = predictor.predict(inputs, ["first"], given=given, samples=4)
        assert _close(same.mean[is_given, 0], values[is_given]), (
            "the prediction of a given value must be the given value"
        )
    with_nothing = predictor.predict(inputs, ["third"], given={"first": nothing}, samples=4)
    without = predictor.predict(inputs, ["third"], samples=4)
    assert _close(with_nothing.mean, without.mean), (
        "a given metric that is NaN everywhere must change nothing"
    )


def _check_saving(
    predictor: Predictor,
    base: Predictions,
    inputs: list[Any],
    names: Sequence[str],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "checkpoint"
        predictor.save(checkpoint)
        restored = load(checkpoint, type(predictor))
    assert restored.metrics == predictor.metrics, (
        "a loaded predictor must have the metrics of the saved one"
    )
    after = restored.predict(inputs, names, samples=5, seed=3)
    _check_same(base, after, "a loaded predictor must give the predictions of the saved one")


def _check_refusals(factory: Callable[[], Predictor], inputs: list[Any]) -> None:
    n = len(inputs)
    values = np.arange(n, dtype=float)
    infinite = np.where(values == 0, np.inf, values)
    nothing = np.full(n, np.nan)
    words = np.array(["fast"] * n)

    # 1. What cannot be learned from.
    bad_fits: dict[str, tuple[Inputs, Metrics]] = {
        "infinite values": (inputs, {"metric": infinite}),
        "a metric of another length": (inputs, {"metric": values[1:]}),
        "a metric without a value": (inputs, {"metric": nothing}),
        "values that are not numbers": (inputs, {"metric": words}),
        "no metric": (inputs, {}),
        "no architecture": ([], {"metric": np.array([])}),
        "an empty text": ([""], {"metric": [1.0]}),
        "an input that is not an architecture": ([1.5], {"metric": [1.0]}),  # type: ignore[list-item]
    }
    for condition, (architectures, metrics) in bad_fits.items():
        untrained = factory()
        _refuses(partial(untrained.fit, architectures, metrics), f"fit with {condition}")

    # 2. What cannot be predicted.
    trained = factory().fit(inputs, {"metric": values})
    predict = partial(trained.predict, inputs)
    too_few = {"metric": values[1:]}
    _refuses(partial(factory().predict, inputs, ["metric"]), "predict before fit")
    _refuses(partial(predict, ["metrik"]), "predict of an unknown metric")
    _refuses(partial(predict, ["metric"], samples=0), "predict without samples")
    _refuses(
        partial(predict, ["metric"], given={"metric": infinite}),
        "predict given infinite values",
    )
    _refuses(partial(predict, ["metric"], given=too_few), "predict given another length")


def _refuses(action: Callable[[], object], description: str) -> None:
    try:
        action()
    except InputError:
        return
    except Exception as error:
        raise AssertionError(
            f"{description} must raise InputError, not {type(error).__name__}: {error}"
        ) from error
    raise AssertionError(f"{description} must raise InputError")


def _check_small_data(factory: Callable[[], Predictor], inputs: list[Any]) -> None:
    """Check that predictions from degenerate training data are finite and near the known values."""
    few_data = [
        ("one architecture", inputs[:1], np.array([7.0])),
        ("a constant metric", inputs, np.full(len(inputs), 7.0)),
        ("eight equal architectures", inputs[:1] * 8, np.linspace(6.5, 7.5, 8)),
    ]
    for description, architectures, values in few_data:
        predictor = factory().fit(architectures, {"metric": values})
        predictions = predictor.predict(inputs, ["metric"], samples=4)
        _check_shapes(predictions, len(inputs), ("metric",), 4)
        value = predictions["metric"][0]
        assert abs(value - 7) < 1.5, f"trained on {description} near 7, it predicts {value:g}"
