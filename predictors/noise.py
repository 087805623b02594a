"""Noise for samples: the same for the same text and seed, wherever the text stands among others."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
from scipy.special import ndtri


def text_noise(texts: Sequence[str], samples: int, metrics: int, seed: Sequence[int]) -> np.ndarray:
    """Independent standard normal noise (n, samples, metrics).

    Over the samples of one text it is the normal distribution's quantiles in random order: it adds up to zero, so that
    the samples' mean is not noisy.
    """
    levels = ndtri((np.arange(samples) + 0.5) / samples)
    levels /= levels.std() or 1.0
    rows = np.tile(levels, (metrics, 1))
    drawn = {
        text: np.random.default_rng([*seed, zlib.crc32(text.encode())]).permuted(rows, axis=1) for text in set(texts)
    }
    return np.array([drawn[text] for text in texts]).reshape(len(texts), metrics, samples).transpose(0, 2, 1)


def conditional_errors(covariance: np.ndarray, known: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Errors (n, samples, metrics) of a joint normal distribution, given some of them.

    known: (n, samples or 1, metrics), NaN where an error is not known, which is the same for all samples of a row.
    noise: (n, samples, metrics), standard normal. Known errors count as at most two standard deviations: real errors
    have heavier tails than normal ones.
    """
    limit = 2 * np.sqrt(np.diag(covariance))
    known = np.clip(known, -limit, limit)
    drawn = np.zeros_like(noise)
    patterns, pattern_of = np.unique(np.isnan(known[:, 0]), axis=0, return_inverse=True)
    for i, free in enumerate(patterns):
        rows = np.flatnonzero(pattern_of.ravel() == i)
        across = covariance[np.ix_(free, ~free)]
        weights = np.linalg.solve(covariance[np.ix_(~free, ~free)], across.T).T
        spread = root(covariance[np.ix_(free, free)] - weights @ across.T)
        here = np.zeros((len(rows), *noise.shape[1:]))
        here[:, :, free] = known[rows][:, :, ~free] @ weights.T + noise[rows][:, :, free] @ spread.T
        drawn[rows] = here
    return drawn


def root(covariance: np.ndarray, least: float = 0.0) -> np.ndarray:
    """A with A A^T = covariance, its eigenvalues raised to `least`: rounding and missing values make negative ones."""
    values, vectors = np.linalg.eigh(covariance)
    return vectors * np.sqrt(np.maximum(values, least))


def significant(correlation: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Correlations drawn towards 0 by what chance makes of independent errors, and a valid correlation matrix again.

    correlation: (m, m); counts: (m, m) pairs of errors behind each (James and Stein's positive part).
    """
    by_chance = 1 / np.maximum(counts, 1)
    kept = np.maximum(0.0, 1 - by_chance / np.maximum(correlation**2, 1e-12))
    np.fill_diagonal(kept, 1.0)
    factor = root(correlation * kept, least=1e-6)
    factor /= np.linalg.norm(factor, axis=1, keepdims=True)
    return factor @ factor.T
