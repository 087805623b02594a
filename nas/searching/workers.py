"""Processes that share a search: which are at work, and whose unfinished trials are to be taken up again.

A process of this machine is gone when its number is; one of another machine when its heart, of which a database keeps
the last beat (see `nas.searching.storage`), has stopped.
"""

from __future__ import annotations

import os
import socket
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.storages import RetryHeartbeatStaleTrialCallback, fail_stale_trials
from optuna.trial import TrialState

from nas.searching import optuna_adapter

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from optuna.trial import FrozenTrial

_WORKER_KEY = "nas:worker:"  # study user attribute of every process: whether it is running
_OWNER_KEY = "nas:worker"  # trial user attribute: the process that evaluates it
_RUNNING, _FINISHED = "running", "finished"
RECLAIM_INTERVAL_SECONDS = 2.0


class Worker:
    """Announces this process in the study. `alone` tells that no other process can be working on it."""

    def __init__(self, study: optuna.Study) -> None:
        self.study = study
        self.host = socket.gethostname()
        self.name = f"{self.host}:{os.getpid()}"
        self._looked = -RECLAIM_INTERVAL_SECONDS

    def __enter__(self) -> Worker:
        # Announced first, then looked around: of two that start at once, at least one sees the other.
        self.study.set_user_attr(_WORKER_KEY + self.name, _RUNNING)
        others = [worker for worker in self._running() if worker != self.name]
        self.alone = not any(map(self._is_alive, others))
        if self.alone:  # and takes up all that they left
            self._forget(others)
        return self

    def __exit__(self, *error: object) -> None:
        self.study.set_user_attr(_WORKER_KEY + self.name, _FINISHED)

    def ask(self) -> optuna.Trial:
        """The study's next trial."""
        with _unwarned():
            return self.study.ask()

    def evaluating(self, trial: optuna.Trial) -> AbstractContextManager[None]:
        """Tells others that this process is at work on the trial, as long as the context lasts."""
        trial.set_user_attr(_OWNER_KEY, self.name)
        return optuna_adapter.heartbeat(self.study, trial)

    def reclaim_stale_trials(self) -> None:
        """Give trials of processes that are gone back to be evaluated, by whoever asks next."""
        if time.monotonic() < self._looked + RECLAIM_INTERVAL_SECONDS:
            return
        self._looked = time.monotonic()
        with _unwarned():
            fail_stale_trials(self.study)
        gone = {worker for worker in self._running() if not self._is_alive(worker)}
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)) if gone else ():
            if trial.user_attrs.get(_OWNER_KEY) in gone:
                self._give_back(trial)
        self._forget(gone)

    def others_at_work(self, trials: list[FrozenTrial]) -> int:
        """How many of the trials other processes are evaluating, as far as one can know."""
        owners = [t.user_attrs.get(_OWNER_KEY) for t in trials if t.state == TrialState.RUNNING]
        return sum(owner not in (None, self.name) and self._is_seen(owner) for owner in owners)

    def _running(self) -> list[str]:
        attrs = self.study.user_attrs.items()
        return [k.removeprefix(_WORKER_KEY) for k, state in attrs if k.startswith(_WORKER_KEY) and state == _RUNNING]

    def _forget(self, workers: Iterable[str]) -> None:
        for worker in workers:
            self.study.set_user_attr(_WORKER_KEY + worker, _FINISHED)

    def _is_alive(self, worker: str) -> bool:
        """Whether a process may be at work: one of another machine is taken to be."""
        host, _, pid = worker.rpartition(":")
        if host != self.host:
            return True
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True

    def _is_seen(self, worker: str) -> bool:
        """Whether it would be noticed if the process went away."""
        here = worker.rpartition(":")[0] == self.host
        return optuna_adapter.has_heartbeat(self.study) or (here and self._is_alive(worker))

    def _give_back(self, trial: FrozenTrial) -> None:
        if optuna_adapter.fail(self.study, trial):  # False if another process was quicker
            with _unwarned():
                RetryHeartbeatStaleTrialCallback()(self.study, trial)


@contextmanager
def _unwarned() -> Iterator[None]:
    """Without Optuna's warnings that retrying is experimental, and that hearts should beat in `Study.optimize` only."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        warnings.filterwarnings("ignore", "Heartbeat of storage")
        yield
