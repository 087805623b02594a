"""Claims about Ctrl-C while a storage is written: the call ends first, and nothing stays locked."""

from __future__ import annotations

import signal
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
import sqlalchemy

from nas.search.study.interrupts import interrupts_wait
from nas.search.study.storage import open_storage
from nas.search.study.workers import Worker


@pytest.fixture(autouse=True)
def interrupts() -> Iterator[None]:
    """Python's handler: a shell starts background jobs with interrupts ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupted(times: int, done: list[str], error: Exception | None = None) -> None:
    """A call during which the user interrupts."""
    with interrupts_wait():
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        done.append("the rest")
        if error:
            raise error


def test_an_interrupt_waits_for_the_end() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted(1, done)
    assert done == ["the rest"]
    with pytest.raises(KeyboardInterrupt):  # as usual again
        signal.raise_signal(signal.SIGINT)


def test_an_interrupt_waits_for_the_outermost_context() -> None:
    done: list[str] = []

    def outer() -> None:
        with interrupts_wait():
            interrupted(1, done)
            done.append("the outer rest")

    with pytest.raises(KeyboardInterrupt):
        outer()
    assert done == ["the rest", "the outer rest"]


def test_a_second_interrupt_takes_effect_at_once() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted(2, done)
    assert not done, "the user can end a call that hangs"


def test_an_error_of_the_call_does_not_swallow_the_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt) as interrupt:
        interrupted(1, [], ValueError("locked"))
    assert isinstance(interrupt.value.__context__, ValueError)


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_a_handler_that_is_not_pythons_stays(handler: signal.Handlers) -> None:
    before = signal.signal(signal.SIGINT, handler)
    try:
        with interrupts_wait():
            assert signal.getsignal(signal.SIGINT) == handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_leave_the_handler_alone() -> None:
    before, seen = signal.getsignal(signal.SIGINT), []

    def look() -> None:
        with interrupts_wait():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [before]


def test_an_interrupted_call_is_completed_and_leaves_the_file_unlocked(tmp_path: Path) -> None:
    storage = open_storage(f"sqlite:///{tmp_path / 'search.db'}")
    assert isinstance(storage, optuna.storages.RDBStorage)
    study = optuna.create_study(storage=storage, study_name="search")

    calls: list[object] = []

    def interrupt_first(*_: object) -> None:
        calls.append(None)
        if len(calls) == 1:
            signal.raise_signal(signal.SIGINT)

    sqlalchemy.event.listen(storage.engine, "after_cursor_execute", interrupt_first)
    with pytest.raises(KeyboardInterrupt):
        study.set_user_attr("key", "value")
    with sqlite3.connect(tmp_path / "search.db", timeout=0.01) as other:
        other.execute("BEGIN EXCLUSIVE")
    assert study.user_attrs == {"key": "value"}


def test_an_interrupt_right_after_a_trials_end_keeps_the_trial() -> None:
    study = optuna.create_study()

    def interrupted_at_its_end(worker: Worker, trial: optuna.Trial) -> None:
        with worker.evaluating(trial):
            study.tell(trial, 1.0)
            raise KeyboardInterrupt

    with Worker(study) as worker, pytest.raises(KeyboardInterrupt):
        interrupted_at_its_end(worker, study.ask())
    assert [trial.value for trial in study.trials] == [1.0]
