"""Training by regression and ranking losses on normalized metrics; every member leaves out its
held-out part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR

from predictors.base import Progress
from predictors.gnn.graph import TextGraph, Vocabulary, collate
from predictors.gnn.model import Network

MARGIN = 0.1  # of the ranking loss, in normal scores


@dataclass(frozen=True)
class Schedule:
    """AdamW with one cycle of the learning rate."""

    steps: int  # optimizer steps
    batch: int = 32  # architectures per step
    learning_rate: float = 6e-3  # peak of the cycle
    weight_decay: float = 1e-2  # of AdamW


def held_out(n: int, members: int, folds: int, rng: np.random.Generator) -> np.ndarray:
    """Mask (members, n) of the architectures that a member is not trained on: one fold each, none
    if n < 2 * folds.

    Two members share a fold, so that their difference there measures the variance among members on
    unseen data.
    """
    fold = rng.permutation(n) % folds if n >= 2 * folds else np.full(n, -1)
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
        targets: (n, M) in normal scores, NaN where missing.
        hidden: (K, n), True for texts that a member is not trained on.
        schedule: optimizer settings.
        rng: generator of the batches.
        progress: called as `progress(step, steps, loss)`; the loss is averaged over the members.
    """
    values = torch.tensor(np.nan_to_num(targets), dtype=torch.float32)
    observed = torch.tensor(~np.isnan(targets))
    allowed = torch.tensor(~hidden, dtype=torch.float32)
    size = min(schedule.batch, len(graphs))
    optimizer = AdamW(
        network.parameters(), schedule.learning_rate, weight_decay=schedule.weight_decay, fused=True
    )
    rise = max(
        0.1, 1.5 / schedule.steps
    )  # share of steps; OneCycleLR divides by zero if it ends with the first step
    cycle = OneCycleLR(
        optimizer, schedule.learning_rate, total_steps=schedule.steps, pct_start=rise
    )
    network.train()
    order = np.array([], int)
    for step in range(1, schedule.steps + 1):
        if len(order) < size:
            order = np.concatenate([order, rng.permutation(len(graphs))])
        chosen, order = order[:size], order[size:]
        batch = collate([graphs[i] for i in chosen])
        predicted = network(batch, vocabulary.features(batch.kinds))
        weights = allowed[:, chosen, None] * observed[chosen]
        loss = _loss(predicted, values[chosen], weights)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 5.0)
        optimizer.step()
        cycle.step()
        if progress:
            progress(step, schedule.steps, loss.item() / len(hidden))
    network.eval()


def _loss(predicted: Tensor, target: Tensor, weights: Tensor) -> Tensor:
    """Squared error plus pairwise hinge loss, summed over members; weights (K, B, M) are 0 where a
    target is unused.
    """
    squared = (weights * (predicted - target) ** 2).sum((1, 2)) / weights.sum((1, 2)).clamp(min=1)
    better = (
        (target[:, None] > target[None]) * weights[:, :, None] * weights[:, None]
    )  # (K, B, B, M)
    short = F.relu(MARGIN - (predicted[:, :, None] - predicted[:, None]))
    hinge = (better * short).sum((1, 2, 3)) / better.sum((1, 2, 3)).clamp(min=1)
    return squared.sum() + hinge.sum()
