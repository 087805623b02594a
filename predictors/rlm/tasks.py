"""Regression tasks of labelled examples and queries, on which the in-context decoder is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from predictors.rlm import digits
from predictors.rlm.context import START, ContextReader, NumberDecoder

_ALLOWED = torch.from_numpy(digits.allowed())
_WEIGHT = torch.tensor(
    [1.0, 1.0, 1.0, 0.5]
)  # of a number's tokens in the loss: hundredths are mostly noise


@dataclass(frozen=True)
class Task:
    """n examples and q queries of one regression task."""

    examples: np.ndarray  # (n, C) coordinates
    scores: np.ndarray  # (n,) of the examples
    queries: np.ndarray  # (q, C) coordinates
    wanted: np.ndarray  # (q,) scores of the queries, the targets


def task_loss(reader: ContextReader, decoder: NumberDecoder, tasks: Sequence[Task]) -> Tensor:
    """Mean cross-entropy, in nats, of the queries' numbers under the number grammar; tasks must
    have equal n and q.
    """
    device = next(decoder.parameters()).device
    examples, scores, queries = (
        torch.from_numpy(np.stack([getattr(t, name) for t in tasks])).float().to(device)
        for name in ("examples", "scores", "queries")
    )
    gathered = reader(queries, reader.examples(examples, scores)).flatten(0, 1)  # (B q, D)
    targets = torch.from_numpy(digits.encode(np.concatenate([t.wanted for t in tasks])))
    inputs = torch.cat([torch.full_like(targets[:, :1], START), targets[:, :-1]], 1).to(device)
    logits = decoder(decoder.conditions(gathered), inputs).masked_fill(~_ALLOWED.to(device), -1e9)
    losses = functional.cross_entropy(logits.mT, targets.to(device), reduction="none")  # (B q, L)
    return (losses * _WEIGHT.to(device)).sum(1).mean()
