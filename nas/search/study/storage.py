"""Storages of trials: memory, a journal file that survives SIGKILL, or a database.

This is the only module that uses private attributes of Optuna, which has no public way to address a
stored trial by id, to write a system attribute from a sampler, or to send heartbeats outside
`Study.optimize`. `pyproject.toml` caps Optuna's version. If a newer version lacks an attribute,
`test_storage.py` names it.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
import warnings
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from filelock import lock_descriptor
from optuna import Study, Trial
from optuna.exceptions import ExperimentalWarning, StorageInternalError, UpdateFinishedTrialError
from optuna.samplers import BaseGASampler, BaseSampler
from optuna.storages import (
    BaseStorage,
    InMemoryStorage,
    JournalStorage,
    RDBStorage,
    RetryHeartbeatStaleTrialCallback,
)
from optuna.storages._heartbeat import BaseHeartbeat, get_heartbeat_thread, is_heartbeat_enabled
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from nas.search.study.retry import patient
from search_spaces.common.errors import InputError, StorageError

_FIRST_BYTES = b'{"op_code"'
_SQLITE = b"SQLite format 3\0"
# Errors of databases, in lower case
_CREATED_TWICE = (
    "already exists",
    "duplicate",
    "unique constraint",
)
PROXY_TIMEOUT_SECONDS = 10
HEARTBEAT_SECONDS = 20  # between two heartbeats of a worker
# Between two attempts to lock a journal, which takes about a millisecond to write
LOCK_POLL_SECONDS = 0.005
GRACE_SECONDS = 60  # a worker without a heartbeat for so long counts as gone


class JournalFile(JournalFileBackend):
    """Optuna's journal file, made safe against writers that are killed.

    A killed writer leaves an unfinished line, to which Optuna would append, and a lock file, for
    which Optuna would wait 30 s. Here each write first drops an unfinished line, and the kernel
    releases the lock of a dead process.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # A file that is only read may be read-only
            with open(path, "rb" if path.exists() else "ab+") as file:
                first_bytes = file.read(len(_FIRST_BYTES))
        except OSError as error:
            raise _disk_error(path, error) from error
        if not _FIRST_BYTES.startswith(first_bytes):
            raise InputError(f"{path} is not the journal of a search: give the path of a new file")
        super().__init__(str(path))
        self._syncs = True  # wait for the disk whenever a trial finishes

    @contextmanager
    def one_sync(self) -> Iterator[None]:
        """A context whose writes wait for the disk once, at its end."""
        self._syncs = False
        try:
            yield
            self._sync()
        finally:
            self._syncs = True

    def _sync(self) -> None:
        try:
            with open(self.path, "rb+") as file:
                os.fsync(file.fileno())
        except OSError as error:
            raise _disk_error(self.path, error) from error

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        try:
            with open(self.path, "rb+") as file:
                # Until the file is closed
                lock_descriptor(file.fileno(), poll_interval=LOCK_POLL_SECONDS)
                file.seek(_size_of_whole_lines(file))
                file.truncate()
                file.write(lines.encode())
                file.flush()
                if self._syncs and any("state" in log for log in logs):
                    os.fsync(file.fileno())
        except OSError as error:
            raise _disk_error(self.path, error) from error

    def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
        try:
            yield from super().read_logs(log_number_from)
        except OSError as error:
            raise _disk_error(self.path, error) from error
        except ValueError as error:
            raise _damage(self.path) from error


def _size_of_whole_lines(file: Any) -> int:
    """Number of bytes of an open file up to the end of its last complete line."""
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        start = max(0, end - 4096)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


class _Database(RDBStorage):
    """Optuna's database storage, in which only one process can start or finish a trial.

    This also holds in an SQLite file. Optuna reads a trial's state and then writes the new one.
    SQLite would lock the file at the write only.
    """

    def set_trial_state_values(
        self, trial_id: int, state: TrialState, values: Sequence[float] | None = None
    ) -> bool:
        _thread.locks_first = True
        try:
            return super().set_trial_state_values(trial_id, state, values)
        finally:
            _thread.locks_first = False


# locks_first: transactions of this thread lock an SQLite file when they begin
_thread = threading.local()


def _lock_first(connection: Any) -> None:
    """Called when a transaction of an SQLite file begins."""
    if getattr(_thread, "locks_first", False):
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _disk_error(path: Path, error: OSError) -> StorageError:
    return StorageError(f"cannot use {path}: {error.strerror}; stored trials are kept")


