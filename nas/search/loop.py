"""The search loop: ask a sampler for architectures, evaluate them, and store everything in an
Optuna study.
"""

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
from nas.search.candidates import random_unseen
from nas.search.evaluators import as_evaluator
from nas.search.objectives import (
    ConstraintsLike,
    ObjectivesLike,
    parse_constraints,
    parse_objectives,
)
from nas.search.prior import PriorObservations, add_prior_observations
from nas.search.progress import GrowingFront, SearchProgress, watched
from nas.search.rows import among_rows, sampler_of_rows
from nas.search.samplers import check_objectives, create_sampler
from nas.search.study.files import WeightFolder
from nas.search.study.provenance import check_same, is_unused, note_unknown, provenance_of
from nas.search.study.result import SearchResult
from nas.search.study.schema import (
    EVALUATIONS_KEY,
    FAILED_KEY,
    IDENTITY_KEY,
    LIMITS_KEY,
    PRIOR_KEY,
    REPEAT_KEY,
    SETTINGS_KEY,
    SOURCE_KEY,
    WEIGHTS_FOLDER_KEY,
    sampler_label,
)
from nas.search.study.storage import (
    address,
    fail_trial,
    name_metrics,
    open_storage,
    stored_trial,
    trial_id,
    trial_id_of_number,
)
from nas.search.study.trial_logger import TrialLogger
from nas.search.study.trials import (
    PRUNED_REASON,
    TrialReader,
    describe_trial,
    is_evaluated,
    why_pruned,
)
from nas.search.study.workers import FATAL, Share, Worker, check_jobs, helpers
from predictors.metrics import Metric
from search_spaces.common import plug_ins
from search_spaces.common.errors import EvaluatorError, InputError, StorageError, describe
from search_spaces.common.seeds import check_seed
from search_spaces.common.threads import with_few_threads
from search_spaces.repeatable import check_repeatable

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage

    from nas.search.evaluators import Evaluator
    from search_spaces import Architecture, SearchSpace

log = logging.getLogger(__name__)
RESULT_VERSION = 16  # raise it whenever a search with the same seed evaluates other architectures
MAX_REPEATS = 50  # after so many repeated architectures in a row, a random new one is evaluated
# After so many trials in a row without an evaluation, a search ends: it would run for ever
MAX_FRUITLESS = 500
MAX_FAILURES = 10  # after so many failed evaluations in a row, the search ends with an error
_POLL_SECONDS = 0.2  # between two checks whether other workers have finished
_MANY_UNFINISHED = 20  # with more unfinished trials, all trials are read at once


