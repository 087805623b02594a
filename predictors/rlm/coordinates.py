"""Coordinates of texts in a context: principal axes of its states, common numbers, and covariates.

Exact costs and predicted proxies, the common numbers, mean the same in every context. The other
parts of a state are projected to the principal axes of the context's examples.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from predictors.rlm.context import AXES, AXIS_SCALE, COORDINATES, COVARIATES, WHITENED
from predictors.rlm.encoder import COMMON, QUALITY
from predictors.rlm.sketches import COUNTS, NEIGHBOURS

LIMIT = 5.0  # largest absolute coordinate
COMMON_WEIGHT = 0.2  # of the common numbers among the principal axes of structure


def part_sizes(size: int) -> list[int]:
    """Sizes of the parts of a state of `size` numbers: structure, quality, counts, neighbours,
    common.
    """
    return [size - QUALITY - COUNTS - NEIGHBOURS - COMMON, QUALITY, COUNTS, NEIGHBOURS, COMMON]


def compared(states: np.ndarray) -> np.ndarray:
    """The learned parts of states (n, S), structure and quality, on which distances between texts
    are measured.
    """
    return states[:, : -COUNTS - NEIGHBOURS - COMMON]


class States(NamedTuple):
    """Parts of states (n, S)."""

    structure: (
        np.ndarray
    )  # (n, S - QUALITY - COUNTS - NEIGHBOURS - COMMON), linear in the encoder's pooled lines
    quality: np.ndarray  # (n, QUALITY), nonlinear
    counts: np.ndarray  # (n, COUNTS), a sketch of how often each kind of line occurs
    neighbours: np.ndarray  # (n, NEIGHBOURS), a sketch of the lines around each line
    common: np.ndarray  # (n, COMMON), predicted proxies and accuracies, and exact costs

    @classmethod
    def of(cls, states: np.ndarray) -> States:
        """Split the states of an encoder."""
        return cls(*np.split(states, np.cumsum(part_sizes(states.shape[1])[:-1]), axis=1))


class Block(NamedTuple):
    """Principal axes of a part of the states."""

    center: np.ndarray  # (S,) mean
    scale: float  # root mean squared distance from the center
    directions: (
        np.ndarray
    )  # (S + c, k) of the values divided by `scale`, with c columns beside them
    spread: np.ndarray  # (k,) standard deviations along the directions

    @classmethod
    def fit(cls, values: np.ndarray, most: int, *beside: np.ndarray) -> Block:
        """Fit at most `most` axes to values (n, S), scaled to a mean square of 1, and columns
        `beside` (n, c).
        """
        center = values.mean(0)
        scale = float(np.sqrt(((values - center) ** 2).sum(1).mean())) or 1.0
        return cls(
            center,
            scale,
            *_principal_axes(np.concatenate([(values - center) / scale, *beside], 1), most),
        )

    def along(self, values: np.ndarray, *beside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Coordinates (n, k) of values (n, S) along the axes, and squared distances (n,) from their
        span.
        """
        joint = np.concatenate([(values - self.center) / self.scale, *beside], 1)
        along = joint @ self.directions
        return along, np.maximum((joint**2).sum(1) - (along**2).sum(1), 0)


class Axes(NamedTuple):
    """The map from states to coordinates, fitted to a context's examples and applied to examples
    and queries.
    """

    blocks: tuple[Block, ...]  # of structure with the common numbers, quality, counts, neighbours
    common_center: np.ndarray
    common_scale: np.ndarray
    covariate_directions: np.ndarray
    size: float

    @classmethod
    def fit(cls, states: np.ndarray, covariates: np.ndarray) -> Axes:
        """Fit to n examples with states (n, S) and covariates (n, c) in scores, NaN where
        unknown.
        """
        structure, *others, common = States.of(states)
        center, scale = common.mean(0), common.std(0)
        scale = np.where(scale > 1e-4, scale, np.inf)
        first = Block.fit(structure, AXES[0], _weighted(common, center, scale))
        blocks = (
            first,
            *(Block.fit(part, most) for part, most in zip(others, AXES[1:], strict=True)),
        )
        filled = np.nan_to_num(covariates)
        across, _ = _principal_axes(filled / max(1.0, filled.shape[1]) ** 0.5, COVARIATES)
        return cls(blocks, center, scale, across, np.log2(len(states) / 64) / 4)

    def __call__(self, states: np.ndarray, covariates: np.ndarray) -> np.ndarray:
        """Coordinates (n, COORDINATES) of states (n, S) and covariates (n, c) in scores, NaN where
        unknown.
        """
        structure, *others, common = States.of(states)
        placed = [
            self.blocks[0].along(
                structure, _weighted(common, self.common_center, self.common_scale)
            )
        ]
        placed += [block.along(part) for block, part in zip(self.blocks[1:], others, strict=True)]
        found = np.zeros((len(states), COORDINATES), np.float32)
        at, whitened = 0, sum(AXES)
        for (along, _), block, most in zip(placed, self.blocks, AXES, strict=True):
            found[:, at : at + along.shape[1]] = along * AXIS_SCALE
            w = min(along.shape[1], WHITENED)
            found[:, whitened : whitened + w] = along[:, :w] / block.spread[:w]
            at, whitened = at + most, whitened + WHITENED
        at += len(AXES) * WHITENED
        filled = np.nan_to_num(covariates)
        across = filled @ self.covariate_directions / max(1.0, filled.shape[1]) ** 0.5
        found[:, at : at + across.shape[1]] = across
        at += COVARIATES
        found[:, at : at + COMMON] = (common - self.common_center) / self.common_scale
        found[:, at + COMMON] = np.sqrt(sum(rest for _, rest in placed[:-1]))
        found[:, at + COMMON + 1] = float(covariates.shape[1] > 0)
        found = found.clip(-LIMIT, LIMIT)
        found[:, -1] = self.size
        return found


def _weighted(common: np.ndarray, center: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return COMMON_WEIGHT * ((common - center) / scale).clip(-LIMIT, LIMIT)


def _principal_axes(centered: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """At most `most` directions (S, k) of largest variance of rows (n, S), and standard deviations
    (k,) along them.
    """
    if not centered.shape[1]:
        return np.zeros((0, 0)), np.zeros(0)
    n, size = centered.shape
    values, vectors = np.linalg.eigh(
        centered @ centered.T / n if n < size else centered.T @ centered / n
    )
    values, vectors = values[::-1][:most], vectors[:, ::-1][:, :most]
    kept = values > 1e-6 * max(values[0], 1e-12)
    values, vectors = values[kept], vectors[:, kept]
    if n < size:
        vectors = centered.T @ vectors / np.sqrt(n * values)
    signs = np.sign(vectors[np.abs(vectors).argmax(0), np.arange(vectors.shape[1])])
    return vectors * signs, np.sqrt(values)
