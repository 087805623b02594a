"""Policies of a search by cost, by name: baselines, and predictors whose learning curves decide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from nas.search.by_cost.halving import Halving, Hyperband
from nas.search.by_cost.improvement import ImprovementPerCost
from nas.search.samplers import is_guided
from predictors import create, list_predictors
from search_spaces.common.errors import unknown

if TYPE_CHECKING:
    from nas.search.by_cost.runs import Fidelities, Job, Runs
    from nas.search.trials import TrialReader
    from predictors import Predictor
    from search_spaces import SearchSpace

BASELINES = ("asha", "hyperband", "random")  # random: full trainings of random networks


class Policy(Protocol):
    """Chooses which training to start, to continue or to stop."""

    def decide(self, runs: Runs, epochs_left: float) -> Job | None:
        """Choose the next job.

        Args:
            runs: trainings so far.
            epochs_left: epochs that the job may take.

        Returns:
            The job; None if none fits, or if a running segment has to end first.
        """


def check_policy(name: str) -> None:
    """Raise InputError unless a search with fidelities has a policy of this name."""
    if name not in BASELINES and not is_guided(name):
        raise unknown("sampler of a search by cost", name, sorted([*BASELINES, *list_predictors()]))


def make_policy(
    name: str,
    space: SearchSpace,
    reader: TrialReader,
    trained: Sequence[str],
    fidelities: Fidelities,
    seed: int,
    predictor: Callable[[], Predictor] | None = None,
) -> Policy:
    """Make a policy.

    Args:
        name: name of a predictor, `FILE.py:CLASS` of one, or name of a baseline.
        space: search space of new networks.
        reader: reader of the study's metrics.
        trained: metrics that need training.
        fidelities: epochs at which trainings may pause.
        seed: seed of all random choices.
        predictor: makes the predictor of each fit; by default a new one of the name.

    Raises:
        InputError: for an unknown name.
    """
    check_policy(name)
    if name == "hyperband":
        return Hyperband(space, fidelities, seed)
    if name in BASELINES:
        return Halving(
            space, fidelities, seed, first=0 if name == "asha" else len(fidelities.levels) - 1
        )
    return ImprovementPerCost(
        space, predictor or partial(create, name), reader, trained, fidelities, seed
    )