def open_storage(storage: str | Path | BaseStorage | None, existing: bool = False) -> BaseStorage:
    """Open an Optuna storage.

    Calls wait during an outage of a database or proxy (`nas.search.study.retry`).

    Args:
        storage: None for memory, a path for a journal or an existing SQLite file, a URL for a
            database (`sqlite:///…`, `postgresql://…`) or for a gRPC proxy (`grpc://host:port`, see
            `optuna.storages.run_grpc_proxy_server`), or an Optuna storage, which is returned as it
            is.
        existing: do not create the storage if it does not exist.

    Raises:
        InputError: the storage cannot be opened.
    """
    if storage is None:
        return InMemoryStorage()
    if isinstance(storage, BaseStorage):
        return storage
    file = _local_file(str(storage))
    if existing and file and not file.is_file():
        raise InputError(f"{storage}: there is no such file")
    if "://" not in str(storage):
        if not _is_sqlite(Path(storage)):
            return _journal(Path(storage))
        storage = f"sqlite:///{storage}"
    if str(storage).startswith("grpc://"):
        return _proxy(str(storage))
    from sqlalchemy.exc import SQLAlchemyError

    try:
        return _database(str(storage), existing)
    except (ImportError, RuntimeError, SQLAlchemyError, StorageInternalError) as error:
        reason = str(
            error.__cause__ if isinstance(error, StorageInternalError) else error
        ).splitlines()[0]
        raise InputError(f"cannot open the database {address(storage)}: {reason}") from error


def address(storage: str | Path | BaseStorage | None) -> str:
    """Name of a storage for messages: its path, or its URL without user and password."""
    if storage is None or isinstance(storage, BaseStorage):
        return "the storage"
    return str(storage).rpartition("@")[2] if "://" in str(storage) else str(storage)


def _local_file(storage: str) -> Path | None:
    """The file behind a path or an SQLite URL; None for any other storage."""
    if "://" not in storage:
        return Path(storage)
    scheme, _, path = storage.partition(":///")
    return Path(path.partition("?")[0]) if scheme.startswith("sqlite") and path else None


def _is_sqlite(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_SQLITE)) == _SQLITE
    except OSError:
        return False


def _journal(path: Path) -> BaseStorage:
    """Open a journal and read all of it, since Optuna does not check what the lines contain."""
    file = JournalFile(path)
    try:
        storage = JournalStorage(file)
        for study in storage.get_all_studies():
            id_ = storage.get_study_id_from_name(study.study_name)
            for trial in storage.get_all_trials(id_, deepcopy=False):
                numbers = (*(trial.values or ()), *trial.intermediate_values.values())
                if not all(isinstance(number, int | float) for number in numbers):
                    raise ValueError("a value that is not a number")
    except InputError:
        raise
    except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise _damage(path) from error
    return storage


def _damage(path: Path) -> StorageError:
    return StorageError(f"the journal {path} is damaged: restore it or give a new file")


def _database(url: str, existing: bool, tries: int = 5) -> BaseStorage:
    """Open a database. Try again if another process creates the tables at the same time."""
    from sqlalchemy import event
    from sqlalchemy.exc import DatabaseError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            retry = RetryHeartbeatStaleTrialCallback(inherit_intermediate_values=True)
            storage = patient(_Database)(
                url,
                heartbeat_interval=HEARTBEAT_SECONDS,
                grace_period=GRACE_SECONDS,
                heartbeat_stale_trial_callback=retry,
                skip_table_creation=existing,
            )
            storage.place = address(url)
            if storage.engine.dialect.name == "sqlite":
                event.listen(storage.engine, "begin", _lock_first)
            return storage
    except DatabaseError as error:
        if tries == 1 or not any(hint in str(error).lower() for hint in _CREATED_TWICE):
            raise
    time.sleep(0.5)
    return _database(url, existing, tries - 1)


def _proxy(url: str) -> BaseStorage:
    """Connect to the storage behind a gRPC proxy."""
    from urllib.parse import urlsplit

    from optuna.storages import GrpcStorageProxy

    parts = urlsplit(url)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            proxy = patient(GrpcStorageProxy)(
                host=parts.hostname or "localhost", port=parts.port or 13000
            )
        proxy.place = url
        proxy.wait_server_ready(timeout=PROXY_TIMEOUT_SECONDS)
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        raise InputError(f"cannot use {url}: {error}") from error
    return proxy


# --- the private parts of Optuna

MAX_TRANSACTION_TRIALS = 200  # other processes wait for the database during a transaction


