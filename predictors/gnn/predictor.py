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

from predictors.base import Inputs, Metrics, SamplingPredictor, as_targets, as_texts
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
from search_spaces.common.progress import Progress

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
    """Directed graph flow and graph attention on the blocks of the ONNX graph.

    The layers are those of FLAN (Akhauri and Abdelfattah 2024). An ensemble, initialized with the
    weights of the base, learns metrics as normal scores. Samples are the members' predictions plus
    normal errors with the covariance measured on held-out architectures. Where a metric is given,
    the errors of the others are conditioned on its error.

    Args:
        seed: seed of weights, batches and samples.
        base: folder or shipped name of a pretrained checkpoint; None for random initial weights.
        width: width of the layers. With a base, width, layers and members must equal the base's.
        layers: flow layers per block.
        members: networks in the ensemble.
        steps: optimizer steps, at least 2; None to choose them by the number of architectures.
        schedule: other fields of `Schedule` by name.
        progress: called with the loss, the number of the step, and the number of steps.

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
        self._transforms: list[TargetTransform] = []
        for name, values in targets.items():
            observed = values[~np.isnan(values)]
            self._transforms.append(TargetTransform.by_ranks(name, observed))
        base_words = base._vocabulary.words if base else ()
        self._vocabulary: Vocabulary = Vocabulary.of(graphs, base_words)
        self._network = self._new_network()
        if base:
            self._network.copy_pretrained(base._network)

        # 2. Which texts each member is not trained on; equal texts are in one fold.        (K, n)
        number = _numbered(graphs)
        held_out = held_out_folds(len(number), self.members, FOLDS, rng)
        held_out = held_out[:, [number[graph] for graph in graphs]]

        # 3. Train, and measure the errors on what was held out.
        z = self._to_z(targets, len(graphs))  # (n, M)
        settings = {
            "steps": self.steps or _default_steps(len(graphs)),
            "learning_rate": PRETRAINED_LEARNING_RATE if base else LEARNING_RATE,
            **self.schedule,
        }
        train(
            self._network,
            self._vocabulary,
            graphs,
            z,
            held_out,
            Schedule(**settings),  # type: ignore[arg-type]
            rng,
            self.progress,
        )
        self._covariance = self._measure_errors(graphs, z, held_out)
        return self

    def _load_base(self) -> GNN | None:
        """The base, whose sizes must equal this predictor's; None without one."""
        if self.base is None:
            return None
        base = load_base(self.base, GNN)
        for name in ("width", "layers", "members"):
            own = getattr(self, name)
            of_base = getattr(base, name)
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
        self,
        graphs: Sequence[TextGraph],
        targets: np.ndarray,
        held_out: np.ndarray,
    ) -> np.ndarray:
        """Covariance (M, M) of the errors on held-out architectures.

        The variance among the members there is subtracted.
        """
        # 1. Errors where a member has not seen the text, NaN elsewhere.                 (K, n, M)
        errors = targets - self._predict_z(graphs)
        errors = np.where(held_out[:, :, None], errors, np.nan)
        metrics = targets.shape[1]

        # 2. Two members share a fold: their difference has twice the variance among members.
        in_pairs = self.members // 2 * 2  # an odd last member has no partner
        pairs = errors[:in_pairs].reshape(-1, 2, *targets.shape)
        apart = pairs[:, 0] - pairs[:, 1]
        apart = apart.reshape(-1, metrics)  # (K n / 2, M)
        errors = errors.reshape(-1, metrics)  # (K n, M)
        among_members = _moments(apart, 0.0) / 2
        covariance = _moments(errors, _PRIOR_NOISE) - among_members

        # 3. Shrink the correlations by the number of examples, each held out from two members.
        variances = np.maximum(np.diag(covariance), MIN_NOISE**2)
        scale = np.sqrt(variances)  # (M,)
        scales = np.outer(scale, scale)
        _, counts = second_moments(errors)
        correlation = shrink_correlation(covariance / scales, counts / 2)
        return correlation * scales

    # --- predicting

    def _draw(
        self,
        architectures: Inputs,
        metrics: Sequence[str],
        observed: dict[str, np.ndarray],
        samples: int,
        seed: int,
    ) -> np.ndarray:
        texts = as_texts(architectures)
        if not texts or not metrics:
            return np.empty((len(texts), samples, len(metrics)))
        # 1. Sample k is the prediction of member k, in turn.                             (n, s, M)
        graphs = [text_graph(text) for text in texts]
        by_member = self._predict_z(graphs)  # (K, n, M)
        member_of_sample = np.arange(samples) % self.members  # (s,)
        drawn = by_member[member_of_sample].transpose(1, 0, 2)

        # 2. Add errors, given those of observed metrics.                                 (n, s, M)
        noise = text_noise(texts, samples, len(self.metrics), (self.seed, seed))
        z_observed = self._to_z(observed, len(texts))[:, None]  # (n, 1, M)
        errors = conditional_errors(self._covariance, z_observed - drawn, noise)
        drawn = drawn + errors

        # 3. Back to the metrics' own units.
        values = []
        for name in metrics:
            column = self.metrics.index(name)
            z = drawn[:, :, column]  # (n, s)
            values.append(self._transforms[column].to_values(z))
        return np.stack(values, 2)

    @torch.no_grad()
    def _predict_z(self, graphs: Sequence[TextGraph]) -> np.ndarray:
        """The members' predictions (K, n, M) in z; every distinct text is encoded once."""
        number = _numbered(graphs)
        distinct = list(number)
        parts = []
        for start in range(0, len(distinct), _BATCH):
            batch = collate(distinct[start : start + _BATCH])
            words = self._vocabulary.features(batch.kinds)
            parts.append(self._network(batch, words))  # (K, b, M)
        rows = [number[graph] for graph in graphs]
        predicted = torch.cat(parts, dim=1)[:, rows]  # (K, n, M)
        return predicted.double().numpy()

    def _to_z(self, values: Metrics, n: int) -> np.ndarray:
        """Values of the trained metrics in z (n, M), NaN where missing."""
        columns = []
        for name, transform in zip(self.metrics, self._transforms, strict=True):
            column = np.full(n, np.nan)
            if name in values:
                column = transform.to_z(np.asarray(values[name]))
            columns.append(column)
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
        self._transforms = []
        for i in range(count):
            pivot = tensors.get(f"scale{i}.pivot", without_pivot)
            transform = TargetTransform(
                values=tensors[f"scale{i}.values"],
                z=tensors[f"scale{i}.scores"],
                pivot=float(pivot[0]),
            )
            self._transforms.append(transform)
        self._covariance = tensors["covariance"].reshape(count, count)
        self._network = self._new_network().eval()
        load_weights(self._network, "network", tensors)
        return self


