"""The only module that uses private attributes of Optuna.

Optuna has no public way to address a stored trial by id, to write a system attribute from a
sampler, or to send heartbeats outside `Study.optimize`. `pyproject.toml` caps Optuna's version. If
a newer version lacks an attribute, `test_optuna_adapter.py` names it.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from optuna import Study, Trial
from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
from optuna.samplers import BaseGASampler, BaseSampler
from optuna.storages import RDBStorage
from optuna.storages._heartbeat import BaseHeartbeat, get_heartbeat_thread, is_heartbeat_enabled
from optuna.trial import FrozenTrial, TrialState

from nas.search.storage import JournalFile

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
    """Name the objectives, which Optuna's plots and dashboard show, without its warning that this
    is experimental.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        study.set_metric_names(list(names))


def add_trials(study: Study, trials: Iterable[FrozenTrial]) -> None:
    """Add finished trials. A journal file syncs to disk once, an SQLite file once per
    `MAX_TRANSACTION_TRIALS`.
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
    """A context that is one transaction in an SQLite file. Any other database commits each trial by
    itself.
    """
    if storage.engine.dialect.name != "sqlite":
        yield
        return
    from sqlalchemy.orm import scoped_session, sessionmaker

    with storage.engine.connect() as connection:
        connection.exec_driver_sql(
            "BEGIN IMMEDIATE"
        )  # Python's driver starts no transaction before a savepoint
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


def fail(study: Study, trial: FrozenTrial) -> bool:
    """Set a running trial to FAIL. False if another process has already finished it."""
    try:
        return study._storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)
    except UpdateFinishedTrialError:
        return False


def first_generation(sampler: BaseSampler) -> dict[str, Any]:
    """System attributes that make a trial part of a genetic sampler's first generation; none for
    other samplers.
    """
    inner = getattr(sampler, "sampler", sampler)
    return {inner._get_generation_key(): 0} if isinstance(inner, BaseGASampler) else {}


def has_heartbeat(study: Study) -> bool:
    """True if the study's storage records heartbeats of running trials."""
    return is_heartbeat_enabled(study._storage)


@contextmanager
def heartbeat(study: Study, trial: Trial) -> Iterator[None]:
    """A context that sends the trial's heartbeats, if the storage records them. The first is sent
    on entry.
    """
    if has_heartbeat(study) and isinstance(study._storage, BaseHeartbeat):
        study._storage.record_heartbeat(trial._trial_id)
    with get_heartbeat_thread(trial._trial_id, study._storage):
        yield


def set_intermediate_value(study: Study, trial: Trial, step: int, value: float) -> None:
    """Write an intermediate value, which `Trial.report` does not support with several
    objectives.
    """
    study._storage.set_trial_intermediate_value(trial._trial_id, step, value)


def begin_trial(study: Study, template: FrozenTrial) -> Trial:
    """Create a running trial with the template's choices and attributes in one step."""
    return Trial(study, study._storage.create_new_trial(study._study_id, template_trial=template))


def pop_waiting(study: Study) -> Trial | None:
    """Start the next enqueued trial; None if there is none."""
    id_ = study._pop_waiting_trial_id()
    return None if id_ is None else Trial(study, id_)


def prune(study: Study, trial: Trial) -> None:
    """Finish a trial as pruned. `Study.tell` would store one value even in a study of several
    objectives.
    """
    try:
        study._storage.set_trial_state_values(trial._trial_id, TrialState.PRUNED)
    except UpdateFinishedTrialError:
        return  # another process has already finished it
