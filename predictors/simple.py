"""Two baselines on features of the text: ridge regression and a random forest."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from predictors.features import feature_matrix, features
from predictors.inputs import Inputs, Metrics, as_targets, as_texts
from predictors.noise import conditional_errors, second_moments, shrink_correlation, text_noise
from predictors.sampling import SamplingPredictor
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    from sklearn.ensemble import RandomForestRegressor

_ALPHAS = np.logspace(1, 6, 21)  # smaller penalties overfit: outliers such as failed trainings can make them win


class _Simple(SamplingPredictor):
    """One model per metric on the features of the text.

    Samples are the prediction plus errors of a joint normal distribution, whose correlation is estimated on left-out
    examples. A given metric has a known error, on which the errors of the others are conditioned.
    """

    _models: list[Any]  # per metric; `predict(inputs)` gives means and standard deviations (n,), these above 0

    def fit(self, architectures: Inputs, metrics: Metrics) -> Self:
        targets = as_targets(architectures, metrics)
        texts = as_texts(architectures)
        self._metrics = tuple(targets)
        self._names = sorted(set().union(*(features(text) for text in texts)))
        errors = self._fit(feature_matrix(texts, self._names), np.stack(list(targets.values()), axis=1))
        sums, counts = second_moments(errors)
        moments = sums / np.maximum(counts, 1)
        scale = np.sqrt(np.maximum(np.diag(moments), 1e-12))
        self._correlation = shrink_correlation(moments / np.outer(scale, scale), counts)
        return self

    def _fit(self, inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Fit targets (n, M), NaN where missing; return standardized errors (n, M) on left-out examples."""
        self._models, errors = [], np.full(targets.shape, np.nan)
        for column, values in enumerate(targets.T):
            seen = ~np.isnan(values)
            model, errors[seen, column] = self._fit_one(inputs[seen], values[seen])
            self._models.append(model)
        return errors

    @abstractmethod
    def _fit_one(self, inputs: np.ndarray, values: np.ndarray) -> tuple[Any, np.ndarray]:
        """A model of values (n,), and its standardized errors (n,) on left-out examples."""

    def _draw(
        self, architectures: Inputs, metrics: Sequence[str], known: dict[str, np.ndarray], samples: int, seed: int
    ) -> np.ndarray:
        texts = as_texts(architectures)
        inputs = feature_matrix(texts, self._names)
        mean, spread = np.stack([model.predict(inputs) for model in self._models], axis=2)
        values = np.stack([known.get(name, np.full(len(texts), np.nan)) for name in self.metrics], axis=1)
        noise = text_noise(texts, samples, len(self.metrics), (self.seed, seed))
        drawn = mean[:, None] + spread[:, None] * conditional_errors(
            self._correlation, ((values - mean) / spread)[:, None], noise
        )
        return drawn[:, :, [self.metrics.index(name) for name in metrics]]

    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        return {**self._config(), "features": self._names}, {"correlation": self._correlation}

    @classmethod
    def _restore(cls, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Self:
        self = cls(seed=config["seed"])
        self._metrics, self._names = tuple(config["metrics"]), list(config["features"])
        self._correlation = tensors["correlation"].reshape(len(self._metrics), len(self._metrics))
        return self


def _negligible_std(values: np.ndarray) -> float:
    """A negligible standard deviation above 0, which avoids division by 0."""
    return 1e-9 * (float(np.abs(values).max()) or 1.0)


class _LinearModel(NamedTuple):
    weights: np.ndarray  # (features,)
    intercept: float
    spread: float  # standard deviation of the errors

    def predict(self, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return inputs @ self.weights + self.intercept, np.full(len(inputs), self.spread)


class Ridge(_Simple):
    """Ridge regression on standardized features; leave-one-out error selects the penalty."""

    kind = "ridge"

    def _fit_one(self, inputs: np.ndarray, values: np.ndarray) -> tuple[_LinearModel, np.ndarray]:
        model, errors = _ridge(inputs, values)
        return model, errors / model.spread

    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        config, tensors = super()._state()
        tensors["weights"] = np.stack([model.weights for model in self._models])
        tensors["start_and_spread"] = np.array([(model.intercept, model.spread) for model in self._models])
        return config, tensors

    @classmethod
    def _restore(cls, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Self:
        self = super()._restore(config, tensors)
        weights = tensors["weights"].reshape(len(self._metrics), len(self._names))
        ends = tensors["start_and_spread"].reshape(len(self._metrics), 2).tolist()
        self._models = [_LinearModel(w, *end) for w, end in zip(weights, ends, strict=True)]
        return self


def _ridge(inputs: np.ndarray, values: np.ndarray) -> tuple[_LinearModel, np.ndarray]:
    """Fit inputs (n, features) to values (n,); return the model and its leave-one-out errors (n,)."""
    center, scale = inputs.mean(0), inputs.std(0)
    scale = np.where(scale > 0, scale, 1.0)
    left, singular, right = np.linalg.svd((inputs - center) / scale, full_matrices=False)
    kept = singular > 1e-9 * max(1.0, singular.max(initial=0.0))
    left, singular, right = left[:, kept], singular[kept], right[kept]
    target = values - values.mean()
    along = left.T @ target

    def left_out(alpha: float) -> np.ndarray:
        shrink = singular**2 / (singular**2 + alpha)
        leverage = (left**2 * shrink).sum(1) + 1 / len(values)
        return (target - left @ (shrink * along)) / np.maximum(1 - leverage, 1e-3)

    alpha = min(_ALPHAS, key=lambda alpha: float((left_out(alpha) ** 2).mean()))
    weights = right.T @ (along * singular / (singular**2 + alpha)) / scale
    errors = left_out(alpha)
    spread = max(float(errors.std()), _negligible_std(values))
    return _LinearModel(weights, float(values.mean() - center @ weights), spread), errors


class _ForestModel(NamedTuple):
    """A forest fitted to values divided by `unit`: scikit-learn makes no splits where the variance is tiny."""

    forest: RandomForestRegressor
    unit: float
    least: float  # least standard deviation of the trees
    inflation: float  # standard deviation of the errors, relative to that of the trees

    def predict(self, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        trees = self.unit * _by_tree(self.forest, inputs)
        return trees.mean(0), np.hypot(trees.std(0), self.least) * self.inflation


class Forest(_Simple):
    """A random forest per metric. Its uncertainty is the spread of the trees, scaled to the out-of-bag errors.

    A checkpoint holds the training data, and loading fits the same forest again: scikit-learn saves forests as pickles
    only.

    Args:
        seed: seed of the forest and its samples.
        trees: trees per forest, at least 1.
    """

    kind = "forest"

    def __init__(self, seed: int = 0, trees: int = 200) -> None:
        super().__init__(seed)
        if trees < 1:
            raise InputError(f"forest: trees must be at least 1, not {trees}")
        self.trees = trees

    def _fit(self, inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
        self._inputs, self._targets = inputs, targets
        return super()._fit(inputs, targets)

    def _fit_one(self, inputs: np.ndarray, values: np.ndarray) -> tuple[_ForestModel, np.ndarray]:
        from sklearn.ensemble import RandomForestRegressor

        largest = float(np.abs(values).max())
        unit = float(2.0 ** np.floor(np.log2(largest))) if largest else 1.0  # a power of 2: no rounding error
        forest = RandomForestRegressor(self.trees, max_features=1 / 3, random_state=self.seed)
        mean, spread = (unit * found for found in _out_of_bag(forest.fit(inputs, values / unit), inputs))
        least = max(0.02 * float(values.std()), _negligible_std(values))
        errors = (values - mean) / np.hypot(spread, least)
        inflation = 1.0 if np.isnan(errors).all() else max(float(np.sqrt(np.nanmean(errors**2))), 1e-3)
        return _ForestModel(forest, unit, least, inflation), errors / inflation

    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        config, tensors = super()._state()
        return config | {"trees": self.trees}, tensors | {"inputs": self._inputs, "targets": self._targets}

    @classmethod
    def _restore(cls, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Self:
        self = super()._restore(config, tensors)
        self.trees = config["trees"]
        n = tensors["inputs"].shape[0]
        self._fit(tensors["inputs"].reshape(n, len(self._names)), tensors["targets"].reshape(n, len(self._metrics)))
        return self


def _by_tree(forest: RandomForestRegressor, inputs: np.ndarray) -> np.ndarray:
    """Predictions (trees, n) of the individual trees."""
    if not len(inputs):
        return np.zeros((len(forest.estimators_), 0))
    return np.stack([tree.predict(inputs) for tree in forest.estimators_])


def _out_of_bag(forest: RandomForestRegressor, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation (n,) over the trees that were not trained on a row; NaN if all were."""
    trees = _by_tree(forest, inputs)
    for predicted, seen in zip(trees, forest.estimators_samples_, strict=True):
        predicted[seen] = np.nan
    unseen = (~np.isnan(trees)).sum(0)
    with np.errstate(invalid="ignore"):
        mean = np.nansum(trees, 0) / unseen
        return mean, np.sqrt(np.nansum((trees - mean) ** 2, 0) / unseen)
