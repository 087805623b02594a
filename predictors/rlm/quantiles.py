"""Quantiles of samples: similar networks are overestimated together, or underestimated together.

The error of a prediction is a draw from a Gaussian process on the states, given that the examples have none: random
Fourier features (Rahimi and Recht, 2007), conditioned by Matheron's rule (arXiv 2002.09309). Only its ranks among a
network's samples count, so that every network keeps its own distribution.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.linalg import solve

from predictors.noise import draw_by_text
from predictors.rlm.coordinates import compared
from predictors.rlm.examples import squared_distances

NOISE = 0.1  # variance of the error that a network shares with no other one; that of the process is 1
FEATURES = 512


def joint_quantiles(
    known: np.ndarray, states: np.ndarray, texts: Sequence[str], size: tuple[int, int], seed: Sequence[int]
) -> np.ndarray:
    """Quantiles (q, samples, metrics) of the samples of q queries; they depend on state, text and seed alone.

    Each metric has the midpoints of equal intervals: random points would give some networks far tails, which a search
    prefers. The errors of different metrics are independent.

    Args:
        known: states (n, S) of the examples.
        states: (q, S) of the queries.
        texts: q texts; equal ones have equal quantiles.
        size: numbers of samples and metrics.
        seed: integers.
    """
    if size[0] == 1:
        return np.full((len(states), *size), 0.5)
    examples, queries = compared(known).astype(float), compared(states).astype(float)
    distances = squared_distances(examples, examples)
    scale = float(np.median(distances[distances > 0])) if distances.any() else 1.0
    rng, (samples, metrics) = np.random.default_rng(list(seed)), size
    frequencies = rng.standard_normal((examples.shape[1], FEATURES)) / np.sqrt(scale)
    phases = rng.uniform(0, 2 * np.pi, FEATURES)
    weights = np.hstack([*rng.standard_normal((metrics, FEATURES, samples))]) * np.sqrt(2 / FEATURES)

    def prior(places: np.ndarray) -> np.ndarray:
        return np.cos(places @ frequencies + phases) @ weights

    kernel = np.exp(-distances / (2 * scale)) + NOISE * np.eye(len(examples))
    near = np.exp(-squared_distances(queries, examples) / (2 * scale))
    own = np.array(draw_by_text(texts, seed, lambda rng: rng.standard_normal(metrics * samples)))
    errors = prior(queries) - near @ solve(kernel, prior(examples), assume_a="pos") + np.sqrt(NOISE) * own
    ranks = errors.reshape(len(states), metrics, samples).argsort(2).argsort(2)
    return (ranks.swapaxes(1, 2) + 0.5) / samples
