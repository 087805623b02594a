"""Constrained decoding of joint samples: number after number, all samples of all queries at once.

Arithmetic sampling (arXiv 2210.15458): sample s of a query follows the quantile (s + offset) / S through the digits of
its first number. Every sample is drawn exactly from the model's distribution, and together they cover it evenly, so a
mean over them is far less noisy than one over independent samples. For every further number the quantiles are shuffled:
samples stay joint. Sizes in comments: q queries, S samples, M metrics, R = q * S rows.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from predictors.rlm import digits
from predictors.rlm.context import NumberDecoder

_ALLOWED = torch.from_numpy(digits.allowed())


@torch.inference_mode()
def sample_scores(decoder: NumberDecoder, gathered: Tensor, metrics: int, quantiles: np.ndarray) -> np.ndarray:
    """Scores (q, S, M) of the metrics in the first M slots, each conditioned on those before.

    Args:
        decoder: writes the numbers.
        gathered: (q, D), what each query has gathered from its context.
        metrics: M, how many numbers to write.
        quantiles: (q, S, M) in [0, 1), the quantile at which each sample leaves each number's distribution.
    """
    q, samples, _ = quantiles.shape
    conditions = decoder.conditions(gathered, torch.arange(metrics)).repeat_interleave(samples, 0)  # (R, M, d)
    chosen = torch.from_numpy(quantiles).flatten(0, 1)  # (R, M)
    past = None
    numbers = []
    for slot in range(metrics):
        token = torch.full((q * samples,), digits.NUMBER_TOKENS + slot)
        quantile, written = chosen[:, slot], []
        for place in range(digits.NUMBER_LENGTH):
            logits, past = decoder.step(conditions[:, slot], token, place, past)
            token, quantile = _pick(logits, place, quantile)
            written.append(token)
        if slot + 1 < metrics:
            _, past = decoder.step(conditions[:, slot], token, digits.NUMBER_LENGTH, past)
        numbers.append(digits.decode(torch.stack(written, 1).numpy()))
    return np.stack(numbers, 1).reshape(q, samples, metrics)


def _pick(logits: Tensor, place: int, quantile: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens (R,) at these quantiles (R,) of logits (R, 12), and the quantiles within the picked tokens.

    Tokens are in the order of the numbers that they begin, so a higher quantile is a higher number: minus comes before
    plus, and below zero larger digits come first.
    """
    finite = torch.nan_to_num(logits.double(), nan=0.0, posinf=1e4, neginf=-1e4)
    probability = finite.masked_fill(~_ALLOWED[place], -torch.inf).softmax(-1)
    if place == 0:
        minus = probability[:, digits.MINUS]
        below = quantile < minus
        within = torch.where(
            below, 1 - quantile / minus.clamp_min(1e-300), (quantile - minus) / (1 - minus).clamp_min(1e-300)
        )
        return torch.where(below, digits.MINUS, digits.PLUS), within.clamp(0, 1 - 1e-12)
    total = probability.cumsum(-1)
    token = torch.searchsorted(total, quantile[:, None], right=True)[:, 0].clamp(digits.ZERO, digits.NUMBER_TOKENS - 1)
    share = probability.gather(-1, token[:, None])[:, 0]
    start = total.gather(-1, token[:, None])[:, 0] - share
    return token, ((quantile - start) / share.clamp_min(1e-300)).clamp(0, 1 - 1e-12)
