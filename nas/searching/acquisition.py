"""Acquisition functions on predicted samples: expected hypervolume improvement and Thompson sampling.

The region that a front does not dominate is stored as disjoint boxes. The improvement of a point is the volume of these
boxes that it dominates. This is exact for any number of objectives, and numpy computes it for many points at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_CHUNK = 64  # candidates per numpy call, which bounds the memory of arrays (candidates, boxes, m)


def cut(boxes: np.ndarray, point: np.ndarray) -> np.ndarray:
    """Remove from disjoint boxes (b, 2, m) the region that `point` (m,) dominates: all that exceeds it in every loss.

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
    """Disjoint boxes (b, 2, m) of the region below the reference point (m,) that the front (k, m) does not dominate."""
    boxes = np.stack([np.full_like(reference, -np.inf), reference])[None]
    for point in front[np.argsort(front[:, 0], kind="stable")]:
        boxes = cut(boxes, point)
    return boxes


def sample_improvements(samples: np.ndarray, weights: np.ndarray, boxes: Sequence[np.ndarray]) -> np.ndarray:
    """Hypervolume improvement of each sample.

    Args:
        samples: (n, s, m) losses of n candidates.
        weights: (n, s) factors; 0 for a sample that violates a constraint.
        boxes: for each of the s samples, the region that is not dominated, as disjoint boxes.

    Returns:
        (n, s) improvements.
    """
    gains = np.zeros(weights.shape)
    for start in range(0, len(samples), _CHUNK):
        rows = slice(start, start + _CHUNK)
        for s, free in enumerate(boxes):
            sides = np.maximum(free[:, 1] - np.maximum(free[:, 0], samples[rows, s, None]), 0.0)  # (chunk, boxes, m)
            with np.errstate(over="ignore", invalid="ignore"):
                gains[rows, s] = weights[rows, s] * sides.prod(axis=2).sum(axis=1)
    return np.nan_to_num(gains, nan=0.0, posinf=np.inf)  # an infinite side times one of 0, or an infinite gain times 0


def expected_improvement(samples: np.ndarray, weights: np.ndarray, boxes: Sequence[np.ndarray]) -> np.ndarray:
    """Mean hypervolume improvement (n,) over s samples; higher is better. See `sample_improvements`."""
    return sample_improvements(samples, weights, boxes).cumsum(axis=1)[:, -1] / len(boxes)


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
    boxes = [free_boxes(front, reference)] * samples.shape[1]
    gains = expected_improvement(samples, weights, boxes)
    chosen: list[int] = []
    while len(chosen) < min(size, len(samples)):
        # A choice can only lower the other gains. Old gains are upper bounds, so only the highest need an update.
        fresh = np.isneginf(gains)
        while not fresh[best := int(np.argmax(gains))]:
            top = np.argsort(np.where(fresh, np.inf, -gains), kind="stable")[:_CHUNK]
            top = top[~fresh[top]]
            gains[top] = expected_improvement(samples[top], weights[top], boxes)
            fresh[top] = True
        chosen.append(best)
        gains[best] = -np.inf
        boxes = [cut(free, samples[best, s]) if weights[best, s] > 0 else free for s, free in enumerate(boxes)]
    return chosen


def choose_by_thompson(
    samples: np.ndarray, weights: np.ndarray, front: np.ndarray, reference: np.ndarray, size: int
) -> list[int]:
    """Choose a batch by Thompson sampling (Thompson 1933); arguments and result as in `choose_batch`.

    Each choice has the largest hypervolume improvement in one sample. Successive choices use different samples.
    """
    chosen: list[int] = []
    for place in range(min(size, len(samples))):
        s = place % samples.shape[1]
        made = [i for i in chosen if weights[i, s] > 0]
        boxes = free_boxes(np.concatenate([front, samples[made, s]]), reference)
        gains = expected_improvement(samples[:, [s]], weights[:, [s]], [boxes])
        gains[chosen] = -np.inf
        chosen.append(int(np.argmax(gains)))
    return chosen


ACQUISITIONS = {"ehvi": choose_batch, "thompson": choose_by_thompson}
