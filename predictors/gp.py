"""Gaussian processes of scikit-learn: on features of the text, and on one-hot choices."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from predictors.features import feature_matrix, select_features
from predictors.files import examples
from predictors.inputs import Inputs, Metrics, as_targets, as_texts, group_by_known
from predictors.noise import text_noise
from predictors.sampling import SamplingPredictor
from predictors.scores import Scores
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    from sklearn.gaussian_process import GaussianProcessRegressor

MAX_GP_POINTS = 1000  # the time of a fit grows with the cube of the number of points


class _GP(SamplingPredictor):
    """One Gaussian process per metric: Matérn-5/2 kernel and noise, fitted by maximum marginal likelihood.

    Inputs are standardized, targets are normal scores. Given metrics are further inputs. Samples are normal in
    scores and independent between metrics.
    """

    def fit(self, architectures: Inputs, metrics: Metrics) -> Self:
        values = as_targets(architectures, metrics)
        order = np.random.default_rng(self.seed).permutation(len(architectures))
        known = ~np.isnan([column[order] for column in values.values()])
        kept = np.sort(order[(known & (known.cumsum(1) <= MAX_GP_POINTS)).any(0)])  # the limit holds per metric
        chosen = [architectures[i] for i in kept]
        self._names = self._select(chosen)
        self._store(self._encode(chosen), {name: column[kept] for name, column in values.items()})
        return self

    def _store(self, inputs: np.ndarray, values: dict[str, np.ndarray]) -> None:
        self._points, self._values, self._metrics = inputs, values, tuple(values)
        self._scales = {name: Scores.fit(v[~np.isnan(v)], by_rank=True) for name, v in values.items()}
        self._processes: dict[tuple[str, ...], GaussianProcessRegressor] = {}

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
                process = self._process(metric, *covariates)
                points = self._joined(inputs[rows], {name: known[name][rows] for name in covariates})
                mean, std = process.predict(points, return_std=True)
                scores = mean[:, None] + std[:, None] * noise[rows, :, column]
                drawn[rows, :, column] = self._scales[metric].restore(scores)
        return drawn

    def _process(self, metric: str, *covariates: str) -> GaussianProcessRegressor:
        """The process that predicts a metric's normal scores."""
        key = (metric, *covariates)
        if key not in self._processes:
            rows = self._rows(*key)
            inputs = self._joined(self._points[rows], {name: self._values[name][rows] for name in covariates})
            scores = self._scales[metric].normalize(self._values[metric][rows])
            self._processes[key] = _fitted(inputs, scores, self.seed)
        return self._processes[key]

    def _rows(self, *metrics: str) -> np.ndarray:
        """Row numbers of up to `MAX_GP_POINTS` points that have all these metrics."""
        rows = np.flatnonzero(~np.isnan([self._values[name] for name in metrics]).any(0))
        if len(rows) > MAX_GP_POINTS:
            rows = np.sort(np.random.default_rng(self.seed).permutation(rows)[:MAX_GP_POINTS])
        return rows

    def _joined(self, inputs: np.ndarray, covariates: Mapping[str, np.ndarray]) -> np.ndarray:
        """Inputs scaled to a total variance of 1, followed by the covariates in normal scores."""
        center, scale = self._points.mean(0), self._points.std(0)
        standard = (inputs - center) / np.where(scale > 0, scale, 1.0) / max(1, (scale > 0).sum()) ** 0.5
        scores = [self._scales[name].normalize(values)[:, None] for name, values in covariates.items()]
        constant = np.zeros((len(inputs), 1))  # scikit-learn needs at least one input
        return np.concatenate([standard, constant, *scores], 1)

    @abstractmethod
    def _select(self, architectures: Inputs) -> list[str]:
        """Names of the inputs that vary."""

    @abstractmethod
    def _encode(self, architectures: Inputs) -> np.ndarray:
        """Inputs (n, d) in the order of `_names`."""

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


def _fitted(inputs: np.ndarray, scores: np.ndarray, seed: int) -> GaussianProcessRegressor:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    kernel = ConstantKernel(1.0, (1e-2, 1e2)) * Matern(1.0, (5e-2, 5e1), nu=2.5) + WhiteKernel(0.2, (1e-4, 1e1))
    optimizer = "fmin_l_bfgs_b" if len(scores) > 2 and np.ptp(scores) > 0 else None
    process = GaussianProcessRegressor(kernel, optimizer=optimizer, normalize_y=False, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return process.fit(inputs, scores)


class TextGP(_GP):
    """A Gaussian process on features of the text: costs, counts of operators and of short paths."""

    kind = "gp"

    def _select(self, architectures: Inputs) -> list[str]:
        return select_features(as_texts(architectures))

    def _encode(self, architectures: Inputs) -> np.ndarray:
        return feature_matrix(as_texts(architectures), self._names)


class ChoicesGP(_GP):
    """A Gaussian process on one-hot choices; a float choice is one numerical input.

    It reads `Architecture`s, not texts.
    """

    kind = "gp-choices"
    reads_choices: ClassVar[bool] = True

    def _select(self, architectures: Inputs) -> list[str]:
        found = [_options(a) for a in architectures]
        names = sorted(set().union(*found))
        return [name for name in names if len({options.get(name, 0.0) for options in found}) > 1]

    def _encode(self, architectures: Inputs) -> np.ndarray:
        found = [[options.get(name, 0.0) for name in self._names] for options in map(_options, architectures)]
        return np.array(found).reshape(len(found), len(self._names))


def _options(architecture: Any) -> dict[str, float]:
    """Inputs of an architecture by name: 1 per chosen option; the value itself for a float choice."""
    from search_spaces import Architecture

    if not isinstance(architecture, Architecture):
        raise InputError(f"gp-choices reads architectures with their choices, not {str(architecture)[:60]!r}")
    return dict(
        (name, value) if isinstance(value, float) else (f"{name}={value}", 1.0) for name, value in architecture.choices
    )
