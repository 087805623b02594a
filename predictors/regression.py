"""Base class of the predictors that fit one regression per metric to a matrix of inputs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from predictors.features import feature_matrix, select_features
from predictors.files import examples
from predictors.inputs import Inputs, Metrics, as_targets, as_texts, group_by_known
from predictors.noise import conditional_errors, second_moments, shrink_correlation, text_noise
from predictors.sampling import SamplingPredictor
from predictors.scores import Scores
from search_spaces.common.errors import InputError


class Regression(NamedTuple):
    """A regression of one metric, in scores."""

    predict: Callable[
        [np.ndarray], tuple[np.ndarray, np.ndarray]
    ]  # inputs (n, d) to means and deviations (n,)
    errors: (
        np.ndarray
    )  # (n,) of its points when left out, in units of the deviation; NaN where unknown


class RegressionPredictor(SamplingPredictor):
    """One regression per metric, on features of the text: costs, counts of operators and of short
    paths.

    Inputs are standardized, targets are normal scores. Given metrics are further inputs. Samples
    are normal in scores, and correlated between metrics as the errors on left-out points. A
    checkpoint holds the points; loading fits the same regressions again.
    """

    max_points: ClassVar[int] = 20_000  # of each metric

    def fit(self, architectures: Inputs, metrics: Metrics) -> Self:
        values = as_targets(architectures, metrics)
        order = np.random.default_rng(self.seed).permutation(len(architectures))
        known = ~np.isnan([column[order] for column in values.values()])
        kept = np.sort(
            order[(known & (known.cumsum(1) <= self.max_points)).any(0)]
        )  # the limit holds per metric
        chosen = [architectures[i] for i in kept]
        self._names = self._select(chosen)
        self._store(self._encode(chosen), {name: column[kept] for name, column in values.items()})
        return self

    def _store(self, inputs: np.ndarray, values: dict[str, np.ndarray]) -> None:
        self._points, self._values, self._metrics = inputs, values, tuple(values)
        self._scales = {name: Scores.of_ranks(name, v[~np.isnan(v)]) for name, v in values.items()}
        self._regressions: dict[tuple[str, ...], Regression] = {}

    def _draw(
        self,
        architectures: Inputs,
        metrics: Sequence[str],
        known: dict[str, np.ndarray],
        samples: int,
        seed: int,
    ) -> np.ndarray:
        architectures = architectures if self.reads_choices else as_texts(architectures)
        inputs = self._encode(architectures)
        noise = text_noise(
            [str(a) for a in architectures], samples, len(metrics), (self.seed, seed)
        )
        drawn = np.empty((len(architectures), samples, len(metrics)))
        for rows, names in group_by_known(len(architectures), known):
            asked = [column for column, metric in enumerate(metrics) if metric not in names]
            # Without an example that has all these metrics, the prediction is not conditioned.
            given = {
                column: names if len(self._rows(metrics[column], *names)) else []
                for column in asked
            }
            regressions = [self._regression(metrics[column], *given[column]) for column in asked]
            errors = _correlated(
                noise[rows][:, :, asked], [regression.errors for regression in regressions]
            )
            for j, (column, regression) in enumerate(zip(asked, regressions, strict=True)):
                points = self._joined(
                    inputs[rows], {name: known[name][rows] for name in given[column]}
                )
                mean, std = regression.predict(points)
                scores = mean[:, None] + std[:, None] * errors[:, :, j]
                drawn[rows, :, column] = self._scales[metrics[column]].restore(scores)
        return drawn

    def _regression(self, metric: str, *covariates: str) -> Regression:
        """The regression that predicts a metric's scores."""
        key = (metric, *covariates)
        if key not in self._regressions:
            rows = self._rows(*key)
            inputs = self._joined(
                self._points[rows], {name: self._values[name][rows] for name in covariates}
            )
            found = self._fitted(inputs, self._scales[metric].normalize(self._values[metric][rows]))
            errors = np.full(
                len(self._points), np.nan
            )  # of all points, so that metrics can be compared
            errors[rows] = found.errors
            self._regressions[key] = found._replace(errors=errors)
        return self._regressions[key]

    def _rows(self, *metrics: str) -> np.ndarray:
        """Row numbers of up to `max_points` points that have all these metrics."""
        rows = np.flatnonzero(~np.isnan([self._values[name] for name in metrics]).any(0))
        if len(rows) > self.max_points:
            rows = np.sort(np.random.default_rng(self.seed).permutation(rows)[: self.max_points])
        return rows

    def _joined(self, inputs: np.ndarray, covariates: Mapping[str, np.ndarray]) -> np.ndarray:
        """Inputs scaled to a total variance of 1, followed by the covariates in normal scores."""
        center, scale = self._points.mean(0), self._points.std(0)
        standard = (
            (inputs - center) / np.where(scale > 0, scale, 1.0) / max(1, (scale > 0).sum()) ** 0.5
        )
        scores = [
            self._scales[name].normalize(values)[:, None] for name, values in covariates.items()
        ]
        constant = np.zeros((len(inputs), 1))  # scikit-learn needs at least one input
        return np.concatenate([standard, constant, *scores], 1)

    def _select(self, architectures: Inputs) -> list[str]:
        """Names of the inputs that vary."""
        return select_features(as_texts(architectures))

    def _encode(self, architectures: Inputs) -> np.ndarray:
        """Inputs (n, d) in the order of `_names`."""
        return feature_matrix(as_texts(architectures), self._names)

    @abstractmethod
    def _fitted(self, inputs: np.ndarray, scores: np.ndarray) -> Regression:
        """A regression fitted to scores (n,) of inputs (n, d), with its errors (n,)."""

    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        config = {**self._config(), "inputs": self._names}
        return config, {"inputs": self._points, "values": np.stack(list(self._values.values()))}

    @classmethod
    def _restore(cls, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Self:
        self = cls(seed=config["seed"])
        self._names = list(config["inputs"])
        if tensors["inputs"].shape[1:] != (len(self._names),):
            raise InputError(
                "damaged checkpoint: the number of its inputs differs from that of their names"
            )
        self._store(tensors["inputs"], examples(config, tensors, "inputs"))
        return self


def _correlated(noise: np.ndarray, errors: list[np.ndarray]) -> np.ndarray:
    """Standard normal noise (n, samples, m), correlated between metrics as their errors (N,) on
    left-out points.
    """
    columns = np.stack(errors, 1) if errors else np.empty((0, 0))
    if len(errors) < 2 or np.isnan(columns).all():
        return noise
    sums, counts = second_moments(columns)
    moments = sums / np.maximum(counts, 1)
    scale = np.sqrt(np.maximum(np.diag(moments), 1e-12))
    correlation = shrink_correlation(moments / np.outer(scale, scale), counts)
    return conditional_errors(correlation, np.full((len(noise), 1, len(errors)), np.nan), noise)
