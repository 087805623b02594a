"""Noise for samples: it depends on text and seed, not on the position of the text in a batch."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import ndtri


def text_noise(texts: Sequence[str], samples: int, metrics: int, seed: Sequence[int]) -> np.ndarray:
    """Standard normal noise (n, samples, metrics), independent between texts and metrics.

    The samples of one text and metric are the quantiles of the normal distribution in random order.
    They sum to zero, so the mean of the samples is free of noise.

    Args:
        texts: n texts; equal texts get equal noise.
        samples: samples per text.
        metrics: number of metrics.
        seed: integers that seed the generator together with the text.
    """
    levels = ndtri((np.arange(samples) + 0.5) / samples)
    levels /= levels.std() or 1.0
    rows = np.tile(levels, (metrics, 1))
    drawn = draw_by_text(texts, seed, lambda rng: rng.permuted(rows, axis=1))
    return np.array(drawn).reshape(len(texts), metrics, samples).transpose(0, 2, 1)


def draw_by_text(
    texts: Sequence[str], seed: Sequence[int], draw: Callable[[np.random.Generator], np.ndarray]
) -> list[np.ndarray]:
    """A random array per text, drawn by a generator that text and seed determine."""
    drawn = {
        text: draw(np.random.default_rng([*seed, zlib.crc32(text.encode())])) for text in set(texts)
    }
    return [drawn[text] for text in texts]


def conditional_errors(covariance: np.ndarray, known: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Draw errors from a joint normal distribution, conditioned on known errors.

    Known errors are clipped to two standard deviations, because real errors have heavier tails than
    normal ones.

    Args:
        covariance: (m, m) of the errors.
        known: (n, samples or 1, m), NaN where unknown; the pattern of NaN is the same for all
            samples of a row.
        noise: (n, samples, m), standard normal.

    Returns:
        (n, samples, m) errors, 0 where the error is known.
    """
    limit = 2 * np.sqrt(np.diag(covariance))
    known = np.clip(known, -limit, limit)
    drawn = np.zeros_like(noise)
    patterns, pattern_of = np.unique(np.isnan(known[:, 0]), axis=0, return_inverse=True)
    for i, free in enumerate(patterns):
        rows = np.flatnonzero(pattern_of.ravel() == i)
        across = covariance[np.ix_(free, ~free)]
        weights = np.linalg.solve(covariance[np.ix_(~free, ~free)], across.T).T
        spread = _square_root(covariance[np.ix_(free, free)] - weights @ across.T)
        here = np.zeros((len(rows), *noise.shape[1:]))
        here[:, :, free] = known[rows][:, :, ~free] @ weights.T + noise[rows][:, :, free] @ spread.T
        drawn[rows] = here
    return drawn


def _square_root(covariance: np.ndarray, least: float = 0.0) -> np.ndarray:
    """A with A A^T = covariance; eigenvalues, which rounding can make negative, are raised to at
    least `least`.
    """
    values, vectors = np.linalg.eigh(covariance)
    return vectors * np.sqrt(np.maximum(values, least))


def second_moments(errors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sums (m, m) of the products of errors (n, m), NaN where missing, and the number (m, m) of
    pairs in each sum.
    """
    seen = ~np.isnan(errors)
    filled = np.where(seen, errors, 0.0)
    return filled.T @ filled, seen.T.astype(float) @ seen


def shrink_correlation(correlation: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Shrink estimated correlations towards 0 by the size that chance alone explains (positive-part
    James-Stein).

    Args:
        correlation: (m, m) estimates.
        counts: (m, m) number of pairs behind each estimate.

    Returns:
        (m, m) positive definite correlation matrix.
    """
    by_chance = 1 / np.maximum(counts, 1)
    kept = np.maximum(0.0, 1 - by_chance / np.maximum(correlation**2, 1e-12))
    np.fill_diagonal(kept, 1.0)
    factor = _square_root(correlation * kept, least=1e-6)
    factor /= np.linalg.norm(factor, axis=1, keepdims=True)
    return factor @ factor.T
