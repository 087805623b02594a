"""Planners decide what a process of a search evaluates next, and when the search ends.

A `SamplerPlanner` asks the study's sampler for networks, which are trained to the end. A
`PolicyPlanner` asks a policy (`nas.search.multi_fidelity`) for the next segment of a training: start,
continue or stop one. The loop (`nas.search.search`) treats both alike.
"""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
from optuna.samplers import RandomSampler
from optuna.trial import TrialState, create_trial

from nas.evaluation.metrics import check_metrics
from nas.search.candidates import random_unseen
from nas.search.multi_fidelity import ImprovementPerCost, make_policy
from nas.search.objectives import parse_constraints
from nas.search.replay import ReplayedTrial
from nas.search.rows import sampler_of_rows
from nas.search.sampler import PredictorSampler
from nas.search.samplers import check_objectives, create_sampler
from nas.search.shortlist import Shortlist, shortlist_of
from nas.search.study.schema import (
    BEGUN_KEY,
    BUDGET_KEY,
    COST_KEY,
    EPOCH_KEY,
    EVALUATIONS_KEY,
    LIMITS_KEY,
    PREDICTED_KEY,
    PRIOR_KEY,
    SPREAD_KEY,
    STOPPED_KEY,
    UNTIL_KEY,
    SearchAttributes,
    TrialAttributes,
)
from nas.search.study.storage import (
    begin_trial,
    pop_waiting,
    stored_trial,
    stored_trials,
    trial_id_of_number,
)
from nas.search.study.trials import TrialReader, is_evaluated
from nas.search.trainings import EPOCHS, NEW, SECONDS, Fidelities, Job, Run, Runs, Segment
from search_spaces.common import plug_ins
from search_spaces.common.errors import InputError
from search_spaces.common.seeds import check_seed

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

    from nas.search.evaluators import Evaluator
    from nas.search.history import History
    from nas.search.study.result import SearchResult
    from nas.search.study.workers import Worker
    from predictors import Predictor
    from search_spaces import Architecture, SearchSpace

log = logging.getLogger(__name__)
MAX_REPEATS = 50  # after so many repeated architectures in a row, a random new one is evaluated
# After so many trials in a row without a new network, a search ends: it would run for ever
MAX_FRUITLESS = 500


class Planner(ABC):
    """Base class of planners. `begin` connects one with the study.

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

    def __init__(self) -> None:
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
        """The trial to evaluate; None if other processes have to finish one first, or if nothing is
        left.
        """

    @abstractmethod
    def segment(self, trial: optuna.Trial) -> Segment | None:
        """The part of a training that a trial is for; None for a whole training. Raises InputError
        if the trial is none of this search.
        """

    @abstractmethod
    def observed(
        self, architecture: Architecture, segment: Segment | None
    ) -> dict[str, float] | None:
        """Values that are known before a trial; None of a network that is new."""

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
            seconds: that it took.
            values: known values by metric.
            reported: the last epoch of a training that failed.
        """

    @abstractmethod
    def note_step(self) -> None:
        """Called after each trial of this process, when the history has been updated."""

    @property
    @abstractmethod
    def done(self) -> tuple[int, int]:
        """What has been done of the search, and all of it, for progress."""

    @abstractmethod
    def done_in(self, trials: Sequence[FrozenTrial]) -> int:
        """What has been done by the trials of all processes. Another thread may call it, so that no
        architecture is read: the user's `build` must not run in two threads.
        """

    def _interrupted(self) -> optuna.Trial | None:
        """A running trial of a former worker. It keeps the choices already made and asks the
        sampler for the others.
        """
        while self.worker.interrupted:
            id_ = self.worker.interrupted.pop(0)
            if stored_trial(self.study, id_).state == TrialState.RUNNING:
                return optuna.Trial(self.study, id_)
        return None


def _refuse_measure(measure: int | None, sampler: str) -> None:
    """Raise InputError if networks are to be measured for a sampler that does not choose among
    them.
    """
    if measure is not None:
        raise InputError(
            f"measure {measure} does not apply to {sampler}: only a predictor that guides the "
            "search, such as rlm, chooses among measured networks"
        )


# --- whole trainings


