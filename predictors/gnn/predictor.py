"""The graph network as a predictor: an ensemble fine-tuned from a pretrained one.

Training minimizes a regression and a ranking loss on normalized metrics; every member leaves out its
held-out part. Sizes in comments: K members, n texts, b of a batch, M metrics, s samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR

from predictors.base import Inputs, Metrics, Progress, SamplingPredictor, as_targets, as_texts
from predictors.checkpoint import load_weights, with_prefix
from predictors.gnn.graph import TextGraph, Vocabulary, collate, text_graph
from predictors.gnn.model import Config, Network
from predictors.registry import load_base
from predictors.transforms import TargetTransform
from predictors.uncertainty import (
    conditional_errors,
    second_moments,
    shrink_correlation,
    text_noise,
)
from search_spaces.common.errors import InputError

BASE = "gnn-label-free"
FOLDS = 8
MIN_NOISE = 0.02  # least standard deviation of errors, in z
MARGIN = 0.1  # of the ranking loss, in z
MAX_GRADIENT = 5.0  # norm
LEARNING_RATE = 6e-3  # peak of the cycle, from random weights
PRETRAINED_LEARNING_RATE = 2e-3  # peak of the cycle, from a base
_PRIOR_NOISE = 0.5  # prior standard deviation of errors, in z
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
        self.base = base
        self.width = width
        self.layers = layers
        self.members = members
        self.steps = steps
        self.schedule = schedule or {}
        self.progress = progress

    # --- learning

    def fit(self, architectures: Inputs, metrics: Metrics) -> Self:
        targets = as_targets(architectures, metrics)
        graphs = [text_graph(text) for text in as_texts(architectures)]
        rng = np.random.default_rng(self.seed)

        # 1. A network for these metrics and words, with the weights of the base.
        base = self._load_base()
        self._metrics = tuple(targets)
        self._transforms = [
            TargetTransform.by_ranks(name, values[~np.isnan(values)])
            for name, values in targets.items()
        ]
        known_words = base._vocabulary.words if base else ()
        self._vocabulary: Vocabulary = Vocabulary.of(graphs, known_words)
        self._network = self._new_network()
        if base:
            self._network.copy_pretrained(base._network)

        # 2. Which texts each member is not trained on; equal texts are in one fold.        (K, n)
        number = {graph: i for i, graph in enumerate(dict.fromkeys(graphs))}
        hidden = held_out(len(number), self.members, FOLDS, rng)
        hidden = hidden[:, [number[graph] for graph in graphs]]

        # 3. Train, and measure the errors on what was held out.
        z = self._to_z(targets, len(graphs))  # (n, M)
        settings = {
            "steps": self.steps or _default_steps(len(graphs)),
            "learning_rate": PRETRAINED_LEARNING_RATE if base else LEARNING_RATE,
            **self.schedule,
        }
        schedule = Schedule(**settings)  # type: ignore[arg-type]
        network, vocabulary = self._network, self._vocabulary
        train(network, vocabulary, graphs, z, hidden, schedule, rng, self.progress)
        self._covariance = self._measure_errors(graphs, z, hidden)
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

    def _new_network(self) -> Network:
        config = Config(
            words=len(self._vocabulary),
            metrics=len(self.metrics),
            width=self.width,
            layers=self.layers,
            members=self.members,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return Network(config)

    def _measure_errors(
        self, graphs: Sequence[TextGraph], targets: np.ndarray, hidden: np.ndarray
    ) -> np.ndarray:
        """Covariance (M, M) of the errors on held-out architectures, minus the variance among the
        members there.
        """
        # 1. Errors where a member has not seen the text, NaN elsewhere.                 (K, n, M)
        errors = np.where(hidden[:, :, None], targets - self._predict_z(graphs), np.nan)

        # 2. Two members share a fold: their difference has twice the variance among members.
        pairs = errors[: self.members // 2 * 2].reshape(-1, 2, *targets.shape)
        apart = pairs[:, 0] - pairs[:, 1]
        apart = apart.reshape(-1, targets.shape[1])  # (K n / 2, M)
        errors = errors.reshape(-1, targets.shape[1])  # (K n, M)
        covariance = _moments(errors, _PRIOR_NOISE) - _moments(apart, 0.0) / 2

        # 3. Shrink the correlations by the number of examples, each held out from two members.
        scale = np.sqrt(np.maximum(np.diag(covariance), MIN_NOISE**2))  # (M,)
        scales = np.outer(scale, scale)
        examples = second_moments(errors)[1] / 2
        return shrink_correlation(covariance / scales, examples) * scales

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
        if not texts or not metrics:
            return np.empty((len(texts), samples, len(metrics)))
        # 1. Sample k is the prediction of member k, in turn.                             (n, s, M)
        by_member = self._predict_z([text_graph(text) for text in texts])  # (K, n, M)
        drawn = by_member[np.arange(samples) % self.members].transpose(1, 0, 2)

        # 2. Add errors, given those of the known metrics.                                (n, s, M)
        noise = text_noise(texts, samples, len(self.metrics), (self.seed, seed))
        z_known = self._to_z(known, len(texts))[:, None]  # (n, 1, M)
        drawn = drawn + conditional_errors(self._covariance, z_known - drawn, noise)

        # 3. Back to the metrics' own units.
        columns = [self.metrics.index(name) for name in metrics]
        values = [self._transforms[column].to_values(drawn[:, :, column]) for column in columns]
        return np.stack(values, 2)

    @torch.no_grad()
    def _predict_z(self, graphs: Sequence[TextGraph]) -> np.ndarray:
        """The members' predictions (K, n, M) in z; every distinct text is encoded once."""
        number = {graph: i for i, graph in enumerate(dict.fromkeys(graphs))}
        distinct = list(number)
        parts = []
        for start in range(0, len(distinct), _BATCH):
            batch = collate(distinct[start : start + _BATCH])
            parts.append(self._network(batch, self._vocabulary.features(batch.kinds)))
        rows = [number[graph] for graph in graphs]
        return torch.cat(parts, dim=1)[:, rows].double().numpy()

    def _to_z(self, values: Metrics, n: int) -> np.ndarray:
        """Values of the trained metrics in z (n, M), NaN where missing."""
        columns = []
        for name, transform in zip(self.metrics, self._transforms, strict=True):
            missing = np.full(n, np.nan)
            columns.append(transform.to_z(np.asarray(values[name])) if name in values else missing)
        return np.stack(columns, axis=1)

    # --- checkpoints

    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        options = {
            "width": self.width,
            "layers": self.layers,
            "members": self.members,
            "steps": self.steps,
        }
        words = list(self._vocabulary.words) if self.metrics else []
        config = {"options": options, **self._config(), "words": words}
        weights = {name: tensor.numpy() for name, tensor in self._network.state_dict().items()}
        tensors = with_prefix("network", weights)
        for i, transform in enumerate(self._transforms):
            tensors[f"scale{i}.values"] = transform.values
            tensors[f"scale{i}.scores"] = transform.z
            tensors[f"scale{i}.pivot"] = np.array([transform.pivot])
        return config, tensors | {"covariance": self._covariance}

    @classmethod
    def _restore(cls, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Self:
        self = cls(seed=config["seed"], base=None, **config["options"])
        self._metrics = tuple(config["metrics"])
        self._vocabulary = Vocabulary(config["words"])
        count = len(self._metrics)
        without_pivot = np.zeros(1)  # the shipped checkpoints store none
        self._transforms = [
            TargetTransform(
                values=tensors[f"scale{i}.values"],
                z=tensors[f"scale{i}.scores"],
                pivot=float(tensors.get(f"scale{i}.pivot", without_pivot)[0]),
            )
            for i in range(count)
        ]
        self._covariance = tensors["covariance"].reshape(count, count)
        self._network = self._new_network().eval()
        load_weights(self._network, "network", tensors)
        return self


def _moments(errors: np.ndarray, prior: float) -> np.ndarray:
    """Second moments (M, M) of errors (e, M), NaN where missing, with `_PRIOR_WEIGHT` errors of
    size `prior` added.
    """
    sums, counts = second_moments(errors)
    of_prior = _PRIOR_WEIGHT * prior**2 * np.eye(len(counts))
    return (sums + of_prior) / (counts + _PRIOR_WEIGHT)


def _default_steps(n: int) -> int:
    """Default number of optimizer steps for n architectures."""
    return 80 + n // 2


# --- training


@dataclass(frozen=True)
class Schedule:
    """AdamW with one cycle of the learning rate."""

    steps: int  # optimizer steps
    batch: int = 32  # architectures per step
    learning_rate: float = LEARNING_RATE  # peak of the cycle
    weight_decay: float = 1e-2  # of AdamW


def held_out(n: int, members: int, folds: int, rng: np.random.Generator) -> np.ndarray:
    """Mask (K, n) of the architectures that a member is not trained on: one fold each, none if n <
    2 * folds.

    Two members share a fold, so that their difference there measures the variance among members on
    unseen data.
    """
    fold = np.full(n, -1)  # in no fold
    if n >= 2 * folds:
        fold = rng.permutation(n) % folds
    return np.stack([fold == member // 2 for member in range(members)])


def train(
    network: Network,
    vocabulary: Vocabulary,
    graphs: Sequence[TextGraph],
    targets: np.ndarray,
    hidden: np.ndarray,
    schedule: Schedule,
    rng: np.random.Generator,
    progress: Progress | None = None,
) -> None:
    """Train a network in place.

    Args:
        network: ensemble of K members.
        vocabulary: words of the network's inputs.
        graphs: n training texts.
        targets: (n, M) in z, NaN where missing.
        hidden: (K, n), True for texts that a member is not trained on.
        schedule: optimizer settings.
        rng: generator of the batches.
        progress: called as `progress(step, steps, loss)`; the loss is averaged over the members.
    """
    values = torch.tensor(np.nan_to_num(targets), dtype=torch.float32)  # (n, M)
    observed = torch.tensor(~np.isnan(targets))  # (n, M)
    allowed = torch.tensor(~hidden, dtype=torch.float32)  # (K, n)
    size = min(schedule.batch, len(graphs))
    optimizer = AdamW(
        network.parameters(), schedule.learning_rate, weight_decay=schedule.weight_decay, fused=True
    )
    # OneCycleLR divides by zero if the rise ends with the first step.
    rise = max(0.1, 1.5 / schedule.steps)  # share of the steps
    cycle = OneCycleLR(
        optimizer, schedule.learning_rate, total_steps=schedule.steps, pct_start=rise
    )
    network.train()
    order = np.array([], int)
    for step in range(1, schedule.steps + 1):
        # 1. The next texts of an endless random order.
        if len(order) < size:
            order = np.concatenate([order, rng.permutation(len(graphs))])
        rows, order = order[:size], order[size:]

        # 2. The loss of every member on the texts that it may see.
        batch = collate([graphs[i] for i in rows])
        predicted = network(batch, vocabulary.features(batch.kinds))  # (K, b, M)
        weights = allowed[:, rows, None] * observed[rows]  # (K, b, M)
        loss = _loss(predicted, values[rows], weights)

        # 3. One step.
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), MAX_GRADIENT)
        optimizer.step()
        cycle.step()
        if progress:
            progress(step, schedule.steps, loss.item() / len(hidden))
    network.eval()


def _loss(predicted: Tensor, target: Tensor, weights: Tensor) -> Tensor:
    """Squared error plus pairwise hinge loss, summed over members.

    Args:
        predicted: (K, b, M).
        target: (b, M).
        weights: (K, b, M), 0 where a target is unused.
    """
    squares = weights * (predicted - target) ** 2
    used = weights.sum((1, 2)).clamp(min=1)  # (K,)
    squared = squares.sum((1, 2)) / used
    # Pairs of texts of which the first should be predicted higher by a margin.      (K, b, b, M)
    is_higher = target[:, None] > target[None]
    pairs = is_higher * weights[:, :, None] * weights[:, None]
    difference = predicted[:, :, None] - predicted[:, None]
    short = F.relu(MARGIN - difference)
    count = pairs.sum((1, 2, 3)).clamp(min=1)  # (K,)
    hinge = (pairs * short).sum((1, 2, 3)) / count
    return squared.sum() + hinge.sum()
