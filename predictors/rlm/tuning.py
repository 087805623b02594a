"""Fine-tuning on one table: the whole model on splits of its rows, or the kernels by their marginal
likelihood.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from predictors.base import Progress
from predictors.rlm.coordinates import Axes
from predictors.rlm.encoder import collate
from predictors.rlm.examples import Context
from predictors.rlm.kernels import KernelRegression
from predictors.rlm.lines import lines
from predictors.rlm.model import Model
from predictors.rlm.tasks import Task, task_loss
from predictors.scores import Scores

LEARNING_RATE = 3e-4
TASKS = 4  # per step
MAX_ROWS = 256  # examples plus queries of a task
KERNEL_RATE = 0.1  # learning rate of the kernels, whose parameters are logarithms
KERNEL_SPREAD = 2.0  # prior standard deviation of these parameters

Loss = Callable[[], Tensor]


def tune(
    model: Model, texts: Sequence[str], values: Mapping[str, np.ndarray], steps: int, seed: int,
    states: np.ndarray | None, progress: Progress | None = None,
) -> None:  # fmt: skip
    """Train a model in place: first the encoder with a linear readout, then reader and decoder.

    Args:
        model: the network.
        texts: n texts.
        values: (n,) per metric, NaN where missing.
        steps: optimizer steps of each of the two stages.
        seed: seed of the batches.
        states: (n, S) states of another encoder; None to train and use the model's own.
        progress: called as `progress(step, 2 * steps, loss)`.
    """
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    scores = np.stack(
        [Scores.fit(v[~np.isnan(v)], by_rank=True).normalize(v) for v in values.values()], 1
    )
    if states is None:
        _descend(
            *_readout(model, texts, scores, rng), range(steps), 2 * steps, LEARNING_RATE, progress
        )
        states = model.states(texts)
    if len(texts) < 4:
        return

    def loss() -> Tensor:
        return task_loss(model.reader, model.decoder, _tasks(states, scores, rng))

    model.train()
    parameters = [*model.reader.parameters(), *model.decoder.parameters()]
    _descend(parameters, loss, range(steps, 2 * steps), 2 * steps, LEARNING_RATE, progress)
    model.eval()


def fit_kernels(
    kernels: KernelRegression,
    contexts: Sequence[Context],
    steps: int,
    progress: Progress | None = None,
) -> None:
    """Fit kernels in place to the examples of contexts: empirical Bayes, with the given kernels as
    the prior's mean.

    `progress` is called as `progress(step, steps, loss)`.
    """
    parameters = [kernels.log_scales, kernels.log_linear, kernels.log_penalty]
    before = [parameter.detach().clone() for parameter in parameters]
    count = (
        2
        * KERNEL_SPREAD**2
        * len(kernels.log_penalty)
        * max([context.scores.shape[1] for context in contexts])
    )

    def loss() -> Tensor:
        for now, then in zip(
            parameters, before, strict=True
        ):  # farther away, float32 may not invert the kernels
            now.data.clamp_(then - KERNEL_SPREAD, then + KERNEL_SPREAD)
        evidence = [kernels.evidence(context.coordinates, context.scores) for context in contexts]
        moved = [(now - then).square().sum() for now, then in zip(parameters, before, strict=True)]
        return torch.stack(moved).sum() / count - torch.stack(evidence).mean()

    _descend(parameters, loss, range(steps), steps, KERNEL_RATE, progress)


def _tasks(states: np.ndarray, scores: np.ndarray, rng: np.random.Generator) -> list[Task]:
    """`TASKS` random splits of random rows, each for a random metric."""
    count = min(len(states), MAX_ROWS)
    n = int(rng.integers(2, max(3, count - max(1, count // 4)))) if count > 4 else 2
    found = []
    for _ in range(TASKS):
        column = scores[:, rng.integers(scores.shape[1])]
        rows = rng.permutation(np.flatnonzero(~np.isnan(column)))[:count]
        rows = np.resize(
            rows, count
        )  # repeats rows if too few have the metric: tasks of a step have equal sizes
        none = np.zeros((count, 0))
        axes = Axes.fit(states[rows[:n]], none[:n])
        coordinates = axes(states[rows], none)
        found.append(Task(coordinates[:n], column[rows[:n]], coordinates[n:], column[rows[n:]]))
    return found


def _readout(
    model: Model, texts: Sequence[str], scores: np.ndarray, rng: np.random.Generator
) -> tuple[list[nn.Parameter], Loss]:
    """Parameters of the encoder and of a linear readout of all metrics from the states, and its
    squared error.
    """
    head = nn.Linear(model.config.encoder.outputs, scores.shape[1])
    nn.init.zeros_(head.weight)
    center = torch.from_numpy(model.states(list(texts)[:512]).mean(0))
    wanted = torch.from_numpy(scores).float()

    def loss() -> Tensor:
        rows = rng.permutation(len(texts))[:48]
        states = model.encoder(collate([lines(texts[i]) for i in rows])) - center
        error = head(states) - wanted[rows]
        return error[~error.isnan()].square().mean()

    return [*model.encoder.parameters(), *head.parameters()], loss


def _descend(
    parameters: list[nn.Parameter],
    loss: Loss,
    steps: range,
    total: int,
    rate: float,
    progress: Progress | None,
) -> None:
    """Minimize a random loss by AdamW with a linearly falling learning rate, in `steps` out of
    `total`.
    """
    optimizer = torch.optim.AdamW(parameters, rate, weight_decay=0.01)
    for done, step in enumerate(steps):
        optimizer.param_groups[0]["lr"] = rate * (1 - done / len(steps))
        value = loss()
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if progress:
            progress(step + 1, total, value.item())
