"""The search: ask for a network, evaluate it, tell the study.

There is one loop. An ordinary search trains each network to the end; a search with fidelities trains
it from one fidelity to the next, and only full trainings count for the front. What is evaluated next
is a planner's decision (`nas.search.planners`). Everything that must survive the process is in the
study (`nas.search.study`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import optuna
from optuna.trial import TrialState

from nas.evaluation.metrics import check_metrics
from nas.search.evaluators import Evaluator, EvaluatorLike, as_evaluator
from nas.search.history import History
from nas.search.objectives import (
    ConstraintsLike,
    ObjectivesLike,
    parse_constraints,
    parse_objectives,
)
from nas.search.planners import Planner, SamplerPlanner
from nas.search.policy_planner import PolicyPlanner
from nas.search.prior import add_prior_observations
from nas.search.progress import SearchProgress, watched
from nas.search.rows import among_rows
from nas.search.settings import SearchSettings
from nas.search.study.files import WeightFolder
from nas.search.study.provenance import note_unknown, open_study, provenance_of
from nas.search.study.result import SearchResult
from nas.search.study.schema import (
    CHECKPOINTS_KEY,
    FAILED_KEY,
    MEASURE_SECONDS_KEY,
    NETWORK_KEY,
    REPEAT_KEY,
    RULED_OUT_KEY,
    SETTINGS_KEY,
    SPREAD_KEY,
    VALUES_KEY,
    WEIGHTS_FOLDER_KEY,
    sampler_label,
)
from nas.search.study.storage import prune_trial
from nas.search.study.trial_logger import TrialLogger
from nas.search.study.trials import TrialReader, describe_trial, has_result, why_pruned
from nas.search.study.workers import FATAL, Share, Worker, check_jobs, helpers
from nas.search.trainings import Segment
from predictors.metrics import is_valid
from search_spaces.common.errors import (
    EvaluatorError,
    InputError,
    MeasurementError,
    StorageError,
    describe,
)
from search_spaces.common.process import with_few_threads
from search_spaces.space import check_repeatable

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from search_spaces import Architecture, SearchSpace

log = logging.getLogger(__name__)
RESULT_VERSION = 25  # raise it whenever a search with the same seed evaluates other architectures
MAX_FAILURES = 10  # after so many failed evaluations in a row, the search ends with an error
# After so many networks in a row that break a constraint before their training, the search ends
MAX_RULED_OUT = 1000
_POLL_SECONDS = 0.2  # between two checks whether other workers have finished

Callback = Callable[[optuna.Study, "FrozenTrial"], None]


@with_few_threads
def run_search(
    space: SearchSpace,
    objectives: ObjectivesLike,
    evaluator: Evaluator | EvaluatorLike,
    settings: SearchSettings,
    *,
    constraints: ConstraintsLike = None,
    progress: Callable[[SearchProgress], None] | None = None,
    callbacks: Sequence[Callback] = (),
    share: Share | None = None,
) -> SearchResult:
    """Evaluate distinct architectures until the search's limits, and return the result.

    An architecture that the sampler proposes again gets its stored values and does not count. A
    network whose measured metrics break a constraint is not trained and does not count; the search
    ends after `MAX_RULED_OUT` of them in a row. The search ends early if the space has fewer
    architectures. An evaluation fails if it raises an exception or returns a value that is not
    valid: not a number, or above `predictors.metrics.MAX_VALUE`. A failed evaluation counts, its
    reason is stored, and ten in a row end the search. An evaluation that raises
    `optuna.TrialPruned` has failed, too, but any number of them may follow each other. A trial whose
    choices `build` rejects fails without counting, but a search ends after
    `nas.search.planners.MAX_FRUITLESS` trials in a row that are rejected or repeat an architecture.

    With a storage, an interrupted search resumes, even after SIGKILL: the trial that was being
    evaluated is finished first, and nothing is evaluated twice. Several processes may work on one
    study. An uninterrupted search gives the same result for the same seed.

    Args:
        space: the search space.
        objectives: metric names, see `nas.search.objectives.parse_objectives`.
        evaluator: gives at least the metrics of objectives and constraints.
        settings: how the problem is searched.
        constraints: such as `"pixel3_latency_ms <= 8"`. Architectures that violate one stay off the
            front.
        progress: called with the progress at the start, after each evaluation, and, by another
            thread, when other processes finish evaluations in the meantime.
        callbacks: called with the study and each trial that has finished since this call, in any
            process, as in Optuna's `Study.optimize`. For trackers see `nas.search.tracking`.
        share: what this process may evaluate, in addition to the limits of the search; it is used
            up.

    Returns:
        The evaluated architectures, their values and the Pareto front.

    Raises:
        InputError: bad settings, a stored study with other settings, networks or data
            (`nas.search.study.provenance`), an unusable storage, or ten failed evaluations in a
            row.
    """
    # 1. The problem. A table with missing rows is a space of its own.
    evaluator = as_evaluator(evaluator)
    space = among_rows(space, evaluator.rows)
    reader = TrialReader(space, parse_objectives(objectives), parse_constraints(constraints))
    check_metrics(reader.metrics, evaluator.metrics)
    check_jobs(settings, evaluator)
    check_repeatable(space)

    # 2. What decides which network is next, and when the search ends.
    if settings.fidelities is None:
        planner: Planner = SamplerPlanner(reader, evaluator, settings)
    else:
        planner = PolicyPlanner(reader, evaluator, settings)

    # 3. The study, which remembers all that its values depend on.
    if settings.storage is not None:
        note_unknown(reader.space, evaluator)
    provenance = provenance_of(reader, evaluator, settings.depends)
    provenance["settings"] |= planner.settings
    study = open_study(settings, reader.objectives, planner.sampler, provenance)
    if settings.prior:
        add_prior_observations(study, reader, settings.prior, evaluator.metrics, evaluator)
    if not settings.joins:
        planner.store_limits(study)
        if evaluator.checkpoints and settings.fidelities:
            study.set_user_attr(CHECKPOINTS_KEY, str(Path(evaluator.checkpoints).absolute()))
        if settings.weights:
            study.set_user_attr(WEIGHTS_FOLDER_KEY, str(Path(settings.weights).absolute()))
    if settings.prepares:
        return SearchResult.of_study(study, reader)

    # 4. The loop of this process, beside those of helpers and of workers elsewhere.
    weights = WeightFolder(Path(settings.weights)) if settings.weights else None
    with helpers(settings, evaluator, share), Worker(study) as worker:
        loop = _Loop(study, reader, evaluator, planner, worker, weights, callbacks)
        # In memory, nobody else finishes anything.
        shared = progress if settings.storage is not None else None
        with watched(shared, loop.look) as report:
            loop.run(report or progress, share or Share())
    return SearchResult.of_study(study, reader)


class _Loop:
    """The loop of one process: ask, evaluate, tell."""

    def __init__(
        self,
        study: optuna.Study,
        reader: TrialReader,
        evaluator: Evaluator,
        planner: Planner,
        worker: Worker,
        weights: WeightFolder | None,
        callbacks: Sequence[Callback],
    ) -> None:
        self.study, self.reader, self.evaluator = study, reader, evaluator
        self.planner, self.worker = planner, worker
        self.weights, self.callbacks = weights, callbacks
        settings = study.user_attrs[SETTINGS_KEY]
        self.label = f"{sampler_label(settings['sampler'])}-{settings['seed']}"  # in the log
        # Only a training that would be saved rules out a network.
        self.saves_training = any(metric in evaluator.trained for metric in reader.metrics)
        self.history = History(study, reader)
        for trial in self.history.update():
            self._settle_weights(trial)
        # The cause of earlier failures may have been fixed.
        self.history.failures.clear()
        self.history.ruled_out_in_a_row = 0
        planner.begin(study, self.history, worker)
        self._last = SearchProgress(0, 0, 0, None, {})  # as reported

    def run(self, progress: Callable[[SearchProgress], None] | None, share: Share) -> None:
        """Evaluate until the search, or the share of this process, ends."""
        if progress:
            progress(self._progress())
        while not self.planner.is_over and not share.is_used_up:
            self.worker.reclaim_stale_trials()
            self._check_failures()
            if self.history.ruled_out_in_a_row >= MAX_RULED_OUT:
                log.warning(
                    "%s: %d networks in a row broke a constraint before their training: the search "
                    "ends",
                    self.label,
                    self.history.ruled_out_in_a_row,
                )
                return

            # 1. Ask. Without a trial, other processes have to finish theirs first, or nothing is
            #    left. Others are looked for before and after reading what they have told: one that
            #    has just finished may have made room for another trial.
            trial = self.planner.next_trial()
            if trial is None:
                had_others = self._has_others()
                if self._sync() and progress:
                    progress(self._progress())
                if not had_others and not self._has_others():
                    return
                time.sleep(_POLL_SECONDS)
                continue

            if self.planner.shortlist is not None:
                self._sync()  # what the choice of this trial has measured

            # 2. Evaluate and tell.
            if self.worker.is_fatal(trial):
                self._fail(trial, FATAL)
                self._sync()
                continue
            with self.worker.evaluating(trial):
                is_evaluation = self._evaluate(trial)

            # 3. Read what this process and others have told.
            share.evaluations -= is_evaluation
            self._sync()
            self.planner.note_step()
            if is_evaluation and progress:
                progress(self._progress())

    def _has_others(self) -> bool:
        """True if other processes evaluate something."""
        return self.worker.others_at_work(self.history.running) > 0

    def _check_failures(self) -> None:
        """Raise InputError after too many failures in a row."""
        failures = self.history.failures
        if len(failures) >= MAX_FAILURES:
            raise InputError(
                f"{len(failures)} evaluations in a row failed; the last: {failures[-1]}"
            )

    def look(self) -> SearchProgress:
        """The progress, with what other processes have finished since the last report.

        Another thread may call it.
        """
        done = self.planner.done_in(self.study.get_trials(deepcopy=False))
        return self._last._replace(done=max(self._last.done, done))

    def _progress(self) -> SearchProgress:
        front = self.history.front
        best = {}
        if len(front.points):
            losses = front.points.min(axis=0).tolist()
            for objective, loss in zip(self.reader.objectives, losses, strict=True):
                best[objective.name] = objective.sign * loss
        done, total = self.planner.done
        volume = front.hypervolume if front.has_unit else None
        self._last = SearchProgress(done, total, len(front.points), volume, best)
        return self._last

    # --- one trial

    def _evaluate(self, trial: optuna.Trial) -> bool:
        """Evaluate a trial and tell the study. False if it evaluated no new network."""
        # 1. The network, unless `build` rejects the choices.
        try:
            architecture = self.reader.space.choose(trial)
            segment = self.planner.segment(trial)
        except InputError as error:
            self.planner.rejected.append(describe(error))
            self._fail(trial, self.planner.rejected[-1])
            return False
        self.reader.remember(architecture)

        # 2. An evaluated network gets its stored values, one that was ruled out none.
        if architecture in self.history.values:
            trial.set_user_attr(REPEAT_KEY, True)
            self._complete(trial, self.history.values[architecture])
            return False
        if architecture in self.history.ruled_out:
            trial.set_user_attr(REPEAT_KEY, True)
            prune_trial(self.study, trial)
            return False

        # 3. What needs no training, then the training.
        logger = TrialLogger(self.study, trial, self.weights)
        started = time.monotonic()
        observed = dict[str, float]()
        try:
            if (paused := self.planner.observed(architecture, segment)) is not None:
                observed = paused  # a paused training goes on, which broke no constraint before
            else:
                observed = self._measure(trial, architecture, logger)
                if broken := self._broken(observed):
                    self.planner.pay(trial, None, time.monotonic() - started, observed)
                    self._rule_out(trial, observed, broken)
                    return False
            values = self.evaluator.train(architecture, observed, logger, segment)
        except (StorageError, EvaluatorError):
            raise
        except MeasurementError as error:  # as of a runtime that cannot convert the network
            self.planner.pay(trial, None, time.monotonic() - started, observed)
            trial.set_user_attr(FAILED_KEY, describe(error))
            self._rule_out(trial, observed, describe(error))
            return False
        except Exception as error:
            seconds = time.monotonic() - started
            self.planner.pay(trial, segment, seconds, observed, logger.reported)
            if isinstance(error, optuna.TrialPruned):
                self._fail(trial, why_pruned(error))
            else:
                self._fail(trial, describe(error))
            return True

        # 4. The values, of a training that pauses or that has ended.
        self.planner.pay(trial, segment, time.monotonic() - started, values)
        self._tell(trial, architecture, segment, values, logger)
        return True

    def _measure(
        self, trial: optuna.Trial, architecture: Architecture, logger: TrialLogger
    ) -> dict[str, float]:
        """Values of the metrics that need no training.

        They are measured now, or taken over from the entry of a network that was measured before it
        was chosen.
        """
        if (entry := self.history.measured.get(architecture)) is not None:
            for key in {NETWORK_KEY, SPREAD_KEY} & entry.keys():
                trial.set_user_attr(key, entry[key])
            trial.set_user_attr(MEASURE_SECONDS_KEY, 0.0)
            return dict(entry[VALUES_KEY])
        started = time.monotonic()
        observed = self.evaluator.measure(architecture, logger)
        if self.planner.shortlist is not None:
            trial.set_user_attr(MEASURE_SECONDS_KEY, time.monotonic() - started)
        return observed

    def _broken(self, observed: Mapping[str, float]) -> str:
        """The constraint that measured values break, with the value; "" if there is none.

        It is also "" if the search trains nothing that ruling out the network would save.
        """
        return self.reader.broken(observed) if self.saves_training else ""

    def _rule_out(self, trial: optuna.Trial, observed: Mapping[str, float], broken: str) -> None:
        """End a trial before its training. Predictors learn from the measured values."""
        valid = {metric: float(value) for metric, value in observed.items() if is_valid(value)}
        trial.set_user_attr(VALUES_KEY, valid)
        trial.set_user_attr(RULED_OUT_KEY, broken)
        self._set_constraints(trial, valid)
        prune_trial(self.study, trial)

    def _tell(
        self,
        trial: optuna.Trial,
        architecture: Architecture,
        segment: Segment | None,
        values: Mapping[str, float],
        logger: TrialLogger,
    ) -> None:
        """Store the values of a training."""
        row = np.array([values[metric] for metric in self.reader.metrics])
        if segment is None or segment.is_last:
            logger.identify_architecture(self.reader.space, architecture)
        if reason := self.reader.reason(row):
            self._fail(trial, reason)
            return
        if segment is None:
            self._complete(trial, row)
            return
        trial.set_user_attr(VALUES_KEY, {metric: float(value) for metric, value in values.items()})
        if not segment.is_last:
            prune_trial(self.study, trial)
            return
        self._complete(trial, row)
        self.evaluator.forget(architecture)

    def _complete(self, trial: optuna.Trial, row: np.ndarray) -> None:
        """Finish a trial with values (metrics,); as failed if one is not valid."""
        # Another worker may have reclaimed and finished the trial if this one sent no heartbeat for
        # too long.
        if reason := self.reader.reason(row):
            self._fail(trial, reason)
            return
        self._set_constraints(trial, dict(zip(self.reader.metrics, row.tolist(), strict=True)))
        objectives = row[: len(self.reader.objectives)].tolist()
        self.study.tell(trial, objectives, skip_if_finished=True)

    def _set_constraints(self, trial: optuna.Trial, values: Mapping[str, float]) -> None:
        """Store how far the values are from each bound."""
        stored = trial.constraints if self.reader.constraints else {}
        for constraint, violation in self.reader.violations_of(values).items():
            if constraint not in stored:
                trial.set_constraint(constraint, violation)

    def _fail(self, trial: optuna.Trial, reason: str) -> None:
        trial.set_user_attr(FAILED_KEY, reason)
        self.study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)

    # --- what all processes have told

    def _sync(self) -> bool:
        """Handle the trials that any process has finished since the last call.

        It settles their weights, logs them and calls the callbacks. Returns True if any has a
        result.
        """
        finished = self.history.update()
        for trial in finished:
            self._settle_weights(trial)
        results = [trial for trial in finished if has_result(trial)]
        for trial in results:
            log.info("%s, %s", self.label, describe_trial(trial, self.reader))
            for callback in self.callbacks:
                callback(self.study, trial)
        return bool(results)

    def _settle_weights(self, trial: FrozenTrial) -> None:
        """Keep the weights of a finished trial if it is on the front.

        Those of dominated and failed trials are removed.
        """
        architecture = self.reader.architecture(trial.params)
        if self.weights and architecture is not None:
            losses = self.history.front_losses(trial)
            self.weights.settle(architecture, trial.number, losses)
