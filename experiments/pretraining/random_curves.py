"""Random learning curves for pretraining tasks: they rise, saturate, cross and fail."""

from __future__ import annotations

import numpy as np

LATENTS = 3  # latent variables of a network's curve: its start, speed and end
MAX_LENGTH = 9  # values per curve
FAILING = 0.2  # share of tasks in which some trainings fail


def draw_curves(latents: np.ndarray, length: int, rng: np.random.Generator) -> np.ndarray:
    """Draw learning curves.

    A curve rises from start to end by a power law or exponentially. The weaker the correlation
    between speed and end, the more curves cross. Noise decreases along a curve. Some trainings may
    fail and fall back to the start.

    Args:
        latents: (n, LATENTS) start, speed and end of each network, of unit variance.
        length: values per curve, at increasing fidelities.
        rng: source of randomness.

    Returns:
        (n, length) values, higher is better.
    """
    start, speed, end = latents.T
    start = rng.uniform(0, 0.5) * start - np.exp(rng.normal(0.8, 0.5))
    speed = np.exp(
        rng.normal(0, 0.5) + rng.uniform(0.1, 0.8) * speed + rng.uniform(-0.5, 0.5) * end
    )
    times = (
        np.sort(rng.uniform(0, 1, length))
        if rng.random() < 0.5
        else np.linspace(1 / length, 1, length)
    )
    if rng.random() < 0.5:
        remaining = (1 + 20 * times) ** -speed[:, None]
    else:
        remaining = np.exp(-rng.uniform(2, 6) * speed[:, None] * times)
    curves = end[:, None] - (end - start)[:, None] * remaining
    noise = np.exp(rng.uniform(np.log(0.01), np.log(0.4))) * (1 + rng.uniform(0, 2) * (1 - times))
    curves = curves + noise * rng.standard_normal(curves.shape)
    if rng.random() < FAILING:
        fails_at = np.where(
            rng.random(len(curves)) < rng.uniform(0.02, 0.25), rng.random(len(curves)), np.inf
        )
        curves = np.where(times >= fails_at[:, None], start[:, None], curves)
    return curves
