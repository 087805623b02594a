"""Planners decide what a process of a search evaluates next, and when the search ends.

A `SamplerPlanner` asks the study's sampler for networks, which are trained to the end. A
`PolicyPlanner` (`nas.search.policy_planner`) asks a policy for the next segment of a training: start,
continue or stop one. The loop (`nas.search.search`) treats both alike.
"""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import optuna
from optuna.trial import TrialState

from nas.search.candidates import random_unseen
from nas.search.rows import sampler_of_rows
from nas.search.sampler import PredictorSampler
from nas.search.samplers import check_objectives, create_sampler
from nas.search.shortlist import Shortlist, shortlist_of
from nas.search.study.schema import EVALUATIONS_KEY, LIMITS_KEY, PRIOR_KEY
from nas.search.study.storage import stored_trial
from nas.search.study.trials import TrialReader, is_evaluated
from nas.search.trainings import Segment
from search_spaces.common import plug_ins
from search_spaces.common.errors import InputError
from search_spaces.common.seeds import check_seed

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

    from nas.search.evaluators import Evaluator
    from nas.search.history import History
    from nas.search.settings import SearchSettings
    from nas.search.study.workers import Worker
    from search_spaces import Architecture

log = logging.getLogger(__name__)
MAX_REPEATS = 50  # after so many repeated architectures in a row, a random new one is evaluated
# After so many trials in a row without a new network, a search ends: it would run for ever
MAX_FRUITLESS = 500


class Planner(ABC):
    """Base class of planners. `begin` connects one with the study.

    Args:
        reader, evaluator: of the search.

    Attributes:
        sampler: sampler of the study.
        settings: what the study stores about sampler or policy, as plain values.
        rejected: why `build` rejected the choices of the latest trials without a new network.
        shortlist: measures cheap metrics before a network is chosen; None for no such planner.
    """

    sampler: BaseSampler
    settings: dict[str, Any]
    study: optuna.Study
    history: History
    worker: Worker
    shortlist: Shortlist | None = None

    def __init__(self, reader: TrialReader, evaluator: Evaluator) -> None:
        self.reader, self.evaluator = reader, evaluator
        self.rejected: list[str] = []

    @abstractmethod
    def store_limits(self, study: optuna.Study) -> None:
        """Write into the study when the search ends, where workers read it."""

    def begin(self, study: optuna.Study, history: History, worker: Worker) -> None:
        """Connect with the study of a search, its history so far, and this process."""
        self.study, self.history, self.worker = study, history, worker
        if self.shortlist is not None:
            self.shortlist.study = study

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """True if this process is to evaluate nothing more."""

    @abstractmethod
    def next_trial(self) -> optuna.Trial | None:
        """The trial to evaluate.

        None if other processes have to finish one first, or if nothing is left.
        """

    @abstractmethod
    def segment(self, trial: optuna.Trial) -> Segment | None:
        """The part of a training that a trial is for; None for a whole training.

        Raises InputError if the trial is none of this search.
        """

    @abstractmethod
    def observed(
        self, architecture: Architecture, segment: Segment | None
    ) -> dict[str, float] | None:
        """Values of a network whose training was paused, at the start of the segment.

        None for a new network.
        """

    @abstractmethod
    def pay(
        self,
        trial: optuna.Trial,
        segment: Segment | None,
        seconds: float,
        values: Mapping[str, float],
        reported: int | None = None,
    ) -> None:
        """Store the cost of a trial.

        Args:
            trial: the trial.
            segment: the part of the training; None if nothing was trained.
            seconds: duration of measurement and training.
            values: values by metric, as far as they are known.
            reported: the last epoch of a training that failed.
        """

    @abstractmethod
    def note_step(self) -> None:
        """Called after each trial of this process, when the history has been updated."""

    @property
    @abstractmethod
    def done(self) -> tuple[int, int]:
        """Progress: evaluations so far and their total, or cost so far and budget."""

    @abstractmethod
    def done_in(self, trials: Sequence[FrozenTrial]) -> int:
        """The first number of `done`, from the trials of all processes.

        Another thread may call it, so it reads no architecture: the user's `build` must not run in
        two threads.
        """

    def _interrupted(self) -> optuna.Trial | None:
        """A running trial of a former worker; None if there is none.

        It keeps the choices already made and asks the sampler for the others.
        """
        while self.worker.interrupted:
            id_ = self.worker.interrupted.pop(0)
            if stored_trial(self.study, id_).state == TrialState.RUNNING:
                return optuna.Trial(self.study, id_)
        return None

    def _measure_ahead(self, guide: Guide | None, measure: int | None) -> None:
        """Let a predictor that guides the search measure networks before it chooses one.

        Raises InputError if `measure` is set and no predictor guides the search.
        """
        if guide is not None:
            self.shortlist = guide.shortlist = shortlist_of(self.reader, self.evaluator, measure)
        elif measure is not None:
            raise InputError(
                f"measure {measure} does not apply to {self.settings['sampler']}: only a predictor "
                "that guides the search, such as rlm, chooses among measured networks"
            )


