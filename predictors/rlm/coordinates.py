"""Coordinates of texts in a context: principal axes of its states, what all contexts share, and known covariates.

Exact costs and predicted proxies mean the same in every context; principal axes of the rest of a state do not.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from predictors.rlm.context import AXES, AXIS_SCALE, COORDINATES, COVARIATES, WHITENED
from predictors.rlm.encoder import COMMON, QUALITY
from predictors.rlm.lines import COUNTS

LIMIT = 5.0
COMMON_WEIGHT = 0.2


def part_sizes(size: int) -> list[int]:
    """How many of a state's numbers are structure, quality, counts, and common."""
    return [size - QUALITY - COUNTS - COMMON, QUALITY, COUNTS, COMMON]


def compared(states: np.ndarray) -> np.ndarray:
    """What distances between texts are measured on, of states (n, S): structure and quality, which are learned."""
    return states[:, : -COUNTS - COMMON]


class States(NamedTuple):
    """Parts of states (n, S): structure (n, S - …), quality (n, QUALITY), counts (n, COUNTS), common (n, COMMON)."""

    structure: np.ndarray
    quality: np.ndarray
    counts: np.ndarray
    common: np.ndarray

    @classmethod
    def of(cls, states: np.ndarray) -> States:
        """The parts of what an encoder returns."""
        return cls(*np.split(states, np.cumsum(part_sizes(states.shape[1])[:-1]), axis=1))


class Block(NamedTuple):
    """Principal axes of a part of the states: center (S,), directions (S, k), standard deviations (k,)."""

    center: np.ndarray
    scale: float
    directions: np.ndarray
    spread: np.ndarray

    @classmethod
    def fit(cls, values: np.ndarray, most: int, beside: np.ndarray | None = None) -> Block:
        """Axes of values (n, S), whose mean square becomes one, with `beside` (n, c), which stays as it is."""
        center = values.mean(0)
        scale = float(np.sqrt(((values - center) ** 2).sum(1).mean())) or 1.0
        return cls(center, scale, *principal_axes(_beside((values - center) / scale, beside), most))

    def along(self, values: np.ndarray, beside: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Of values (n, S): coordinates along the axes (n, k), and the square (n,) of what is left."""
        joint = _beside((values - self.center) / self.scale, beside)
        along = joint @ self.directions
        return along, np.maximum((joint**2).sum(1) - (along**2).sum(1), 0)


class Axes(NamedTuple):
    """What makes coordinates of states: found on a context's examples, used for examples and queries alike."""

    structure: Block
    quality: Block
    counts: Block
    common_center: np.ndarray
    common_scale: np.ndarray
    covariate_directions: np.ndarray
    size: float

    @classmethod
    def fit(cls, states: np.ndarray, covariates: np.ndarray) -> Axes:
        """Axes of n examples: states (n, S), covariates (n, c) as scores, NaN where unknown."""
        parts = States.of(states)
        center, scale = parts.common.mean(0), parts.common.std(0)
        scale = np.where(scale > 1e-4, scale, np.inf)
        structure = Block.fit(parts.structure, AXES[0], _weighted(parts.common, center, scale))
        quality = Block.fit(parts.quality, AXES[1])
        counts = Block.fit(parts.counts, AXES[2])
        filled = np.nan_to_num(covariates)
        across, _ = principal_axes(filled / max(1.0, filled.shape[1]) ** 0.5, COVARIATES)
        return cls(structure, quality, counts, center, scale, across, np.log2(len(states) / 64) / 4)

    def __call__(self, states: np.ndarray, covariates: np.ndarray) -> np.ndarray:
        """(n, COORDINATES) of states (n, S) and covariates (n, c)."""
        parts = States.of(states)
        structure, rest = self.structure.along(
            parts.structure, _weighted(parts.common, self.common_center, self.common_scale)
        )
        quality, rest_of_quality = self.quality.along(parts.quality)
        counts, rest_of_counts = self.counts.along(parts.counts)
        found = np.zeros((len(states), COORDINATES), np.float32)
        at, whitened = 0, sum(AXES)
        for along, block, most in zip((structure, quality, counts), self[:3], AXES, strict=True):
            found[:, at : at + along.shape[1]] = along * AXIS_SCALE
            w = min(along.shape[1], WHITENED)
            found[:, whitened : whitened + w] = along[:, :w] / block.spread[:w]
            at, whitened = at + most, whitened + WHITENED
        at += len(AXES) * WHITENED
        filled = np.nan_to_num(covariates)
        across = filled @ self.covariate_directions / max(1.0, filled.shape[1]) ** 0.5
        found[:, at : at + across.shape[1]] = across
        at += COVARIATES
        found[:, at : at + COMMON] = (parts.common - self.common_center) / self.common_scale
        found[:, at + COMMON] = np.sqrt(rest + rest_of_quality + rest_of_counts)
        found[:, at + COMMON + 1] = float(covariates.shape[1] > 0)
        found = found.clip(-LIMIT, LIMIT)
        found[:, -1] = self.size
        return found


def _weighted(common: np.ndarray, center: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return COMMON_WEIGHT * ((common - center) / scale).clip(-LIMIT, LIMIT)


def _beside(values: np.ndarray, beside: np.ndarray | None) -> np.ndarray:
    return values if beside is None else np.concatenate([values, beside], 1)


def principal_axes(centered: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
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
