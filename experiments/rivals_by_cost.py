"""Multi-fidelity searches of other packages, as policies in the loop of our own.

`python -m experiments.front_by_cost --only random,asha,mo-asha,mo-asha-ranked` runs two of them.

- `MoAsha` is Syne Tune's MOASHA with its defaults (`pip install '.[rivals]'`): a training pauses
  at each fidelity, and the scheduler stops it for good or lets it go on.
- `MoAshaRanked` is the same with a priority of this module. The default one, of Syne Tune 0.16,
  returns the networks' numbers in sorted order where the scheduler reads a priority per network, and
  so compares the new network by the number of another one.
- `PriMo` is NePS' PriMO (arXiv 2511.08371) without expert priors, which are optional: MO-ASHA, then
  Bayesian optimization of a random weighting of the losses, with full trainings. The package draws
  one weighting for the whole search; `PriMoRedrawn` is the same with a new one for each proposal.
  pip cannot install NePS beside this project's versions: it needs pandas below 3, gpytorch 1.13.0
  and, for its import to work, botorch 0.12. With `pip install --no-deps --target FOLDER` of these and
  FOLDER in `PYTHONPATH`, it runs.

A proposal that repeats a training is answered with the known values and costs nothing; after
`MAX_REPEATS` of them in a row, a random new network is trained, as in our own searches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from experiments.rivals import options_of, seeded
from nas.search.candidates import random_unseen
from nas.search.trainings import NEW, Fidelities, Job, Runs
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    from nas.search.study.trials import TrialReader
    from search_spaces import Architecture, SearchSpace

REDUCTION = 3  # networks at a fidelity per network that goes on, the default of both packages
MAX_REPEATS = 50
WORST = 1e6  # loss of a network that failed


class Proposal(NamedTuple):
    """A training that a package asks for.

    Attributes:
        architecture: the network.
        level: the fidelity to which it is trained.
        handle: what the package calls the trial.
    """

    architecture: Architecture
    level: int
    handle: Any


class AskAndTell(ABC):
    """A policy that asks a package for trainings, and tells it their losses.

    Args:
        space: search space, all of whose networks have the same choices.
        reader: reader of the study's metrics.
        fidelities: epochs at which trainings pause.
        seed: seed of all random choices.
    """

    def __init__(
        self, space: SearchSpace, reader: TrialReader, fidelities: Fidelities, seed: int
    ) -> None:
        self.space, self.reader, self.fidelities, self.seed = space, reader, fidelities, seed
        self._options = options_of(space)
        self._open: Proposal | None = None  # the training in progress
        self._calls = 0

    def decide(self, runs: Runs, epochs_left: float) -> Job | None:
        """Choose the next job. See `nas.search.multi_fidelity.Policy.decide`."""
        # 1. Tell the losses of the last training.
        proposal = self._open
        if proposal is not None:
            if runs.runs[proposal.architecture].running is not None:
                return None  # its segment has to end first
            self._report(proposal, runs)

        # 2. Ask for a training that has not been done yet.
        for _ in range(MAX_REPEATS):
            with self._draws():
                proposal = self.ask()
            run = runs.runs.get(proposal.architecture)
            if run is None or (proposal.level not in run.values and not run.failed):
                break
            self._report(proposal, runs)
        else:
            return self._random(runs, epochs_left)

        # 3. Train it, if the budget allows.
        begun = NEW if run is None else run.reached
        if self.fidelities.epochs(begun, proposal.level) > epochs_left:
            return None
        self._open = proposal
        return Job(proposal.architecture, begun, proposal.level)

    def _report(self, proposal: Proposal, runs: Runs) -> None:
        """Tell the package the losses (m,) of a training."""
        run = runs.runs[proposal.architecture]
        losses = np.full(len(self.reader.objectives), WORST)
        if proposal.level in run.values:
            losses = np.minimum(runs.losses([run], proposal.level)[0], WORST)
        self._open = None
        with self._draws():
            self.tell(proposal, losses)

    def _random(self, runs: Runs, epochs_left: float) -> Job | None:
        """A random new network, at the lowest fidelity."""
        rng = np.random.default_rng([self.seed, len(runs)])
        architecture = random_unseen(self.space, runs.runs.keys(), rng)
        level = self.fidelities.levels[0]
        if architecture is None or self.fidelities.epochs(NEW, level) > epochs_left:
            return None
        return Job(architecture, NEW, level)

    def _architecture(self, config: dict[str, Any]) -> Architecture:
        """The network of a package's configuration, which holds numbers of options."""
        return self.space.architecture(
            {name: options[int(config[name])] for name, options in self._options.items()}
        )

    def _draws(self) -> AbstractContextManager[None]:
        """The global generators, seeded anew for each call."""
        self._calls += 1
        return seeded(self.seed, self._calls)

    @abstractmethod
    def ask(self) -> Proposal:
        """The training that the package wants next."""

    @abstractmethod
    def tell(self, proposal: Proposal, losses: np.ndarray) -> None:
        """Tell the package the losses (m,) of a training, all minimized."""


# --- Syne Tune


