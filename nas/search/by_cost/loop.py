"""The loop of a search by cost: a policy chooses the next segment of a training, and an Optuna
study records it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
from optuna.samplers import RandomSampler
from optuna.trial import TrialState, create_trial

from nas.evaluation.metrics import check_metrics
from nas.search.by_cost.runs import Fidelities, Job, Runs, Segment
from nas.search.evaluators import as_evaluator
from nas.search.loop import MAX_FAILURES, open_study
from nas.search.multi_fidelity import make_policy
from nas.search.objectives import (
    ConstraintsLike,
    ObjectivesLike,
    parse_constraints,
    parse_objectives,
)
from nas.search.progress import GrowingFront, SearchProgress, watched
from nas.search.replay import ReplayedTrial
from nas.search.rows import among_rows
from nas.search.study.files import WeightFolder
from nas.search.study.provenance import note_unknown, provenance_of
from nas.search.study.result import SearchResult
from nas.search.study.schema import (
    BEGUN_KEY,
    BUDGET_KEY,
    CHECKPOINTS_KEY,
    COST_KEY,
    EPOCH_KEY,
    FAILED_KEY,
    PREDICTED_KEY,
    RULED_OUT_KEY,
    SETTINGS_KEY,
    SPREAD_KEY,
    STOPPED_KEY,
    UNTIL_KEY,
    VALUES_KEY,
    WEIGHTS_FOLDER_KEY,
    SearchAttributes,
    sampler_label,
)
from nas.search.study.storage import (
    begin_trial,
    pop_waiting,
    prune_trial,
    stored_trial,
    stored_trials,
    trial_id_of_number,
)
from nas.search.study.trial_logger import TrialLogger
from nas.search.study.trials import (
    TrialReader,
    describe_trial,
    has_result,
    is_evaluated,
    why_pruned,
)
from nas.search.study.workers import FATAL, Share, Worker, check_jobs, helpers
from predictors.metrics import is_valid
from search_spaces.common import plug_ins
from search_spaces.common.errors import EvaluatorError, InputError, StorageError, describe
from search_spaces.common.seeds import check_seed
from search_spaces.common.threads import with_few_threads
from search_spaces.repeatable import check_repeatable

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

    from nas.search.evaluators import Evaluator
    from nas.search.multi_fidelity import Policy
    from predictors import Predictor
    from search_spaces import SearchSpace

log = logging.getLogger(__name__)
EPOCHS, SECONDS = (
    "epochs",
    "seconds",
)  # units of cost; any other is a metric that gives the cost of an epoch
# A process ends after so many networks in a row that break a constraint before their training
MAX_RULED_OUT = 1000
_POLL_SECONDS = 0.2


@with_few_threads
def run_search_by_cost(
    space: SearchSpace,
    objectives: ObjectivesLike,
    evaluator: Evaluator,
    *,
    sampler: str,
    fidelities: Sequence[int],
    budget: float,
    cost: str = EPOCHS,
    seed: int = 0,
    storage: str | Path | BaseStorage | None = None,
    constraints: ConstraintsLike = None,
    progress: Callable[[SearchProgress], None] | None = None,
    name: str = "search",
    joins: bool = False,
    weights: str | Path | None = None,
    jobs: int = 1,
    predictor: Callable[[], Predictor] | None = None,
    callbacks: Sequence[Callable[[optuna.Study, FrozenTrial], None]] = (),
    share: Share | None = None,
    prepares: bool = False,
    depends: Iterable[str | Path] = (),
) -> SearchResult:
    """Start, pause, continue and stop trainings until the budget is spent. Only full trainings
    count for the front.

    Each segment of a training is a trial of the study; the trials of paused trainings are pruned
    ones. Intermediate values of trials are the learning curves. An interrupted search, even after
    SIGKILL, continues where it was. Several processes may share it: no segment is lost or trained
    twice.

    Args:
        space: search space.
        objectives: see `nas.search`, as are all arguments that are missing here.
        evaluator: a `TableEvaluator`, or a `MeasuredEvaluator` or `FunctionEvaluator` with a folder
            for checkpoints.
        sampler: name of a predictor, which predicts learning curves to choose what improves the
            front most per cost; or a baseline: asha, hyperband or random.
        fidelities: rising epochs at which a training may pause; the last is the full training.
        budget: budget of the search, in the unit of the cost. No segment starts that would exceed
            it at the mean cost per epoch so far, but each further process may add one.
        cost: "epochs", "seconds" (of training, as measured), or a metric of the evaluator that
            gives the cost of an epoch.
        predictor: makes the predictor of each fit; by default a new one of the sampler's name.
        prepares: only store the search, for workers.

    Returns:
        Result of all full trainings.

    Raises:
        InputError: for arguments that do not fit together, or after too many failed trainings in a
            row.
    """
    evaluator = as_evaluator(evaluator)
    space = among_rows(space, evaluator.rows)
    reader = TrialReader(space, parse_objectives(objectives), parse_constraints(constraints))
    check_metrics(reader.metrics, evaluator.metrics)
    if cost not in (EPOCHS, SECONDS):
        check_metrics([cost], evaluator.metrics)
    if not budget > 0:
        raise InputError(f"budget {budget}: give a positive number of {cost}")
    rungs = evaluator.fidelities(fidelities)
    check_repeatable(space)
    origin = provenance_of(space, reader.objectives, reader.constraints, evaluator, depends)
    if storage is not None:
        note_unknown(space, evaluator)
    check_jobs(jobs, storage, predictor or sampler, origin["source"])
    origin["settings"] |= {
        "sampler": f"own {sampler}" if predictor else plug_ins.absolute(sampler),
        "sampler_options": {},
        "seed": check_seed(seed),
        "fidelities": list(fidelities),
        "cost": cost,
    }
    policy = make_policy(sampler, space, reader, evaluator.trained, rungs, seed, predictor)
    study = open_study(storage, name, reader.objectives, RandomSampler(seed), origin, joins)
    if not joins:
        study.set_user_attr(BUDGET_KEY, budget)
        if evaluator.checkpoints:
            study.set_user_attr(CHECKPOINTS_KEY, str(Path(evaluator.checkpoints).absolute()))
        if weights:
            study.set_user_attr(WEIGHTS_FOLDER_KEY, str(Path(weights).absolute()))
    if prepares:
        return SearchResult.of_study(study, reader)
    folder = WeightFolder(Path(weights)) if weights else None
    others = helpers(jobs - 1, evaluator, storage, name, share, origin["identity"]["depends"])
    with others, Worker(study) as worker:
        loop = _Loop(
            study, reader, evaluator, rungs, policy, worker, budget, cost, folder, callbacks
        )
        with watched(progress if storage is not None else None, loop.look) as report:
            loop.run(report or progress, share or Share())
    return SearchResult.of_study(study, reader)


class _Loop:
    """The loop of one process. Everything that must survive the process is in the study."""

    def __init__(
        self,
        study: optuna.Study,
        reader: TrialReader,
        evaluator: Evaluator,
        fidelities: Fidelities,
        policy: Policy,
        worker: Worker,
        budget: float,
        cost: str,
        weights: WeightFolder | None,
        callbacks: Sequence[Callable[[optuna.Study, FrozenTrial], None]] = (),
    ) -> None:
        self.study, self.reader, self.policy, self.worker = study, reader, policy, worker
        self.evaluator, self.fidelities = evaluator, fidelities
        self.budget, self.cost, self.weights, self.callbacks = budget, cost, weights, callbacks
        settings = study.user_attrs[SETTINGS_KEY]
        self.label = f"{sampler_label(settings['sampler'])}-{settings['seed']}"  # in the log
        self.logged = set[int]()  # numbers of trials
        for trial in filter(has_result, study.get_trials(deepcopy=False)):
            self._settle_weights(trial)
            self.logged.add(trial.number)
        self.failures: list[
            str
        ] = []  # reasons of the last segments of this process, as long as all failed
        self._last = SearchProgress(0, math.ceil(budget), 0, 0.0, {})  # as reported
        self.ruled_out = 0  # the last networks of this process, as long as all were ruled out

    def run(self, progress: Callable[[SearchProgress], None] | None, share: Share) -> None:
        if progress:
            progress(self._progress())
        while not share.is_used_up:
            if len(self.failures) >= MAX_FAILURES:
                raise InputError(
                    f"{len(self.failures)} trainings in a row failed; the last: {self.failures[-1]}"
                )
            if self.ruled_out >= MAX_RULED_OUT:
                log.warning(
                    "%d networks in a row violated a constraint before their training",
                    self.ruled_out,
                )
                return
            self.worker.reclaim_stale_trials()
            trial = self._unfinished() or self._begin()
            if trial is None:
                others = self.worker.others_at_work(stored_trials(self.study))
                if self._log_finished() and progress:
                    progress(self._progress())
                if not others:
                    return
                time.sleep(_POLL_SECONDS)
                continue
            if self.worker.is_fatal(trial):
                self._fail(trial, FATAL)
                continue
            with self.worker.evaluating(trial):
                self._train(trial)
            share.evaluations -= 1
            self._log_finished()
            if progress:
                progress(self._progress())

    def _log_finished(self) -> bool:
        """Handle segments that any process has finished since the last call: weights, log,
        callbacks. True if any.
        """
        trials = [trial for trial in stored_trials(self.study) if has_result(trial)]
        new = [trial for trial in trials if trial.number not in self.logged]
        for trial in new:
            self._settle_weights(trial)
            log.info("%s, %s", self.label, describe_trial(trial, self.reader))
            for callback in self.callbacks:
                callback(self.study, trial)
        self.logged.update(trial.number for trial in new)
        return bool(new)

    def _runs(self) -> Runs:
        stopped = SearchAttributes.of(self.study).stopped
        return Runs(self.reader, self.fidelities, stored_trials(self.study), stopped)

    def _unfinished(self) -> optuna.Trial | None:
        """The trial of a segment whose process ended before it was finished."""
        while (trial := self._left_behind()) is not None:
            if self._is_first(trial, self._runs()):
                return trial
            self.study.tell(trial, state=TrialState.FAIL)
        return None

    def _is_first(self, trial: optuna.Trial, runs: Runs) -> bool:
        """False if an earlier trial has the same segment.

        Processes may choose the same segment at the same time. All agree on which trial was stored
        first.
        """
        architecture = self.reader.architecture(trial.params)
        until = trial.user_attrs.get(UNTIL_KEY)
        return (
            architecture is None
            or until is None
            or runs.jobs.get((architecture, until)) == trial.number
        )

    def _left_behind(self) -> optuna.Trial | None:
        while self.worker.interrupted:
            id_ = self.worker.interrupted.pop(0)
            if stored_trial(self.study, id_).state == TrialState.RUNNING:
                return optuna.Trial(self.study, id_)
        return pop_waiting(self.study)

    def _begin(self) -> optuna.Trial | None:
        """A new trial for the segment that the policy chooses."""
        runs = self._runs()
        while (job := self.policy.decide(runs, self._epochs_left(runs))) is not None:
            if job.until is None:
                self.study.set_user_attr(
                    STOPPED_KEY + self.reader.space.format(job.architecture), True
                )
                runs.runs[job.architecture].ended = True
                self.evaluator.forget(job.architecture)
                continue
            trial = begin_trial(self.study, self._template(job, runs))
            if self._is_first(trial, self._runs()):
                return trial
            self.study.tell(trial, state=TrialState.FAIL)
            runs = self._runs()
        return None

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

    def _train(self, trial: optuna.Trial) -> None:
        attrs = trial.user_attrs
        architecture = self.reader.architecture(trial.params)
        if architecture is None or UNTIL_KEY not in attrs:
            self.failures.append("the choices of a trial cannot be made again")
            self.study.tell(trial, state=TrialState.FAIL)
            return
        begun, until = attrs[BEGUN_KEY], attrs[UNTIL_KEY]
        record = TrialLogger(self.study, trial, self.weights)
        started, known = time.monotonic(), dict[str, float]()
        try:
            # Read now: another process may have finished the previous segment after this one chose.
            known = (
                self._runs().runs[architecture].values[begun]
                if begun
                else self.evaluator.measure(architecture, record)
            )
            if not begun and (broken := self._broken(known)):
                self._rule_out(trial, known, broken, time.monotonic() - started)
                return
            values = self.evaluator.train(
                architecture, known, record, Segment(until, until == self.fidelities.last)
            )
        except (StorageError, EvaluatorError):
            raise
        except Exception as error:
            epochs = self.fidelities.epochs(begun, min(max(record.reported, begun), until))
            seconds = time.monotonic() - started
            trial.set_user_attr(COST_KEY, self._cost({self.cost: 0.0, **known}, epochs, seconds))
            if isinstance(error, optuna.TrialPruned):
                self._fail(trial, why_pruned(error))
                # The user's decision does not count as a failure of the evaluator
                self.failures.pop()
            else:
                self._fail(trial, describe(error))
            return
        epochs = self.fidelities.epochs(begun, until)
        seconds = time.monotonic() - started
        trial.set_user_attr(COST_KEY, self._cost(values, epochs, seconds))
        row = np.array([values[metric] for metric in self.reader.metrics])
        if reason := self.reader.reason(row):
            self._fail(trial, reason)
            return
        self.failures.clear()
        self.ruled_out = 0
        trial.set_user_attr(VALUES_KEY, {metric: float(value) for metric, value in values.items()})
        if until == self.fidelities.last:
            record.identify_architecture(self.reader.space, architecture)
        self._finish(trial, row, until)

    def _broken(self, known: Mapping[str, float]) -> str:
        """The constraint that the untrained metrics break, with the value; "" if none."""
        for constraint in self.reader.constraints:
            value = np.array(known.get(constraint.metric, math.nan))
            if constraint.violation(value) > 0:
                return f"{constraint}: it is {value:g}"
        return ""

    def _rule_out(
        self, trial: optuna.Trial, known: Mapping[str, float], broken: str, seconds: float
    ) -> None:
        """End a trial before its training. It costs no epoch, and predictors learn from the
        measured values.
        """
        self.ruled_out += 1
        trial.set_user_attr(COST_KEY, self._cost(known, 0, seconds))
        trial.set_user_attr(
            VALUES_KEY, {metric: value for metric, value in known.items() if is_valid(value)}
        )
        trial.set_user_attr(RULED_OUT_KEY, broken)
        prune_trial(self.study, trial)

    def _cost(self, values: Mapping[str, float], epochs: int, seconds: float) -> float:
        """Cost of a segment, in the unit of the budget."""
        if self.cost == SECONDS:
            return seconds
        return (
            float(epochs * values[self.cost]) if epochs and self.cost != EPOCHS else float(epochs)
        )

    def _finish(self, trial: optuna.Trial, row: np.ndarray, until: int) -> None:
        """Store the values (metrics,) of a finished segment."""
        if until < self.fidelities.last:
            prune_trial(self.study, trial)
            return
        for constraint in self.reader.constraints:
            value = row[self.reader.metrics.index(constraint.metric)]
            trial.set_constraint(str(constraint), float(constraint.violation(value)))
        self.study.tell(trial, row[: len(self.reader.objectives)].tolist(), skip_if_finished=True)
        architecture = self.reader.architecture(trial.params)
        assert architecture is not None
        self.evaluator.forget(architecture)

    def _settle_weights(self, trial: FrozenTrial) -> None:
        """Keep the weights of a full training if it is on the front; remove those of dominated and
        failed ones.
        """
        architecture = self.reader.architecture(trial.params)
        if self.weights and is_evaluated(trial) and architecture is not None:
            values = self.reader.values(trial)
            losses = self.reader.losses(values)
            kept = np.isfinite(losses).all() and self.reader.violation(values) <= 0
            self.weights.settle(architecture, trial.number, losses if kept else None)

    def _fail(self, trial: optuna.Trial, reason: str) -> None:
        self.failures.append(reason)
        trial.set_user_attr(FAILED_KEY, reason)
        self.study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)

    def look(self) -> SearchProgress:
        """The progress with what other processes have spent since the last report; another thread
        may call it.

        It reads no architectures, since the user's `build` must not run in two threads.
        """
        spent = sum(t.user_attrs.get(COST_KEY, 0.0) for t in self.study.get_trials(deepcopy=False))
        return self._last._replace(done=max(self._last.done, round(spent)))

    def _progress(self) -> SearchProgress:
        runs, front = self._runs(), GrowingFront(len(self.reader.objectives))
        for losses in runs.losses(runs.finished, self.fidelities.last):
            if np.isfinite(losses).all():
                front.add(losses)
        best = front.points.min(axis=0).tolist() if len(front.points) else []
        named = {
            o.name: o.sign * loss for o, loss in zip(self.reader.objectives, best, strict=False)
        }
        spent, budget = round(runs.spent), math.ceil(self.budget)
        self._last = SearchProgress(spent, budget, len(front.points), front.hypervolume, named)
        return self._last
