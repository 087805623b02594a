"""Claims about storages that go away during a search, with databases that are really locked, full
or shut down.
"""

from __future__ import annotations

import logging
import socket
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import sqlalchemy
from optuna.storages import InMemoryStorage
from optuna.trial import TrialState

from nas import Problem, search
from nas.search.study import retry
from nas.search.study.retry import patient
from nas.search.study.storage import open_storage
from search_spaces import Architecture, get_space
from search_spaces.common.errors import StorageError

SPACE = get_space("tiny-resnet")
EVALUATIONS = 6


class Evaluator:
    """Records what it evaluates. `disturb` is called once, before the third evaluation ends."""

    metrics = ("params", "flops")
    settings: dict[str, Any] = {"function": "test"}  # noqa: RUF012  as that of a script

    def __init__(self, disturb: Any = None) -> None:
        self.disturb, self.seen = disturb, list[Architecture]()

    def __call__(self, architectures: Any) -> np.ndarray:
        self.seen += architectures
        if len(self.seen) == 3 and self.disturb:
            self.disturb()
        return np.array([[SPACE.params(a), SPACE.flops(a)] for a in architectures], float)


def run(storage: str, evaluator: Evaluator) -> Any:
    return search(
        Problem(SPACE, evaluator, "params,flops"),
        sampler="random",
        evaluations=EVALUATIONS,
        storage=storage,
    )


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.05)


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/search.db?timeout=0.01"


def lock(database: str, seconds: float | None) -> sqlite3.Connection:
    """Lock an SQLite file for a time, or until the connection is closed (None)."""
    path = database.removeprefix("sqlite:///").partition("?")[0]
    connection = sqlite3.connect(path, timeout=5, check_same_thread=False, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    if seconds is not None:
        threading.Timer(seconds, connection.close).start()
    return connection


@pytest.mark.slow
def test_a_search_continues_when_its_database_answers_again(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    evaluator = Evaluator(lambda: lock(database, 0.5))
    with caplog.at_level(logging.WARNING, logger="nas"):
        result = run(database, evaluator)
    assert (
        len(result.evaluated.architectures)
        == EVALUATIONS
        == len(evaluator.seen)
        == len(set(evaluator.seen))
    )
    said = [record.getMessage() for record in caplog.records]
    assert any(
        "does not answer (database is locked): retrying for up to 600 s" in line for line in said
    )
    assert any("answers again" in line for line in said)


def test_a_database_that_stays_away_ends_the_search_in_one_line_and_a_further_run_finishes_it(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(retry.TIMEOUT, "0.3")
    locks: list[sqlite3.Connection] = []
    first = Evaluator(lambda: locks.append(lock(database, None)))
    with pytest.raises(
        StorageError,
        match=r"search\.db.* has not answered for 0\.3 s \(database is locked\): nothing is",
    ):
        run(database, first)
    locks[0].close()
    second = Evaluator()
    assert len(run(database, second).evaluated.architectures) == EVALUATIONS
    assert not {*first.seen[:2]} & {*second.seen}  # what was stored is not evaluated again
    assert first.seen[2] in second.seen


def test_a_full_disk_is_reported_at_once_and_stored_trials_are_kept(database: str) -> None:
    run(database, Evaluator())
    engine = sqlalchemy.engine.Engine

    def full(connection: Any, _: Any) -> None:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")

    sqlalchemy.event.listen(engine, "connect", full)
    try:
        study = optuna.load_study(study_name="search", storage=open_storage(database))
        with pytest.raises(StorageError, match="disk is full; stored trials are kept"):
            study.set_user_attr("long", ["x" * 1000] * 1000)
    finally:
        sqlalchemy.event.remove(engine, "connect", full)
    assert len(run(database, Evaluator()).evaluated.architectures) == EVALUATIONS


class LostAnswer(InMemoryStorage):
    """Stores the first result, but loses the connection before it answers."""

    lost = 0

    def set_trial_state_values(self, *args: Any, **kwargs: Any) -> bool:
        done = super().set_trial_state_values(*args, **kwargs)
        if not self.lost:
            self.lost += 1
            raise sqlalchemy.exc.OperationalError(
                "UPDATE", {}, Exception("server closed the connection")
            )
        return done


def test_a_result_that_was_stored_before_the_connection_broke_is_stored_once() -> None:
    study = optuna.create_study(storage=patient(LostAnswer)())
    trial = study.ask()
    study.tell(trial, 1.0)
    (stored,) = study.get_trials()
    assert (stored.state, stored.value) == (TrialState.COMPLETE, 1.0)


def test_errors_other_than_outages_are_not_retried() -> None:
    storage = patient(InMemoryStorage)()
    with pytest.raises(KeyError):
        storage.get_trial(17)


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[tuple[str, Any]]:
    """Address of a proxy, and a function that restarts it after a pause."""
    make_server = pytest.importorskip("optuna.storages._grpc.server").make_server
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    backend = optuna.storages.RDBStorage(f"sqlite:///{tmp_path}/search.db")
    servers = []

    def serve() -> None:
        servers.append(make_server(backend, "localhost", port))
        servers[-1].start()

    def restart(seconds: float) -> None:
        servers[-1].stop(0).wait()
        threading.Timer(seconds, serve).start()

    serve()
    yield f"grpc://localhost:{port}", restart
    servers[-1].stop(0)


@pytest.mark.slow
def test_a_search_continues_when_its_proxy_answers_again(proxy: tuple[str, Any]) -> None:
    url, restart = proxy
    evaluator = Evaluator(lambda: restart(0.5))
    assert len(run(url, evaluator).evaluated.architectures) == EVALUATIONS
    assert len(evaluator.seen) == EVALUATIONS
