"""Asynchronous successive halving and Hyperband for several objectives, by non-dominated sorting.

ASHA (Li et al. 2020) promotes the best share of the networks at each fidelity. The multi-objective
form (Schmucker et al. 2021) ranks them by non-dominated sorting and orders each front so that every
network is far from those before it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from nas.search.by_cost.runs import Fidelities, Job, Run, Runs
from nas.search.candidates import random_unseen

if TYPE_CHECKING:
    from search_spaces import SearchSpace

REDUCTION = 3  # networks at a fidelity per network that is promoted


def best_order(losses: np.ndarray) -> np.ndarray:
    """Order rows by non-dominated sorting.

    Args:
        losses: (n, m) losses, minimized.

    Returns:
        (n,) row numbers, better fronts first; rows with infinite losses last.
    """
    import moocore

    finite = np.flatnonzero(np.isfinite(losses).all(1))
    if not len(finite):
        return np.arange(len(losses))
    ranks = moocore.pareto_rank(losses[finite])
    order = [
        finite[row]
        for rank in np.unique(ranks)
        for row in _spread(losses[finite], np.flatnonzero(ranks == rank))
    ]
    return np.array([*order, *np.setdiff1d(np.arange(len(losses)), finite)])


def _spread(losses: np.ndarray, rows: np.ndarray) -> list[int]:
    """Order rows from the lowest first loss on; each next row is the farthest from those before
    it.
    """
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
    """Asynchronous successive halving of random networks.

    Args:
        space: search space of new networks.
        fidelities: epochs after which trainings pause.
        seed: seed of all random choices.
        first: index of the lowest fidelity that is used. With that of the last one, all trainings
            are full.
    """

    def __init__(
        self, space: SearchSpace, fidelities: Fidelities, seed: int, first: int = 0
    ) -> None:
        self.space, self.fidelities, self.seed = space, fidelities, seed
        self.levels = fidelities.levels[first:]

    def decide(self, runs: Runs, epochs_left: float) -> Job | None:
        """Choose the next job.

        Args:
            runs: trainings so far.
            epochs_left: epochs that the job may take.

        Returns:
            The job, or None if none fits.
        """
        return self.promote(list(runs.runs.values()), runs, epochs_left) or self.begin(
            runs, epochs_left
        )

    def promote(self, runs: list[Run], known: Runs, epochs_left: float) -> Job | None:
        """Continue one of the best networks.

        Args:
            runs: networks that compete with each other.
            known: trainings so far.
            epochs_left: epochs that the job may take.

        Returns:
            The job at the highest fidelity where one fits, or None.
        """
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
        """Start a random new network; None if its first segment does not fit or the space is
        exhausted.
        """
        if self.fidelities.epochs(0, self.levels[0]) > epochs_left:
            return None
        rng = np.random.default_rng([self.seed, len(known)])
        architecture = random_unseen(self.space, known.runs.keys(), rng)
        return None if architecture is None else Job(architecture, 0, self.levels[0])


class Hyperband:
    """Hyperband (Li et al. 2018): one bracket of `Halving` per fidelity at which it starts.

    The bracket that has used the fewest epochs starts the next network.
    """

    def __init__(self, space: SearchSpace, fidelities: Fidelities, seed: int) -> None:
        self.fidelities = fidelities
        self.brackets = {
            level: Halving(space, fidelities, seed, first)
            for first, level in enumerate(fidelities.levels)
        }

    def decide(self, runs: Runs, epochs_left: float) -> Job | None:
        """Choose the next job. See `Halving.decide`."""
        members: dict[int, list[Run]] = {level: [] for level in self.brackets}
        for run in runs.trained:
            members[min([*run.values, run.running or self.fidelities.last])].append(run)
        for level, bracket in self.brackets.items():
            if job := bracket.promote(members[level], runs, epochs_left):
                return job
        epochs = {
            level: sum(self._epochs(run) for run in group) for level, group in members.items()
        }
        ordered = sorted(self.brackets, key=epochs.__getitem__)
        return next(
            (job for level in ordered if (job := self.brackets[level].begin(runs, epochs_left))),
            None,
        )

    def _epochs(self, run: Run) -> int:
        """Epochs of a network, including those of a running segment."""
        path = [0, *sorted({*run.values, *([run.running] if run.running else [])})]
        return sum(self.fidelities.epochs(a, b) for a, b in pairwise(path))
