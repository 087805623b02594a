"""A predictor of your own guides a search: the conformance suite checks it first.

python examples/own_predictor.py [EVALUATIONS]
"""

import sys

import numpy as np

import nas
from predictors.base import SamplingPredictor, as_targets, as_texts
from predictors.features import feature_matrix, select_features
from predictors.testing import check_predictor
from predictors.uncertainty import text_noise


class Linear(SamplingPredictor):
    """Least squares on costs and counts of operators, with the spread of its residuals."""

    kind = "linear"

    def fit(self, architectures, metrics):
        texts, targets = as_texts(architectures), as_targets(architectures, metrics)
        self._metrics, self._names = tuple(targets), select_features(texts)
        inputs, fits = self._inputs(texts), []
        for values in targets.values():
            labelled = ~np.isnan(values)  # a network may lack some of the metrics
            x, y = inputs[labelled], values[labelled]
            weights = np.linalg.lstsq(x, y, rcond=1e-6)[0]
            fits.append([*weights, (y - x @ weights).std() + 1e-9 * max(1.0, np.abs(y).max())])
        self._fits = np.array(fits)  # (metrics, features + 2)
        return self

    def _inputs(self, texts):
        return np.c_[feature_matrix(texts, self._names), np.ones(len(texts))]  # (n, features + 1)

    def _draw(self, architectures, metrics, known, samples, seed):
        texts = as_texts(architectures)
        noise = text_noise(texts, samples, len(metrics), (self.seed, seed))
        fits = self._fits[[self._metrics.index(metric) for metric in metrics]]
        return (self._inputs(texts) @ fits[:, :-1].T)[:, None] + fits[:, -1] * noise

    def _state(self):
        return {**self._config(), "features": self._names}, {"fits": self._fits}

    @classmethod
    def _restore(cls, config, tensors):
        self = cls(config["seed"])
        self._metrics, self._names = tuple(config["metrics"]), config["features"]
        self._fits = tensors["fits"]
        return self


if __name__ == "__main__":
    check_predictor(Linear)
    problem = nas.load_benchmark("digits201").problem("digits_accuracy,cpu_latency_ms")
    evaluations = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    print(nas.search(problem, sampler=f"{__file__}:Linear", evaluations=evaluations).front)
