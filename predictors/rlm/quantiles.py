"""Quantiles of samples: similar networks are overestimated together, or underestimated together.

The error of a prediction is a draw from a Gaussian process on the states, given that the examples
have none: random Fourier features (Rahimi and Recht, 2007), conditioned by Matheron's rule (arXiv
2002.09309). Only its ranks among a network's samples count, so that every network keeps its own
distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy.linalg import solve

from predictors.noise import draw_by_text
from predictors.rlm.coordinates import compared
from predictors.rlm.examples import squared_distances

# Variance of the error that a network shares with no other one; that of the process is 1
NOISE = 0.1
FEATURES = 512

Quantiles = Callable[[np.ndarray, Sequence[str]], np.ndarray]
"""Quantiles (q, samples, metrics) of q queries with states (q, S) and texts; equal texts have equal ones."""


def joint_quantiles(known: np.ndarray, size: tuple[int, int], seed: Sequence[int]) -> Quantiles:
    """Quantiles of the samples of any number of queries; they depend on state, text and seed alone.

    Each metric has the midpoints of equal intervals: random points would give some networks far
        tails, which a search
    prefers. The errors of different metrics are independent.

    Args:
        known: states (n, S) of the examples.
        size: numbers of samples and metrics.
        seed: integers.
    """
    samples, metrics = size
    if samples == 1:
        return lambda states, texts: np.full((len(texts), *size), 0.5)
    examples = compared(known).astype(float)
    distances = squared_distances(examples, examples)
    scale = float(np.median(distances[distances > 0])) if distances.any() else 1.0
    rng = np.random.default_rng(list(seed))
    frequencies = rng.standard_normal((examples.shape[1], FEATURES)) / np.sqrt(scale)
    phases = rng.uniform(0, 2 * np.pi, FEATURES)
    weights = np.hstack([*rng.standard_normal((metrics, FEATURES, samples))]) * np.sqrt(
        2 / FEATURES
    )

    def prior(places: np.ndarray) -> np.ndarray:
        return np.cos(places @ frequencies + phases) @ weights

    kernel = np.exp(-distances / (2 * scale)) + NOISE * np.eye(len(examples))
    correction = solve(kernel, prior(examples), assume_a="pos")

    def quantiles(states: np.ndarray, texts: Sequence[str]) -> np.ndarray:
        places = compared(states).astype(float)
        near = np.exp(-squared_distances(places, examples) / (2 * scale))
        own = np.array(
            draw_by_text(texts, seed, lambda rng: rng.standard_normal(metrics * samples))
        )
        errors = prior(places) - near @ correction + np.sqrt(NOISE) * own
        ranks = errors.reshape(len(texts), metrics, samples).argsort(2).argsort(2)
        return (ranks.swapaxes(1, 2) + 0.5) / samples

    return quantiles
