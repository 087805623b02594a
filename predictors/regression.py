"""Base class of the predictors that fit one regression per metric to a matrix of inputs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from predictors.features import feature_matrix, select_features
from predictors.files import examples
from predictors.inputs import Inputs, Metrics, as_targets, as_texts, group_by_known
from predictors.noise import text_noise
from predictors.sampling import SamplingPredictor
from predictors.scores import Scores
from search_spaces.common.errors import InputError

Regression = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]  # inputs (n, d) to means and deviations (n,)


class RegressionPredictor(SamplingPredictor):
    """One regression per metric, on features of the text: costs, counts of operators and of short paths.

    Inputs are standardized, targets are normal scores. Given metrics are further inputs. Samples are normal in scores
    and independent between metrics. A checkpoint holds the points; loading fits the same regressions again.
    """

    max_points: ClassVar[int] = 20_000  # of each metric

    def fit(self, architectures: Inputs, metrics: Metrics) -> Self:
        values = as_targets(architectures, metrics)
        order = np.random.default_rng(self.seed).permutation(len(architectures))
        known = ~np.isnan([column[order] for column in values.values()])
        kept = np.sort(order[(known & (known.cumsum(1) <= self.max_points)).any(0)])  # the limit holds per metric
        chosen = [architectures[i] for i in kept]
        self._names = self._select(chosen)
        self._store(self._encode(chosen), {name: column[kept] for name, column in values.items()})
        return self

    def _store(self, inputs: np.ndarray, values: dict[str, np.ndarray]) -> None:
        self._points, self._values, self._metrics = inputs, values, tuple(values)
        self._scales = {name: Scores.fit(v[~np.isnan(v)], by_rank=True) for name, v in values.items()}
        self._regressions: dict[tuple[str, ...], Regression] = {}

    def _draw(
        self, architectures: Inputs, metrics: Sequence[str], known: dict[str, np.ndarray], samples: int, seed: int
    ) -> np.ndarray:
        inputs = self._encode(architectures)
        noise = text_noise([str(a) for a in architectures], samples, len(metrics), (self.seed, seed))
        drawn = np.empty((len(architectures), samples, len(metrics)))
        for rows, names in group_by_known(len(architectures), known):
            for column, metric in enumerate(metrics):
                if metric in names:
                    continue
                # Without an example that has all these metrics, the prediction is not conditioned.
                covariates = names if len(self._rows(metric, *names)) else []
                regression = self._regression(metric, *covariates)
                mean, std = regression(self._joined(inputs[rows], {name: known[name][rows] for name in covariates}))
                scores = mean[:, None] + std[:, None] * noise[rows, :, column]
                drawn[rows, :, column] = self._scales[metric].restore(scores)
        return drawn

    def _regression(self, metric: str, *covariates: str) -> Regression:
        """The regression that predicts a metric's scores."""
        key = (metric, *covariates)
        if key not in self._regressions:
            rows = self._rows(*key)
            inputs = self._joined(self._points[rows], {name: self._values[name][rows] for name in covariates})
            self._regressions[key] = self._fitted(inputs, self._scales[metric].normalize(self._values[metric][rows]))
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
        standard = (inputs - center) / np.where(scale > 0, scale, 1.0) / max(1, (scale > 0).sum()) ** 0.5
        scores = [self._scales[name].normalize(values)[:, None] for name, values in covariates.items()]
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
        """A regression fitted to scores (n,) of inputs (n, d)."""

    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        config = {**self._config(), "inputs": self._names}
        return config, {"inputs": self._points, "values": np.stack(list(self._values.values()))}

    @classmethod
    def _restore(cls, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Self:
        self = cls(seed=config["seed"])
        self._names = list(config["inputs"])
        if tensors["inputs"].shape[1:] != (len(self._names),):
            raise InputError("damaged checkpoint: the number of its inputs differs from that of their names")
        self._store(tensors["inputs"], examples(config, tensors, "inputs"))
        return self