def trial_id(trial: Trial | FrozenTrial) -> int:
    """The id of a trial in its storage, which differs from its number in the study."""
    return trial._trial_id


def trial_id_of_number(study: Study, number: int) -> int:
    """The id of the study's trial with this number; KeyError if there is none."""
    return study._storage.get_trial_id_from_study_id_trial_number(study._study_id, number)


def stored_trial(study: Study, id_: int) -> FrozenTrial:
    """The current state of one trial, without reading the others."""
    return study._storage.get_trial(id_)


def stored_trials(study: Study) -> list[FrozenTrial]:
    """All trials of the storage. They are not copies: do not change them."""
    return study._storage.get_all_trials(study._study_id, deepcopy=False)


def name_metrics(study: Study, names: Sequence[str]) -> None:
    """Name the objectives, for Optuna's plots and dashboard.

    Optuna's warning that this is experimental is suppressed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        study.set_metric_names(list(names))


def add_trials(study: Study, trials: Iterable[FrozenTrial]) -> None:
    """Add finished trials.

    A journal file syncs to disk once, an SQLite file once per `MAX_TRANSACTION_TRIALS`.
    """
    backend = getattr(study._storage, "_backend", None)
    if isinstance(backend, JournalFile):
        with backend.one_sync():
            study.add_trials(trials)
        return
    remaining = iter(trials)
    while batch := list(itertools.islice(remaining, MAX_TRANSACTION_TRIALS)):
        with _one_transaction(backend) if isinstance(backend, RDBStorage) else nullcontext():
            study.add_trials(batch)


@contextmanager
def _one_transaction(storage: RDBStorage) -> Iterator[None]:
    """A context that is one transaction in an SQLite file.

    Any other database commits each trial by itself.
    """
    if storage.engine.dialect.name != "sqlite":
        yield
        return
    from sqlalchemy.orm import scoped_session, sessionmaker

    with storage.engine.connect() as connection:
        # Python's driver starts no transaction before a savepoint
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        sessions = storage.scoped_session
        storage.scoped_session = scoped_session(
            sessionmaker(connection, join_transaction_mode="create_savepoint")
        )
        try:
            yield
            connection.commit()
        finally:
            storage.scoped_session = sessions


def set_system_attr(study: Study, trial: FrozenTrial, key: str, value: Any) -> None:
    """Write a system attribute of a running trial. It does not appear among the user attributes."""
    study._storage.set_trial_system_attr(trial._trial_id, key, value)


def fail_trial(study: Study, trial: FrozenTrial) -> bool:
    """Set a running trial to FAIL. False if another process has already finished it."""
    try:
        return study._storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)
    except UpdateFinishedTrialError:
        return False


def first_generation(sampler: BaseSampler) -> dict[str, Any]:
    """System attributes of a trial in a genetic sampler's first generation.

    There are none for other samplers.
    """
    inner = getattr(sampler, "sampler", sampler)
    return {inner._get_generation_key(): 0} if isinstance(inner, BaseGASampler) else {}


def has_heartbeat(study: Study) -> bool:
    """True if the study's storage records heartbeats of running trials."""
    return is_heartbeat_enabled(study._storage)


@contextmanager
def heartbeat(study: Study, trial: Trial) -> Iterator[None]:
    """A context that sends the trial's heartbeats, if the storage records them.

    The first is sent on entry.
    """
    if has_heartbeat(study) and isinstance(study._storage, BaseHeartbeat):
        study._storage.record_heartbeat(trial._trial_id)
    with get_heartbeat_thread(trial._trial_id, study._storage):
        yield


def set_intermediate_value(study: Study, trial: Trial, step: int, value: float) -> None:
    """Write an intermediate value of a trial.

    `Trial.report` does not support this in a study of several objectives.
    """
    study._storage.set_trial_intermediate_value(trial._trial_id, step, value)


def begin_trial(study: Study, template: FrozenTrial) -> Trial:
    """Create a running trial with the template's choices and attributes in one step."""
    return Trial(study, study._storage.create_new_trial(study._study_id, template_trial=template))


def pop_waiting(study: Study) -> Trial | None:
    """Start the next enqueued trial; None if there is none."""
    id_ = study._pop_waiting_trial_id()
    return None if id_ is None else Trial(study, id_)


def prune_trial(study: Study, trial: Trial) -> None:
    """Finish a trial as pruned.

    `Study.tell` would store one value even in a study of several objectives.
    """
    try:
        study._storage.set_trial_state_values(trial._trial_id, TrialState.PRUNED)
    except UpdateFinishedTrialError:
        return  # another process has already finished it
