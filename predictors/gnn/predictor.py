"""The graph network as a predictor: an ensemble, and Gaussian processes on what a pretrained one makes of a text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from predictors.base import (
    GUESSES,
    Inputs,
    Metrics,
    as_targets,
    as_texts,
    checkpoint,
    load,
    under,
)
from predictors.conditioned import Conditioned, estimated, is_told, mixed
from predictors.estimate import MOST, Estimator, Kernel, Seen, some_of
from predictors.features import feature_matrix, telling
from predictors.gnn.graph import Batch, TextGraph, Vocabulary, collate, text_graph
from predictors.gnn.model import Config, Network
from predictors.gnn.training import Progress, Schedule, held_out, train
from predictors.metrics import is_chosen
from predictors.noise import conditional_errors, significant, text_noise
from predictors.scale import Scale
from search_spaces.common.errors import InputError

BASE = "gnn-label-free"
FOLDS = 8
MIN_NOISE = 0.02  # standard deviations of a metric
_PRIOR_NOISE = 0.5  # standard deviations, with the weight of so many errors
_PRIOR_WEIGHT = 2.0
_REMEMBERED = 30_000  # texts' embeddings: 15 MB
_BATCH = 128  # texts encoded at once: what is computed of more leaves a core's cache


@lru_cache(maxsize=4)
def _base(folder: str) -> GNN:
    """A pretrained network, loaded once per process."""
    loaded = load(folder)
    if not isinstance(loaded, GNN):
        raise InputError(f"{folder}: holds a {loaded.kind} predictor, not a gnn")
    return loaded


class GNN(Conditioned):
    """Directed graph flow and graph attention on the blocks of the ONNX graph (FLAN, Akhauri and Abdelfattah 2024).

    Metrics are learned as normal scores. An ensemble begins with the base's weights and is trained further; half of the
    samples are those of Gaussian processes on the base's embeddings, as they are, and on counts of operators and of
    short paths (`predictors.estimate`). Where metrics are given, which the processes have as inputs, all samples
    are theirs, and so are a device's where what was chosen is given. Without a base there are no processes: what is
    given moves the ensemble's samples of the others, since the errors of two metrics on architectures that were held
    out are correlated, and where one is known the others follow as in a joint normal distribution.

    base: checkpoint folder or shipped name of a pretrained network; None to start from nothing, without processes.
    processes: whether there are any; they keep what they were fitted to, and so does a saved model that has them.
    quick: whether the processes answer alone, where they can, and the ensemble learns nothing: a fit takes a second.
    by_value: whether they go by distances between values, as a search needs, and not by ranks.
    memory: by text, what the base made of it, for a search that fits again and again. What is made of a text differs in
        its last bits by what is read along with it: whoever keeps a memory keeps the order, too. None: nothing is kept.
    width, layers: of the network; members: networks in the ensemble. A base has sizes of its own.
    steps: of training (None: by the number of architectures). schedule: other fields of `Schedule`.
    progress: is told the step, of how many, and the loss. losses: of every step of the last fit.
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
        processes: bool = True,
        quick: bool = False,
        by_value: bool = False,
        memory: dict[str, np.ndarray] | None = None,
        schedule: Mapping[str, float] | None = None,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(seed)
        if min(width, layers, members) < 1 or (steps is not None and steps < 2):
            raise InputError("gnn: width, layers and members must be at least 1, steps at least 2")
        self.base, self.width, self.layers, self.members, self.steps = base, width, layers, members, steps
        self.processes, self.quick, self.by_value, self.memory = processes, quick, by_value, memory
        self.schedule, self.progress = schedule or {}, progress
        self.losses: list[float] = []
        self._metrics: tuple[str, ...] = ()
        self._before: GNN | None = None  # the base
        self._estimator: Estimator | None = None
        self._alone = False  # whether the processes answer alone

    @property
    def metrics(self) -> tuple[str, ...]:
        return self._metrics

    # --- learning

    def fit(self, architectures: Inputs, metrics: Metrics) -> Self:
        targets = as_targets(architectures, metrics)
        texts = as_texts(architectures)
        graphs = [text_graph(text) for text in texts]
        rng = np.random.default_rng(self.seed)
        self._before = self._begin()
        learned = {name: values for name, values in targets.items() if not is_chosen(name)}
        self._metrics = tuple(learned)
        self._scales = [Scale.fit(values) for values in learned.values()]
        self._vocabulary: Vocabulary = Vocabulary.of(graphs, self._before._vocabulary.words if self._before else ())
        self._network = self._new_network()
        if self._before:
            self._network.begin_like(self._before._network)
        self._estimator = self._second_opinion(texts, targets) if self._before and self.processes else None
        self._alone = self.quick and self._estimator is not None and self._estimator.knows(self.metrics)
        if self._alone:
            self._covariance = np.eye(len(self.metrics))
            return self
        normalized = self._normalize(learned, len(graphs))
        number = {graph: i for i, graph in enumerate(dict.fromkeys(graphs))}
        hidden = held_out(len(number), self.members, FOLDS, rng)[:, [number[graph] for graph in graphs]]
        self.losses = train(
            self._network, self._vocabulary, graphs, normalized, hidden, self._schedule(len(graphs)), rng, self.progress
        )
        self._covariance = self._measure_errors(graphs, normalized, hidden)
        return self

    def _begin(self) -> GNN | None:
        """The base, of these sizes."""
        if self.base is None:
            return None
        base = _base(str(checkpoint(self.base)))
        sizes = {name: (getattr(self, name), getattr(base, name)) for name in ("width", "layers", "members")}
        for name, (own, of_base) in sizes.items():
            if own != of_base:
                raise InputError(f"gnn: {name} is {of_base} in {self.base}, not {own}; base=None has any")
        return base

    def _schedule(self, n: int) -> Schedule:
        """For n architectures; a network that has learned something already takes smaller steps."""
        chosen = {"steps": self.steps or _steps(n), "learning_rate": 2e-3 if self._before else 6e-3}
        return Schedule(**{**chosen, **self.schedule})  # type: ignore[arg-type]

    def _second_opinion(self, texts: list[str], targets: Mapping[str, np.ndarray]) -> Estimator:
        """Processes for all metrics, from `MOST` texts at most: the time that it takes grows with their cube."""
        rows = some_of(len(texts), MOST)
        some = [texts[i] for i in rows]
        table = {name: values[rows] for name, values in targets.items()}
        counted = telling(some)
        known = {name: values for name, values in table.items() if not np.isnan(values).all()}
        return Estimator(self._seen(some, counted), counted, known, self.by_value)

    # --- predicting

    def _expected(
        self, texts: list[str], metrics: Sequence[str], given: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """What is expected (n,) of each metric: by the processes, or by a few of the ensemble's samples."""
        found: dict[str, np.ndarray] = {}
        if self._estimator is not None and metrics:
            seen = self._seen(texts, self._estimator.names)
            expected = {name: self._estimator.expect(name, seen, given) for name in metrics}
            found = {name: values for name, values in expected.items() if values is not None}
        if rest := [name for name in metrics if name not in found]:
            drawn = self._drawn(texts, rest, given, GUESSES, 0)
            found |= {name: np.median(values, 1) for name, values in drawn.items()}
        return found

    def _sample(
        self, texts: list[str], metrics: Sequence[str], given: Mapping[str, np.ndarray], samples: int, seed: int
    ) -> list[np.ndarray]:
        """(n, samples) per metric, for texts that all have the same metrics given."""
        found = self._estimates(texts, metrics, given, samples, seed)
        return mixed(metrics, samples, found, lambda asked, count: self._drawn(texts, asked, given, count, seed))

    def _drawn(
        self, texts: list[str], metrics: Sequence[str], given: Mapping[str, np.ndarray], samples: int, seed: int
    ) -> dict[str, np.ndarray]:
        """The ensemble's samples (n, samples) of each metric."""
        scores = self._scores([text_graph(text) for text in texts])  # (K, n, M)
        drawn = scores[np.arange(samples) % self.members].transpose(1, 0, 2)  # (n, samples, M)
        noise = text_noise(texts, samples, len(self.metrics), (self.seed, seed))
        known = self._normalize(given, len(texts))[:, None]
        drawn = drawn + conditional_errors(self._covariance, known - drawn, noise)
        columns = {name: self.metrics.index(name) for name in metrics}
        return {name: self._scales[column].restore(drawn[:, :, column]) for name, column in columns.items()}

    def _estimates(
        self, texts: list[str], metrics: Sequence[str], given: Mapping[str, np.ndarray], samples: int, seed: int
    ) -> dict[str, np.ndarray]:
        """The processes' share of the samples (n, share) of each metric that there is a process for."""
        alone = self._alone or not all(map(is_chosen, given))
        counts = {name: samples if alone or is_told(name, given) else samples // 2 for name in metrics}
        if self._estimator is None or not any(counts.values()):
            return {}
        seen = self._seen(texts, self._estimator.names)
        return estimated(self._estimator, texts, seen, given, counts, (self.seed, seed, 1))

    def _seen(self, texts: list[str], counted: list[str]) -> Seen:
        """What the processes see of texts: what all members of the base make of them, and counts."""
        assert self._before is not None
        return Seen(self._recalled(texts), feature_matrix(texts, counted).astype(np.float32))

    def _recalled(self, texts: list[str]) -> np.ndarray:
        """What the base makes of texts, from memory where there is one."""
        assert self._before is not None
        if self.memory is None:
            return self._before.embed(texts)
        new = [text for text in dict.fromkeys(texts) if text not in self.memory]
        if new and len(self.memory) + len(new) > _REMEMBERED:
            self.memory.clear()
            new = list(dict.fromkeys(texts))
        if new:
            self.memory.update(zip(new, self._before.embed(new), strict=True))
        return np.array([self.memory[text] for text in texts])

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """(n, members * width): what all members of the ensemble make of n texts."""
        if not self.metrics:
            raise InputError("the gnn predictor is not trained: it makes nothing of a text yet")
        embedded = _of_texts(self._network.embed, self._vocabulary, [text_graph(text) for text in texts])
        return embedded.transpose(0, 1).flatten(1).numpy()

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

    def _scores(self, graphs: Sequence[TextGraph]) -> np.ndarray:
        """(K, n, M) normalized predictions of the members."""
        return _of_texts(self._network, self._vocabulary, graphs).double().numpy()

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

    # --- checkpoints

    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        if not self.metrics:
            raise InputError("the gnn predictor is not trained: there is nothing to save")
        config, tensors = self._learned()
        if self._before and self._estimator:
            kernels = [[*key, kernel.numbers] for key, kernel in self._estimator.kernels.items()]
            names = {"estimated": list(self._estimator.values), "counted": self._estimator.names}
            config["before"], of_before = self._before._learned()
            config |= {"by_value": self._estimator.by_value, "alone": self._alone, "kernels": kernels, **names}
            tensors |= {f"before.{name}": tensor for name, tensor in of_before.items()}
            tensors |= {**self._estimator.seen._asdict(), "values": np.stack(list(self._estimator.values.values()))}
        return config, tensors

    def _learned(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The ensemble."""
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
        self = cls(seed=config["seed"], base=None, **config["options"])
        self._metrics = tuple(config["metrics"])
        self._vocabulary = Vocabulary(config["words"])
        self._scales = [
            Scale(tensors[f"scale{i}.values"], tensors[f"scale{i}.scores"]) for i in range(len(self._metrics))
        ]
        self._covariance = tensors["covariance"].reshape(len(self._metrics), len(self._metrics))
        self._network = self._new_network().eval()
        weights = {name: torch.from_numpy(tensor) for name, tensor in under("network", tensors).items()}
        self._network.load_state_dict(weights)
        if names := config.get("estimated"):
            self._before = cls._restore(config["before"], under("before", tensors))
            states, counted = tensors["states"], config["counted"]
            seen = Seen(states, tensors["counts"].reshape(len(states), len(counted)))
            table = dict(zip(names, tensors["values"].reshape(len(names), len(states)), strict=True))
            kernels = {tuple(key): Kernel(numbers) for *key, numbers in config["kernels"]}
            self.by_value, self._alone = config["by_value"], config.get("alone", False)
            self._estimator = Estimator(seen, counted, table, self.by_value, kernels)
        return self


@torch.no_grad()
def _of_texts(
    compute: Callable[[Batch, Tensor], Tensor], vocabulary: Vocabulary, graphs: Sequence[TextGraph]
) -> Tensor:
    """(K, n, width) of what a network computes for n texts; every distinct text is encoded once."""
    number = {graph: i for i, graph in enumerate(dict.fromkeys(graphs))}
    distinct = list(number)
    parts = []
    for start in range(0, len(distinct), _BATCH):
        batch = collate(distinct[start : start + _BATCH])
        parts.append(compute(batch, vocabulary.features(batch.kinds)))
    return torch.cat(parts, dim=1)[:, [number[graph] for graph in graphs]]


def _steps(n: int) -> int:
    """Training steps for n architectures."""
    return 80 + n // 2


def _moments(errors: np.ndarray, prior: float) -> np.ndarray:
    """(M, M) second moments of errors (e, M), NaN where there is none, with a few errors of size `prior` added."""
    seen = ~np.isnan(errors)
    filled = np.where(seen, errors, 0.0)
    counts = seen.T.astype(float) @ seen
    return (filled.T @ filled + _PRIOR_WEIGHT * prior**2 * np.eye(len(counts))) / (counts + _PRIOR_WEIGHT)