class SamplerPlanner(Planner):
    """Trials of an ordinary search: a sampler proposes networks.

    Args:
        space, reader, evaluator: of the search.
        sampler: name of a sampler, or any Optuna sampler.
        options: of a sampler given by name.
        seed: of a sampler given by name, and of random networks.
        evaluations: number of evaluations.
        until: time after which no evaluation starts, in seconds since 1970.
        patience: number of evaluations in a row without a better front after which the search ends.
        measure: measured networks per training, see `nas.search.search.SearchSettings`.
    """

    def __init__(
        self,
        space: SearchSpace,
        reader: TrialReader,
        evaluator: Evaluator,
        *,
        sampler: str | BaseSampler,
        options: Mapping[str, Any] | None,
        seed: int,
        evaluations: int,
        until: float,
        patience: float,
        measure: int | None = None,
    ) -> None:
        super().__init__()
        name = plug_ins.absolute(sampler) if isinstance(sampler, str) else type(sampler).__name__
        self.settings = {
            "sampler": name,
            "sampler_options": dict(options or {}),
            "seed": check_seed(seed),
        }
        if isinstance(sampler, str):
            sampler = create_sampler(
                sampler,
                space,
                reader.objectives,
                seed,
                constraints=reader.constraints,
                **(options or {}),
            )
        check_objectives(sampler, len(reader.objectives))
        if isinstance(sampler, PredictorSampler):
            self.shortlist = shortlist_of(reader, evaluator, measure)
            sampler.shortlist = self.shortlist
        else:
            _refuse_measure(measure, name)
        if measure is not None:
            self.settings["measure"] = measure
        self.sampler = sampler_of_rows(sampler, space, seed)
        self.space = space
        self.evaluations, self.until, self.patience = evaluations, until, patience
        self.rng = np.random.default_rng(seed)
        self._ended = False  # there is nothing new to evaluate
        self._networks = 0  # in the history after the last step
        # Trials in a row without a new network, since a random one and in all
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
            fresh = random_unseen(self.space, history.values.keys() | history.ruled_out, self.rng)
            if fresh is None:
                self._ended = True
                return None
            self.study.enqueue_trial(fresh.as_dict())
            self._repeats = 0
        return self._interrupted() or self.worker.ask()

    def _end_fruitless(self) -> None:
        """End a search whose trials evaluate nothing, with an error if `build` rejects their
        choices.
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
        if self.history.networks > self._networks:  # by any process
            self._repeats = self._fruitless = 0
            self.rejected.clear()
        else:
            self._repeats, self._fruitless = self._repeats + 1, self._fruitless + 1
        self._networks = self.history.networks

    @property
    def done(self) -> tuple[int, int]:
        return self.history.evaluations, self.evaluations

    def done_in(self, trials: Sequence[FrozenTrial]) -> int:
        finished = {
            str(trial.params)
            for trial in trials
            if is_evaluated(trial) and PRIOR_KEY not in trial.user_attrs
        }
        return min(len(finished), self.evaluations)


# --- segments of trainings


class PolicyPlanner(Planner):
    """Trials of a search with fidelities: a policy starts, continues and stops trainings until the
    budget is spent.

    Args:
        space, reader, evaluator: of the search.
        policy: name of a predictor or of a baseline (`nas.search.multi_fidelity.make_policy`).
        fidelities: epochs at which trainings may pause.
        budget: cost of all trainings, in the unit of `cost`.
        cost: `EPOCHS`, `SECONDS`, or a metric of the evaluator that is the cost of an epoch.
        seed: of the policy.
        predictor: makes the predictor of each fit.
        measure: measured networks per training, see `nas.search.search.SearchSettings`.
    """

    def __init__(
        self,
        space: SearchSpace,
        reader: TrialReader,
        evaluator: Evaluator,
        *,
        policy: str,
        fidelities: Sequence[int],
        budget: float,
        cost: str,
        seed: int,
        predictor: Callable[[], Predictor] | None,
        measure: int | None = None,
    ) -> None:
        super().__init__()
        if cost not in (EPOCHS, SECONDS):
            check_metrics([cost], evaluator.metrics)
        if not budget > 0:
            raise InputError(f"budget {budget}: give a positive number of {cost}")
        self.fidelities = evaluator.fidelities(fidelities)
        self.reader, self.evaluator = reader, evaluator
        self.budget, self.cost = budget, cost
        self.settings = {
            "sampler": f"own {policy}" if predictor else plug_ins.absolute(policy),
            "sampler_options": {},
            "seed": check_seed(seed),
            "fidelities": list(fidelities),
            "cost": cost,
        }
        self.policy = make_policy(
            policy, space, reader, evaluator.trained, self.fidelities, seed, predictor
        )
        if isinstance(self.policy, ImprovementPerCost):
            self.shortlist = shortlist_of(reader, evaluator, measure)
            self.policy.shortlist = self.shortlist
        else:
            _refuse_measure(measure, policy)
        if measure is not None:
            self.settings["measure"] = measure
        self.sampler = RandomSampler(seed)  # never asked: all choices are the policy's

    def store_limits(self, study: optuna.Study) -> None:
        study.set_user_attr(BUDGET_KEY, self.budget)

    @property
    def is_over(self) -> bool:
        return False  # the search ends when no job fits into the budget

    def next_trial(self) -> optuna.Trial | None:
        """A trial whose process ended before it was finished, or a new one."""
        while (trial := self._interrupted() or pop_waiting(self.study)) is not None:
            if self._is_first(trial, self.runs()):
                return trial
            self.study.tell(trial, state=TrialState.FAIL)
        return self._begin_job()

    def runs(self) -> Runs:
        """All trainings of the study."""
        stopped = SearchAttributes.of(self.study).stopped
        return Runs(self.reader, self.fidelities, stored_trials(self.study), stopped)

    def _is_first(self, trial: optuna.Trial, runs: Runs) -> bool:
        """False if an earlier trial has the same segment.

        Processes may choose the same segment at the same time. All agree on which trial was stored
        first.
        """
        architecture = self.reader.architecture(trial.params)
        until = trial.user_attrs.get(UNTIL_KEY)
        if architecture is None or until is None:
            return True
        return runs.jobs.get((architecture, until)) == trial.number

    def _begin_job(self) -> optuna.Trial | None:
        """A new trial for the segment that the policy chooses; None if none fits."""
        runs = self.runs()
        while (job := self.policy.decide(runs, self._epochs_left(runs))) is not None:
            if job.until is None:
                self._stop(job.architecture)
                runs.runs[job.architecture].ended = True
                continue
            trial = begin_trial(self.study, self._template(job, runs))
            if self._is_first(trial, self.runs()):
                return trial
            self.study.tell(trial, state=TrialState.FAIL)
            runs = self.runs()
        return None

    def _stop(self, architecture: Architecture) -> None:
        """Stop a training for good."""
        self.study.set_user_attr(STOPPED_KEY + self.reader.space.format(architecture), True)
        self.evaluator.forget(architecture)

    def _template(self, job: Job, runs: Runs) -> FrozenTrial:
        """A running trial with the job's choices and the learning curve so far."""
        chosen = ReplayedTrial(self.study, self.reader.space, job.architecture)
        curve, values = self._curve(runs, job)
        return create_trial(
            state=TrialState.RUNNING,
            params=chosen.params,
            distributions=chosen.distributions,
            user_attrs={BEGUN_KEY: job.begun, UNTIL_KEY: job.until, **curve},
            system_attrs={PREDICTED_KEY: dict(job.predicted)} if job.predicted else None,
            intermediate_values=values,
        )

    def _curve(self, runs: Runs, job: Job) -> tuple[dict[str, Any], dict[int, float]]:
        """User attributes (curve, spreads) and intermediate values of the previous segment."""
        number = runs.jobs.get((job.architecture, job.begun))
        if number is None:
            return {}, {}
        before = stored_trial(self.study, trial_id_of_number(self.study, number))
        kept = (EPOCH_KEY, SPREAD_KEY)
        curve = {key: value for key, value in before.user_attrs.items() if key.startswith(kept)}
        return curve, before.intermediate_values

    def _epochs_left(self, runs: Runs) -> float:
        """Epochs that the rest of the budget pays for, at the mean cost of an epoch so far."""
        if self.cost == EPOCHS:
            return self.budget - runs.spent - runs.pending
        if not runs.epochs:
            return math.inf if runs.spent < self.budget else 0.0
        rate = runs.spent / runs.epochs
        return (self.budget - runs.spent) / rate - runs.pending if rate > 0 else math.inf

    def segment(self, trial: optuna.Trial) -> Segment | None:
        attrs = trial.user_attrs
        if UNTIL_KEY not in attrs:
            raise InputError("the trial is for no segment of a training")
        begun, until = self.fidelities.begun(attrs[BEGUN_KEY]), attrs[UNTIL_KEY]
        return Segment(begun, until, until == self.fidelities.last)

    def observed(
        self, architecture: Architecture, segment: Segment | None
    ) -> dict[str, float] | None:
        assert segment is not None
        if segment.is_first:
            return None
        # Read now: another process may have finished the previous segment after this one chose.
        return self.runs().runs[architecture].values[segment.begun]

    def pay(
        self,
        trial: optuna.Trial,
        segment: Segment | None,
        seconds: float,
        values: Mapping[str, float],
        reported: int | None = None,
    ) -> None:
        epochs = 0
        if segment is not None:
            until = segment.until
            if reported is not None:
                until = min(max(reported, segment.begun), until)
            epochs = self.fidelities.epochs(segment.begun, until)
        cost = float(epochs)
        if self.cost == SECONDS:
            cost = seconds
        elif self.cost != EPOCHS and epochs:
            cost *= values.get(self.cost, 0.0)
        trial.set_user_attr(COST_KEY, cost)

    def note_step(self) -> None:
        """The policy reads all trials whenever it decides."""

    @property
    def done(self) -> tuple[int, int]:
        return self.done_in(stored_trials(self.study)), math.ceil(self.budget)

    def done_in(self, trials: Sequence[FrozenTrial]) -> int:
        return round(sum(trial.user_attrs.get(COST_KEY, 0.0) for trial in trials))