@with_few_threads
def run_search(
    space: SearchSpace,
    objectives: ObjectivesLike,
    evaluator: Evaluator,
    *,
    sampler: str | BaseSampler,
    evaluations: int,
    seed: int = 0,
    storage: str | Path | BaseStorage | None = None,
    constraints: ConstraintsLike = None,
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
    share: Share | None = None,
    depends: Iterable[str | Path] = (),
) -> SearchResult:
    """Evaluate `evaluations` distinct architectures and return the result.

    An architecture that the sampler proposes again gets its stored values and does not count. The
    search ends early if the space has fewer architectures. An evaluation fails if it raises an
    exception or returns a value that is not valid: not a number, or above
    `predictors.metrics.MAX_VALUE`. A failed evaluation counts, its reason is stored, and ten in a
    row end the search. An evaluation that raises `optuna.TrialPruned` has failed, too, but any
    number of them may follow each other. A trial whose choices `build` rejects fails without
    counting, but a search ends after `MAX_FRUITLESS` trials in a row that are rejected or repeat an
    architecture.

    With a storage, an interrupted search resumes, even after SIGKILL: the trial that was being
    evaluated is finished first, and nothing is evaluated twice. Several processes may work on one
    study. An uninterrupted search gives the same result for the same seed.

    Args:
        space: the search space.
        objectives: metric names, see `nas.search.objectives.parse_objectives`.
        evaluator: gives at least the metrics of objectives and constraints.
        sampler: a name of `nas.search.samplers.list_samplers()`, `FILE.py:CLASS`, or any Optuna
            sampler.
        evaluations: number of evaluations in the study, without prior observations.
        seed: of a sampler given by name, and of the loop's own random choices.
        storage: None (in memory), a path (journal file), a database URL or an Optuna storage.
        constraints: such as `"pixel3_latency_ms <= 8"`. Architectures that violate one stay off the
            front.
        progress: called with the progress at the start, after each evaluation, and, by another
            thread, when other processes finish evaluations in the meantime.
        name: the study's name in the storage.
        sampler_options: further options of `nas.search.samplers.create_sampler` for a sampler given
            by name.
        prior: prior observations, in the order of the evaluator's metrics. They come first and do
            not count.
        seconds: time limit since this call, after which no evaluation starts. With 0, the search is
            only prepared for workers, which have no time limit.
        patience: the search ends after so many evaluations in a row that do not improve the front.
        joins: this process joins a search that another one started, perhaps on another machine.
        weights: folder for the trained weights of the front, not shared with other searches.
        jobs: processes that share the search. More than one needs a storage, a sampler given by
            name, and an evaluator that another process can open (`Evaluator.source`). GPUs are
            assigned to them in turn.
        callbacks: called with the study and each trial that has finished since this call, in any
            process, as in Optuna's `Study.optimize`. For trackers see `nas.search.tracking`.
        share: what this process may evaluate, in addition to the limits of the search; it is used
            up.
        depends: files and folders that the evaluator or `build` reads, such as a configuration. The
            search resumes only with the same contents.

    Returns:
        The evaluated architectures, their values and the Pareto front.

    Raises:
        InputError: bad settings, a stored study with other settings, networks or data
            (`nas.search.study.provenance`), an unusable storage, or ten failed evaluations in a row.
    """
    evaluator = as_evaluator(evaluator)
    space = among_rows(space, evaluator.rows)
    reader = TrialReader(space, parse_objectives(objectives), parse_constraints(constraints))
    check_metrics(reader.metrics, evaluator.metrics)
    check_repeatable(space)
    origin = provenance_of(space, reader.objectives, reader.constraints, evaluator, depends)
    if storage is not None:
        note_unknown(space, evaluator)
    check_jobs(jobs, storage, sampler, origin["source"])
    origin["settings"] |= {
        "sampler": plug_ins.absolute(sampler)
        if isinstance(sampler, str)
        else type(sampler).__name__,
        "sampler_options": dict(sampler_options or {}),
        "seed": check_seed(seed),
    }
    if isinstance(sampler, str):
        sampler = create_sampler(
            sampler,
            space,
            reader.objectives,
            seed,
            constraints=reader.constraints,
            **(sampler_options or {}),
        )
    check_objectives(sampler, len(reader.objectives))
    study = open_study(
        storage, name, reader.objectives, sampler_of_rows(sampler, space, seed), origin, joins
    )
    if prior:
        add_prior_observations(study, reader, prior, evaluator.metrics)
    limits = Limits(evaluations, time.time() + seconds, patience)
    if not joins:
        (limits if seconds else limits._replace(until=math.inf)).store(study)
        if weights:
            study.set_user_attr(WEIGHTS_FOLDER_KEY, str(Path(weights).absolute()))
    folder = WeightFolder(Path(weights)) if weights else None
    others = helpers(jobs - 1, evaluator, storage, name, share, origin["identity"]["depends"])
    with others, Worker(study) as worker:
        loop = _Search(
            study, reader, evaluator, np.random.default_rng(seed), worker, folder, callbacks
        )
        shared = (
            progress if storage is not None else None
        )  # nobody else finishes anything in memory
        with watched(shared, lambda: loop.look(limits.evaluations)) as report:
            loop.run(limits, report or progress, share or Share())
    return SearchResult.of_study(study, reader)


def open_study(
    storage: str | Path | BaseStorage | None,
    name: str,
    objectives: Sequence[Metric],
    sampler: BaseSampler,
    origin: dict[str, Any],
    joins: bool,
) -> optuna.Study:
    """Load or create the study.

    Args:
        origin: settings, source and identity, see `nas.search.study.provenance.provenance_of`.
        joins: this process joins a search that another one started.

    Raises:
        InputError: the stored study is already in use with another origin, or was not made by a
            search.
    """
    directions = [objective.direction for objective in objectives]
    study = optuna.create_study(
        storage=open_storage(storage),
        sampler=sampler,
        study_name=name,
        directions=directions,
        load_if_exists=True,
    )
    keys = {"settings": SETTINGS_KEY, "source": SOURCE_KEY, "identity": IDENTITY_KEY}
    stored = {part: study.user_attrs.get(key) for part, key in keys.items()}
    foreign = [direction.name.lower() for direction in study.directions] != directions
    if stored["settings"] is None and (foreign or study.get_trials(deepcopy=False)):
        raise InputError(
            f"study {name!r} in {address(storage)} was not made by a search: give another name or "
            "storage"
        )
    same_kind = (stored["source"] or {}).keys() == origin["source"].keys()
    changed = stored["settings"] not in (None, origin["settings"])
    if changed and same_kind and not joins and is_unused(study):
        check_same(address(storage), {**origin, "settings": stored["settings"]}, origin)
        for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            fail_trial(study, trial)
        stored["settings"] = None
    if stored["settings"] is None:
        for part, key in reversed(
            keys.items()
        ):  # settings last: a study that has them has the other parts, too
            study.set_user_attr(key, origin[part])
        name_metrics(study, [objective.name for objective in objectives])
    else:
        check_same(
            address(storage), {part: value or {} for part, value in stored.items()}, origin, joins
        )
    return study


