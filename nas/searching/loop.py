"""The search: ask a sampler for architectures, evaluate them, keep everything in an Optuna study."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import optuna
from optuna.trial import TrialState

from nas.evaluation.metrics import check_metrics
from nas.searching import optuna_adapter
from nas.searching.evaluators import EvaluatorError, TableEvaluator, evaluate_one
from nas.searching.evolution import random_unseen
from nas.searching.identity import IDENTITY_KEY, begun_with, check_same, is_unused
from nas.searching.jobs import check_jobs, helpers
from nas.searching.objectives import Constraint, parse_constraints, parse_objectives
from nas.searching.patience import StorageError
from nas.searching.prior import PRIOR_KEY, PriorObservations, add_prior_observations
from nas.searching.progress import GrowingFront, SearchProgress
from nas.searching.record import TrialRecord
from nas.searching.result import SETTINGS_KEY, SearchResult
from nas.searching.rows import among_rows, sampler_of_rows
from nas.searching.samplers import create_sampler
from nas.searching.storage import address, open_storage
from nas.searching.trial_log import describe_trial
from nas.searching.trials import FAILED_KEY, TrialReader, is_evaluated
from nas.searching.weights import WEIGHTS_FOLDER_KEY, WeightFolder
from nas.searching.workers import MAX_TAKEN_UP, Worker
from predictors.metrics import Metric
from search_spaces.common.errors import InputError, describe
from search_spaces.repeatable import check_repeatable

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage

    from nas.searching.evaluators import Evaluator
    from search_spaces import Architecture, SearchSpace

log = logging.getLogger(__name__)
RESULT_VERSION = 6  # raise it whenever a search with the same seed evaluates other architectures
MAX_REPEATS = 50  # repeated architectures in a row after which a random new one is evaluated instead
MAX_FAILURES = 10  # evaluations that fail in a row, after which the search ends with an error
SOURCE_KEY = "nas:source"  # study user attribute: see `nas.searching.sources`
EVALUATIONS_KEY = "nas:evaluations"  # study user attribute: how many are wanted, without prior observations
LIMITS_KEY = "nas:limits"  # study user attribute: the other `Limits`, where there are any
_POLL_SECONDS = 0.2  # seconds, between two looks whether others have finished
_MANY_UNFINISHED = 20  # unfinished trials, from which on all trials are read at once


def search(
    space: SearchSpace,
    objectives: str | Iterable[str | Metric],
    evaluator: Evaluator,
    sampler: str | BaseSampler,
    evaluations: int,
    seed: int = 0,
    storage: str | Path | BaseStorage | None = None,
    constraints: str | Iterable[str | Constraint] | None = None,
    progress: Callable[[SearchProgress], None] | None = None,
    name: str = "search",
    sampler_options: Mapping[str, Any] | None = None,
    prior: PriorObservations | None = None,
    seconds: float = math.inf,
    patience: float = math.inf,
    joins: bool = False,
    weights: str | Path | None = None,
    jobs: int = 1,
    callbacks: Sequence[Callable[[optuna.Study, optuna.trial.FrozenTrial], None]] = (),
) -> SearchResult:
    """Evaluate `evaluations` distinct architectures and return what was found.

    An architecture that the sampler proposes again gets its stored values and does not count. A space with fewer
    architectures ends the search early. An evaluation that raises an exception or gives a value that is not finite is
    a failed one: it counts, its reason is kept, and ten in a row end the search. Choices that `build` refuses fail
    their trial, too, but do not count.

    With a storage, a search that was interrupted, even by SIGKILL, goes on where it was: a trial that was being
    evaluated is finished first, and nothing is evaluated twice. Several processes may work on one study. Without
    interruption, the same seed gives the same result.

    Args:
        objectives: metric names, see `nas.searching.objectives.parse_objectives`.
        evaluator: gives at least the metrics of objectives and constraints; a NaN or infinite value is a failure.
        sampler: a name of `nas.searching.samplers.list_samplers()` or any Optuna sampler.
        storage: None (in memory), a path (journal file), a database URL or an Optuna storage.
        constraints: such as `"pixel3_latency_ms <= 8"`; architectures that break one are kept off the front.
        progress: called at the start and after each evaluation with how far the search is.
        name: of the study in the storage.
        sampler_options: further options of `nas.searching.samplers.create_sampler` for a sampler given by name.
        prior: prior observations, in the order of the evaluator's metrics. They come first and do not count.
        seconds: no evaluation begins after so long, since this call. With 0, the search is begun for workers to join,
            whom this does not limit.
        patience: evaluations in a row that do not improve the front, after which the search ends.
        joins: this process joins a search that was begun elsewhere: its machine may be another one.
        weights: folder of this search alone, in which the trained weights of its front are kept.
        jobs: processes that share the search. More than one need a storage, a sampler by name, and an evaluator that
            another process can open (`nas.searching.sources`). They share the GPUs, where the evaluator uses them.
        callbacks: called with the study and each trial that finished since this call, in any process, as in Optuna's
            `Study.optimize`; for trackers see `nas.searching.tracking`.

    Raises InputError for bad settings, for a stored study that was begun with other ones or on other networks or data
    (`nas.searching.identity`), for an unusable storage, and after ten failed evaluations in a row.
    """
    if isinstance(evaluator, TableEvaluator):
        space = among_rows(space, evaluator.rows)
    reader = TrialReader(space, parse_objectives(objectives), parse_constraints(constraints))
    check_metrics(reader.metrics, evaluator.metrics)
    check_repeatable(space)
    origin = begun_with(space, reader.objectives, reader.constraints, evaluator)
    check_jobs(jobs, storage, sampler, origin["source"])
    origin["settings"] |= {
        "sampler": sampler if isinstance(sampler, str) else type(sampler).__name__,
        "sampler_options": dict(sampler_options or {}),
        "seed": seed,
    }
    if isinstance(sampler, str):
        sampler = create_sampler(
            sampler, space, reader.objectives, seed, constraints=reader.constraints, **(sampler_options or {})
        )
    study = open_study(storage, name, reader.objectives, sampler_of_rows(sampler, space, seed), origin, joins)
    if prior:
        add_prior_observations(study, reader, prior, evaluator.metrics)
    limits = Limits(evaluations, time.time() + seconds, patience)
    if not joins:
        (limits if seconds else limits._replace(until=math.inf)).store(study)
        if weights:
            study.set_user_attr(WEIGHTS_FOLDER_KEY, str(Path(weights).absolute()))
    folder = WeightFolder(Path(weights)) if weights else None
    with helpers(jobs - 1, evaluator, storage, name), Worker(study) as worker:
        loop = _Search(study, reader, evaluator, np.random.default_rng(seed), worker, folder, callbacks)
        loop.run(limits, progress)
    return SearchResult.of_study(study, reader)


def open_study(
    storage: str | Path | BaseStorage | None,
    name: str,
    objectives: Sequence[Metric],
    sampler: BaseSampler,
    origin: dict[str, Any],
    joins: bool,
) -> optuna.Study:
    """The stored study, or a new one; a stored one must have been begun with the same, unless it is unused."""
    directions = [objective.direction for objective in objectives]
    study = optuna.create_study(
        storage=open_storage(storage), sampler=sampler, study_name=name, directions=directions, load_if_exists=True
    )
    keys = {"settings": SETTINGS_KEY, "source": SOURCE_KEY, "identity": IDENTITY_KEY}
    stored = {part: study.user_attrs.get(key) for part, key in keys.items()}
    foreign = [direction.name.lower() for direction in study.directions] != directions
    if stored["settings"] is None and (foreign or study.get_trials(deepcopy=False)):
        raise InputError(f"study {name!r} in {address(storage)} was not made by a search: give another name or storage")
    same_kind = (stored["source"] or {}).keys() == origin["source"].keys()
    if stored["settings"] is not None and same_kind and not joins and is_unused(study):
        check_same(address(storage), {**origin, "settings": stored["settings"]}, origin)
        for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            optuna_adapter.fail(study, trial)
        stored["settings"] = None
    if stored["settings"] is None:
        for part, key in reversed(keys.items()):  # the settings last: a study with settings has all of them
            study.set_user_attr(key, origin[part])
    else:
        check_same(address(storage), {part: value or {} for part, value in stored.items()}, origin, joins)
    return study


class Limits(NamedTuple):
    """What ends a search: evaluations, a time of `time.time`, evaluations in a row without a better front."""

    evaluations: int
    until: float
    patience: float

    def store(self, study: optuna.Study) -> None:
        """Write them into the study, so that workers keep to them."""
        study.set_user_attr(EVALUATIONS_KEY, self.evaluations)
        shared = {name: getattr(self, name) for name in ("until", "patience")}
        study.set_user_attr(LIMITS_KEY, {name: value for name, value in shared.items() if value < math.inf})


class _Search:
    """The loop of one process; everything that must survive it is in the study."""

    def __init__(
        self,
        study: optuna.Study,
        reader: TrialReader,
        evaluator: Evaluator,
        rng: np.random.Generator,
        worker: Worker,
        weights: WeightFolder | None,
        callbacks: Sequence[Callable[[optuna.Study, optuna.trial.FrozenTrial], None]] = (),
    ) -> None:
        self.study = study
        settings = study.user_attrs[SETTINGS_KEY]
        self.label = f"{settings['sampler']}-{settings['seed']}"  # in the log, as the search's journal is named
        self.weights = weights
        self.callbacks = callbacks
        self.worker = worker
        self.reader = reader
        self.evaluator = evaluator
        self.columns = [evaluator.metrics.index(metric) for metric in reader.metrics]
        self.rng = rng
        self.observed: dict[Architecture, np.ndarray] = {}
        self.front = GrowingFront(len(reader.objectives))
        self.prior = 0  # observations that were there before the search
        self.failures: list[str] = []  # reasons of the evaluations that failed in a row, since this process began
        self.stale = 0  # evaluations since the last improvement of the front, without prior observations
        self._read = 0
        self._unfinished: list[int] = []  # trial ids
        self._sync(begins=True)
        self.failures.clear()  # what made them fail may have been mended
        self.interrupted = self._running if worker.alone else []
        if self._read or not worker.alone:
            study.sampler.reseed_rng()  # or it would repeat its earlier proposals

    @property
    def done(self) -> int:
        """Evaluations so far."""
        return len(self.observed) - self.prior

    def run(self, limits: Limits, progress: Callable[[SearchProgress], None] | None) -> None:
        repeats = 0
        if progress:
            progress(self._progress(limits.evaluations))
        while self.done < limits.evaluations and self.stale < limits.patience:
            if time.time() >= limits.until:
                return
            self.worker.reclaim_stale_trials()
            if self.done + self.worker.others_at_work(self._running) >= limits.evaluations:
                time.sleep(_POLL_SECONDS)
                before = self.done
                self._sync()
                if progress and self.done > before:
                    progress(self._progress(limits.evaluations))
                continue
            if len(self.failures) >= MAX_FAILURES:
                raise InputError(f"{len(self.failures)} evaluations in a row failed; the last: {self.failures[-1]}")
            if repeats == MAX_REPEATS:
                fresh = random_unseen(self.reader.space, self.observed.keys(), self.rng)
                if fresh is None:
                    return
                self.study.enqueue_trial(fresh.as_dict())
                repeats = 0
            trial = self._next_trial()
            if self.worker.is_fatal(trial):
                self._fail(trial, f"{MAX_TAKEN_UP + 1} processes ended over it: it may take too much memory")
                self._sync()
                continue
            with self.worker.evaluating(trial):
                new = self._step(trial)
            repeats = 0 if new else repeats + 1
            self._sync()
            if new and progress:
                progress(self._progress(limits.evaluations))

    def _progress(self, wanted: int) -> SearchProgress:
        points, objectives = self.front.points, self.reader.objectives
        losses = points.min(axis=0).tolist() if len(points) else []
        best = {o.name: o.sign * loss for o, loss in zip(objectives, losses, strict=False)}
        return SearchProgress(self.done, wanted, len(points), self.front.hypervolume, best)

    def _next_trial(self) -> optuna.Trial:
        while self.interrupted:
            trial_id = optuna_adapter.trial_id(self.interrupted.pop(0))
            if optuna_adapter.stored_trial(self.study, trial_id).state == TrialState.RUNNING:
                # A trial object of the stored trial keeps the choices already made and asks the sampler for the others.
                return optuna.Trial(self.study, trial_id)
        return self.worker.ask()

    def _step(self, trial: optuna.Trial) -> bool:
        """Evaluate one trial and store its values. False if no other architecture was evaluated than before."""
        try:
            architecture = self.reader.space.choose(trial)
        except StorageError:
            raise
        except InputError as error:
            self._fail(trial, describe(error))
            return False
        self.reader.remember(architecture)
        if architecture in self.observed:
            trial.set_user_attr("repeat", True)
            self._tell(trial, self.observed[architecture])
            return False
        try:
            values = evaluate_one(self.evaluator, architecture, TrialRecord(self.study, trial, self.weights))
        except (StorageError, EvaluatorError):
            raise
        except Exception as error:
            self._fail(trial, describe(error))
            return True
        self._tell(trial, values[self.columns])
        return True

    def _fail(self, trial: optuna.Trial, reason: str) -> None:
        trial.set_user_attr(FAILED_KEY, reason)
        self.study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)

    def _tell(self, trial: optuna.Trial, values: np.ndarray) -> None:
        # Another worker may have reclaimed and finished the trial, if this one was silent for too long.
        if reason := self.reader.reason(values):
            self._fail(trial, reason)
            return
        told = trial.constraints if self.reader.constraints else {}
        for constraint in self.reader.constraints:
            if str(constraint) not in told:
                value = values[self.reader.metrics.index(constraint.metric)]
                trial.set_constraint(str(constraint), float(constraint.violation(value)))
        self.study.tell(trial, values[: len(self.reader.objectives)].tolist(), skip_if_finished=True)

    def _sync(self, begins: bool = False) -> None:
        """Read the trials that finished since the last call, in this process or another one; all when a search begins.

        Those that finished since it began are logged, and passed to the callbacks.
        """
        trials = list(self._changing())
        self._unfinished = [optuna_adapter.trial_id(trial) for trial in trials if not trial.state.is_finished()]
        self._running = [trial for trial in trials if trial.state == TrialState.RUNNING]
        for trial in trials if self.weights else ():
            self._settle_weights(trial)
        for trial in filter(is_evaluated, trials):
            if not begins:
                log.info("%s, %s", self.label, describe_trial(trial, self.reader))
                for callback in self.callbacks:
                    callback(self.study, trial)
            architecture = self.reader.architecture(trial.params)
            if architecture is not None and architecture not in self.observed:
                self.observed[architecture] = self.reader.values(trial)
                failed = trial.user_attrs.get(FAILED_KEY)
                self.failures = [*self.failures, failed] if failed else []
                improved = self._improves(self.observed[architecture])
                is_prior = PRIOR_KEY in trial.user_attrs
                self.prior += is_prior
                self.stale = 0 if improved else self.stale + (not is_prior)

    def _settle_weights(self, trial: optuna.trial.FrozenTrial) -> None:
        """Keep the weights of a trial that is on the front, and remove those of one that is not or was given up."""
        assert self.weights is not None
        architecture = self.reader.architecture(trial.params)
        if trial.state.is_finished() and architecture is not None:
            self.weights.settle(architecture, trial.number, self._front_losses(self.reader.values(trial)))

    def _changing(self) -> Iterator[optuna.trial.FrozenTrial]:
        """Trials that were unfinished at the last call, and those that began since.

        Few trials are read one by one, since reading the whole study takes the longer the more trials it has.
        """
        if not self._read or len(self._unfinished) > _MANY_UNFINISHED:
            trials, unfinished = self.study.get_trials(deepcopy=False), set(self._unfinished)
            yield from (t for t in trials if t.number >= self._read or optuna_adapter.trial_id(t) in unfinished)
            self._read = len(trials)
            return
        yield from (optuna_adapter.stored_trial(self.study, trial_id) for trial_id in self._unfinished)
        with suppress(KeyError):
            while True:
                trial_id = optuna_adapter.trial_id_of_number(self.study, self._read)
                self._read += 1
                yield optuna_adapter.stored_trial(self.study, trial_id)

    def _improves(self, values: np.ndarray) -> bool:
        """True if an evaluation (metrics,) improves the front. It is then added to the front."""
        losses = self._front_losses(values)
        return losses is not None and self.front.add(losses)

    def _front_losses(self, values: np.ndarray) -> np.ndarray | None:
        """Losses (m,) of an evaluation (metrics,); None where it failed or broke a constraint."""
        losses = self.reader.losses(values)
        return losses if np.isfinite(losses).all() and self.reader.violation(values) <= 0 else None
