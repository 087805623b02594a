"""Two baselines of scikit-learn on features of the text: ridge regression and a random forest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from predictors.regression import Regression, RegressionPredictor
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    from sklearn.ensemble import RandomForestRegressor

_ALPHAS = np.logspace(-2, 4, 25)
MIN_STD = 1e-3  # of predicted scores


class Ridge(RegressionPredictor):
    """Ridge regression; leave-one-out error selects the penalty and is the uncertainty."""

    kind = "ridge"

    def _fitted(self, inputs: np.ndarray, scores: np.ndarray) -> Regression:
        from sklearn.linear_model import RidgeCV

        if len(scores) < 3:
            mean = float(scores.mean())
            return Regression(
                lambda points: (np.full(len(points), mean), np.ones(len(points))), scores - mean
            )
        model = RidgeCV(_ALPHAS, scoring="neg_mean_squared_error", store_cv_results=True).fit(
            inputs, scores
        )
        errors = scores - model.cv_results_[:, model.alpha_ == _ALPHAS][:, 0]
        std = max(MIN_STD, float(np.sqrt(np.mean(errors**2))))
        return Regression(
            lambda points: (model.predict(points), np.full(len(points), std)), errors / std
        )


class Forest(RegressionPredictor):
    """A random forest per metric. Its uncertainty is the spread of the trees, scaled to the
    out-of-bag errors.

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

    def _fitted(self, inputs: np.ndarray, scores: np.ndarray) -> Regression:
        from sklearn.ensemble import RandomForestRegressor

        forest = RandomForestRegressor(self.trees, max_features=1 / 3, random_state=self.seed).fit(
            inputs, scores
        )
        mean, spread = _out_of_bag(forest, inputs)
        least = max(MIN_STD, 0.02 * float(scores.std()))
        errors = (scores - mean) / np.hypot(spread, least)
        inflation = (
            max(float(np.sqrt(np.nanmean(errors**2))), 1e-3)
            if np.isfinite(errors).sum() > 2
            else 1.0
        )

        def predict(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            trees = _by_tree(forest, points)
            return trees.mean(0), np.hypot(trees.std(0), least) * inflation

        return Regression(predict, errors / inflation)

    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        config, tensors = super()._state()
        return config | {"trees": self.trees}, tensors

    @classmethod
    def _restore(cls, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Self:
        self = super()._restore(config, tensors)
        self.trees = config["trees"]
        return self


def _by_tree(forest: RandomForestRegressor, inputs: np.ndarray) -> np.ndarray:
    """Predictions (trees, n) of the individual trees."""
    return np.stack([tree.predict(inputs) for tree in forest.estimators_])


def _out_of_bag(forest: RandomForestRegressor, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation (n,) over the trees that were not trained on a row; NaN if all
    were.
    """
    trees = _by_tree(forest, inputs)
    for predicted, seen in zip(trees, forest.estimators_samples_, strict=True):
        predicted[seen] = np.nan
    unseen = (~np.isnan(trees)).sum(0)
    with np.errstate(invalid="ignore"):
        mean = np.nansum(trees, 0) / unseen
        return mean, np.sqrt(np.nansum((trees - mean) ** 2, 0) / unseen)
