"""Workers: the processes that share a search, on this machine and on others.

1. `Worker` registers a process in the study, and reclaims the stale trials of workers that are gone.
   A worker on this machine is gone if no process has its id and start time. A worker on another
   machine is gone if its heartbeat has stopped; only databases store heartbeats (see
   `nas.search.study.storage`).
2. `Share` is what one worker may evaluate of the searches that it joins.
3. `helpers` starts further workers on this machine. They join the search through its storage.
"""

from __future__ import annotations

import json
import logging
import math
import os
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import optuna
from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
from optuna.storages import RetryHeartbeatStaleTrialCallback, fail_stale_trials
from optuna.trial import TrialState

from nas.search.study.schema import (
    EPOCH_KEY,
    EPOCHS_BEFORE_KEY,
    OWNER_KEY,
    RESTARTS_KEY,
    RESUMED_KEY,
    SCRIPT,
    WORKER_KEY,
)
from nas.search.study.storage import (
    fail_trial,
    has_heartbeat,
    heartbeat,
    stored_trial,
    trial_id,
)
from search_spaces.common import plug_ins
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from nas.search.evaluators import Evaluator
    from nas.search.settings import SearchSettings


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
        self.interrupted = [trial_id(trial) for trial in running] if self.alone else []
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
        with heartbeat(self.study, trial):
            before = trial.user_attrs
            trial.set_user_attr(OWNER_KEY, f"{self.name}#{trial.number}")
            if before.get(OWNER_KEY):
                trial.set_user_attr(RESUMED_KEY, time.time())
                trial.set_user_attr(RESTARTS_KEY, _vain_restarts(before) + 1)
                trial.set_user_attr(EPOCHS_BEFORE_KEY, _epochs(before))
            try:
                yield
            except (KeyboardInterrupt, SystemExit):
                # It may have ended just before the interrupt
                with suppress(UpdateFinishedTrialError):
                    trial.set_user_attr(OWNER_KEY, "")
                    self._give_back(stored_trial(self.study, trial_id(trial)))
                raise

    def is_fatal(self, trial: optuna.Trial) -> bool:
        """True if the trial ended `MAX_RESTARTS + 1` processes in a row without a new epoch."""
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
        if not gone:
            return
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if _owner(trial) in gone:
                self._give_back(trial)
        self._forget(gone)

    def others_at_work(self, trials: list[FrozenTrial]) -> int:
        """Number of running trials of other live workers.

        A worker whose end would go unnoticed does not count.
        """
        owners = [_owner(trial) for trial in trials if trial.state == TrialState.RUNNING]
        return sum(owner not in ("", self.name) and self._is_seen(owner) for owner in owners)

    def _running(self) -> list[str]:
        """Names of the workers that have begun and not finished, also of those that are gone."""
        return [
            key.removeprefix(WORKER_KEY)
            for key, state in self.study.user_attrs.items()
            if key.startswith(WORKER_KEY) and state == _RUNNING
        ]

    def _forget(self, workers: Iterable[str]) -> None:
        """Note that workers have finished."""
        for worker in workers:
            self.study.set_user_attr(WORKER_KEY + worker, _FINISHED)

    def _is_alive(self, worker: str) -> bool:
        """False if the worker's process is gone. A worker on another machine counts as alive."""
        host, pid, started = [*worker.rsplit(":", 2), ""][:3]
        return host != self.host or (pid.isdigit() and _started(int(pid)) == started)

    def _is_seen(self, worker: str) -> bool:
        """True if this process would notice the end of the worker."""
        is_local = worker.rsplit(":", 2)[0] == self.host
        return has_heartbeat(self.study) or (is_local and self._is_alive(worker))

    def _give_back(self, trial: FrozenTrial) -> None:
        """Fail a running trial and enqueue a copy of it."""
        if fail_trial(self.study, trial):  # False if another process was quicker
            with _unwarned():
                RetryHeartbeatStaleTrialCallback(inherit_intermediate_values=True)(
                    self.study, trial
                )


def _owner(trial: FrozenTrial) -> str:
    """The worker that evaluates a trial; "" if none does.

    The copy of a trial that was given back has the original's attributes. Until a worker begins it,
    it therefore names the original's owner, with another trial's number.
    """
    worker, _, number = trial.user_attrs.get(OWNER_KEY, "").rpartition("#")
    return worker if number == str(trial.number) else ""


