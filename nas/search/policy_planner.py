"""The planner of a search with fidelities: a policy chooses which training to start, to continue or to
stop (`nas.search.multi_fidelity`), and each segment of a training is a trial.

The second half reads the plan of a stored search: its trainings, and what it would train next.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import optuna
from optuna.samplers import RandomSampler
from optuna.trial import TrialState, create_trial

from nas.evaluation.metrics import check_metrics
from nas.search.multi_fidelity import ImprovementPerCost, make_policy
from nas.search.objectives import parse_constraints
from nas.search.planners import Planner
from nas.search.replay import ReplayedTrial
from nas.search.study.schema import (
    BEGUN_KEY,
    BUDGET_KEY,
    COST_KEY,
    EPOCH_KEY,
    PREDICTED_KEY,
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
from nas.search.study.trials import TrialReader
from nas.search.trainings import EPOCHS, NEW, SECONDS, Fidelities, Job, Run, Runs, Segment
from search_spaces.common import plug_ins
from search_spaces.common.errors import InputError
from search_spaces.common.seeds import check_seed

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from nas.search.evaluators import Evaluator
    from nas.search.settings import SearchSettings
    from nas.search.study.result import SearchResult
    from search_spaces import Architecture, SearchSpace


class PolicyPlanner(Planner):
    """Trials of a search with fidelities.

    A policy starts, continues and stops trainings until the budget is spent.

    Args:
        reader, evaluator, settings: of the search.

    Raises:
        InputError: the sampler has no name, or budget or cost are invalid.
    """

    def __init__(self, reader: TrialReader, evaluator: Evaluator, settings: SearchSettings) -> None:
        super().__init__(reader, evaluator)
        # 1. Fidelities, budget and cost.
        name, seed, measure = settings.sampler, settings.seed, settings.measure
        fidelities = settings.fidelities
        assert fidelities is not None, "a search without fidelities has another planner"
        if not isinstance(name, str):
            raise InputError("fidelities need a sampler given by name")
        self.budget, self.cost = settings.budget, settings.cost
        if self.cost not in (EPOCHS, SECONDS):
            check_metrics([self.cost], evaluator.metrics)
        if not self.budget > 0:
            raise InputError(f"budget {self.budget}: give a positive number of {self.cost}")
        self.fidelities = evaluator.fidelities(fidelities)

        # 2. The policy, and what the study stores about it.
        self.settings = {
            "sampler": f"own {name}" if settings.predictor else plug_ins.absolute(name),
            "sampler_options": {},
            "seed": check_seed(seed),
            "fidelities": list(fidelities),
            "cost": self.cost,
        }
        if measure is not None:
            self.settings["measure"] = measure
        self.policy = make_policy(
            name, reader, evaluator.trained, self.fidelities, seed, settings.predictor
        )
        self.sampler = RandomSampler(seed)  # never asked: all choices are the policy's

        # 3. A policy by predictions may measure networks before it starts one.
        policy = self.policy
        self._measure_ahead(policy if isinstance(policy, ImprovementPerCost) else None, measure)

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
        costly = self.evaluator.trained
        trials = stored_trials(self.study)
        return Runs(self.reader, self.fidelities, costly, trials, stopped)

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
        begun = self.fidelities.begun(attrs[BEGUN_KEY])
        until = attrs[UNTIL_KEY]
        return Segment(begun, until, until == self.fidelities.last)

    def observed(
        self, architecture: Architecture, segment: Segment | None
    ) -> dict[str, float] | None:
        assert segment is not None
        if segment.is_first:
            return None
        # Read again: another process may have finished the previous segment since this one chose.
        return self.runs().runs[architecture].values[segment.begun]

    def pay(
        self,
        trial: optuna.Trial,
        segment: Segment | None,
        seconds: float,
        values: Mapping[str, float],
        reported: int | None = None,
    ) -> None:
        # A training that failed has cost the epochs that it reported.
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
    """The trainings of a search with fidelities."""
    stopped = SearchAttributes.of(result.study).stopped
    trials = result.study.get_trials(deepcopy=False)
    return Runs(
        _reader(result, result.space), _fidelities(result), _trained(result), trials, stopped
    )


def next_jobs(result: SearchResult, space: SearchSpace, count: int) -> list[Job]:
    """The jobs that the search would start next if it had budget left.

    Args:
        result: result of a search with fidelities.
        space: space of new networks, or the rows of a table.
        count: largest number of jobs.

    Returns:
        Up to `count` jobs, in their order.
    """
    return list(islice(_jobs(result, space), count))


def _jobs(result: SearchResult, space: SearchSpace) -> Iterator[Job]:
    """The jobs of `next_jobs`, without end."""
    settings = result.settings
    runs = read_runs(result)
    policy = make_policy(
        settings["sampler"],
        _reader(result, space),
        _trained(result),
        _fidelities(result),
        settings["seed"],
    )
    while (job := policy.decide(runs, math.inf)) is not None:
        # The next decision sees this job as running, or the training as stopped.
        run = runs.runs.setdefault(job.architecture, Run(job.architecture))
        run.running = job.until
        run.ended = job.until is None
        if job.until is not None:
            yield job


def _reader(result: SearchResult, space: SearchSpace) -> TrialReader:
    constraints = parse_constraints(result.settings["constraints"])
    return TrialReader(space, result.objectives, constraints)


def _fidelities(result: SearchResult) -> Fidelities:
    return Fidelities.of(result.settings["fidelities"], _continues(result))


def _continues(result: SearchResult) -> bool:
    """True if trainings resume where they paused, as the study tells.

    A continued segment then costs only its own epochs (`Fidelities.continues`). Also True where the
    cost is not in epochs, or where no training has been continued.
    """
    if result.settings["cost"] != EPOCHS:
        return True
    for trial in result.study.get_trials(deepcopy=False):
        attrs = trial.user_attrs
        is_continued = attrs.get(BEGUN_KEY, NEW) > 0
        if is_continued and COST_KEY in attrs:
            own_epochs = attrs[UNTIL_KEY] - attrs[BEGUN_KEY]
            return bool(attrs[COST_KEY] == own_epochs)
    return True


def _trained(result: SearchResult) -> list[str]:
    """Metrics that need training.

    They are those that the user's function returns, else those of the first learning curve.
    """
    evaluator = SearchAttributes.of(result.study).source.get("evaluator", {})
    if returned := evaluator.get("metrics"):
        return list(returned)
    for trial in result.study.get_trials(deepcopy=False):
        for values in TrialAttributes.of(trial).curve.values():
            return list(values)
    return []
