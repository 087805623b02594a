"""Workers: the processes that share a search. They reclaim the stale trials of workers that are
gone.

A worker on this machine is gone if no process has its id and start time. A worker on another
machine is gone if its heartbeat has stopped; only databases store heartbeats (see
`nas.search.storage`).
"""

from __future__ import annotations

import os
import socket
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
from optuna.storages import RetryHeartbeatStaleTrialCallback, fail_stale_trials
from optuna.trial import TrialState

from nas.search import optuna_adapter
from nas.search.schema import (
    EPOCH_KEY,
    EPOCHS_BEFORE_KEY,
    OWNER_KEY,
    RESTARTS_KEY,
    RESUMED_KEY,
    WORKER_KEY,
)

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

_RUNNING, _FINISHED = "running", "finished"
MAX_RESTARTS = 2  # of a trial, so that a trial that kills each process does not end the search
# Why such a trial fails
FATAL = f"it ended {MAX_RESTARTS + 1} processes in a row: it may need too much memory"
RECLAIM_INTERVAL_SECONDS = 2.0
_PROC = "/proc"


class Worker:
    """Registers this process in the study.

    Attributes:
        alone: no other process can work on the study.
        interrupted: ids of the running trials of former workers, for this worker to resume. Empty
            if it is not alone.
    """

    def __init__(self, study: optuna.Study) -> None:
        self.study = study
        self.host = socket.gethostname()
        self.name = f"{self.host}:{os.getpid()}:{_started(os.getpid())}"
        self._looked = -RECLAIM_INTERVAL_SECONDS

    def __enter__(self) -> Worker:
        # Register first: if two workers start at the same time, at least one sees the other.
        self.study.set_user_attr(WORKER_KEY + self.name, _RUNNING)
        # Read the trials before the workers: a worker that starts between the two reads has no
        # trial among them.
        running = self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        self.alone = not self.has_others()
        self.interrupted = (
            [optuna_adapter.trial_id(trial) for trial in running] if self.alone else []
        )
        if self.alone:
            self._forget([worker for worker in self._running() if not self._is_alive(worker)])
        return self

    def __exit__(self, *error: object) -> None:
        self.study.set_user_attr(WORKER_KEY + self.name, _FINISHED)

    def has_others(self) -> bool:
        """True if another process works on the study."""
        return any(worker != self.name and self._is_alive(worker) for worker in self._running())

    def ask(self) -> optuna.Trial:
        """The study's next trial."""
        with _unwarned():
            return self.study.ask()

    @contextmanager
    def evaluating(self, trial: optuna.Trial) -> Iterator[None]:
        """A context that marks the trial as evaluated by this worker and sends its heartbeats.

        If the user interrupts it, the trial is enqueued again for the next worker that asks.
        """
        # Others wait for a trial with an owner. Set the owner after the first heartbeat, so that
        # its loss is noticed.
        with optuna_adapter.heartbeat(self.study, trial):
            before = trial.user_attrs
            trial.set_user_attr(OWNER_KEY, f"{self.name}#{trial.number}")
            if before.get(OWNER_KEY):
                trial.set_user_attr(RESUMED_KEY, time.time())
                trial.set_user_attr(RESTARTS_KEY, _vain_restarts(before) + 1)
                trial.set_user_attr(EPOCHS_BEFORE_KEY, _epochs(before))
            try:
                yield
            except (KeyboardInterrupt, SystemExit):
                with suppress(
                    UpdateFinishedTrialError
                ):  # it may have ended just before the interrupt
                    trial.set_user_attr(OWNER_KEY, "")
                    self._give_back(
                        optuna_adapter.stored_trial(self.study, optuna_adapter.trial_id(trial))
                    )
                raise

    def is_fatal(self, trial: optuna.Trial) -> bool:
        """True if the trial has ended `MAX_RESTARTS + 1` processes in a row without a new epoch of
        training.
        """
        attrs = trial.user_attrs
        return bool(attrs.get(OWNER_KEY)) and _vain_restarts(attrs) >= MAX_RESTARTS

    def reclaim_stale_trials(self) -> None:
        """Enqueue the running trials of workers that are gone, for the next workers that ask."""
        if time.monotonic() < self._looked + RECLAIM_INTERVAL_SECONDS:
            return
        self._looked = time.monotonic()
        with _unwarned():
            fail_stale_trials(self.study)
        gone = {worker for worker in self._running() if not self._is_alive(worker)}
        for trial in (
            self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)) if gone else ()
        ):
            if _owner(trial) in gone:
                self._give_back(trial)
        self._forget(gone)

    def others_at_work(self, trials: list[FrozenTrial]) -> int:
        """Number of running trials of other live workers. A worker whose end would go unnoticed
        does not count.
        """
        owners = [_owner(trial) for trial in trials if trial.state == TrialState.RUNNING]
        return sum(owner not in ("", self.name) and self._is_seen(owner) for owner in owners)

    def _running(self) -> list[str]:
        attrs = self.study.user_attrs.items()
        return [
            k.removeprefix(WORKER_KEY)
            for k, state in attrs
            if k.startswith(WORKER_KEY) and state == _RUNNING
        ]

    def _forget(self, workers: Iterable[str]) -> None:
        for worker in workers:
            self.study.set_user_attr(WORKER_KEY + worker, _FINISHED)

    def _is_alive(self, worker: str) -> bool:
        """False if the worker's process is gone. A worker on another machine counts as alive."""
        host, pid, started = [*worker.rsplit(":", 2), ""][:3]
        return host != self.host or (pid.isdigit() and _started(int(pid)) == started)

    def _is_seen(self, worker: str) -> bool:
        """True if this process would notice the end of the worker."""
        here = worker.rsplit(":", 2)[0] == self.host
        return optuna_adapter.has_heartbeat(self.study) or (here and self._is_alive(worker))

    def _give_back(self, trial: FrozenTrial) -> None:
        """Fail a running trial and enqueue a copy of it."""
        if optuna_adapter.fail(self.study, trial):  # False if another process was quicker
            with _unwarned():
                RetryHeartbeatStaleTrialCallback(inherit_intermediate_values=True)(
                    self.study, trial
                )


