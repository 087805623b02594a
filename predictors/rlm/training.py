"""Fitting the decoder, and the encoder where asked, to tables of metrics with gaps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from predictors.rlm.model import NumberDecoder
from predictors.rlm.numbers import NUMBER_TOKENS, NumberFormat

Progress = Callable[[int, int, float], None]
IGNORE = -100


@dataclass(frozen=True)
class Schedule:
    """Length and sizes of a training run. `jitter` blurs targets, in units of the metrics' scale from 1 to 9."""

    steps: int
    batch: int = 64
    learning_rate: float = 1e-3
    weight_decay: float = 0.02
    jitter: float = 0.2
    most_metrics: int = 4


@dataclass(frozen=True)
class Column:
    """One metric of the training table: its token slot, its values on the scale (n,), NaN where missing.

    order: place in the decoding order. target: whether it is to be learned (else it only serves as a known value).
    """

    slot: int
    values: np.ndarray
    order: int
    target: bool = True


def make_sequences(
    columns: Sequence[Column], rows: np.ndarray, number: NumberFormat, schedule: Schedule, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Decoder inputs (B, L) and the tokens to predict (B, L), `IGNORE` where none: random metrics for every row.

    Every row gets at least one target and up to `most_metrics` in all, in decoding order, so that the model learns to
    predict any of them with any others known before.
    """
    length = number.length + 1
    order = np.array([c.order for c in columns])
    slots = np.array([c.slot for c in columns])
    known = np.stack([~np.isnan(c.values[rows]) for c in columns], 1)  # (B, metrics)
    target = np.array([c.target for c in columns])
    draw = np.where(known, rng.random(known.shape), 2.0)
    first = np.where(known & target, draw, 3.0).argmin(1)
    draw[np.arange(len(rows)), first] = -1.0
    count = np.minimum(known.sum(1), rng.integers(1, schedule.most_metrics + 1, len(rows)))
    chosen = draw.argsort(1).argsort(1) < count[:, None]
    width = int(count.max())
    inputs = np.zeros((len(rows), width * length), np.int64)
    wanted = np.full((len(rows), width * length), IGNORE, np.int64)
    place = np.where(chosen, order, order.max() + 1).argsort(1, kind="stable")
    for k in range(width):
        column = place[:, k]
        here = np.flatnonzero(k < count)
        values = np.array([columns[column[i]].values[rows[i]] for i in here])
        values = values + schedule.jitter * rng.standard_normal(len(here)) * target[column[here]]
        tokens = number.encode(values)
        start = k * length
        inputs[here, start] = NUMBER_TOKENS + slots[column[here]]
        inputs[here, start + 1 : start + length] = tokens
        learn = here[target[column[here]]]
        wanted[learn, start : start + length - 1] = tokens[target[column[here]]]
    return torch.from_numpy(inputs), torch.from_numpy(wanted)


def digit_loss(decoder: NumberDecoder, memory: Tensor, inputs: Tensor, wanted: Tensor, allowed: Tensor) -> Tensor:
    """Mean cross-entropy per number token under the number grammar, in nats."""
    logits = decoder(memory, inputs)
    place = torch.arange(inputs.shape[1]) % (len(allowed) + 1)
    grammar = torch.cat([allowed, torch.ones_like(allowed[:1])])[place]
    logits = logits.masked_fill(~grammar, -1e9)
    return functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=IGNORE)


def train(
    read: Callable[[np.ndarray], Tensor],
    decoder: NumberDecoder,
    parameters: list[torch.nn.Parameter],
    columns: Sequence[Column],
    number: NumberFormat,
    schedule: Schedule,
    rng: np.random.Generator,
    progress: Progress | None = None,
) -> None:
    """AdamW with warm-up and cosine decay; `read` gives the memory (B, M, D) of a batch of rows."""
    rows = np.flatnonzero(np.stack([~np.isnan(c.values) for c in columns if c.target]).any(0))
    optimizer = torch.optim.AdamW(
        parameters, schedule.learning_rate, betas=(0.9, 0.98), weight_decay=schedule.weight_decay
    )
    warmup = max(1, schedule.steps // 20)
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda i: min((i + 1) / warmup, 0.5 * (1 + np.cos(np.pi * min(1.0, i / schedule.steps))) + 1e-3)
    )
    allowed = torch.from_numpy(number.allowed)
    queue = np.empty(0, int)
    for step in range(schedule.steps):
        while len(queue) < schedule.batch:
            queue = np.concatenate([queue, rng.permutation(rows)])
        batch, queue = queue[: schedule.batch], queue[schedule.batch :]
        inputs, wanted = make_sequences(columns, batch, number, schedule, rng)
        loss = digit_loss(decoder, read(batch), inputs, wanted, allowed)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        rate.step()
        if progress:
            progress(step + 1, schedule.steps, loss.item())
