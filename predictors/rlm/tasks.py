"""Regression tasks: labelled examples and queries, as the in-context decoder reads and learns them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from predictors.rlm import digits
from predictors.rlm.context import ContextReader, NumberDecoder

IGNORE = -100
_STEP = digits.NUMBER_LENGTH + 1
_ALLOWED = torch.cat([torch.from_numpy(digits.allowed()), torch.ones(1, digits.NUMBER_TOKENS, dtype=torch.bool)])
_WEIGHT = torch.tensor([1.0, 1.0, 1.0, 0.5, 0.0])  # of a number's tokens: hundredths are mostly noise


@dataclass(frozen=True)
class Task:
    """n examples and q queries of one regression task.

    examples (n, C), queries (q, C): coordinates. scores (n, MAX_METRICS), wanted (q, MAX_METRICS): NaN where unknown.
    """

    examples: np.ndarray
    scores: np.ndarray
    queries: np.ndarray
    wanted: np.ndarray


def task_loss(reader: ContextReader, decoder: NumberDecoder, tasks: Sequence[Task]) -> Tensor:
    """Mean cross-entropy in nats of a query's number under the number grammar; tasks have equal n and q."""
    device = next(decoder.parameters()).device
    examples, scores, queries = (
        torch.from_numpy(np.stack([getattr(t, name) for t in tasks])).float().to(device)
        for name in ("examples", "scores", "queries")
    )
    gathered = reader(queries, reader.examples(examples, scores))  # (B, q, D)
    losses = [_decoder_loss(decoder, g, t.wanted) for g, t in zip(gathered, tasks, strict=True)]
    return torch.stack(losses).mean()


def _decoder_loss(decoder: NumberDecoder, gathered: Tensor, wanted: np.ndarray) -> Tensor:
    inputs, targets, slots = (t.to(gathered.device) for t in _sequences(wanted))
    conditions = decoder.conditions(gathered, slots).repeat_interleave(_STEP, 1)
    place = torch.arange(inputs.shape[1], device=gathered.device) % _STEP
    logits = decoder(conditions, inputs).masked_fill(~_ALLOWED.to(gathered.device)[place], -1e9)
    losses = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE, reduction="none")
    numbers = (targets[:, ::_STEP] != IGNORE).sum().clamp(min=1)
    return (losses.view(targets.shape) * _WEIGHT.to(gathered.device)[place]).sum() / numbers


def _sequences(wanted: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
    """Decoder inputs (q, L), the tokens to predict (q, L), `IGNORE` where none, and the slots (M,) that are wanted."""
    slots = np.flatnonzero(np.isfinite(wanted).any(0))
    inputs = np.zeros((len(wanted), len(slots) * _STEP), np.int64)
    targets = np.full(inputs.shape, IGNORE, np.int64)
    for k, slot in enumerate(slots):
        known = np.isfinite(wanted[:, slot])
        tokens = digits.encode(np.nan_to_num(wanted[:, slot]))
        inputs[:, k * _STEP] = digits.NUMBER_TOKENS + slot
        inputs[:, k * _STEP + 1 : (k + 1) * _STEP] = tokens
        targets[:, k * _STEP : (k + 1) * _STEP - 1] = np.where(known[:, None], tokens, IGNORE)
    return torch.from_numpy(inputs), torch.from_numpy(targets), torch.from_numpy(slots)
