"""Expected hypervolume improvement: how much a candidate is expected to add to the front, from its predicted samples."""

from __future__ import annotations

import numpy as np

from nas.pareto import non_dominated

_CHUNK = 32  # candidates per numpy call: bounds the memory of (candidates, samples, boxes) arrays


def free_boxes(front: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """The region below the reference point (m,) that front (k, m) does not dominate, cut into disjoint boxes.

    All losses are minimized. Returns (boxes, 2, m): lower corners, which may be -inf, and upper corners.
    """
    front = front[(front < reference).all(axis=1)]
    if front.shape[1] == 1:
        return np.array([[[-np.inf], [min(front.min(initial=np.inf), reference[0])]]])
    # Sweep the last objective: between two neighbouring values of it, the front is that of the points already passed,
    # one dimension lower.
    front = front[np.argsort(front[:, -1], kind="stable")]
    levels = np.concatenate([[-np.inf], front[:, -1], reference[-1:]])
    slabs = []
    for passed, (low, high) in enumerate(zip(levels[:-1], levels[1:], strict=True)):
        if low < high:
            shadow = front[:passed, :-1]
            boxes = free_boxes(shadow[non_dominated(shadow)], reference[:-1])
            ends = np.broadcast_to(np.array([[low], [high]]), (len(boxes), 2, 1))
            slabs.append(np.concatenate([boxes, ends], axis=2))
    return np.concatenate(slabs)


def expected_improvement(samples: np.ndarray, weights: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Mean hypervolume (n,) that samples (n, s, m) add to the front behind `boxes`; weights (n, s) multiply each sample.

    Higher is better. A weight of 0 marks a sample that breaks a constraint and so adds nothing.
    """
    low, high = boxes[:, 0], boxes[:, 1]
    gains = np.empty(len(samples))
    for start in range(0, len(samples), _CHUNK):
        points = samples[start : start + _CHUNK, :, None, :]
        sides = np.maximum(high - np.maximum(low, points), 0.0)  # (chunk, s, boxes, m)
        gains[start : start + _CHUNK] = (sides.prod(axis=3).sum(axis=2) * weights[start : start + _CHUNK]).mean(axis=1)
    return gains


def choose_batch(
    samples: np.ndarray, weights: np.ndarray, front: np.ndarray, reference: np.ndarray, size: int
) -> list[int]:
    """Indices of up to `size` candidates, greedily of highest expected improvement, best first.

    samples: (n, s, m) predicted losses; weights: (n, s), see `expected_improvement`; front: (k, m) losses.
    After each choice the front is extended by the candidate's mean, so that the next one adds something else.
    """
    means = samples.mean(axis=1)
    gains = expected_improvement(samples, weights, free_boxes(front, reference))
    chosen: list[int] = []
    while len(chosen) < min(size, len(samples)):
        boxes = free_boxes(front, reference)
        # A larger front can only lower a gain: old gains are upper bounds, so updating the highest often settles it.
        fresh = np.isneginf(gains)
        while not fresh[best := int(np.argmax(gains))]:
            top = np.argsort(np.where(fresh, np.inf, -gains), kind="stable")[:_CHUNK]
            top = top[~fresh[top]]
            gains[top] = expected_improvement(samples[top], weights[top], boxes)
            fresh[top] = True
        chosen.append(best)
        gains[best] = -np.inf
        front = np.vstack([front, means[best]])
        front = front[non_dominated(front)]
    return chosen
