"""Fine-tuning on one table: the tasks are random splits of its rows into examples and queries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from predictors.rlm.coordinates import Axes
from predictors.rlm.encoder import collate
from predictors.rlm.lines import lines
from predictors.rlm.model import Model
from predictors.rlm.tasks import Task, task_loss
from predictors.scores import Scores

Progress = Callable[[int, int, float], None]
LEARNING_RATE = 3e-4
TASKS = 4  # per step
MAX_ROWS = 256  # examples plus queries of a task


def tune(
    model: Model,
    texts: Sequence[str],
    values: Mapping[str, np.ndarray],
    steps: int,
    seed: int,
    states: np.ndarray | None,
    progress: Progress | None = None,
) -> None:
    """Train a model in place: first the encoder with a linear readout, then reader and decoder.

    Args:
        model: the network.
        texts: n texts.
        values: (n,) per metric, NaN where missing.
        steps: optimizer steps of each of the two stages.
        seed: seed of all random choices.
        states: (n, S) states of another encoder; None to train and use the model's own.
        progress: called as `progress(step, steps, loss)`.
    """
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    scores = np.stack([Scores.fit(v[~np.isnan(v)], by_rank=True).normalize(v) for v in values.values()], 1)
    if states is None:
        _tune_encoder(model, texts, scores, steps, rng, progress)
        states = model.states(texts)
    if len(texts) < 4:
        return
    parameters = [*model.reader.parameters(), *model.decoder.parameters()]
    optimizer = torch.optim.AdamW(parameters, LEARNING_RATE, weight_decay=0.01)
    model.train()
    for step in range(steps):
        loss = task_loss(model.reader, model.decoder, _tasks(states, scores, rng))
        _step(optimizer, loss, parameters, LEARNING_RATE * (1 - step / steps))
        if progress:
            progress(steps + step + 1, 2 * steps, loss.item())
    model.eval()


def _tasks(states: np.ndarray, scores: np.ndarray, rng: np.random.Generator) -> list[Task]:
    """`TASKS` random splits of random rows, each for a random metric."""
    count = min(len(states), MAX_ROWS)
    n = int(rng.integers(2, max(3, count - max(1, count // 4)))) if count > 4 else 2
    found = []
    for _ in range(TASKS):
        column = scores[:, rng.integers(scores.shape[1])]
        rows = rng.permutation(np.flatnonzero(~np.isnan(column)))[:count]
        rows = np.resize(rows, count)  # repeats rows if too few have the metric: tasks of a step have equal sizes
        none = np.zeros((count, 0))
        axes = Axes.fit(states[rows[:n]], none[:n])
        coordinates = axes(states[rows], none)
        found.append(Task(coordinates[:n], column[rows[:n]], coordinates[n:], column[rows[n:]]))
    return found


def _tune_encoder(
    model: Model,
    texts: Sequence[str],
    scores: np.ndarray,
    steps: int,
    rng: np.random.Generator,
    progress: Progress | None,
) -> None:
    """Train the encoder on the squared error of a linear readout of all metrics from the states."""
    head = torch.nn.Linear(model.config.encoder.outputs, scores.shape[1])
    torch.nn.init.zeros_(head.weight)
    parameters = [*model.encoder.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, LEARNING_RATE, weight_decay=0.01)
    center = torch.from_numpy(model.states(list(texts)[:512]).mean(0))
    wanted = torch.from_numpy(scores).float()
    for step in range(steps):
        rows = rng.permutation(len(texts))[:48]
        states = model.encoder(collate([lines(texts[i]) for i in rows])) - center
        error = head(states) - wanted[rows]
        loss = error[~error.isnan()].square().mean()
        _step(optimizer, loss, parameters, LEARNING_RATE * (1 - step / steps))
        if progress:
            progress(step + 1, 2 * steps, loss.item())


def _step(
    optimizer: torch.optim.Optimizer, loss: torch.Tensor, parameters: Sequence[torch.Tensor], rate: float
) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
