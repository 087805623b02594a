"""Acquisition functions on predicted samples: expected hypervolume improvement and Thompson
sampling.

A guided search draws joint samples of the metrics of each candidate. In one sample, every candidate
has a definite value, and the hypervolume that it would add to the front can be computed. The mean
over the samples is the expected hypervolume improvement. A batch is chosen greedily: in each
sample, the candidates that are already chosen count as evaluated.

With up to `MAX_BOX_OBJECTIVES` objectives, the region that a front does not dominate is stored as
disjoint boxes. The improvement of a point is the volume of these boxes that it dominates: exact,
and computed for many points at once. The number of boxes grows quickly with the objectives: a front
of 100 points has 100 boxes with two, 700 with three, and 4,000 with four. With more objectives, the
region is stored as the free part of `RAYS` rays, which gives an estimate.

Sizes in comments: n candidates, s samples, m objectives, k points of the front, b boxes.
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
# Candidates per numpy call, which bounds the memory of arrays (candidates, boxes or rays, m).
_CHUNK = 64
THRESHOLDS = 8  # plans per network of a search with fidelities
_RENEWED = 16  # candidates whose bounds are computed again at once when the next one is chosen


# --- choosing a batch


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
    candidate_count, sample_count, _ = samples.shape
    size = min(size, candidate_count)

    # 1. Before anything is chosen, the region that is not dominated is the same in all samples.
    regions: list[Region] = [free_region(front, reference)] * sample_count
    gains = expected_improvement(samples, weights, regions)  # (n,)

    chosen: list[int] = []
    while len(chosen) < size:
        # 2. A choice can only lower the other gains. So old gains are upper bounds, and only the
        #    highest ones are computed again, until the highest of all is a new one.
        is_new = np.isneginf(gains)  # (n,), true for the chosen ones
        while not is_new[best := int(np.argmax(gains))]:
            by_bound = np.argsort(np.where(is_new, np.inf, -gains), kind="stable")
            highest = by_bound[:_RENEWED]
            highest = highest[~is_new[highest]]
            gains[highest] = expected_improvement(samples[highest], weights[highest], regions)
            is_new[highest] = True
        chosen.append(best)
        gains[best] = -np.inf

        # 3. Each sample's region loses what the chosen candidate dominates in this sample.
        for s in range(sample_count):
            if weights[best, s] > 0:
                regions[s] = regions[s].cut(samples[best, s])
    return chosen


def choose_by_thompson(
    samples: np.ndarray, weights: np.ndarray, front: np.ndarray, reference: np.ndarray, size: int
) -> list[int]:
    """Choose a batch by Thompson sampling (Thompson 1933).

    Arguments and result are as in `choose_batch`. Each choice has the largest hypervolume
    improvement in one sample. Successive choices use different samples.
    """
    candidate_count, sample_count, _ = samples.shape
    chosen: list[int] = []
    for number in range(min(size, candidate_count)):
        s = number % sample_count
        evaluated = [i for i in chosen if weights[i, s] > 0]
        points = np.concatenate([front, samples[evaluated, s]])  # (k + evaluated, m)
        region = free_region(points, reference)
        gains = expected_improvement(samples[:, [s]], weights[:, [s]], [region])  # (n,)
        gains[chosen] = -np.inf
        chosen.append(int(np.argmax(gains)))
    return chosen


ACQUISITIONS = {"ehvi": choose_batch, "thompson": choose_by_thompson}


# --- choosing trainings by improvement per cost


def choose_by_ratio(
    losses: np.ndarray,
    weights: np.ndarray,
    region: Region,
    order: np.ndarray,
    segment_costs: np.ndarray,
    rest_costs: np.ndarray,
    count: int,
) -> tuple[list[int], np.ndarray]:
    """Choose networks greedily by improvement per cost.

    Each chosen one counts as fully trained for the next choice.

    Args:
        losses: (n, s, m) losses of samples at the last fidelity.
        weights: (n, s) 0 for samples that break a constraint, else 1.
        region: the region that is not dominated.
        order, segment_costs, rest_costs: see `best_ratio`.
        count: networks to choose.

    Returns:
        Rows of the chosen networks, best first, and a mask (n,) of networks of which no sample
        improves the front.
    """
    sample_count = losses.shape[1]
    regions = [region] * sample_count
    chosen: list[int] = []
    is_hopeless = np.zeros(len(losses), bool)
    for _ in range(count):
        gains = sample_improvements(losses, weights, regions)  # (n, s)
        if not chosen:
            is_hopeless = gains.max(axis=1) <= 0
        ratios = best_ratio(gains, order, segment_costs, rest_costs)  # (n,)
        ratios[chosen] = -1.0
        best = int(ratios.argmax())
        chosen.append(best)
        for s in range(sample_count):
            if weights[best, s] > 0:
                regions[s] = regions[s].cut(losses[best, s])
    return chosen, is_hopeless


def best_ratio(
    gains: np.ndarray, order: np.ndarray, segment_costs: np.ndarray, rest_costs: np.ndarray
) -> np.ndarray:
    """Highest expected gain per cost among plans that continue a training above a threshold.

    Args:
        gains: (n, s) hypervolume that each sample adds at the last fidelity.
        order: (n, s) sample numbers, the best at the next fidelity first.
        segment_costs: (n,) cost of the segment to the next fidelity.
        rest_costs: (n,) cost of the rest of the training.

    Returns:
        (n,) ratio.
    """
    samples = gains.shape[1]

    # 1. Each plan's threshold lets the best samples at the next fidelity pass, from an eighth of
    #    them to all.
    shares = np.arange(1, THRESHOLDS + 1) / THRESHOLDS
    passing = np.maximum(1, (shares * samples).astype(int))  # (plans,)

    # 2. Expected gain: only samples that pass are trained to the end.
    gains_in_order = np.take_along_axis(gains, order, axis=1)  # (n, s)
    expected_gains = gains_in_order.cumsum(axis=1)[:, passing - 1] / samples  # (n, plans)

    # 3. Expected cost: the segment, and the rest as often as a sample passes.
    expected_costs = segment_costs[:, None] + passing / samples * rest_costs[:, None]
    return (expected_gains / expected_costs).max(axis=1)


# --- improvements


def expected_improvement(
    samples: np.ndarray, weights: np.ndarray, regions: Sequence[Region]
) -> np.ndarray:
    """Mean hypervolume improvement (n,) over s samples; higher is better.

    `sample_improvements` describes the parameters.
    """
    improvements = sample_improvements(samples, weights, regions)  # (n, s)
    # Added in the order of the samples: `sum` adds in an order of its own and rounds differently.
    return improvements.cumsum(axis=1)[:, -1] / len(regions)


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
    improvements = np.zeros(weights.shape)
    for start in range(0, len(samples), _CHUNK):
        rows = slice(start, start + _CHUNK)
        for s, region in enumerate(regions):
            with np.errstate(over="ignore", invalid="ignore"):
                gains = region.gains(samples[rows, s])  # (rows,)
                improvements[rows, s] = weights[rows, s] * gains
    # NaN is an infinite side of a box times one of 0, or an infinite gain times a weight of 0.
    return np.nan_to_num(improvements, nan=0.0, posinf=np.inf)


# --- the region that is not dominated


class Region(Protocol):
    """The region below a reference point that a front does not dominate."""

    def cut(self, point: np.ndarray) -> Region:
        """The region without the part that a further point (m,) dominates."""

    def gains(self, points: np.ndarray) -> np.ndarray:
        """The volume (n,) of the region that each point (n, m) dominates.

        It is not finite for infinite points.
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
        low = self.boxes[:, 0]  # (b, m)
        high = self.boxes[:, 1]
        # Of each box, a point dominates what lies above both the point and the lower corner.
        from_here = np.maximum(low, points[:, None])  # (n, b, m)
        sides = np.maximum(high - from_here, 0.0)
        volumes = sides.prod(axis=2)  # (n, b)
        return volumes.sum(axis=1)


