"""Baselines of scikit-learn: ridge regression, a random forest and Gaussian processes.

All of them fit one regression per metric to a matrix of inputs: features of the text (costs, counts
of operators and of short paths), of the network's graph (the forest), or one-hot choices. Sizes in
comments: n inputs, d numbers of an input, s samples, m metrics, N stored points.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

from predictors.base import (
    Inputs,
    Metrics,
    SamplingPredictor,
    as_targets,
    as_texts,
    group_by_observed,
    restore_values,
)
from predictors.features import (
    Features,
    features,
    least_frequent,
    named_matrix,
    varying_names,
)
from predictors.graph_features import graph_features, is_graph_feature
from predictors.transforms import TargetTransform
from predictors.uncertainty import (
    conditional_errors,
    second_moments,
    shrink_correlation,
    text_noise,
)
from search_spaces import Architecture
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    from sklearn.ensemble import RandomForestRegressor

MIN_STD = 1e-3  # of predicted z
RELATIVE_MIN_STD = 0.02  # of a forest's predictions, relative to the deviation of the targets
PENALTIES = np.logspace(-2, 4, 25)  # of ridge regression

MeansAndDeviations = tuple[np.ndarray, np.ndarray]  # (n,) each


class Regression(NamedTuple):
    """A regression of one metric, in z."""

    predict: Callable[[np.ndarray], MeansAndDeviations]  # of inputs (n, d)
    # (N,) of its points when left out, in units of the deviation; NaN where unknown
    errors: np.ndarray


class RegressionPredictor(SamplingPredictor):
    """One regression per metric, on features of the text.

    Inputs are standardized, targets are normal scores. Given metrics are further inputs. Samples
    are normal in z, and correlated between metrics as the errors on left-out points. A checkpoint
    holds the points; loading fits the same regressions again.
    """

    max_points: ClassVar[int] = 20_000  # of each metric
    reads_rare: ClassVar[bool] = False  # True: also features that few points have

    @abstractmethod
    def _fit_regression(self, inputs: np.ndarray, targets: np.ndarray) -> Regression:
        """Fit a regression to targets (n,), in z, of inputs (n, d)."""

    def _features(self, architectures: Inputs) -> list[Features]:
        """Features of each of n architectures."""
        return [features(text) for text in as_texts(architectures)]

    def _select(self, architectures: Inputs) -> list[str]:
        """Names of the features that are inputs."""
        points = self._features(architectures)
        least = 1 if self.reads_rare else least_frequent(len(points))
        return varying_names(points, least)

    def _encode(self, architectures: Inputs) -> np.ndarray:
        """Inputs (n, d) in the order of `_names`."""
        return named_matrix(self._features(architectures), self._names)

    # --- learning

    def fit(self, architectures: Inputs, metrics: Metrics) -> Self:
        values = as_targets(architectures, metrics)
        # 1. Keep up to `max_points` random points of each metric, in their order.
        order = np.random.default_rng(self.seed).permutation(len(architectures))
        shuffled = [column[order] for column in values.values()]
        is_known = ~np.isnan(shuffled)  # (m, n)
        is_within_limit = is_known.cumsum(1) <= self.max_points
        is_kept = (is_known & is_within_limit).any(0)  # (n,)
        kept = np.sort(order[is_kept])

        # 2. Store their inputs and values; regressions are fitted when they are needed.
        points = [architectures[i] for i in kept]
        self._names = self._select(points)
        of_points = {name: column[kept] for name, column in values.items()}
        self._store(self._encode(points), of_points)
        return self

    def _store(self, points: np.ndarray, values: dict[str, np.ndarray]) -> None:
        """Store inputs (N, d) of points and their values (N,) per metric, NaN where missing."""
        self._points = points
        self._values = values
        self._metrics = tuple(values)
        self._transforms: dict[str, TargetTransform] = {}
        for name, column in values.items():
            observed = column[~np.isnan(column)]
            self._transforms[name] = TargetTransform.by_ranks(name, observed)
        self._regressions: dict[tuple[str, ...], Regression] = {}

    def _regression(self, metric: str, *covariates: str) -> Regression:
        """The regression that predicts a metric's z from the inputs and the covariates."""
        key = (metric, *covariates)
        if key not in self._regressions:
            rows = self._rows(*key)
            of_rows = {name: self._values[name][rows] for name in covariates}
            inputs = self._join(self._points[rows], of_rows)  # (n, d)
            targets = self._transforms[metric].to_z(self._values[metric][rows])  # (n,)
            regression = self._fit_regression(inputs, targets)
            # Errors of all points, so that metrics can be compared.
            errors = np.full(len(self._points), np.nan)  # (N,)
            errors[rows] = regression.errors
            self._regressions[key] = regression._replace(errors=errors)
        return self._regressions[key]

    def _rows(self, *metrics: str) -> np.ndarray:
        """Row numbers of up to `max_points` points that have all these metrics."""
        is_missing = np.isnan([self._values[name] for name in metrics])  # (metrics, N)
        rows = np.flatnonzero(~is_missing.any(0))
        if len(rows) > self.max_points:
            shuffled = np.random.default_rng(self.seed).permutation(rows)
            rows = np.sort(shuffled[: self.max_points])
        return rows

    def _join(self, inputs: np.ndarray, covariates: Mapping[str, np.ndarray]) -> np.ndarray:
        """Inputs scaled to a total variance of 1, followed by the covariates in z."""
        # 1. Standardize the inputs that vary among the points.                               (n, d)
        center = self._points.mean(0)
        scale = self._points.std(0)
        varies = scale > 0
        standard = (inputs - center) / np.where(varies, scale, 1.0)
        standard = standard / max(1, varies.sum()) ** 0.5

        # 2. Join the covariates. scikit-learn needs at least one input, so a column is 0.
        columns = [np.zeros(len(inputs))]
        for name, values in covariates.items():
            columns.append(self._transforms[name].to_z(values))
        return np.concatenate([standard, np.stack(columns, 1)], 1)

    # --- predicting

    def _draw(
        self,
        architectures: Inputs,
        metrics: Sequence[str],
        observed: dict[str, np.ndarray],
        samples: int,
        seed: int,
    ) -> np.ndarray:
        architectures = architectures if self.reads_choices else as_texts(architectures)
        inputs = self._encode(architectures)  # (n, d)
        texts = [str(architecture) for architecture in architectures]
        noise = text_noise(texts, samples, len(metrics), (self.seed, seed))  # (n, s, m)
        drawn = np.empty((len(architectures), samples, len(metrics)))
        for rows, names in group_by_observed(len(architectures), observed):
            free = [column for column, metric in enumerate(metrics) if metric not in names]
            # 1. A regression per metric. Without a point that has all given metrics, the
            #    prediction is not conditioned on them.
            covariates = {}
            regressions = {}
            for column in free:
                metric = metrics[column]
                has_points = len(self._rows(metric, *names)) > 0
                covariates[column] = names if has_points else []
                regressions[column] = self._regression(metric, *covariates[column])

            # 2. Errors, correlated between the metrics.                                 (n, s, m)
            left_out = [regression.errors for regression in regressions.values()]
            independent = noise[rows][:, :, free]
            errors = _correlated(independent, left_out)

            # 3. Samples around the means.                                                  (n, s)
            for j, column in enumerate(free):
                given = {name: observed[name][rows] for name in covariates[column]}
                points = self._join(inputs[rows], given)
                mean, std = regressions[column].predict(points)
                spread = std[:, None] * errors[:, :, j]
                z = mean[:, None] + spread
                transform = self._transforms[metrics[column]]
                drawn[rows, :, column] = transform.to_values(z)
        return drawn

    # --- checkpoints

    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        config = {**self._config(), "inputs": self._names}
        tensors = {
            "inputs": self._points,
            "values": np.stack(list(self._values.values())),
        }
        return config, tensors

    @classmethod
    def _restore(cls, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Self:
        self = cls(seed=config["seed"])
        self._names = list(config["inputs"])
        if tensors["inputs"].shape[1:] != (len(self._names),):
            raise InputError(
                "damaged checkpoint: the number of its inputs differs from that of their names"
            )
        self._store(tensors["inputs"], restore_values(config, tensors, "inputs"))
        return self


def _correlated(noise: np.ndarray, errors: list[np.ndarray]) -> np.ndarray:
    """Standard normal noise (n, s, m), correlated between metrics as their errors.

    errors: those of each metric (N,) on left-out points.
    """
    metrics = len(errors)
    if metrics < 2:
        return noise
    columns = np.stack(errors, 1)  # (N, m)
    if np.isnan(columns).all():
        return noise

    # 1. Correlations of the errors.                                                        (m, m)
    sums, counts = second_moments(columns)
    moments = sums / np.maximum(counts, 1)
    variances = np.maximum(np.diag(moments), 1e-12)
    scale = np.sqrt(variances)  # (m,)
    correlation = shrink_correlation(moments / np.outer(scale, scale), counts)

    # 2. A draw from them.
    nothing_observed = np.full((len(noise), 1, metrics), np.nan)
    return conditional_errors(correlation, nothing_observed, noise)


class Ridge(RegressionPredictor):
    """Ridge regression; leave-one-out error selects the penalty and is the uncertainty."""

    kind = "ridge"

    def _fit_regression(self, inputs: np.ndarray, targets: np.ndarray) -> Regression:
        from sklearn.linear_model import RidgeCV

        # 1. Too few points for leaving one out: the mean, with the deviation of z.
        if len(targets) < 3:
            mean = float(targets.mean())
            return Regression(
                lambda points: (np.full(len(points), mean), np.ones(len(points))),
                errors=targets - mean,
            )

        # 2. Leave-one-out errors at the penalty where they are smallest.                      (N,)
        ridge = RidgeCV(PENALTIES, scoring="neg_mean_squared_error", store_cv_results=True)
        ridge.fit(inputs, targets)
        is_best = ridge.alpha_ == PENALTIES
        left_out = ridge.cv_results_[:, is_best][:, 0]  # predictions
        errors = targets - left_out
        mean_square = np.mean(errors**2)
        std = max(MIN_STD, float(np.sqrt(mean_square)))
        return Regression(
            lambda points: (ridge.predict(points), np.full(len(points), std)),
            errors=errors / std,
        )


class Forest(RegressionPredictor):
    """A random forest per metric, on features of the network's graph (`graph_features`).

    Its uncertainty is the spread of the trees, scaled to the out-of-bag errors.

    Args:
        seed: seed of the forest and its samples.
        trees: trees per forest, at least 1.
    """

    kind = "forest"
    reads_rare: ClassVar[bool] = True

    def __init__(self, seed: int = 0, trees: int = 200) -> None:
        super().__init__(seed)
        if trees < 1:
            raise InputError(f"forest: trees must be at least 1, not {trees}")
        self.trees = trees

    def _features(self, architectures: Inputs) -> list[Features]:
        return [graph_features(text) for text in as_texts(architectures)]

    def _fit_regression(self, inputs: np.ndarray, targets: np.ndarray) -> Regression:
        from sklearn.ensemble import RandomForestRegressor

        forest = RandomForestRegressor(self.trees, max_features=1 / 3, random_state=self.seed)
        forest.fit(inputs, targets)

        # 1. Out-of-bag errors in units of the trees' spread.                                 (N,)
        mean, spread = _out_of_bag(forest, inputs)
        deviation = float(targets.std())
        smallest = max(MIN_STD, RELATIVE_MIN_STD * deviation)
        errors = (targets - mean) / np.hypot(spread, smallest)

        # 2. The factor that makes their mean square 1.
        inflation = 1.0
        if np.isfinite(errors).sum() > 2:
            mean_square = np.nanmean(errors**2)
            inflation = max(float(np.sqrt(mean_square)), MIN_STD)

        def predict(points: np.ndarray) -> MeansAndDeviations:
            trees = _by_tree(forest, points)  # (trees, n)
            spread = np.hypot(trees.std(0), smallest)
            return trees.mean(0), spread * inflation

        return Regression(predict, errors / inflation)

    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        config, tensors = super()._state()
        return config | {"trees": self.trees}, tensors

    @classmethod
    def _restore(cls, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Self:
        if not all(map(is_graph_feature, config["inputs"])):
            raise InputError(
                "this forest was trained by an earlier version, on other features: train it again"
            )
        self = super()._restore(config, tensors)
        self.trees = config["trees"]
        return self


def _by_tree(forest: RandomForestRegressor, inputs: np.ndarray) -> np.ndarray:
    """Predictions (trees, n) of the individual trees."""
    return np.stack([tree.predict(inputs) for tree in forest.estimators_])


def _out_of_bag(forest: RandomForestRegressor, inputs: np.ndarray) -> MeansAndDeviations:
    """Mean and standard deviation (n,) over the trees that were not trained on a row.

    Both are NaN if all trees were.
    """
    trees = _by_tree(forest, inputs)  # (trees, n)
    for predicted, seen in zip(trees, forest.estimators_samples_, strict=True):
        predicted[seen] = np.nan
    unseen = (~np.isnan(trees)).sum(0)  # (n,)
    with np.errstate(invalid="ignore"):
        mean = np.nansum(trees, 0) / unseen
        squares = (trees - mean) ** 2
        variance = np.nansum(squares, 0) / unseen
        return mean, np.sqrt(variance)


class TextGP(RegressionPredictor):
    """A Gaussian process on features of the text.

    Its Matérn-5/2 kernel and noise are of maximum marginal likelihood. Samples are
    independent between metrics.
    """

    kind = "gp"
    max_points: ClassVar[int] = 1000  # the time of a fit grows with the cube of their number

    def _fit_regression(self, inputs: np.ndarray, targets: np.ndarray) -> Regression:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

        variance = ConstantKernel(1.0, constant_value_bounds=(1e-2, 1e2))
        distance = Matern(1.0, length_scale_bounds=(5e-2, 5e1), nu=2.5)
        noise = WhiteKernel(0.2, noise_level_bounds=(1e-4, 1e1))
        can_be_optimized = len(targets) > 2 and np.ptp(targets) > 0
        process = GaussianProcessRegressor(
            variance * distance + noise,
            optimizer="fmin_l_bfgs_b" if can_be_optimized else None,
            normalize_y=False,
            random_state=self.seed,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            process.fit(inputs, targets)
        unknown_errors = np.full(len(targets), np.nan)
        return Regression(partial(process.predict, return_std=True), unknown_errors)


class ChoicesGP(TextGP):
    """A Gaussian process on one-hot choices; a float choice is one numerical input.

    It reads `Architecture`s, not texts.
    """

    kind = "gp-choices"
    reads_choices: ClassVar[bool] = True
    reads_rare: ClassVar[bool] = True

    def _features(self, architectures: Inputs) -> list[Features]:
        return [_one_hot(architecture) for architecture in architectures]


def _one_hot(architecture: Any) -> dict[str, float]:
    """Inputs of an architecture by name.

    They are 1 per chosen option, and the value itself for a float choice.
    """
    if not isinstance(architecture, Architecture):
        raise InputError(
            f"gp-choices reads architectures with their choices, not {str(architecture)[:60]!r}"
        )
    inputs: dict[str, float] = {}
    for name, value in architecture.choices:
        if isinstance(value, float):
            inputs[name] = value
        else:
            inputs[f"{name}={value}"] = 1.0
    return inputs
