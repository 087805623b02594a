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
    n = len(latents)
    start, speed, end = latents.T

    # 1. Start and speed of each curve; the speed depends a little on the end.                  (n,)
    start = rng.uniform(0, 0.5) * start - np.exp(rng.normal(0.8, 0.5))
    log_speed = rng.normal(0, 0.5) + rng.uniform(0.1, 0.8) * speed + rng.uniform(-0.5, 0.5) * end
    speed = np.exp(log_speed)

    # 2. The fidelities: anywhere, or at equal distances.                                  (length,)
    times = np.linspace(1 / length, 1, length)
    if rng.random() < 0.5:
        times = np.sort(rng.uniform(0, 1, length))

    # 3. The share of the rise that remains: a power law, or exponential.                (n, length)
    if rng.random() < 0.5:
        remaining = (1 + 20 * times) ** -speed[:, None]
    else:
        remaining = np.exp(-rng.uniform(2, 6) * speed[:, None] * times)
    rise = (end - start)[:, None]
    curves = end[:, None] - rise * remaining

    # 4. Noise, more of it at the beginning.
    least = np.exp(rng.uniform(np.log(0.01), np.log(0.4)))
    noise = least * (1 + rng.uniform(0, 2) * (1 - times))
    curves = curves + noise * rng.standard_normal(curves.shape)

    # 5. Some trainings fail at some time.
    if rng.random() < FAILING:
        fails = rng.random(n) < rng.uniform(0.02, 0.25)
        fails_at = np.where(fails, rng.random(n), np.inf)
        curves = np.where(times >= fails_at[:, None], start[:, None], curves)
    return curves
