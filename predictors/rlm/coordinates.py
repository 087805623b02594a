"""Coordinates of texts in a context: principal axes of its states, what all contexts share, and known covariates.

Exact costs and predicted proxies mean the same in every context; principal axes of the rest of a state do not.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from predictors.rlm.context import COMMON, COMPONENT_SCALE, COMPONENTS, COORDINATES, COVARIATES, WHITENED

LIMIT = 5.0
COST_WEIGHT = 0.2


class Axes(NamedTuple):
    """What makes coordinates of states: found on a context's examples, used for examples and queries alike."""

    center: np.ndarray
    scale: float
    cost_center: np.ndarray
    cost_scale: np.ndarray
    directions: np.ndarray
    spread: np.ndarray
    covariate_directions: np.ndarray
    size: float

    @classmethod
    def fit(cls, states: np.ndarray, covariates: np.ndarray) -> Axes:
        """Axes of n examples: states (n, S + COMMON), covariates (n, c) as scores, NaN where unknown."""
        free, exact = states[:, :-COMMON], states[:, -COMMON:]
        center = free.mean(0)
        scale = float(np.sqrt(((free - center) ** 2).sum(1).mean())) or 1.0
        cost_center, cost_scale = exact.mean(0), exact.std(0)
        cost_scale = np.where(cost_scale > 1e-4, cost_scale, np.inf)
        joint = _joint(free, exact, center, scale, cost_center, cost_scale)
        directions, spread = _principal(joint, COMPONENTS)
        filled = np.nan_to_num(covariates)
        across, _ = _principal(filled / max(1.0, filled.shape[1]) ** 0.5, COVARIATES)
        return cls(center, scale, cost_center, cost_scale, directions, spread, across, np.log2(len(states) / 64) / 4)

    def __call__(self, states: np.ndarray, covariates: np.ndarray) -> np.ndarray:
        """(n, COORDINATES) of states (n, S + COMMON) and covariates (n, c)."""
        free, exact = states[:, :-COMMON], states[:, -COMMON:]
        joint = _joint(free, exact, self.center, self.scale, self.cost_center, self.cost_scale)
        along = joint @ self.directions  # (n, k)
        rest = np.sqrt(np.maximum((joint**2).sum(1) - (along**2).sum(1), 0))
        k = along.shape[1]
        found = np.zeros((len(states), COORDINATES), np.float32)
        found[:, :k] = along * COMPONENT_SCALE
        w = min(k, WHITENED)
        found[:, COMPONENTS : COMPONENTS + w] = along[:, :w] / self.spread[:w]
        at = COMPONENTS + WHITENED
        filled = np.nan_to_num(covariates)
        across = filled @ self.covariate_directions / max(1.0, filled.shape[1]) ** 0.5
        found[:, at : at + across.shape[1]] = across
        at += COVARIATES
        found[:, at : at + COMMON] = (exact - self.cost_center) / self.cost_scale
        found[:, at + COMMON] = rest
        found[:, at + COMMON + 1] = float(covariates.shape[1] > 0)
        found = found.clip(-LIMIT, LIMIT)
        found[:, -1] = self.size
        return found


def _joint(free, exact, center, scale, cost_center, cost_scale) -> np.ndarray:  # type: ignore[no-untyped-def]
    costs = ((exact - cost_center) / cost_scale).clip(-LIMIT, LIMIT)
    return np.concatenate([(free - center) / scale, COST_WEIGHT * costs], 1)


def _principal(centered: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Principal directions (S, k) of rows (n, S), the largest first, and their standard deviations (k,)."""
    if not centered.shape[1]:
        return np.zeros((0, 0)), np.zeros(0)
    n, size = centered.shape
    values, vectors = np.linalg.eigh(centered @ centered.T / n if n < size else centered.T @ centered / n)
    values, vectors = values[::-1][:most], vectors[:, ::-1][:, :most]
    kept = values > 1e-6 * max(values[0], 1e-12)
    values, vectors = values[kept], vectors[:, kept]
    if n < size:
        vectors = centered.T @ vectors / np.sqrt(n * values)
    signs = np.sign(vectors[np.abs(vectors).argmax(0), np.arange(vectors.shape[1])])
    return vectors * signs, np.sqrt(values)
