"""Two baselines on features of the text: ridge regression and a random forest."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

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

    def fit(self, architectures: Inputs, metrics: Metrics) -> Self:
        targets = as_targets(architectures, metrics)
        texts = as_texts(architectures)
        self._metrics = tuple(targets)
        self._names = sorted(set().union(*(features(text) for text in texts)))
        errors = self._fit(feature_matrix(texts, self._names), np.stack(list(targets.values()), axis=1))
        self._correlation = _correlation(errors)
        return self

    def _draw(
        self, architectures: Inputs, metrics: Sequence[str], known: dict[str, np.ndarray], samples: int, seed: int
    ) -> np.ndarray:
        texts = as_texts(architectures)
        mean, spread = self._predict(feature_matrix(texts, self._names))
        values = np.stack([known.get(name, np.full(len(texts), np.nan)) for name in self.metrics], axis=1)
        noise = text_noise(texts, samples, len(self.metrics), (self.seed, seed))
        drawn = mean[:, None] + spread[:, None] * conditional_errors(
            self._correlation, ((values - mean) / spread)[:, None], noise
        )
        return drawn[:, :, [self.metrics.index(name) for name in metrics]]

    @abstractmethod
    def _fit(self, inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Fit targets (n, M), NaN where missing; return standardized errors (n, M) on left-out examples."""

    @abstractmethod
    def _predict(self, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation (n, M); the latter is above 0."""

    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        return {**self._config(), "features": self._names}, {"correlation": self._correlation}

    @classmethod
    def _restore(cls, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Self:
        self = cls(seed=config["seed"])
        self._metrics, self._names = tuple(config["metrics"]), list(config["features"])
        self._correlation = tensors["correlation"].reshape(len(self._metrics), len(self._metrics))
        return self


def _correlation(errors: np.ndarray) -> np.ndarray:
    """Correlation (M, M) of errors (n, M), NaN where missing."""
    sums, counts = second_moments(errors)
    moments = sums / np.maximum(counts, 1)
    scale = np.sqrt(np.maximum(np.diag(moments), 1e-12))
    return shrink_correlation(moments / np.outer(scale, scale), counts)


def _negligible_std(values: np.ndarray) -> float:
    """A negligible standard deviation above 0, which avoids division by 0."""
    return 1e-9 * (float(np.abs(values).max()) or 1.0)


@dataclass(frozen=True)
class _LinearModel:
    """A linear model: weights (features,), intercept, and standard deviation `spread` of its errors."""

    weights: np.ndarray
    intercept: float
    spread: float


class Ridge(_Simple):
    """Ridge regression on standardized features; leave-one-out error selects the penalty."""

    kind = "ridge"

    def _fit(self, inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
        self._models: list[_LinearModel] = []
        errors = np.full(targets.shape, np.nan)
        for column, values in enumerate(targets.T):
            seen = ~np.isnan(values)
            model, left_out = _ridge(inputs[seen], values[seen])
            self._models.append(model)
            errors[seen, column] = left_out / model.spread
        return errors

    def _predict(self, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mean = np.stack([inputs @ model.weights + model.intercept for model in self._models], axis=1)
        return mean, np.broadcast_to([model.spread for model in self._models], mean.shape)

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
        self._forests: list[RandomForestRegressor] = []
        self._inflation, self._min_std, self._units = np.ones((3, targets.shape[1]))
        errors = np.full(targets.shape, np.nan)
        for column, values in enumerate(targets.T):
            seen = ~np.isnan(values)
            forest = self._grow(inputs[seen], values[seen])
            unit = self._units[column] = _unit(values[seen])
            mean, spread = (unit * found for found in _out_of_bag(forest, inputs[seen]))
            error = values[seen] - mean
            self._min_std[column] = max(0.02 * float(values[seen].std()), _negligible_std(values[seen]))
            raw = error / np.hypot(spread, self._min_std[column])
            if not np.isnan(raw).all():
                self._inflation[column] = max(float(np.sqrt(np.nanmean(raw**2))), 1e-3)
            errors[seen, column] = raw / self._inflation[column]
            self._forests.append(forest)
        return errors

    def _grow(self, inputs: np.ndarray, values: np.ndarray) -> RandomForestRegressor:
        """Fit a forest to values divided by `_unit`: scikit-learn makes no splits where the variance is tiny."""
        from sklearn.ensemble import RandomForestRegressor

        return RandomForestRegressor(self.trees, max_features=1 / 3, random_state=self.seed).fit(
            inputs, values / _unit(values)
        )

    def _predict(self, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mean, spread = np.empty((2, len(inputs), len(self._forests)))
        for column, forest in enumerate(self._forests):
            trees = self._units[column] * _by_tree(forest, inputs)
            mean[:, column] = trees.mean(0)
            spread[:, column] = np.hypot(trees.std(0), self._min_std[column]) * self._inflation[column]
        return mean, spread

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


def _unit(values: np.ndarray) -> float:
    """The largest power of two up to the largest absolute value, a divisor without rounding error; 1 if all are 0."""
    largest = float(np.abs(values).max())
    return float(2.0 ** np.floor(np.log2(largest))) if largest else 1.0


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
