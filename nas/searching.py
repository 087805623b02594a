"""The search: ask a sampler for architectures, evaluate them, keep everything in an Optuna study."""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import optuna
from optuna.trial import TrialState

from nas.evolution import random_unseen
from nas.known import Known, KnownFirst
from nas.objectives import Constraint, Objective, check_metrics, parse_constraints, parse_objectives
from nas.pareto import joined
from nas.result import SETTINGS_KEY, SearchResult
from nas.samplers import create_sampler
from nas.storage import open_storage
from nas.trials import TrialReader
from search_spaces import get_space
from search_spaces.errors import InputError

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage

    from nas.evaluation import Evaluator
    from search_spaces import Architecture, SearchSpace

PATIENCE = 50  # repeated architectures in a row after which a random new one is evaluated instead
_WORKER_KEY = "nas:worker:"


def search(
    space: SearchSpace,
    objectives: str | Iterable[str | Objective],
    evaluator: Evaluator,
    sampler: str | BaseSampler,
    evaluations: int,
    seed: int = 0,
    storage: str | Path | BaseStorage | None = None,
    constraints: str | Iterable[str | Constraint] | None = None,
    progress: Callable[[int, int], None] | None = None,
    name: str = "search",
    sampler_options: Mapping[str, Any] | None = None,
    known: Known | None = None,
    seconds: float = math.inf,
    patience: float = math.inf,
) -> SearchResult:
    """Evaluate `evaluations` distinct architectures and return what was found.

    An architecture that the sampler proposes again is told its known values and is not counted. Fewer architectures are
    evaluated where the space has fewer. With a storage, a search that was interrupted, even by SIGKILL, goes on where
    it was: a trial that was being evaluated is finished first, and nothing is evaluated twice. Several processes may
    work on one study. Without interruption, the same seed gives the same result.

    Args:
        objectives: metric names, see `nas.objectives.parse_objectives`.
        evaluator: gives at least the metrics of objectives and constraints; a NaN or infinite value is a failure.
        sampler: a name of `nas.samplers.list_samplers()` or any Optuna sampler.
        storage: None (in memory), a path (journal file), a database URL or an Optuna storage.
        constraints: such as `"pixel3_latency_ms <= 8"`; architectures that break one are kept off the front.
        progress: called with the number of evaluations done and wanted, after each.
        name: of the study in the storage.
        sampler_options: further options of `nas.samplers.create_sampler` for a sampler given by name.
        known: values that were measured before, in the order of the evaluator's metrics: they are taken over first, and
            not counted.
        seconds: no evaluation begins after so long, since this call.
        patience: evaluations in a row that do not improve the front, after which the search ends.

    Raises InputError for bad settings, for settings other than those of the stored study, and for an unusable storage.
    """
    reader = TrialReader(space, parse_objectives(objectives), parse_constraints(constraints))
    check_metrics(reader.metrics, evaluator.metrics)
    settings = {
        "space": space.name,
        "space_options": space.options,
        "objectives": [str(objective) for objective in reader.objectives],
        "constraints": [str(constraint) for constraint in reader.constraints],
        "sampler": sampler if isinstance(sampler, str) else type(sampler).__name__,
        "sampler_options": dict(sampler_options or {}),
        "seed": seed,
    }
    if isinstance(sampler, str):
        sampler = create_sampler(
            sampler, space, reader.objectives, seed, constraints=reader.constraints, **(sampler_options or {})
        )
    study = _open_study(storage, name, reader.objectives, sampler, settings)
    if known:
        evaluator = KnownFirst(evaluator, known)
        for architecture in known:
            study.enqueue_trial(architecture.as_dict(), skip_if_exists=True)
    known = known or {}
    budget = Budget(evaluations + len(known), time.monotonic() + seconds, patience)
    with _Worker(study) as worker:
        _Search(study, reader, evaluator, known, np.random.default_rng(seed), worker.alone).run(budget, progress)
    return SearchResult.of_study(study, reader)


def read_search(storage: str | Path | BaseStorage, name: str = "search") -> SearchResult:
    """What a search has found so far; InputError where the storage has no such search."""
    if isinstance(storage, Path) and not storage.is_file():
        raise InputError(f"{storage}: there is no such journal")
    try:
        study = optuna.load_study(study_name=name, storage=open_storage(storage))
    except KeyError:
        raise InputError(f"{storage} has no study {name!r}") from None
    settings = study.user_attrs.get(SETTINGS_KEY)
    if settings is None:
        raise InputError(f"study {name!r} in {storage} was not made by a search")
    space = get_space(settings["space"], **settings["space_options"])
    objectives, constraints = parse_objectives(settings["objectives"]), parse_constraints(settings["constraints"])
    return SearchResult.of_study(study, TrialReader(space, objectives, constraints))


def _open_study(
    storage: str | Path | BaseStorage | None,
    name: str,
    objectives: Sequence[Objective],
    sampler: BaseSampler,
    settings: dict[str, Any],
) -> optuna.Study:
    """The stored study, or a new one; a stored one must have been made with the same settings."""
    study = optuna.create_study(
        storage=open_storage(storage),
        sampler=sampler,
        study_name=name,
        directions=[objective.direction for objective in objectives],
        load_if_exists=True,
    )
    stored = study.user_attrs.get(SETTINGS_KEY)
    if stored is None and not study.get_trials(deepcopy=False):
        study.set_user_attr(SETTINGS_KEY, settings)
    elif stored is None:
        raise InputError(f"study {name!r} in {storage} was not made by a search: give another name or storage")
    else:
        for key, value in json.loads(json.dumps(settings)).items():
            if stored.get(key) != value:
                raise InputError(
                    f"the search in {storage} was started with {key} {stored.get(key)!r}, not {value!r}: "
                    "resume it with the same settings or give another storage"
                )
    return study