# --- the plan of a stored search


def is_by_cost(result: SearchResult) -> bool:
    """True for the result of a search with fidelities."""
    return SearchAttributes.of(result.study).has_fidelities


def read_runs(result: SearchResult) -> Runs:
    """The trainings of a search by cost."""
    stopped = SearchAttributes.of(result.study).stopped
    return Runs(
        _reader(result), _fidelities(result), result.study.get_trials(deepcopy=False), stopped
    )


def next_jobs(result: SearchResult, space: SearchSpace, count: int) -> list[Job]:
    """The jobs that the search would start next if it had budget left.

    Args:
        result: result of a search with fidelities.
        space: space of new networks, or the rows of a table.
        count: most jobs.

    Returns:
        Up to `count` jobs, in their order.
    """
    return list(islice(_jobs(result, space), count))


def _jobs(result: SearchResult, space: SearchSpace) -> Iterator[Job]:
    settings, runs = result.settings, read_runs(result)
    policy = make_policy(
        settings["sampler"],
        space,
        _reader(result),
        _trained(result),
        _fidelities(result),
        settings["seed"],
    )
    while (job := policy.decide(runs, math.inf)) is not None:
        run = runs.runs.setdefault(job.architecture, Run(job.architecture))
        run.running, run.ended = job.until, job.until is None
        if job.until is not None:
            yield job


def _reader(result: SearchResult) -> TrialReader:
    return TrialReader(
        result.space, result.objectives, parse_constraints(result.settings["constraints"])
    )


def _fidelities(result: SearchResult) -> Fidelities:
    return Fidelities.of(result.settings["fidelities"], _continues(result))


def _continues(result: SearchResult) -> bool:
    """True if trainings resume where they paused: a continued segment then costs only its own
    epochs.

    Also True where the cost is not in epochs.
    """
    attrs = [trial.user_attrs for trial in result.study.get_trials(deepcopy=False)]
    continued = (known for known in attrs if known.get(BEGUN_KEY, NEW) > 0 and COST_KEY in known)
    one = next(continued, None) if result.settings["cost"] == EPOCHS else None
    return one is None or bool(one[COST_KEY] == one[UNTIL_KEY] - one[BEGUN_KEY])


def _trained(result: SearchResult) -> list[str]:
    """Metrics that need training: those that trials have reported, or that the user's function
    returns.
    """
    own = SearchAttributes.of(result.study).source.get("evaluator", {}).get("metrics")
    curves = (TrialAttributes.of(trial).curve for trial in result.study.get_trials(deepcopy=False))
    reported = (values for curve in curves for values in curve.values())
    return list(own or next(reported, {}))