def free_boxes(front: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Disjoint boxes (b, 2, m) of the region that no point of the front (k, m) dominates.

    The region ends at the reference point (m,).
    """
    everything = np.stack([np.full_like(reference, -np.inf), reference])  # (2, m)
    boxes = everything[None]
    by_first_objective = np.argsort(front[:, 0], kind="stable")
    for point in front[by_first_objective]:
        boxes = cut(boxes, point)
    return boxes


def cut(boxes: np.ndarray, point: np.ndarray) -> np.ndarray:
    """Remove from disjoint boxes (b, 2, m) the region that `point` (m,) dominates.

    The region is all that exceeds the point in every loss. A box consists of its lower corner,
    which may be -inf, and its upper corner.

    Returns:
        Disjoint boxes (b', 2, m).
    """
    # 1. Boxes without a point that exceeds `point` in every loss stay whole.
    is_hit = (point < boxes[:, 1]).all(axis=1)  # (b,)
    parts = [boxes[~is_hit]]

    # 2. Of a box that is hit, the part below the point in objective j is free. It is split off, so
    #    that the parts are disjoint, and the rest goes on to the next objective.
    low = boxes[is_hit, 0]  # (hit, m)
    high = boxes[is_hit, 1]
    for j, value in enumerate(point):
        has_part = low[:, j] < value
        part = np.stack([low[has_part], high[has_part]], axis=1)  # (parts, 2, m)
        part[:, 1, j] = value
        parts.append(part)
        low[:, j] = np.maximum(low[:, j], value)

    # 3. What is left exceeds the point in every objective: it is dominated, and dropped.
    return np.concatenate(parts)


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
        lengths = self._lengths(point[None])[0]  # (RAYS,)
        return Rays(self.reference, np.maximum(self.taken, lengths))

    def gains(self, points: np.ndarray) -> np.ndarray:
        m = len(self.reference)
        ball = math.pi ** (m / 2) / math.gamma(m / 2 + 1)  # volume of the unit ball
        orthant = ball / 2**m
        lengths = np.maximum(self._lengths(points), self.taken)  # (n, RAYS)
        further = lengths**m - self.taken**m
        return orthant * further.mean(axis=1)

    def _lengths(self, points: np.ndarray) -> np.ndarray:
        """The length (n, RAYS) of each ray that each point (n, m) dominates."""
        directions = _directions(len(self.reference))  # (RAYS, m)
        depths = self.reference - points  # (n, m)
        lengths = np.full((len(points), RAYS), np.inf)
        for j in range(len(self.reference)):  # one objective at a time saves memory
            reached = depths[:, j, None] / directions[:, j]  # (n, RAYS)
            np.minimum(lengths, reached, out=lengths)
        return np.maximum(lengths, 0.0)


@lru_cache(maxsize=8)
def _directions(m: int) -> np.ndarray:
    """Unit vectors (RAYS, m) with positive entries, uniform on the sphere, always the same ones."""
    rng = np.random.default_rng(0)
    vectors = np.abs(rng.standard_normal((RAYS, m)))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