def _owner(trial: FrozenTrial) -> str:
    """The worker that evaluates a trial; "" if none does.

    A trial that was given back has the attributes of its original, so that until a worker begins
    it, it names the original's owner and number.
    """
    worker, _, number = trial.user_attrs.get(OWNER_KEY, "").rpartition("#")
    return worker if number == str(trial.number) else ""


def _started(pid: int) -> str | None:
    """Start time of a process, unique across reboots; None if there is no such process or it is a
    zombie.
    """
    if not Path(_PROC, "self").exists():
        return _started_at(pid)
    try:
        stat = Path(_PROC, str(pid), "stat").read_text()
        fields = stat.rpartition(")")[2].split()  # after the name, which may contain anything
        boot = Path(_PROC, "sys/kernel/random/boot_id").read_text()[:8]
    except OSError:
        return None
    return None if fields[0] == "Z" else f"{boot}-{fields[19]}"


def _started_at(pid: int) -> str | None:
    """The same on systems without /proc. On Linux, this time would change when the system's clock
    is set.
    """
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.6f}"
    except psutil.NoSuchProcess:
        return None


def _epochs(attrs: Mapping[str, Any]) -> int:
    """Epochs that a trial's training has reported."""
    return sum(key.startswith(EPOCH_KEY) for key in attrs)


def _vain_restarts(attrs: Mapping[str, Any]) -> int:
    """Restarts of a trial since its training last reported a new epoch."""
    return 0 if _epochs(attrs) > attrs.get(EPOCHS_BEFORE_KEY, 0) else attrs.get(RESTARTS_KEY, 0)


@contextmanager
def _unwarned() -> Iterator[None]:
    """Suppress Optuna's warnings that retries are experimental and that heartbeats need
    `Study.optimize`.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        warnings.filterwarnings("ignore", "Heartbeat of storage")
        yield
