"""The examples of a context: the selection among many for a query, and their processing."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from predictors.rlm.coordinates import Axes, compared
from predictors.rlm.model import Model

MAX_EXAMPLES = 2000  # per query, which bounds memory and time of a prediction
_DISTANCE_ROWS = 256  # rows of a distance matrix that are computed at once


class Examples:
    """Examples of any metric, with their kernels.

    Args:
        model: the network.
        states: (n, S) of the examples.
        covariates: (n, c) scores of the metrics that are known of queries, too; NaN where unknown.
    """

    def __init__(self, model: Model, states: np.ndarray, covariates: np.ndarray) -> None:
        self.model = model
        self.axes = Axes.fit(states, covariates)
        self.coordinates = torch.from_numpy(self.axes(states, covariates))[None]
        with torch.inference_mode():
            self.kernels = model.reader.kernels.factor(self.coordinates)


class Context:
    """Examples of one metric, processed once for any number of queries.

    Args:
        examples: the examples.
        scores: (n,) of the metric.
    """

    def __init__(self, examples: Examples, scores: np.ndarray) -> None:
        self.model, self.axes, self.coordinates = (
            examples.model,
            examples.axes,
            examples.coordinates,
        )
        self.scores = torch.from_numpy(scores).float()[None]
        with torch.inference_mode():
            self.kept = self.model.reader.examples(
                examples.coordinates, self.scores, examples.kernels
            )

    @torch.inference_mode()
    def conditions(self, states: np.ndarray, covariates: np.ndarray) -> Tensor:
        """Conditions (q, d) of the digit decoder for queries with states (q, S) and covariates (q,
        c).
        """
        coordinates = torch.from_numpy(self.axes(states, covariates))[None]
        gathered = self.model.reader(coordinates, self.kept)[0]
        return self.model.decoder.conditions(gathered)


class Group(NamedTuple):
    """Examples that are shared by all queries near one center."""

    center: np.ndarray  # the `compared` part of a state
    rows: np.ndarray  # (n,) row numbers of the stored examples


def groups(states: np.ndarray) -> list[Group]:
    """Divide n stored examples with states (n, S) into groups; up to `MAX_EXAMPLES` examples are
    one group.

    With more, every group holds the `MAX_EXAMPLES // 2` examples nearest to its center, and
    examples spread over all states that every group shares. The group of a query depends on the
    query's state alone.
    """
    states = compared(states)
    if len(states) <= MAX_EXAMPLES:
        return [Group(states.mean(0), np.arange(len(states)))]
    nearest = MAX_EXAMPLES // 2
    spread = _farthest_points(states, MAX_EXAMPLES - nearest)
    centers = states[spread[: -(-len(states) // nearest)]]
    rest = np.setdiff1d(np.arange(len(states)), spread)
    distances = squared_distances(centers, states[rest])
    near = [rest[np.argsort(row, kind="stable")[:nearest]] for row in distances]
    return [
        Group(c, np.sort(np.concatenate([spread, rows])))
        for c, rows in zip(centers, near, strict=True)
    ]


def nearest_group(states: np.ndarray, found: list[Group]) -> np.ndarray:
    """Number (n,) of the group with the nearest center for queries with states (n, S)."""
    if len(found) == 1:
        return np.zeros(len(states), int)
    return squared_distances(compared(states), np.stack([group.center for group in found])).argmin(
        1
    )


def _farthest_points(states: np.ndarray, count: int) -> np.ndarray:
    """Row numbers (count,) by farthest-point sampling (Gonzalez 1985), beginning with the row
    nearest to the mean.
    """
    first = int(((states - states.mean(0)) ** 2).sum(1).argmin())
    chosen, distance = [first], ((states - states[first]) ** 2).sum(1)
    while len(chosen) < count:
        chosen.append(int(distance.argmax()))
        distance = np.minimum(distance, ((states - states[chosen[-1]]) ** 2).sum(1))
    return np.array(chosen)


def nearest_distances(
    states: np.ndarray, known: np.ndarray, own: np.ndarray | None = None
) -> np.ndarray:
    """Distance (n,) of states (n, S) to the nearest of k known ones (k, S) but their `own` (n,);
    infinite if none.
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
    """Squared Euclidean distances (m, n) between rows a (m, S) and b (n, S)."""
    a, b = a.astype(float), b.astype(float)
    return ((a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T).clip(min=0)
