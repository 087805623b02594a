"""Joint samples of several metrics: each metric is conditioned on those decoded before."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from predictors.rlm.decoding import sample_scores
from predictors.rlm.examples import Context

STRATA = 8  # groups of samples; each is conditioned on its means of the earlier metrics


def joint_scores(
    contexts: Sequence[Context], states: np.ndarray, covariates: np.ndarray, quantiles: np.ndarray
) -> list[np.ndarray]:
    """Sample m metrics, each conditioned on the covariates and on the metrics before it.

    A query's samples are sorted by the metric decoded last and divided into `STRATA` groups. The next metric is
    conditioned on the means of each group, so that a query is read `STRATA` times instead of once per sample.

    Args:
        contexts: one per metric, in decoding order; the last k covariates of context k are the k earlier metrics.
        states: (q, S) of the queries.
        covariates: (q, c) scores of the given metrics.
        quantiles: (q, samples, m), see `spread_quantiles`.

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
            before = np.stack([np.take_along_axis(scores, order, 1) for scores in found], 2)  # (q, samples, k)
            means = np.stack([before[:, stratum == group].mean(1) for group in range(strata)], 1).reshape(-1, k)
            conditions = context.conditions(
                np.repeat(states, strata, 0), np.concatenate([np.repeat(covariates, strata, 0), means], 1)
            )
            rows = (np.arange(q)[:, None] * strata + stratum).ravel()
        drawn = sample_scores(context.model.decoder, conditions, rows, quantiles[:, :, k].flatten())
        scores = np.empty((q, samples))
        np.put_along_axis(scores, order, drawn.reshape(q, samples), 1)
        found.append(scores)
    return found


def spread_quantiles(texts: Sequence[str], samples: int, metrics: int, seed: Sequence[int]) -> np.ndarray:
    """Quantiles (n, samples, metrics) of joint samples; they depend on text and seed, not on the position in a batch.

    Each metric has the midpoints of `samples` equal intervals. Random points within the intervals would reach far tails
    for some networks, and a search would prefer these. The first metric's quantiles ascend, the others' are shuffled.
    """
    found = np.empty((len(texts), samples, metrics))
    drawn: dict[str, np.ndarray] = {}
    for row, text in zip(found, texts, strict=True):
        if text not in drawn:
            rng = np.random.default_rng([*seed, zlib.crc32(text.encode())])
            columns = [rng.permutation(samples) if k else np.arange(samples) for k in range(metrics)]
            drawn[text] = (np.stack(columns, 1) + 0.5) / samples
        row[:] = drawn[text]
    return found
