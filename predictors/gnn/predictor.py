"""The graph network as a predictor: an ensemble, and noise as large as its errors on what it has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch

from predictors.base import Inputs, Metrics, Predictions, Predictor, as_targets, as_texts, check_request
from predictors.gnn.graph import TextGraph, Vocabulary, collate, text_graph
from predictors.gnn.model import Config, Network
from predictors.gnn.training import Schedule, held_out, train
from predictors.noise import conditional_errors, significant, text_noise
from predictors.scale import Scale
from search_spaces.errors import InputError

FOLDS = 8
MIN_NOISE = 0.02  # standard deviations of a metric
_PRIOR_NOISE = 0.5  # standard deviations, with the weight of so many errors
_PRIOR_WEIGHT = 2.0
_BATCH = 256  # texts encoded at once


class GNN(Predictor):
    """Directed graph flow and graph attention on the blocks of the ONNX graph (FLAN, Akhauri and Abdelfattah 2024).

    Metrics are learned as normal scores. What is given moves the others: the errors of two metrics on architectures
    that were held out are correlated, and where one is known the others follow as in a joint normal distribution.

    width, layers: of the network; members: networks in the ensemble; steps: of training (None: by the number of
    architectures).
    """

    kind = "gnn"

    def __init__(
        self, seed: int = 0, width: int = 32, layers: int = 3, members: int = 4, steps: int | None = None
    ) -> None:
        super().__init__(seed)
        if min(width, layers, members) < 1 or (steps is not None and steps < 2):
            raise InputError("gnn: width, layers and members must be at least 1, steps at least 2")
        self.width, self.layers, self.members, self.steps = width, layers, members, steps
        self._metrics: tuple[str, ...] = ()

    @property
    def metrics(self) -> tuple[str, ...]:
        return self._metrics

    def fit(self, architectures: Inputs, metrics: Metrics) -> Self:
        targets = as_targets(architectures, metrics)
        graphs = [text_graph(text) for text in as_texts(architectures)]
        rng = np.random.default_rng(self.seed)
        self._metrics = tuple(targets)
        self._scales = [Scale.fit(values) for values in targets.values()]
        self._vocabulary = Vocabulary.of(graphs)
        self._network = self._new_network()
        normalized = self._normalize(targets, len(graphs))
        hidden = held_out(len(graphs), self.members, FOLDS, rng)
        schedule = Schedule(self.steps or _steps(len(graphs)))
        train(self._network, self._vocabulary, graphs, normalized, hidden, schedule, rng)
        self._covariance = self._measure_errors(graphs, normalized, hidden)
        return self

    def predict(
        self,
        architectures: Inputs,
        metrics: Sequence[str],
        given: Metrics | None = None,
        samples: int = 64,
        seed: int = 0,
    ) -> Predictions:
        known = check_request(self, architectures, metrics, given, samples)
        texts = as_texts(architectures)
        normalized = self._normalize(known, len(texts))
        scores = self._scores([text_graph(text) for text in texts])  # (K, n, M)
        columns = [self.metrics.index(name) for name in metrics]
        drawn = scores[np.arange(samples) % self.members].transpose(1, 0, 2)  # (n, samples, M)
        noise = text_noise(texts, samples, len(self.metrics), (self.seed, seed))
        drawn = (drawn + conditional_errors(self._covariance, normalized[:, None] - drawn, noise))[:, :, columns]
        for j, name in enumerate(metrics):
            drawn[:, :, j] = self._scales[columns[j]].restore(drawn[:, :, j])
            if name in known:
                exact = known[name][:, None]
                drawn[:, :, j] = np.where(np.isnan(exact), drawn[:, :, j], exact)
        return Predictions.of_samples(metrics, drawn)

    def _new_network(self) -> Network:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return Network(Config(len(self._vocabulary), len(self.metrics), self.width, self.layers, self.members))

    def _normalize(self, values: Metrics, n: int) -> np.ndarray:
        """(n, M) normalized values of the trained metrics, NaN where there is none."""
        columns = [
            scale.normalize(np.asarray(values[name])) if name in values else np.full(n, np.nan)
            for name, scale in zip(self.metrics, self._scales, strict=True)
        ]
        return np.stack(columns, axis=1)

    @torch.no_grad()
    def _scores(self, graphs: Sequence[TextGraph]) -> np.ndarray:
        """(K, n, M) normalized predictions of the members; every distinct text is encoded once."""
        number = {graph: i for i, graph in enumerate(dict.fromkeys(graphs))}
        distinct = list(number)
        scores = [torch.zeros(self.members, 0, len(self.metrics))]
        for start in range(0, len(distinct), _BATCH):
            batch = collate(distinct[start : start + _BATCH])
            scores.append(self._network(batch, self._vocabulary.features(batch.kinds)))
        return torch.cat(scores, dim=1).double().numpy()[:, [number[graph] for graph in graphs]]

    def _measure_errors(self, graphs: Sequence[TextGraph], targets: np.ndarray, hidden: np.ndarray) -> np.ndarray:
        """(M, M): covariance of the errors on what was held out, beyond the members' differences there."""
        errors = np.where(hidden[:, :, None], targets - self._scores(graphs), np.nan)
        pairs = errors[: self.members // 2 * 2].reshape(-1, 2, *targets.shape)
        apart = (pairs[:, 0] - pairs[:, 1]).reshape(-1, targets.shape[1])
        errors = errors.reshape(-1, targets.shape[1])
        seen = (~np.isnan(errors)).astype(float)
        covariance = _moments(errors, _PRIOR_NOISE) - _moments(apart, 0.0) / 2
        scale = np.sqrt(np.maximum(np.diag(covariance), MIN_NOISE**2))
        examples = seen.T @ seen / 2  # each is held out from two members
        return significant(covariance / np.outer(scale, scale), examples) * np.outer(scale, scale)

    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        if not self.metrics:
            raise InputError("the gnn predictor is not trained: there is nothing to save")
        config = {
            "options": {"width": self.width, "layers": self.layers, "members": self.members, "steps": self.steps},
            "seed": self.seed,
            "metrics": list(self.metrics),
            "words": list(self._vocabulary.words),
        }
        tensors = {f"network.{name}": value.numpy() for name, value in self._network.state_dict().items()}
        for i, scale in enumerate(self._scales):
            tensors |= {f"scale{i}.values": scale.values, f"scale{i}.scores": scale.scores}
        return config, tensors | {"covariance": self._covariance}

    @classmethod
    def _restore(cls, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Self:
        self = cls(seed=config["seed"], **config["options"])
        self._metrics = tuple(config["metrics"])
        self._vocabulary = Vocabulary(config["words"])
        self._scales = [
            Scale(tensors[f"scale{i}.values"], tensors[f"scale{i}.scores"]) for i in range(len(self._metrics))
        ]
        self._covariance = tensors["covariance"].reshape(len(self._metrics), len(self._metrics))
        self._network = self._new_network().eval()
        prefix = "network."
        weights = {k.removeprefix(prefix): torch.from_numpy(v) for k, v in tensors.items() if k.startswith(prefix)}
        self._network.load_state_dict(weights)
        return self


def _steps(n: int) -> int:
    """Training steps for n architectures."""
    return 80 + n // 2


def _moments(errors: np.ndarray, prior: float) -> np.ndarray:
    """(M, M) second moments of errors (e, M), NaN where there is none, with a few errors of size `prior` added."""
    seen = ~np.isnan(errors)
    filled = np.where(seen, errors, 0.0)
    counts = seen.T.astype(float) @ seen
    return (filled.T @ filled + _PRIOR_WEIGHT * prior**2 * np.eye(len(counts))) / (counts + _PRIOR_WEIGHT)
