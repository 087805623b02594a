"""Constrained decoding of numbers, all samples of all rows at once.

Arithmetic sampling (arXiv 2210.15458): each sample decodes the digits at its quantile. Evenly spaced quantiles cover
the model's distribution evenly, so their mean is far less noisy than that of independent samples. Samples of one row
share the computation of equal prefixes.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from predictors.rlm import digits
from predictors.rlm.context import START, NumberDecoder

_ALLOWED = torch.from_numpy(digits.allowed())


@torch.inference_mode()
def sample_scores(decoder: NumberDecoder, conditions: Tensor, rows: np.ndarray, quantiles: np.ndarray) -> np.ndarray:
    """Decode S samples at given quantiles of the decoder's distributions.

    Args:
        decoder: the digit decoder.
        conditions: (R, d), see `NumberDecoder.conditions`.
        rows: (S,) row of each sample.
        quantiles: (S,) in [0, 1).

    Returns:
        (S,) scores.
    """
    prefix, quantile = torch.from_numpy(rows), torch.from_numpy(quantiles)
    token = torch.full((len(conditions),), START)
    past, written = None, []
    for place in range(digits.NUMBER_LENGTH):
        logits, past = decoder.step(conditions, token, place, past)
        picked, quantile = _pick(logits, prefix, place, quantile)
        written.append(picked)
        begun, prefix = torch.unique(prefix * digits.NUMBER_TOKENS + picked, return_inverse=True)
        parent, token = begun // digits.NUMBER_TOKENS, begun % digits.NUMBER_TOKENS
        conditions, past = conditions[parent], [(key[parent], value[parent]) for key, value in past]
    return digits.decode(torch.stack(written, 1).numpy())


def _pick(logits: Tensor, prefix: Tensor, place: int, quantile: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens (S,) at one place for samples of P prefixes with logits (P, NUMBER_TOKENS), and quantiles within these.

    A higher quantile gives a higher number: minus comes before plus, and the quantile is mirrored for negative numbers,
    whose digits are ordered by absolute value.
    """
    finite = torch.nan_to_num(logits.double(), nan=0.0, posinf=1e4, neginf=-1e4)
    probability = finite.masked_fill(~_ALLOWED[place], -torch.inf).softmax(-1)
    if place == 0:
        minus = probability[prefix, digits.MINUS]
        below = quantile < minus
        within = torch.where(
            below, 1 - quantile / minus.clamp_min(1e-300), (quantile - minus) / (1 - minus).clamp_min(1e-300)
        )
        return torch.where(below, digits.MINUS, digits.PLUS), within.clamp(0, 1 - 1e-12)
    total = probability.cumsum(-1)[prefix]
    token = torch.searchsorted(total, quantile[:, None], right=True)[:, 0].clamp(digits.ZERO, digits.NUMBER_TOKENS - 1)
    share = probability[prefix, token]
    start = total.gather(-1, token[:, None])[:, 0] - share
    return token, ((quantile - start) / share.clamp_min(1e-300)).clamp(0, 1 - 1e-12)
