"""Asynchronous successive halving and Hyperband for several objectives, by non-dominated sorting.

ASHA (Li et al. 2020) promotes the best share of the networks at each fidelity. The multi-objective
form (Schmucker et al. 2021) ranks them by non-dominated sorting and orders each front so that every
network is far from those before it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from nas.search.candidates import random_unseen
from nas.search.trainings import NEW, Fidelities, Job, Run, Runs

if TYPE_CHECKING:
    from search_spaces import SearchSpace

REDUCTION = 3  # networks at a fidelity per network that is promoted


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
        self.space = space
        self.fidelities = fidelities
        self.seed = seed
        self.levels = fidelities.levels[first:]

    def decide(self, runs: Runs, epochs_left: float) -> Job | None:
        """Promote a network, or start a new one. See `nas.search.multi_fidelity.Policy.decide`."""
        competitors = list(runs.runs.values())
        return self.promote(competitors, runs, epochs_left) or self.begin(runs, epochs_left)

    def promote(self, competitors: list[Run], runs: Runs, epochs_left: float) -> Job | None:
        """Continue one of the best networks.

        Args:
            competitors: networks that compete with each other.
            runs: all trainings so far.
            epochs_left: epochs that the job may take.

        Returns:
            The job at the highest fidelity where one fits, or None.
        """
        segments = list(pairwise(self.levels))
        for level, following in reversed(segments):
            if self.fidelities.epochs(level, following) > epochs_left:
                continue
            reached = [run for run in competitors if level in run.values]
            order = best_order(runs.losses(reached, level))
            for row in order[: len(reached) // REDUCTION]:
                run = reached[row]
                if run.reached == level and run.running is None and not run.ended:
                    return Job(run.architecture, level, following)
        return None

    def begin(self, runs: Runs, epochs_left: float) -> Job | None:
        """Start a random new network.

        None if its first segment does not fit or the space is exhausted.
        """
        # Epoch 0 costs nothing: a network begins there if it may also go on.
        first = next(level for level in self.levels if level > 0)
        if self.fidelities.epochs(NEW, first) > epochs_left:
            return None
        rng = np.random.default_rng([self.seed, len(runs)])
        architecture = random_unseen(self.space, runs.runs.keys(), rng)
        if architecture is None:
            return None
        return Job(architecture, NEW, self.levels[0])


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
        """Choose the next job. See `nas.search.multi_fidelity.Policy.decide`."""
        # 1. A network belongs to the bracket of the fidelity to which it was trained first.
        members: dict[int, list[Run]] = {level: [] for level in self.brackets}
        for run in runs.trained:
            levels = [*run.values, self.fidelities.last]
            if run.running is not None:
                levels.append(run.running)
            members[min(levels)].append(run)

        # 2. Promote within the brackets.
        for level, bracket in self.brackets.items():
            if job := bracket.promote(members[level], runs, epochs_left):
                return job

        # 3. Start a network in the bracket that has used the fewest epochs.
        epochs = {level: sum(map(self._epochs, group)) for level, group in members.items()}
        for level in sorted(self.brackets, key=epochs.__getitem__):
            if job := self.brackets[level].begin(runs, epochs_left):
                return job
        return None

    def _epochs(self, run: Run) -> int:
        """Epochs of a network, including those of a running segment."""
        ends = set(run.values)
        if run.running is not None:
            ends.add(run.running)
        path = [NEW, *sorted(ends)]
        return sum(self.fidelities.epochs(begun, until) for begun, until in pairwise(path))


def best_order(losses: np.ndarray) -> np.ndarray:
    """Order rows by non-dominated sorting.

    Args:
        losses: (n, m) losses, minimized.

    Returns:
        (n,) row numbers, better fronts first; rows with infinite losses last.
    """
    import moocore

    is_finite = np.isfinite(losses).all(axis=1)
    finite = np.flatnonzero(is_finite)
    infinite = np.flatnonzero(~is_finite)
    if not len(finite):
        return infinite
    finite_losses = losses[finite]
    ranks = moocore.pareto_rank(finite_losses)
    order: list[int] = []
    for rank in np.unique(ranks):
        front = np.flatnonzero(ranks == rank)
        order.extend(finite[_spread(finite_losses, front)])
    return np.array([*order, *infinite])


def _spread(losses: np.ndarray, rows: np.ndarray) -> list[int]:
    """Order rows so that each is the farthest from those before it.

    The first has the lowest first loss.
    """
    span = np.ptp(losses, axis=0)
    points = losses[rows] / np.where(span > 0, span, 1.0)  # (rows, m)
    chosen = [int(points[:, 0].argmin())]
    distance = ((points - points[chosen[0]]) ** 2).sum(axis=1)  # to the nearest chosen row
    while len(chosen) < len(rows):
        distance[chosen] = -1.0
        chosen.append(int(distance.argmax()))
        to_last = ((points - points[chosen[-1]]) ** 2).sum(axis=1)
        distance = np.minimum(distance, to_last)
    return rows[chosen].tolist()
