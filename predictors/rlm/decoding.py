"""Constrained decoding of numbers, all samples of all rows at once, and of several metrics in turn.

Arithmetic sampling (arXiv 2210.15458): each sample decodes the digits at its quantile. Evenly
    spaced quantiles cover
the model's distribution evenly, so their mean is far less noisy than that of independent samples.
Samples of one row share the computation of equal prefixes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from predictors.rlm import digits
from predictors.rlm.context import START, NumberDecoder
from predictors.rlm.examples import Context

STRATA = 8  # groups of samples; each is conditioned on its means of the earlier metrics
_ALLOWED = torch.from_numpy(digits.allowed())


@torch.inference_mode()
def sample_scores(
    decoder: NumberDecoder, conditions: Tensor, rows: np.ndarray, quantiles: np.ndarray
) -> np.ndarray:
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
    """Tokens (S,) at one place for samples of P prefixes with logits (P, NUMBER_TOKENS), and
    quantiles within these.

    A higher quantile gives a higher number: minus comes before plus, and the quantile is mirrored
        for negative numbers,
    whose digits are ordered by absolute value.
    """
    finite = torch.nan_to_num(logits.double(), nan=0.0, posinf=1e4, neginf=-1e4)
    probability = finite.masked_fill(~_ALLOWED[place], -torch.inf).softmax(-1)
    if place == 0:
        minus = probability[prefix, digits.MINUS]
        below = quantile < minus
        within = torch.where(
            below,
            1 - quantile / minus.clamp_min(1e-300),
            (quantile - minus) / (1 - minus).clamp_min(1e-300),
        )
        return torch.where(below, digits.MINUS, digits.PLUS), within.clamp(0, 1 - 1e-12)
    total = probability.cumsum(-1)[prefix]
    token = torch.searchsorted(total, quantile[:, None], right=True)[:, 0].clamp(
        digits.ZERO, digits.NUMBER_TOKENS - 1
    )
    share = probability[prefix, token]
    start = total.gather(-1, token[:, None])[:, 0] - share
    return token, ((quantile - start) / share.clamp_min(1e-300)).clamp(0, 1 - 1e-12)


def joint_scores(
    contexts: Sequence[Context], states: np.ndarray, covariates: np.ndarray, quantiles: np.ndarray
) -> list[np.ndarray]:
    """Sample m metrics, each conditioned on the covariates and on the metrics before it.

    A query's samples are sorted by the metric decoded last and divided into `STRATA` groups. The
    next metric is conditioned on the means of each group, so that a query is read `STRATA` times
    instead of once per sample.

    Args:
        contexts: one per metric, in decoding order; the last k covariates of context k are the k
            earlier metrics.
        states: (q, S) of the queries.
        covariates: (q, c) scores of the given metrics.
        quantiles: (q, samples, m), see `joint_quantiles`.

    Returns:
        (q, samples) scores per metric.
    """
    q, samples, _ = quantiles.shape
    strata = min(STRATA, samples)
    stratum = np.arange(samples) * strata // samples  # of the samples sorted by the last metric
    found: list[np.ndarray] = []
    for k, context in enumerate(contexts):
        if not found:
            conditions = context.conditions(states, covariates)
            order = np.broadcast_to(np.arange(samples), (q, samples))
            rows = np.repeat(np.arange(q), samples)
        else:
            order = found[-1].argsort(1, kind="stable")
            before = np.stack(
                [np.take_along_axis(scores, order, 1) for scores in found], 2
            )  # (q, samples, k)
            means = np.stack(
                [before[:, stratum == group].mean(1) for group in range(strata)], 1
            ).reshape(-1, k)
            conditions = context.conditions(
                np.repeat(states, strata, 0),
                np.concatenate([np.repeat(covariates, strata, 0), means], 1),
            )
            rows = (np.arange(q)[:, None] * strata + stratum).ravel()
        drawn = sample_scores(context.model.decoder, conditions, rows, quantiles[:, :, k].flatten())
        scores = np.empty((q, samples))
        np.put_along_axis(scores, order, drawn.reshape(q, samples), 1)
        found.append(scores)
    return found
