"""The graph network as a predictor: an ensemble fine-tuned from a pretrained one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch

from predictors.base import Progress
from predictors.checkpoint import load_base
from predictors.files import load_weights, with_prefix
from predictors.gnn.graph import TextGraph, Vocabulary, collate, text_graph
from predictors.gnn.model import Config, Network
from predictors.gnn.training import Schedule, held_out, train
from predictors.inputs import Inputs, Metrics, as_targets, as_texts
from predictors.noise import conditional_errors, second_moments, shrink_correlation, text_noise
from predictors.sampling import SamplingPredictor
from predictors.scores import Scores
from search_spaces.common.errors import InputError

BASE = "gnn-label-free"
FOLDS = 8
MIN_NOISE = 0.02  # least standard deviation of errors, in normal scores
_PRIOR_NOISE = 0.5  # prior standard deviation of errors, in normal scores
_PRIOR_WEIGHT = 2.0  # number of errors that the prior counts as
_BATCH = 128  # texts encoded at once: larger batches exceed a core's cache


class GNN(SamplingPredictor):
    """Directed graph flow and graph attention on the blocks of the ONNX graph (FLAN, Akhauri and
    Abdelfattah 2024).

    An ensemble, initialized with the weights of the base, learns metrics as normal scores. Samples
    are the members' predictions plus normal errors with the covariance measured on held-out
    architectures. Where a metric is given, the errors of the others are conditioned on its error.

    Args:
        seed: seed of weights, batches and samples.
        base: folder or shipped name of a pretrained checkpoint; None for random initial weights.
        width: width of the layers. With a base, width, layers and members must equal the base's.
        layers: flow layers per block.
        members: networks in the ensemble.
        steps: optimizer steps, at least 2; None to choose them by the number of architectures.
        schedule: other fields of `Schedule` by name.
        progress: called as `progress(step, steps, loss)`.

    Raises:
        InputError: if a size or the number of steps is too small.
    """

    kind = "gnn"

    def __init__(
        self,
        seed: int = 0,
        base: str | None = BASE,
        width: int = 32,
        layers: int = 3,
        members: int = 4,
        steps: int | None = None,
        schedule: Mapping[str, float] | None = None,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(seed)
        if min(width, layers, members) < 1 or (steps is not None and steps < 2):
            raise InputError("gnn: width, layers and members must be at least 1, steps at least 2")
        self.base, self.width, self.layers, self.members, self.steps = (
            base,
            width,
            layers,
            members,
            steps,
        )
        self.schedule, self.progress = schedule or {}, progress

    # --- learning

    def fit(self, architectures: Inputs, metrics: Metrics) -> Self:
        targets = as_targets(architectures, metrics)
        graphs = [text_graph(text) for text in as_texts(architectures)]
        rng = np.random.default_rng(self.seed)
        base = self._load_base()
        self._metrics = tuple(targets)
        self._scales = [
            Scores.of_ranks(name, values[~np.isnan(values)]) for name, values in targets.items()
        ]
        self._vocabulary: Vocabulary = Vocabulary.of(graphs, base._vocabulary.words if base else ())
        self._network = self._new_network()
        if base:
            self._network.copy_pretrained(base._network)
        normalized = self._normalize(targets, len(graphs))
        number = {graph: i for i, graph in enumerate(dict.fromkeys(graphs))}
        hidden = held_out(len(number), self.members, FOLDS, rng)[
            :, [number[graph] for graph in graphs]
        ]
        rate = 2e-3 if base else 6e-3
        chosen = {
            "steps": self.steps or _steps(len(graphs)),
            "learning_rate": rate,
            **self.schedule,
        }
        schedule = Schedule(**chosen)  # type: ignore[arg-type]
        train(
            self._network,
            self._vocabulary,
            graphs,
            normalized,
            hidden,
            schedule,
            rng,
            self.progress,
        )
        self._covariance = self._measure_errors(graphs, normalized, hidden)
        return self

    def _load_base(self) -> GNN | None:
        """The base, whose sizes must equal this predictor's; None without one."""
        if self.base is None:
            return None
        base = load_base(self.base, GNN)
        for name in ("width", "layers", "members"):
            own, of_base = getattr(self, name), getattr(base, name)
            if own != of_base:
                raise InputError(
                    f"gnn: {name} is {of_base} in {self.base}, not {own}; base=None allows any size"
                )
        return base

    # --- predicting

    def _draw(
        self,
        architectures: Inputs,
        metrics: Sequence[str],
        known: dict[str, np.ndarray],
        samples: int,
        seed: int,
    ) -> np.ndarray:
        texts = as_texts(architectures)
        columns = [self.metrics.index(name) for name in metrics]
        if not texts or not metrics:
            return np.empty((len(texts), samples, len(metrics)))
        scores = self._scores([text_graph(text) for text in texts])  # (K, n, M)
        drawn = scores[np.arange(samples) % self.members].transpose(1, 0, 2)  # (n, samples, M)
        noise = text_noise(texts, samples, len(self.metrics), (self.seed, seed))
        given_scores = self._normalize(known, len(texts))[:, None]
        drawn = drawn + conditional_errors(self._covariance, given_scores - drawn, noise)
        return np.stack(
            [self._scales[column].restore(drawn[:, :, column]) for column in columns], 2
        )

    def _new_network(self) -> Network:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return Network(
                Config(
                    len(self._vocabulary), len(self.metrics), self.width, self.layers, self.members
                )
            )

    def _normalize(self, values: Metrics, n: int) -> np.ndarray:
        """Values (n, M) of the trained metrics in normal scores, NaN where missing."""
        columns = [
            scale.normalize(np.asarray(values[name])) if name in values else np.full(n, np.nan)
            for name, scale in zip(self.metrics, self._scales, strict=True)
        ]
        return np.stack(columns, axis=1)

    @torch.no_grad()
    def _scores(self, graphs: Sequence[TextGraph]) -> np.ndarray:
        """The members' predictions (K, n, M) in normal scores; every distinct text is encoded
        once.
        """
        number = {graph: i for i, graph in enumerate(dict.fromkeys(graphs))}
        distinct, parts = list(number), []
        for start in range(0, len(distinct), _BATCH):
            batch = collate(distinct[start : start + _BATCH])
            parts.append(self._network(batch, self._vocabulary.features(batch.kinds)))
        return torch.cat(parts, dim=1)[:, [number[graph] for graph in graphs]].double().numpy()

    def _measure_errors(
        self, graphs: Sequence[TextGraph], targets: np.ndarray, hidden: np.ndarray
    ) -> np.ndarray:
        """Covariance (M, M) of the errors on held-out architectures, minus the variance among the
        members there.
        """
        errors = np.where(hidden[:, :, None], targets - self._scores(graphs), np.nan)
        pairs = errors[: self.members // 2 * 2].reshape(-1, 2, *targets.shape)
        apart = (pairs[:, 0] - pairs[:, 1]).reshape(-1, targets.shape[1])
        errors = errors.reshape(-1, targets.shape[1])
        covariance = _moments(errors, _PRIOR_NOISE) - _moments(apart, 0.0) / 2
        scale = np.sqrt(np.maximum(np.diag(covariance), MIN_NOISE**2))
        examples = second_moments(errors)[1] / 2  # each is held out from two members
        return shrink_correlation(covariance / np.outer(scale, scale), examples) * np.outer(
            scale, scale
        )

    # --- checkpoints

    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        config = {
            "options": {
                "width": self.width,
                "layers": self.layers,
                "members": self.members,
                "steps": self.steps,
            },
            **self._config(),
            "words": list(self._vocabulary.words),
        }
        tensors = with_prefix(
            "network", {name: value.numpy() for name, value in self._network.state_dict().items()}
        )
        for i, scale in enumerate(self._scales):
            tensors |= {f"scale{i}.values": scale.values, f"scale{i}.scores": scale.scores}
            tensors[f"scale{i}.pivot"] = np.array([scale.pivot])
        return config, tensors | {"covariance": self._covariance}

    @classmethod
    def _restore(cls, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Self:
        self = cls(seed=config["seed"], base=None, **config["options"])
        self._metrics = tuple(config["metrics"])
        self._vocabulary = Vocabulary(config["words"])
        n = len(self._metrics)
        none = np.zeros(1)  # the pivot of the shipped checkpoints, which store none
        self._scales = [
            Scores(
                tensors[f"scale{i}.values"],
                tensors[f"scale{i}.scores"],
                float(tensors.get(f"scale{i}.pivot", none)[0]),
            )
            for i in range(n)
        ]
        self._covariance = tensors["covariance"].reshape(n, n)
        self._network = self._new_network().eval()
        load_weights(self._network, "network", tensors)
        return self


def _moments(errors: np.ndarray, prior: float) -> np.ndarray:
    """Second moments (M, M) of errors (e, M), NaN where missing, with `_PRIOR_WEIGHT` errors of
    size `prior` added.
    """
    sums, counts = second_moments(errors)
    return (sums + _PRIOR_WEIGHT * prior**2 * np.eye(len(counts))) / (counts + _PRIOR_WEIGHT)


def _steps(n: int) -> int:
    """Default number of optimizer steps for n architectures."""
    return 80 + n // 2
