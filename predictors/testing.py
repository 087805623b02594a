"""The conformance suite of predictors: what the contract in `predictors.base` promises, checked on small spaces.

from predictors.testing import check_predictor
check_predictor(MyPredictor)
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from predictors.base import Predictions, Predictor
from predictors.checkpoint import load
from predictors.inputs import Inputs, Metrics
from search_spaces import InputError, get_space
from search_spaces.base import SearchSpace

TRAIN, TEST = 60, 60
_EASY_TAU = 0.5


def check_predictor(factory: Callable[[], Predictor]) -> None:
    """Check a predictor; `AssertionError` with what to change.

    `factory` makes an untrained predictor, the same one each time. It is trained a few times on up to 60 architectures.
    """
    spaces = [get_space("tiny-resnet"), get_space("nasbench201", channels=4, cells=1)]
    for space in spaces:
        _check_learning(factory, space)
    texts = [text for space in spaces for text in _sample(space, 12, seed=1)[0]]
    _check_contract(factory, texts)
    _check_refusals(factory, texts)
    _check_small_data(factory, texts)


def _sample(space: SearchSpace, n: int, seed: int) -> tuple[list[str], np.ndarray]:
    """n texts and their number of parameters."""
    rng = np.random.default_rng(seed)
    architectures = [space.sample(rng) for _ in range(n)]
    return [space.to_text(a) for a in architectures], np.array([float(space.params(a)) for a in architectures])


def _check_learning(factory: Callable[[], Predictor], space: SearchSpace) -> None:
    """An easy target is learned, in its own unit, whichever that is."""
    from scipy.stats import kendalltau

    texts, sizes = _sample(space, TRAIN + TEST, seed=0)
    small, large = 1e-3 * np.log(sizes), 1e6 * np.log(sizes)
    predictor = factory()
    fitted = predictor.fit(texts[:TRAIN], {"small": small[:TRAIN], "large": large[:TRAIN]})
    assert fitted is predictor, "fit must return the predictor itself"
    assert {"small", "large"} <= set(predictor.metrics), "metrics must name the trained metrics"
    predictions = predictor.predict(texts[TRAIN:], ["large", "small"])
    for name, truth in [("small", small[TRAIN:]), ("large", large[TRAIN:])]:
        tau = kendalltau(predictions[name], truth)[0]
        assert tau > _EASY_TAU, f"{space.name}: Kendall tau {tau:.2f} on log(params) is not above {_EASY_TAU}"
        error = np.mean((predictions[name] - truth) ** 2)
        assert error < np.var(truth), f"{space.name}: {name} is predicted worse than by its mean; mind its unit"
    assert (predictions.std > 0).all(), "an architecture that was not seen must have some uncertainty"


def _check_contract(factory: Callable[[], Predictor], texts: list[str]) -> None:
    rng = np.random.default_rng(0)
    n = len(texts)
    metrics = {"first": rng.normal(size=n), "second": 100 + rng.normal(size=n), "third": rng.normal(size=n)}
    metrics["first"][::3] = np.nan
    metrics["second"][::2] = np.nan
    predictor = factory().fit(texts, metrics)
    names = ["third", "first"]
    base = predictor.predict(texts, names, samples=5, seed=3)
    _check_shapes(base, n, tuple(names), 5)
    _check_same(base, predictor.predict(texts, names, samples=5, seed=3), "the same seed must give the same samples")
    again = factory().fit(texts, metrics)
    _check_same(base, again.predict(texts, names, samples=5, seed=3), "training must be reproducible")
    other = predictor.predict(texts, names, samples=5, seed=4)
    assert not np.array_equal(base.samples, other.samples), "another seed must give other samples"
    streamed = list(predictor.predict_stream(iter(texts), names, samples=5, seed=3))
    assert len(streamed) == 1, "a stream is predicted a thousand at a time"
    _check_same(base, streamed[0], "a stream must give what predict gives")
    order = rng.permutation(n)
    shuffled = predictor.predict([texts[i] for i in order], names, samples=5, seed=3)
    assert _close(shuffled.mean, base.mean[order]), "predictions must not depend on the order of the architectures"
    twice = predictor.predict([texts[0], texts[0]], names, samples=5, seed=3)
    assert _close(twice.mean[0], twice.mean[1]), "one text twice must get one prediction"
    _check_shapes(predictor.predict([], names, samples=2), 0, tuple(names), 2)
    _check_models(predictor, names)
    _check_estimates(predictor, base, texts)
    _check_given(predictor, texts)
    _check_saving(predictor, base, texts, names)


def _check_shapes(predictions: Predictions, n: int, metrics: tuple[str, ...], samples: int) -> None:
    assert predictions.metrics == metrics, f"metrics must be those asked for, {metrics}, not {predictions.metrics}"
    shapes = {"mean": (n, len(metrics)), "samples": (n, samples, len(metrics))}
    shapes |= dict.fromkeys(["median", "std"], shapes["mean"])
    for name, shape in shapes.items():
        array = getattr(predictions, name)
        assert array.shape == shape, f"{name} must have shape {shape}, not {array.shape}"
        assert array.dtype == np.float64, f"{name} must be float64, not {array.dtype}"
        assert np.isfinite(array).all(), f"{name} has NaN or infinite values"


def _check_same(one: Predictions, other: Predictions, claim: str) -> None:
    for name in ("mean", "median", "std", "samples"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), f"{claim} ({name} differs)"


def _close(one: np.ndarray, other: np.ndarray) -> bool:
    return np.allclose(one, other, rtol=1e-3, atol=1e-4)


def _check_models(predictor: Predictor, names: Sequence[str]) -> None:
    space = get_space("tiny-resnet")
    arch = space.sample(np.random.default_rng(5))
    mixed = predictor.predict([space.to_text(arch), space.to_onnx(arch)], names, samples=3)
    assert _close(mixed.mean[0], mixed.mean[1]), "a model and its text must get the same prediction"


def _check_estimates(predictor: Predictor, base: Predictions, texts: list[str]) -> None:
    estimates = predictor.estimate(texts, base.metrics)
    assert estimates.shape == base.mean.shape, f"estimates must have shape {base.mean.shape}, not {estimates.shape}"
    assert np.isfinite(estimates).all(), "estimates have NaN or infinite values"
    assert predictor.estimate([], base.metrics).shape == (0, len(base.metrics)), "no architecture has no estimate"
    known = np.where(np.arange(len(texts)) % 2, np.nan, 0.5)
    given = predictor.estimate(texts, base.metrics, given={base.metrics[1]: known})
    assert np.allclose(given[::2, 1], 0.5), "a metric that is given must be estimated as given"
    assert _close(given[1::2, 1], estimates[1::2, 1]), "what is not given must be estimated as without"


def _check_given(predictor: Predictor, texts: list[str]) -> None:
    n = len(texts)
    known = np.linspace(-1, 1, n)
    known[::2] = np.nan
    for given in ({"first": known}, {"first": known, "second": np.full(n, np.nan)}, {"first": known, "second": known}):
        _check_shapes(predictor.predict(texts, ["third"], given=given, samples=4), n, ("third",), 4)
        both = predictor.predict(texts, ["first"], given=given, samples=4)
        there = ~np.isnan(known)
        assert _close(both.mean[there, 0], known[there]), "a metric that is given and asked for must come back as given"
    nothing = predictor.predict(texts, ["third"], given={"first": np.full(n, np.nan)}, samples=4)
    without = predictor.predict(texts, ["third"], samples=4)
    assert _close(nothing.mean, without.mean), "a given metric that is NaN everywhere must change nothing"


def _check_saving(predictor: Predictor, base: Predictions, texts: list[str], names: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        predictor.save(Path(folder) / "checkpoint")
        restored = load(Path(folder) / "checkpoint", type(predictor))
    assert restored.metrics == predictor.metrics, "a loaded predictor must know the metrics that it was trained on"
    after = restored.predict(texts, names, samples=5, seed=3)
    _check_same(base, after, "a loaded predictor must predict as the saved one")


def _check_refusals(factory: Callable[[], Predictor], texts: list[str]) -> None:
    n = len(texts)
    values = np.arange(n, dtype=float)
    infinite = np.where(values == 0, np.inf, values)
    trained = factory().fit(texts, {"metric": values})
    bad_fits: dict[str, tuple[Inputs, Metrics]] = {
        "infinite values": (texts, {"metric": infinite}),
        "a metric of another length": (texts, {"metric": values[1:]}),
        "a metric without a value": (texts, {"metric": np.full(n, np.nan)}),
        "no metric": (texts, {}),
        "no architecture": ([], {"metric": np.array([])}),
        "an empty text": ([""], {"metric": [1.0]}),
    }
    for what, (inputs, metrics) in bad_fits.items():
        _refuses(lambda i=inputs, m=metrics: factory().fit(i, m), f"fit with {what}")  # type: ignore[misc]
    _refuses(lambda: factory().predict(texts, ["metric"]), "predict before fit")
    _refuses(lambda: trained.predict(texts, ["metrik"]), "predict of an unknown metric")
    _refuses(lambda: trained.predict(texts, ["metric"], samples=0), "predict without samples")
    _refuses(lambda: trained.predict(texts, ["metric"], given={"metric": infinite}), "predict given infinite values")
    _refuses(lambda: trained.predict(texts, ["metric"], given={"metric": values[1:]}), "predict given another length")


def _refuses(action: Callable[[], object], what: str) -> None:
    try:
        action()
    except InputError:
        return
    except Exception as error:
        raise AssertionError(f"{what} must raise InputError, not {type(error).__name__}: {error}") from error
    raise AssertionError(f"{what} must raise InputError")


def _check_small_data(factory: Callable[[], Predictor], texts: list[str]) -> None:
    """One architecture, a constant metric, one text many times: there is an answer, and it is near the known values."""
    for what, inputs, values in [
        ("one architecture", texts[:1], np.array([7.0])),
        ("a constant metric", texts, np.full(len(texts), 7.0)),
        ("one text many times", texts[:1] * 8, np.linspace(6.5, 7.5, 8)),
    ]:
        predictions = factory().fit(inputs, {"metric": values}).predict(texts, ["metric"], samples=4)
        _check_shapes(predictions, len(texts), ("metric",), 4)
        value = predictions["metric"][0]
        assert abs(value - 7) < 1.5, f"trained on {what} near 7, it predicts {value:g}"