class MoAsha(AskAndTell):
    """MOASHA of Syne Tune, asynchronous successive halving that stops trainings for good."""

    def __init__(
        self, space: SearchSpace, reader: TrialReader, fidelities: Fidelities, seed: int
    ) -> None:
        super().__init__(space, reader, fidelities, seed)
        try:
            from syne_tune.config_space import choice
            from syne_tune.optimizer.schedulers.multiobjective.moasha import MOASHA
        except ImportError as error:
            raise InputError(f"Syne Tune is missing ({error}): pip install syne-tune") from error
        self._metrics = [f"loss{i}" for i in range(len(reader.objectives))]
        self._scheduler = MOASHA(
            {name: choice(list(range(len(o)))) for name, o in self._options.items()},
            self._metrics,
            time_attr="epoch",
            multiobjective_priority=self._priority(),
            max_t=fidelities.last,
            grace_period=fidelities.levels[0],
            reduction_factor=REDUCTION,
            random_seed=seed,
        )
        self._going_on: Proposal | None = None
        self._trials = 0

    def _priority(self) -> Any:
        """How networks at a fidelity are ordered: None for the package's default."""
        return None

    def ask(self) -> Proposal:
        from syne_tune.backend.trial_status import Trial

        # 1. A training that the scheduler has let go on.
        if (proposal := self._going_on) is not None:
            self._going_on = None
            return proposal

        # 2. A new network.
        config = self._scheduler.suggest().config
        trial = Trial(self._trials, config, datetime.now())
        self._trials += 1
        self._scheduler.on_trial_add(trial)
        return Proposal(self._architecture(config), self.fidelities.levels[0], trial)

    def tell(self, proposal: Proposal, losses: np.ndarray) -> None:
        from syne_tune.optimizer.scheduler import SchedulerDecision

        trial = proposal.handle
        result = dict(zip(self._metrics, losses.tolist(), strict=True))
        decision = self._scheduler.on_trial_result(trial, {**result, "epoch": proposal.level})
        following = self.fidelities.after(proposal.level)
        if decision == SchedulerDecision.CONTINUE and following is not None and losses[0] < WORST:
            self._going_on = proposal._replace(level=following)
        else:
            self._scheduler.on_trial_remove(trial)


class MoAshaRanked(MoAsha):
    """MOASHA with the rank of each network: by non-dominated sorting of losses that span 0 to 1."""

    def _priority(self) -> Any:
        from syne_tune.optimizer.schedulers.multiobjective.multiobjective_priority import MOPriority
        from syne_tune.optimizer.schedulers.multiobjective.non_dominated_priority import (
            nondominated_sort,
        )

        class Ranks(MOPriority):  # type: ignore[misc]  # of a library without types
            def priority_unsafe(self, objectives: np.ndarray) -> np.ndarray:
                order = nondominated_sort(_scaled(objectives), dim=0)
                ranks = np.empty(len(order), int)
                ranks[order] = np.arange(len(order))
                return ranks

        return Ranks()


# --- NePS


class PriMo(AskAndTell):
    """PriMO of NePS without priors.

    Losses are told so that those of all trainings span 0 to 1, since PriMO adds them up. NePS would
    derive the fidelities from a lower bound and the reduction factor; here they are the study's.
    """

    redraws = False  # True: a new weighting of the losses for each proposal

    def __init__(
        self, space: SearchSpace, reader: TrialReader, fidelities: Fidelities, seed: int
    ) -> None:
        super().__init__(space, reader, fidelities, seed)
        try:
            import neps
        except ImportError as error:
            raise InputError(
                f"NePS cannot be imported ({error}): see experiments/rivals_by_cost.py"
            ) from error
        # 1. As many rungs as there are fidelities. A choice without alternatives is no parameter.
        rungs = len(fidelities.levels)
        lower = fidelities.last / REDUCTION ** (rungs - 1) * 0.999  # rounding must not cost a rung
        parameters: dict[str, Any] = {
            name: neps.HPOCategorical(list(range(len(options))))
            for name, options in self._options.items()
            if len(options) > 1
        }
        parameters["epochs"] = neps.HPOFloat(lower, float(fidelities.last), is_fidelity=True)
        optimizer = neps.algorithms.primo(
            neps.SearchSpace(parameters), eta=REDUCTION, prior_centers={}
        )

        # 2. Their epochs.
        of_rungs = {rung: float(level) for rung, level in enumerate(fidelities.levels)}
        assert optimizer.bracket_optimizer.rung_to_fid.keys() == of_rungs.keys()
        optimizer.bracket_optimizer.rung_to_fid = of_rungs
        self._optimizer = optimizer
        self._neps = neps.AskAndTell(optimizer)
        self._losses: dict[str, np.ndarray] = {}  # (m,) by trial

    def ask(self) -> Proposal:
        trials = list(self._losses)
        if trials:
            scaled = _scaled(np.stack([self._losses[trial] for trial in trials]))
            for trial, row in zip(trials, scaled, strict=True):
                self._neps.trials[trial].report.objective_to_minimize = row.tolist()
        if self.redraws:
            self._optimizer.scalarization_weights = None
        trial = self._neps.ask()
        level = int(trial.config["epochs"])
        config = dict.fromkeys(self._options, 0) | dict(trial.config)
        return Proposal(self._architecture(config), level, trial.id)

    def tell(self, proposal: Proposal, losses: np.ndarray) -> None:
        self._losses[proposal.handle] = losses
        self._neps.tell(proposal.handle, losses.tolist())


class PriMoRedrawn(PriMo):
    """PriMO with a new weighting of the losses for each proposal."""

    redraws = True


def _scaled(losses: np.ndarray) -> np.ndarray:
    """Losses (n, m), each of which spans 0 to 1; of networks that failed 1."""
    is_valid = (losses < WORST).all(1)
    if not is_valid.any():
        return np.ones_like(losses)
    low, high = losses[is_valid].min(0), losses[is_valid].max(0)
    return np.clip((losses - low) / np.where(high > low, high - low, 1.0), 0.0, 1.0)
