"""Random learning curves: rising, saturating, crossing and failing ones, as tasks for pretraining."""

from __future__ import annotations

import numpy as np

LATENTS = 3  # random functions of a network that its curve depends on: where it begins, how fast, where it ends
MAX_LENGTH = 9  # values of a curve
FAILING = 0.2  # share of tasks in which some trainings fail


def draw_curves(latents: np.ndarray, length: int, rng: np.random.Generator) -> np.ndarray:
    """Values (n, length) at rising fidelities of networks with latents (n, LATENTS) of unit variance; higher is better.

    A curve rises from its beginning to its end by a power law or exponentially. The less speed and end have to do with
    each other, the more curves cross. Values are noisy, the later ones less so, and some trainings may fall back to
    where networks begin.
    """
    start, speed, end = latents.T
    start = rng.uniform(0, 0.5) * start - np.exp(rng.normal(0.8, 0.5))
    speed = np.exp(rng.normal(0, 0.5) + rng.uniform(0.1, 0.8) * speed + rng.uniform(-0.5, 0.5) * end)
    times = np.sort(rng.uniform(0, 1, length)) if rng.random() < 0.5 else np.linspace(1 / length, 1, length)
    if rng.random() < 0.5:
        left = (1 + 20 * times) ** -speed[:, None]
    else:
        left = np.exp(-rng.uniform(2, 6) * speed[:, None] * times)
    curves = end[:, None] - (end - start)[:, None] * left
    noise = np.exp(rng.uniform(np.log(0.01), np.log(0.4))) * (1 + rng.uniform(0, 2) * (1 - times))
    curves = curves + noise * rng.standard_normal(curves.shape)
    if rng.random() < FAILING:
        fails_at = np.where(rng.random(len(curves)) < rng.uniform(0.02, 0.25), rng.random(len(curves)), np.inf)
        curves = np.where(times >= fails_at[:, None], start[:, None], curves)
    return curves