class Guide(Protocol):
    """A sampler or policy that chooses by a predictor, perhaps among measured networks."""

    shortlist: Shortlist | None


# --- whole trainings


class SamplerPlanner(Planner):
    """Trials of an ordinary search: a sampler proposes networks.

    Args:
        reader, evaluator, settings: of the search.

    Attributes:
        until: time after which no evaluation starts, in seconds since 1970.
    """

    def __init__(self, reader: TrialReader, evaluator: Evaluator, settings: SearchSettings) -> None:
        super().__init__(reader, evaluator)
        # 1. The sampler, and what the study stores about it.
        sampler, seed, measure = settings.sampler, settings.seed, settings.measure
        options = dict(settings.sampler_options or {})
        name = plug_ins.absolute(sampler) if isinstance(sampler, str) else type(sampler).__name__
        self.settings = {"sampler": name, "sampler_options": options, "seed": check_seed(seed)}
        if measure is not None:
            self.settings["measure"] = measure
        if isinstance(sampler, str):
            sampler = create_sampler(
                sampler,
                reader.space,
                reader.objectives,
                seed,
                constraints=reader.constraints,
                **options,
            )
        check_objectives(sampler, len(reader.objectives))

        # 2. A sampler that is guided by a predictor may measure networks before it chooses one.
        self._measure_ahead(sampler if isinstance(sampler, PredictorSampler) else None, measure)
        self.sampler = sampler_of_rows(sampler, reader.space, seed)

        # 3. When the search ends.
        self.evaluations = settings.evaluations
        self.patience = settings.patience
        self.until = math.inf if settings.prepares else time.time() + settings.seconds

        self.rng = np.random.default_rng(seed)
        self._ended = False  # True if there is nothing new to evaluate
        self._networks = 0  # in the history after the last step
        # Trials in a row without a new network: since the last random one was enqueued, and in all
        self._repeats = self._fruitless = 0

    def store_limits(self, study: optuna.Study) -> None:
        study.set_user_attr(EVALUATIONS_KEY, self.evaluations)
        limits = {"until": self.until, "patience": self.patience}
        finite = {name: value for name, value in limits.items() if value < math.inf}
        study.set_user_attr(LIMITS_KEY, finite)

    def begin(self, study: optuna.Study, history: History, worker: Worker) -> None:
        super().begin(study, history, worker)
        self._networks = history.networks
        if history.trials > history.prior or not worker.alone:
            study.sampler.reseed_rng()  # otherwise the sampler would repeat its earlier proposals

    @property
    def is_over(self) -> bool:
        is_done = self.history.evaluations >= self.evaluations
        is_stale = self.history.stale >= self.patience
        return is_done or is_stale or self._ended or time.time() >= self.until

    def next_trial(self) -> optuna.Trial | None:
        others = self.worker.others_at_work(self.history.running)
        if self.history.evaluations + others >= self.evaluations:
            return None
        if self._fruitless == MAX_FRUITLESS:
            self._end_fruitless()
            return None
        if self._repeats == MAX_REPEATS:
            history = self.history
            seen = history.values.keys() | history.ruled_out
            fresh = random_unseen(self.reader.space, seen, self.rng)
            if fresh is None:
                self._ended = True
                return None
            self.study.enqueue_trial(fresh.as_dict())
            self._repeats = 0
        return self._interrupted() or self.worker.ask()

    def _end_fruitless(self) -> None:
        """End a search whose trials evaluate nothing.

        Raises InputError if `build` rejected their choices.
        """
        self._ended = True
        if self.rejected:
            raise InputError(
                f"none of {MAX_FRUITLESS} trials in a row made a new network, and `build` rejected "
                f"the choices of {len(self.rejected)}; the last: {self.rejected[-1]}"
            )
        log.warning(
            "%s-%s: %d trials in a row repeated evaluated networks: the search ends",
            self.settings["sampler"],
            self.settings["seed"],
            MAX_FRUITLESS,
        )

    def segment(self, trial: optuna.Trial) -> Segment | None:
        return None

    def observed(
        self, architecture: Architecture, segment: Segment | None
    ) -> dict[str, float] | None:
        return None

    def pay(
        self,
        trial: optuna.Trial,
        segment: Segment | None,
        seconds: float,
        values: Mapping[str, float],
        reported: int | None = None,
    ) -> None:
        """Whole trainings are counted, not paid."""

    def note_step(self) -> None:
        if self.history.networks > self._networks:  # whichever process evaluated it
            self._repeats = self._fruitless = 0
            self.rejected.clear()
        else:
            self._repeats += 1
            self._fruitless += 1
        self._networks = self.history.networks

    @property
    def done(self) -> tuple[int, int]:
        return self.history.evaluations, self.evaluations

    def done_in(self, trials: Sequence[FrozenTrial]) -> int:
        evaluated = [
            trial for trial in trials if is_evaluated(trial) and PRIOR_KEY not in trial.user_attrs
        ]
        distinct = {str(trial.params) for trial in evaluated}
        return min(len(distinct), self.evaluations)
