"""The examples of a context: which of many a query sees, and what it reads of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from predictors.rlm.coordinates import Axes, compared
from predictors.rlm.model import Model

MAX_EXAMPLES = 2000  # that a query attends to: memory and time of a prediction are bounded
_NEAREST = MAX_EXAMPLES // 2
_DISTANCE_ROWS = 256  # whose distances to all examples are computed at once


class Context:
    """Examples of one metric, read once for any number of queries.

    Args:
        model: the network.
        states: (n, S), the examples'.
        scores: (n,), the metric's.
        covariates: (n, c), scores of what is known of queries, too; NaN where unknown.
    """

    def __init__(self, model: Model, states: np.ndarray, scores: np.ndarray, covariates: np.ndarray) -> None:
        self.model = model
        self.axes = Axes.fit(states, covariates)
        with torch.inference_mode():
            coordinates = torch.from_numpy(self.axes(states, covariates))[None]
            self.kept = model.reader.examples(coordinates, torch.from_numpy(scores).float()[None])

    @torch.inference_mode()
    def conditions(self, states: np.ndarray, covariates: np.ndarray) -> Tensor:
        """What the numbers of queries depend on (q, d): states (q, S), covariates (q, c)."""
        coordinates = torch.from_numpy(self.axes(states, covariates))[None]
        gathered = self.model.reader(coordinates, self.kept)[0]
        return self.model.decoder.conditions(gathered)


class Group(NamedTuple):
    """Examples that all queries near one center see: of `compared` states. rows (n,): of the stored examples."""

    center: np.ndarray
    rows: np.ndarray


def groups(states: np.ndarray) -> list[Group]:
    """How n stored examples, states (n, S), are shared out: one group for up to `MAX_EXAMPLES` of them.

    Of more, every group has those nearest to its center and, the same for all, some that are spread over everything. A
    query's group depends on its own state alone.
    """
    states = compared(states)
    if len(states) <= MAX_EXAMPLES:
        return [Group(states.mean(0), np.arange(len(states)))]
    spread = _spread(states, MAX_EXAMPLES - _NEAREST)
    centers = states[spread[: -(-len(states) // _NEAREST)]]
    rest = np.setdiff1d(np.arange(len(states)), spread)
    distances = squared_distances(centers, states[rest])
    near = [rest[np.argsort(row, kind="stable")[:_NEAREST]] for row in distances]
    return [Group(c, np.sort(np.concatenate([spread, rows]))) for c, rows in zip(centers, near, strict=True)]


def assign(states: np.ndarray, found: list[Group]) -> np.ndarray:
    """The group (n,) of each query, states (n, S): that of the nearest center."""
    if len(found) == 1:
        return np.zeros(len(states), int)
    return squared_distances(compared(states), np.stack([group.center for group in found])).argmin(1)


def _spread(states: np.ndarray, count: int) -> np.ndarray:
    """Rows (count,) that are far from each other: each next is the farthest from those before (Gonzalez 1985)."""
    first = int(((states - states.mean(0)) ** 2).sum(1).argmin())
    chosen, distance = [first], ((states - states[first]) ** 2).sum(1)
    while len(chosen) < count:
        chosen.append(int(distance.argmax()))
        distance = np.minimum(distance, ((states - states[chosen[-1]]) ** 2).sum(1))
    return np.array(chosen)


def nearest_distances(states: np.ndarray, known: np.ndarray, own: np.ndarray | None = None) -> np.ndarray:
    """Distances (n,) of states (n, S) to their nearest of known states (k, S).

    own (n,): of every state, the row of `known` that is itself and does not count. Infinite where nothing is left.
    """
    found = np.empty(len(states))
    for start in range(0, len(states), _DISTANCE_ROWS):
        rows = np.arange(start, min(start + _DISTANCE_ROWS, len(states)))
        distances = squared_distances(states[rows], known)
        if own is not None:
            distances[rows - start, own[rows]] = np.inf
        found[rows] = distances.min(1)
    return np.sqrt(found)


def squared_distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(m, n) between rows (m, S) and (n, S)."""
    a, b = a.astype(float), b.astype(float)
    return ((a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T).clip(min=0)