def _started(pid: int) -> str | None:
    """Start time of a process, unique across reboots.

    None if there is no such process or it is a zombie.
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
    """The same on systems without /proc.

    On Linux, this time would change when the system's clock is set.
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
    """Suppress two warnings of Optuna's.

    They say that retries are experimental and that heartbeats need `Study.optimize`.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        warnings.filterwarnings("ignore", "Heartbeat of storage")
        yield


# --- shares


@dataclass
class Share:
    """What a worker may still evaluate.

    It is used up by all searches that the worker joins, one after the other.

    Attributes:
        evaluations: number of evaluations that are left; in a search with fidelities, of training
            segments.
        until: time after which no evaluation starts, in seconds since 1970.
    """

    evaluations: float = math.inf
    until: float = math.inf

    @classmethod
    def of(cls, evaluations: float | None = None, seconds: float | None = None) -> Share:
        """A share with these limits from now on; None for no limit."""
        until = math.inf if seconds is None else time.time() + seconds
        return cls(math.inf if evaluations is None else evaluations, until)

    @property
    def is_used_up(self) -> bool:
        """True if no further evaluation may start."""
        return self.evaluations <= 0 or time.time() >= self.until

    def take(self, evaluations: float) -> Share:
        """Split a part off, for another process."""
        part = min(evaluations, self.evaluations)
        self.evaluations -= part
        return Share(part, self.until)

    @property
    def plain(self) -> dict[str, Any]:
        """The finite limits as JSON values: arguments of the class."""
        return {name: value for name, value in vars(self).items() if value < math.inf}


# --- helper processes on this machine

log = logging.getLogger(__name__)
VISIBLE = "CUDA_VISIBLE_DEVICES"
INTERRUPTED = 130  # exit status of an interrupted process
EXIT_SECONDS = 30.0  # a helper that has not ended by itself after this time is killed


def check_jobs(settings: SearchSettings, evaluator: Evaluator) -> None:
    """Raise InputError if not as many processes as the settings want can share a search."""
    jobs = settings.jobs
    if jobs < 1:
        raise InputError(f"jobs must be at least 1, not {jobs}")
    if jobs == 1:
        return
    has_path = isinstance(settings.storage, str | Path)
    is_by_name = isinstance(settings.sampler, str) and settings.predictor is None
    can_be_opened = evaluator.source.keys() - {SCRIPT}
    if not (has_path and is_by_name and can_be_opened):
        raise InputError(
            f"{jobs} jobs need a storage, a sampler given by name, and an evaluator that another "
            "process can open: a table, a measurement, or FILE.py:FUNCTION"
        )


@contextmanager
def helpers(
    settings: SearchSettings, evaluator: Evaluator, share: Share | None = None
) -> Iterator[None]:
    """A context in which further processes work on a stored study, `settings.jobs` in all.

    On exit it waits until they reach the search's own limits. They end at once if an exception
    leaves the context or if this process dies. GPUs are assigned in turn; this process has the
    first one. Each gets an equal part of the share that this process has.
    """
    count = settings.jobs - 1
    join = {
        "storage": str(settings.storage),
        "name": settings.name,
        "device": evaluator.device,
        "depends": [str(Path(path).absolute()) for path in settings.depends],
    }
    if evaluator.checkpoints:
        join["checkpoints"] = str(evaluator.checkpoints)
    if evaluator.reference:
        join["evaluator"] = evaluator.reference
    space = evaluator.space
    if space is not None and plug_ins.is_file(space.reference):
        join["space"] = space.reference
    gpus = visible_gpus() if count and evaluator.device == "cuda" else []
    started = []
    for number in range(1, count + 1):
        limits = {}
        if share:  # equal parts: this process keeps the last one
            processes_left = count + 2 - number
            limits = share.take(share.evaluations // processes_left).plain
        gpu = gpus[number % len(gpus)] if gpus else None
        started.append(_Helper(join | {"share": limits}, gpu))
    try:
        yield
        for helper in started:
            helper.process.wait()
    finally:
        for helper in started:
            helper.end()


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` names them."""
    if named := os.environ.get(VISIBLE):
        return [name.strip() for name in named.split(",")]
    import torch

    return [str(i) for i in range(torch.cuda.device_count())]


class _Helper:
    """A helper process.

    It ends when its standard input is closed. If it fails, its last line of output is logged.
    """

    def __init__(self, join: dict[str, Any], gpu: str | None) -> None:
        self.output: IO[str] = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", "nas.search.helper"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self.output,
            env=os.environ | ({VISIBLE: gpu} if gpu is not None else {}),
            text=True,
            # Ctrl-C at the terminal reaches it only once, through its standard input
            start_new_session=True,
        )
        assert self.process.stdin is not None
        # Not an argument: a storage's URL may hold a password
        self.process.stdin.write(json.dumps(join) + "\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """Close the standard input and wait; kill the process if it takes too long."""
        with suppress(OSError):
            self.process.stdin.close()  # type: ignore[union-attr]  # it is a pipe
        try:
            status = self.process.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        with self.output:
            self.output.seek(0)
            last: Sequence[str] = self.output.read().strip().splitlines()[-1:]
        if status not in (0, INTERRUPTED):
            log.warning(
                "a helper process of the search ended with status %d: %s", status, " ".join(last)
            )
