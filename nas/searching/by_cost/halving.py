"""Asynchronous successive halving and Hyperband for several objectives, by non-dominated sorting.

After "ASHA" (Li et al. 2020) and its multi-objective form (Schmucker et al. 2021): of all networks at a fidelity the
best share is trained further. Networks of one front are ordered so that each is far from those before it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from nas.searching.by_cost.runs import Fidelities, Job, Run, Runs
from nas.searching.evolution import random_unseen

if TYPE_CHECKING:
    from search_spaces import SearchSpace

REDUCTION = 3  # of so many networks at a fidelity, one is trained further


def best_order(losses: np.ndarray) -> np.ndarray:
    """Rows of losses (n, m), better fronts first; rows with infinite losses last."""
    import moocore

    finite = np.flatnonzero(np.isfinite(losses).all(1))
    if not len(finite):
        return np.arange(len(losses))
    ranks = moocore.pareto_rank(losses[finite])
    order = [finite[row] for rank in np.unique(ranks) for row in _spread(losses[finite], np.flatnonzero(ranks == rank))]
    return np.array([*order, *np.setdiff1d(np.arange(len(losses)), finite)])


def _spread(losses: np.ndarray, rows: np.ndarray) -> list[int]:
    """Rows in an order in which each is the farthest from those before it, from the best in the first loss on."""
    span = np.ptp(losses, axis=0)
    points = losses[rows] / np.where(span > 0, span, 1.0)
    chosen = [int(points[:, 0].argmin())]
    distance = ((points - points[chosen[0]]) ** 2).sum(1)
    while len(chosen) < len(rows):
        distance[chosen] = -1.0
        chosen.append(int(distance.argmax()))
        distance = np.minimum(distance, ((points - points[chosen[-1]]) ** 2).sum(1))
    return rows[chosen].tolist()


class Halving:
    """ASHA from the fidelity `first` on; with the last one, plain full trainings of random networks."""

    def __init__(self, space: SearchSpace, fidelities: Fidelities, seed: int, first: int = 0) -> None:
        self.space, self.fidelities, self.seed = space, fidelities, seed
        self.levels = fidelities.levels[first:]

    def decide(self, runs: Runs, epochs_left: float) -> Job | None:
        """The next job that fits into so many epochs; None if there is none."""
        return self.promote(list(runs.runs.values()), runs, epochs_left) or self.begin(runs, epochs_left)

    def promote(self, runs: list[Run], known: Runs, epochs_left: float) -> Job | None:
        """Train one of the best of these networks further, those of the highest fidelity first."""
        for level, following in list(pairwise(self.levels))[::-1]:
            if self.fidelities.epochs(level, following) > epochs_left:
                continue
            reached = [run for run in runs if level in run.values]
            for row in best_order(known.losses(reached, level))[: len(reached) // REDUCTION]:
                run = reached[row]
                if run.reached == level and run.running is None and not run.ended:
                    return Job(run.architecture, level, following)
        return None

    def begin(self, known: Runs, epochs_left: float) -> Job | None:
        """Train a random new network up to the first fidelity."""
        if self.fidelities.epochs(0, self.levels[0]) > epochs_left:
            return None
        rng = np.random.default_rng([self.seed, len(known)])
        architecture = random_unseen(self.space, known.runs.keys(), rng)
        return None if architecture is None else Job(architecture, 0, self.levels[0])


class Hyperband:
    """Brackets of `Halving` that begin at each fidelity; the one that has been given least begins the next network."""

    def __init__(self, space: SearchSpace, fidelities: Fidelities, seed: int) -> None:
        self.fidelities = fidelities
        self.brackets = {
            level: Halving(space, fidelities, seed, first) for first, level in enumerate(fidelities.levels)
        }

    def decide(self, runs: Runs, epochs_left: float) -> Job | None:
        """See `Halving.decide`."""
        members: dict[int, list[Run]] = {level: [] for level in self.brackets}
        for run in runs.trained:
            members[min([*run.values, run.running or self.fidelities.last])].append(run)
        for level, bracket in self.brackets.items():
            if job := bracket.promote(members[level], runs, epochs_left):
                return job
        given = {level: sum(self._epochs(run) for run in group) for level, group in members.items()}
        ordered = sorted(self.brackets, key=given.__getitem__)
        return next((job for level in ordered if (job := self.brackets[level].begin(runs, epochs_left))), None)

    def _epochs(self, run: Run) -> int:
        """What a network has been given, with what it is being given."""
        path = [0, *sorted({*run.values, *([run.running] if run.running else [])})]
        return sum(self.fidelities.epochs(a, b) for a, b in pairwise(path))