class Limits(NamedTuple):
    """Limits of a search.

    Attributes:
        evaluations: number of evaluations.
        until: time after which no evaluation starts, in seconds since 1970.
        patience: number of evaluations in a row without a better front after which the search ends.
    """

    evaluations: int
    until: float
    patience: float

    def store(self, study: optuna.Study) -> None:
        """Write the limits into the study, where workers read them."""
        study.set_user_attr(EVALUATIONS_KEY, self.evaluations)
        shared = {name: getattr(self, name) for name in ("until", "patience")}
        study.set_user_attr(
            LIMITS_KEY, {name: value for name, value in shared.items() if value < math.inf}
        )


class _Search:
    """The loop of one process. All lasting state is in the study."""

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
        self.label = f"{sampler_label(settings['sampler'])}-{settings['seed']}"  # in the log
        self.weights = weights
        self.callbacks = callbacks
        self.worker = worker
        self.reader = reader
        self.evaluator = evaluator
        self.rng = rng
        self.observed: dict[Architecture, np.ndarray] = {}
        self.front = GrowingFront(len(reader.objectives))
        self.prior = 0  # number of prior observations
        self.rejected: list[
            str
        ] = []  # why `build` rejected the choices of the latest trials without an evaluation
        self.failures: list[
            str
        ] = []  # reasons of the latest evaluations, as far back as all failed
        # Evaluations since the last improvement of the front, without prior observations
        self.stale = 0
        self._last = SearchProgress(0, 0, 0, 0.0, {})  # as reported
        self._read = 0  # trials with lower numbers have been read
        self._unfinished: list[int] = []  # trial ids
        self._sync(begins=True)
        self.failures.clear()  # the cause of earlier failures may have been fixed
        if self._read > self.prior or not worker.alone:
            study.sampler.reseed_rng()  # otherwise the sampler would repeat its earlier proposals

    @property
    def done(self) -> int:
        """Number of evaluations so far, without prior observations."""
        return len(self.observed) - self.prior

    def run(
        self, limits: Limits, progress: Callable[[SearchProgress], None] | None, share: Share
    ) -> None:
        repeats = fruitless = (
            0  # trials in a row without an evaluation, since a random one and in all
        )
        if progress:
            progress(self._progress(limits.evaluations))
        while self.done < limits.evaluations and self.stale < limits.patience:
            if time.time() >= limits.until or share.is_used_up:
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
                raise InputError(
                    f"{len(self.failures)} evaluations in a row failed; the last: "
                    f"{self.failures[-1]}"
                )
            if fruitless == MAX_FRUITLESS:
                self._end_fruitless()
                return
            if repeats == MAX_REPEATS:
                fresh = random_unseen(self.reader.space, self.observed.keys(), self.rng)
                if fresh is None:
                    return
                self.study.enqueue_trial(fresh.as_dict())
                repeats = 0
            trial = self._next_trial()
            if self.worker.is_fatal(trial):
                self._fail(trial, FATAL)
                self._sync()
                continue
            with self.worker.evaluating(trial):
                new = self._step(trial)
            share.evaluations -= new
            before = self.done
            self._sync()
            if self.done > before:  # by any process
                repeats = fruitless = 0
                self.rejected.clear()
            else:
                repeats, fruitless = repeats + 1, fruitless + 1
            if new and progress:
                progress(self._progress(limits.evaluations))

    def _end_fruitless(self) -> None:
        """End a search whose trials evaluate nothing, with an error if `build` rejects their
        choices.
        """
        if self.rejected:
            raise InputError(
                f"none of {MAX_FRUITLESS} trials in a row made a new network, and `build` rejected "
                "the choices of "
                f"{len(self.rejected)}; the last: {self.rejected[-1]}"
            )
        log.warning(
            "%s: %d trials in a row repeated evaluated networks: the search ends",
            self.label,
            MAX_FRUITLESS,
        )

    def look(self, wanted: int) -> SearchProgress:
        """The progress with what other processes have finished since the last `_sync`; another
        thread may call it.
        """
        trials = self.study.get_trials(
            deepcopy=False, states=(TrialState.COMPLETE, TrialState.FAIL)
        )
        finished = {
            str(t.params) for t in trials if is_evaluated(t) and PRIOR_KEY not in t.user_attrs
        }
        return self._last._replace(done=min(max(self._last.done, len(finished)), wanted))

    def _progress(self, wanted: int) -> SearchProgress:
        points, objectives = self.front.points, self.reader.objectives
        losses = points.min(axis=0).tolist() if len(points) else []
        best = {o.name: o.sign * loss for o, loss in zip(objectives, losses, strict=False)}
        self._last = SearchProgress(self.done, wanted, len(points), self.front.hypervolume, best)
        return self._last

    def _next_trial(self) -> optuna.Trial:
        while self.worker.interrupted:
            trial_id = self.worker.interrupted.pop(0)
            if stored_trial(self.study, trial_id).state == TrialState.RUNNING:
                # This trial object keeps the choices already made and asks the sampler for the
                # others.
                return optuna.Trial(self.study, trial_id)
        return self.worker.ask()

    def _step(self, trial: optuna.Trial) -> bool:
        """Evaluate one trial and store its values. False if it evaluated no new architecture."""
        try:
            architecture = self.reader.space.choose(trial)
        except InputError as error:
            self.rejected.append(describe(error))
            self._fail(trial, self.rejected[-1])
            return False
        self.reader.remember(architecture)
        if architecture in self.observed:
            trial.set_user_attr(REPEAT_KEY, True)
            self._tell(trial, self.observed[architecture])
            return False
        record = TrialLogger(self.study, trial, self.weights)
        try:
            observed = self.evaluator.measure(architecture, record)
            values = self.evaluator.train(architecture, observed, record)
        except (StorageError, EvaluatorError):
            raise
        except optuna.TrialPruned as error:
            self._fail(trial, why_pruned(error))
            return True
        except Exception as error:
            self._fail(trial, describe(error))
            return True
        record.identify_architecture(self.reader.space, architecture)
        self._tell(trial, np.array([values[metric] for metric in self.reader.metrics]))
        return True

    def _fail(self, trial: optuna.Trial, reason: str) -> None:
        trial.set_user_attr(FAILED_KEY, reason)
        self.study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)

    def _tell(self, trial: optuna.Trial, values: np.ndarray) -> None:
        # Another worker may have reclaimed and finished the trial if this one sent no heartbeat for
        # too long.
        if reason := self.reader.reason(values):
            self._fail(trial, reason)
            return
        stored = trial.constraints if self.reader.constraints else {}
        for constraint in self.reader.constraints:
            if str(constraint) not in stored:
                value = values[self.reader.metrics.index(constraint.metric)]
                trial.set_constraint(str(constraint), float(constraint.violation(value)))
        self.study.tell(
            trial, values[: len(self.reader.objectives)].tolist(), skip_if_finished=True
        )

    def _sync(self, begins: bool = False) -> None:
        """Read the trials that any process has finished since the last call.

        begins: read all trials at the start of the loop, without logging them or passing them to
            callbacks.
        """
        trials = list(self._changing())
        self._unfinished = [trial_id(trial) for trial in trials if not trial.state.is_finished()]
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
                if not failed:
                    self.failures.clear()
                elif not failed.startswith(PRUNED_REASON):
                    self.failures.append(failed)
                improved = self._improves(self.observed[architecture])
                is_prior = PRIOR_KEY in trial.user_attrs
                self.prior += is_prior
                self.stale = 0 if improved else self.stale + (not is_prior)

    def _settle_weights(self, trial: optuna.trial.FrozenTrial) -> None:
        """Keep the weights of a finished trial if it is on the front; remove those of dominated and
        failed trials.
        """
        assert self.weights is not None
        architecture = self.reader.architecture(trial.params)
        if trial.state.is_finished() and architecture is not None:
            self.weights.settle(
                architecture, trial.number, self._front_losses(self.reader.values(trial))
            )

    def _changing(self) -> Iterator[optuna.trial.FrozenTrial]:
        """Trials that were unfinished at the last call, and new ones.

        A few unfinished trials are read one by one, because reading a whole study takes longer the
        more trials it has.
        """
        if not self._read or len(self._unfinished) > _MANY_UNFINISHED:
            trials, unfinished = self.study.get_trials(deepcopy=False), set(self._unfinished)
            yield from (t for t in trials if t.number >= self._read or trial_id(t) in unfinished)
            self._read = len(trials)
            return
        yield from (stored_trial(self.study, trial_id) for trial_id in self._unfinished)
        with suppress(KeyError):
            while True:
                trial_id = trial_id_of_number(self.study, self._read)
                self._read += 1
                yield stored_trial(self.study, trial_id)

    def _improves(self, values: np.ndarray) -> bool:
        """Add an evaluation (metrics,) to the front. False if it does not improve the front."""
        losses = self._front_losses(values)
        return losses is not None and self.front.add(losses)

    def _front_losses(self, values: np.ndarray) -> np.ndarray | None:
        """Losses (m,) of an evaluation (metrics,); None if it failed or violates a constraint."""
        losses = self.reader.losses(values)
        return losses if np.isfinite(losses).all() and self.reader.violation(values) <= 0 else None