class Budget(NamedTuple):
    """When a search ends: evaluations, a time of `time.monotonic`, evaluations in a row without a better front."""

    evaluations: int
    deadline: float
    patience: float


class _Worker:
    """Announces this process in the study. `alone` tells that no other process can be working on it."""

    def __init__(self, study: optuna.Study) -> None:
        self.study = study
        self.host, self.pid = socket.gethostname(), os.getpid()

    def __enter__(self) -> _Worker:
        # Announced first, then looked around: of two that start at once, at least one sees the other.
        self.study.set_user_attr(f"{_WORKER_KEY}{self.host}:{self.pid}", "running")
        workers = {key.removeprefix(_WORKER_KEY): state for key, state in self.study.user_attrs.items()}
        self.alone = not any(state == "running" and self._is_another(worker) for worker, state in workers.items())
        return self

    def __exit__(self, *error: object) -> None:
        self.study.set_user_attr(f"{_WORKER_KEY}{self.host}:{self.pid}", "finished")

    def _is_another(self, worker: str) -> bool:
        """Whether it is another process that may be alive: one on another machine is taken to be."""
        host, _, pid = worker.rpartition(":")
        if host != self.host:
            return True
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return int(pid) != self.pid


class _Search:
    """The loop of one process; everything that must survive it is in the study."""

    def __init__(
        self,
        study: optuna.Study,
        reader: TrialReader,
        evaluator: Evaluator,
        given: Known,
        rng: np.random.Generator,
        alone: bool,
    ) -> None:
        self.study = study
        self.reader = reader
        self.evaluator = evaluator
        self.columns = [evaluator.metrics.index(metric) for metric in reader.metrics]
        self.rng = rng
        self.known: dict[Architecture, np.ndarray] = {}
        self.front = np.empty((0, len(reader.objectives)))
        self.given = given
        self.stale = 0  # evaluations since the front was last improved, beside those that were given
        self._read = 0
        self._unfinished: list[int] = []
        trials = self._sync()
        running = [trials[i] for i in self._unfinished if trials[i].state == TrialState.RUNNING]
        self.interrupted = running if alone else []
        if trials or not alone:
            study.sampler.reseed_rng()  # lest it propose again what it proposed before

    def run(self, budget: Budget, progress: Callable[[int, int], None] | None) -> None:
        repeats = 0
        while len(self.known) < budget.evaluations and self.stale < budget.patience:
            if time.monotonic() >= budget.deadline:
                return
            if repeats == PATIENCE:
                fresh = random_unseen(self.reader.space, self.known.keys(), self.rng)
                if fresh is None:
                    return
                self.study.enqueue_trial(fresh.as_dict())
                repeats = 0
            new = self._step(self._next_trial())
            repeats = 0 if new else repeats + 1
            self._sync()
            if new and progress:
                progress(len(self.known), budget.evaluations)

    def _next_trial(self) -> optuna.Trial:
        if self.interrupted:
            # A trial object of the stored trial keeps the choices already made and asks the sampler for the others.
            return optuna.Trial(self.study, self.interrupted.pop(0)._trial_id)
        return self.study.ask()

    def _step(self, trial: optuna.Trial) -> bool:
        """Evaluate one trial and tell the study; False if the architecture's values were known."""
        architecture = self.reader.space.choose(trial)
        self.reader.remember(architecture)
        values = self.known.get(architecture)
        new = values is None
        if values is None:
            values = np.asarray(self.evaluator([architecture]), dtype=float)
            if values.shape != (1, len(self.evaluator.metrics)):
                raise InputError(f"the evaluator returned shape {values.shape}, not (1, {len(self.evaluator.metrics)})")
            values = values[0, self.columns]
        else:
            trial.set_user_attr("repeat", True)
        self._tell(trial, values)
        return new

    def _tell(self, trial: optuna.Trial, values: np.ndarray) -> None:
        if not np.isfinite(values).all():
            self.study.tell(trial, state=TrialState.FAIL)
            return
        told = trial.constraints if self.reader.constraints else {}
        for constraint in self.reader.constraints:
            if str(constraint) not in told:
                value = values[self.reader.metrics.index(constraint.metric)]
                trial.set_constraint(str(constraint), float(constraint.violation(value)))
        self.study.tell(trial, values[: len(self.reader.objectives)].tolist())

    def _sync(self) -> list[optuna.trial.FrozenTrial]:
        """Take over the values of trials that were finished since the last time, here or by another process."""
        trials = self.study.get_trials(deepcopy=False)
        numbers = [*self._unfinished, *range(self._read, len(trials))]
        self._read = len(trials)
        self._unfinished = [i for i in numbers if not trials[i].state.is_finished()]
        for i in numbers:
            if trials[i].state.is_finished():
                architecture = self.reader.architecture(trials[i].params)
                if architecture is not None and architecture not in self.known:
                    self.known[architecture] = self.reader.values(trials[i])
                    improved = self._improves(self.known[architecture])
                    self.stale = 0 if improved else self.stale + (architecture not in self.given)
        return trials

    def _improves(self, values: np.ndarray) -> bool:
        """Whether an evaluation (metrics,) improves the front, of which it then is a part."""
        losses = self.reader.losses(values)
        if not np.isfinite(losses).all() or self.reader.violation(values) > 0:
            return False
        if (better := joined(self.front, losses)) is None:
            return False
        self.front = better
        return True