def _numbered(graphs: Sequence[TextGraph]) -> dict[TextGraph, int]:
    """The distinct texts, numbered in the order of their first occurrence."""
    return {graph: i for i, graph in enumerate(dict.fromkeys(graphs))}


def _moments(errors: np.ndarray, prior: float) -> np.ndarray:
    """Second moments (M, M) of errors (e, M), NaN where missing.

    `_PRIOR_WEIGHT` errors of size `prior` are added.
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


def held_out_folds(
    n: int,
    members: int,
    folds: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Mask (K, n) of the architectures that a member is not trained on.

    These are one fold each, and none if n < 2 * folds. Two members share a fold, so that their
    difference there measures the variance among members on unseen data.
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
    held_out: np.ndarray,
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
        held_out: (K, n), True for texts that a member is not trained on.
        schedule: optimizer settings.
        rng: generator of the batches.
        progress: called with the loss, averaged over the members, the number of the step, and
            the number of steps.
    """
    values = torch.tensor(np.nan_to_num(targets), dtype=torch.float32)  # (n, M)
    is_observed = torch.tensor(~np.isnan(targets))  # (n, M)
    may_see = torch.tensor(~held_out, dtype=torch.float32)  # (K, n)
    optimizer = AdamW(
        network.parameters(),
        schedule.learning_rate,
        weight_decay=schedule.weight_decay,
        fused=True,
    )
    # OneCycleLR divides by zero if the rise ends with the first step.
    rise = max(0.1, 1.5 / schedule.steps)  # share of the steps
    cycle = OneCycleLR(
        optimizer,
        schedule.learning_rate,
        total_steps=schedule.steps,
        pct_start=rise,
    )
    network.train()
    size = min(schedule.batch, len(graphs))
    order = np.array([], int)
    for step in range(1, schedule.steps + 1):
        # 1. The next texts of an endless random order.
        if len(order) < size:
            order = np.concatenate([order, rng.permutation(len(graphs))])
        rows = order[:size]
        order = order[size:]

        # 2. The loss of every member on the texts that it may see.
        batch = collate([graphs[i] for i in rows])
        words = vocabulary.features(batch.kinds)
        predicted = network(batch, words)  # (K, b, M)
        weights = may_see[:, rows, None] * is_observed[rows]  # (K, b, M)
        loss = _loss(predicted, values[rows], weights)

        # 3. One step.
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), MAX_GRADIENT)
        optimizer.step()
        cycle.step()
        if progress:
            mean_loss = loss.item() / len(held_out)
            progress(f"loss {mean_loss:.4g}", step, schedule.steps)
    network.eval()


def _loss(
    predicted: Tensor,
    target: Tensor,
    weights: Tensor,
) -> Tensor:
    """Squared error plus pairwise hinge loss, summed over members.

    Args:
        predicted: (K, b, M).
        target: (b, M).
        weights: (K, b, M), 0 where a target is unused.
    """
    # 1. The mean squared error of the targets in use.                                          (K,)
    squares = weights * (predicted - target) ** 2
    used = weights.sum((1, 2)).clamp(min=1)
    squared = squares.sum((1, 2)) / used

    # 2. Pairs of texts of which the first should be predicted higher by a margin.      (K, b, b, M)
    is_higher = target[:, None] > target[None]
    pairs = is_higher * weights[:, :, None]
    pairs = pairs * weights[:, None]
    difference = predicted[:, :, None] - predicted[:, None]
    shortfall = F.relu(MARGIN - difference)

    # 3. The mean shortfall of these pairs.                                                     (K,)
    count = pairs.sum((1, 2, 3)).clamp(min=1)
    total = (pairs * shortfall).sum((1, 2, 3))
    hinge = total / count
    return squared.sum() + hinge.sum()
