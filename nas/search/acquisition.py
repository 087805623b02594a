"""Acquisition functions on predicted samples: expected hypervolume improvement and Thompson
sampling.

With up to `MAX_BOX_OBJECTIVES` objectives, the region that a front does not dominate is stored as
disjoint boxes. The improvement of a point is the volume of these boxes that it dominates: exact,
and computed for many points at once. The number of boxes grows quickly with the objectives: a front
of 100 points has 100 boxes with two, 700 with three, and 4,000 with four. With more objectives, the
region is stored as the free part of `RAYS` rays, which gives an estimate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np

MAX_BOX_OBJECTIVES = 3  # regions with more objectives are estimated by rays
RAYS = 1024  # of an estimated region
# Candidates per numpy call, which bounds the memory of arrays (candidates, boxes or rays, m)
_CHUNK = 64


class Region(Protocol):
    """The region below a reference point that a front does not dominate."""

    def cut(self, point: np.ndarray) -> Region:
        """The region without the part that a further point (m,) dominates."""

    def gains(self, points: np.ndarray) -> np.ndarray:
        """The volume (n,) of the region that each point (n, m) dominates; not finite for infinite
        points.
        """


def free_region(front: np.ndarray, reference: np.ndarray) -> Region:
    """The region below the reference point (m,) that the front (k, m) does not dominate."""
    if len(reference) <= MAX_BOX_OBJECTIVES:
        return Boxes(free_boxes(front, reference))
    return Rays.of(front, reference)


@dataclass(frozen=True, eq=False)
class Boxes:
    """A region as disjoint boxes (b, 2, m). Volumes are exact."""

    boxes: np.ndarray

    def cut(self, point: np.ndarray) -> Boxes:
        return Boxes(cut(self.boxes, point))

    def gains(self, points: np.ndarray) -> np.ndarray:
        low, high = self.boxes[:, 0], self.boxes[:, 1]
        sides = np.maximum(high - np.maximum(low, points[:, None]), 0.0)  # (n, b, m)
        return sides.prod(axis=2).sum(axis=1)


@dataclass(frozen=True, eq=False)
class Rays:
    """A region as rays from the reference point towards lower losses. Volumes are estimates.

    A point dominates the first `length` of each ray. A hypervolume is the mean of length^m over all
    directions, times a constant (Deng and Zhang 2019, "Approximating hypervolume and hypervolume
    contributions using polar coordinate").

    Attributes:
        reference: (m,) reference point.
        taken: (RAYS,) the length of each ray that the front dominates.
    """

    reference: np.ndarray
    taken: np.ndarray

    @classmethod
    def of(cls, front: np.ndarray, reference: np.ndarray) -> Rays:
        """The region that a front (k, m) does not dominate."""
        rays = cls(reference, np.zeros(RAYS))
        for point in front:
            rays = rays.cut(point)
        return rays

    def cut(self, point: np.ndarray) -> Rays:
        return Rays(self.reference, np.maximum(self.taken, self._lengths(point[None])[0]))

    def gains(self, points: np.ndarray) -> np.ndarray:
        m = len(self.reference)
        constant = (
            math.pi ** (m / 2) / math.gamma(m / 2 + 1) / 2**m
        )  # volume of the unit ball in one orthant
        further = np.maximum(self._lengths(points), self.taken) ** m - self.taken**m  # (n, RAYS)
        return constant * further.mean(axis=1)

    def _lengths(self, points: np.ndarray) -> np.ndarray:
        """The length (n, RAYS) of each ray that each point (n, m) dominates."""
        directions = _directions(len(self.reference))
        lengths = np.full((len(points), RAYS), np.inf)
        for j, depth in enumerate(
            (self.reference - points).T
        ):  # one objective at a time saves memory
            np.minimum(lengths, depth[:, None] / directions[:, j], out=lengths)
        return np.maximum(lengths, 0.0)


@lru_cache(maxsize=8)
def _directions(m: int) -> np.ndarray:
    """Unit vectors (RAYS, m) with positive entries, uniform on the sphere, always the same ones."""
    vectors = np.abs(np.random.default_rng(0).standard_normal((RAYS, m)))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def cut(boxes: np.ndarray, point: np.ndarray) -> np.ndarray:
    """Remove from disjoint boxes (b, 2, m) the region that `point` (m,) dominates: all that exceeds
    it in every loss.

    A box consists of its lower corner, which may be -inf, and its upper corner.

    Returns:
        Disjoint boxes (b', 2, m).
    """
    hit = (point < boxes[:, 1]).all(axis=1)
    low, high = boxes[hit, 0], boxes[hit, 1]
    parts = [boxes[~hit]]
    for j, value in enumerate(point):
        free = low[:, j] < value
        part = np.stack([low[free], high[free]], axis=1)
        part[:, 1, j] = value
        parts.append(part)
        low[:, j] = np.maximum(low[:, j], value)
    return np.concatenate(parts)


def free_boxes(front: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Disjoint boxes (b, 2, m) of the region below the reference point (m,) that the front (k, m)
    does not dominate.
    """
    boxes = np.stack([np.full_like(reference, -np.inf), reference])[None]
    for point in front[np.argsort(front[:, 0], kind="stable")]:
        boxes = cut(boxes, point)
    return boxes


def sample_improvements(
    samples: np.ndarray, weights: np.ndarray, regions: Sequence[Region]
) -> np.ndarray:
    """Hypervolume improvement of each sample.

    Args:
        samples: (n, s, m) losses of n candidates.
        weights: (n, s) factors; 0 for a sample that violates a constraint.
        regions: for each of the s samples, the region that is not dominated.

    Returns:
        (n, s) improvements.
    """
    gains = np.zeros(weights.shape)
    for start in range(0, len(samples), _CHUNK):
        rows = slice(start, start + _CHUNK)
        for s, region in enumerate(regions):
            with np.errstate(over="ignore", invalid="ignore"):
                gains[rows, s] = weights[rows, s] * region.gains(samples[rows, s])
    return np.nan_to_num(
        gains, nan=0.0, posinf=np.inf
    )  # an infinite side times one of 0, or an infinite gain times 0


def expected_improvement(
    samples: np.ndarray, weights: np.ndarray, regions: Sequence[Region]
) -> np.ndarray:
    """Mean hypervolume improvement (n,) over s samples; higher is better. See
    `sample_improvements`.
    """
    return sample_improvements(samples, weights, regions).cumsum(axis=1)[:, -1] / len(regions)


def choose_batch(
    samples: np.ndarray, weights: np.ndarray, front: np.ndarray, reference: np.ndarray, size: int
) -> list[int]:
    """Choose a batch greedily by joint expected hypervolume improvement.

    In each of the s samples, the chosen candidates count as evaluated when the next one is chosen.

    Args:
        samples: (n, s, m) predicted losses of n candidates.
        weights: (n, s), see `sample_improvements`.
        front: (k, m) losses.
        reference: (m,) reference point.
        size: largest number of candidates.

    Returns:
        Indices of the chosen candidates, best first.
    """
    regions = [free_region(front, reference)] * samples.shape[1]
    gains = expected_improvement(samples, weights, regions)
    chosen: list[int] = []
    while len(chosen) < min(size, len(samples)):
        # A choice can only lower the other gains. Old gains are upper bounds, so only the highest
        # need an update.
        fresh = np.isneginf(gains)
        while not fresh[best := int(np.argmax(gains))]:
            top = np.argsort(np.where(fresh, np.inf, -gains), kind="stable")[:_CHUNK]
            top = top[~fresh[top]]
            gains[top] = expected_improvement(samples[top], weights[top], regions)
            fresh[top] = True
        chosen.append(best)
        gains[best] = -np.inf
        regions = [
            free.cut(samples[best, s]) if weights[best, s] > 0 else free
            for s, free in enumerate(regions)
        ]
    return chosen


def choose_by_thompson(
    samples: np.ndarray, weights: np.ndarray, front: np.ndarray, reference: np.ndarray, size: int
) -> list[int]:
    """Choose a batch by Thompson sampling (Thompson 1933); arguments and result as in
    `choose_batch`.

    Each choice has the largest hypervolume improvement in one sample. Successive choices use
    different samples.
    """
    chosen: list[int] = []
    for place in range(min(size, len(samples))):
        s = place % samples.shape[1]
        made = [i for i in chosen if weights[i, s] > 0]
        region = free_region(np.concatenate([front, samples[made, s]]), reference)
        gains = expected_improvement(samples[:, [s]], weights[:, [s]], [region])
        gains[chosen] = -np.inf
        chosen.append(int(np.argmax(gains)))
    return chosen


ACQUISITIONS = {"ehvi": choose_batch, "thompson": choose_by_thompson}
