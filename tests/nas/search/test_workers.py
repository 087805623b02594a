"""Claims about searches that several processes share through files, databases and proxies, and that
lose processes.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState
from sqlalchemy.exc import IntegrityError

from nas import Problem, cli, search
from nas.benchmarks import load_benchmark
from nas.search.evaluators import TableEvaluator
from nas.search.joining import join
from nas.search.study import storage, workers
from nas.search.study.load import is_unfinished, list_searches, read_search
from nas.search.study.retry import patient
from nas.search.study.storage import open_storage
from nas.search.study.trials import began
from nas.search.study.workers import Worker
from search_spaces import Architecture, get_space
from search_spaces.common.errors import InputError, StorageError

WORKER = """
import sys, os, time, socket
import numpy as np, optuna
from nas.search.study import storage, workers
from nas import Problem, search
from search_spaces import get_space

optuna.logging.set_verbosity(optuna.logging.ERROR)
journal, log, evaluations, host = sys.argv[1:]
storage.HEARTBEAT_SECONDS, storage.GRACE_SECONDS = 1, 2
workers.RECLAIM_INTERVAL_SECONDS = 0.2
if host:
    socket.gethostname = lambda: host
space = get_space("fbnet")

class Slow:
    metrics = ("params", "flops")

    def __call__(self, architectures):
        with open(log, "a") as file:
            file.write(f"{os.getpid()} {space.format(architectures[0])}\\n")
        time.sleep(0.2)
        return np.array([[space.params(a), space.flops(a)] for a in architectures], dtype=float)

problem = Problem(space, Slow(), ("params:max", "flops"))
search(problem, sampler="random", evaluations=int(evaluations), storage=journal)
"""
PROXY = """
import sys
from optuna.storages import run_grpc_proxy_server
from nas.search.study.storage import open_storage
from nas.search.study import storage
from nas.search.study.trials import began

run_grpc_proxy_server(open_storage(sys.argv[1]), host="127.0.0.1", port=int(sys.argv[2]))
"""
SPACE = get_space("fbnet")  # so large that two processes never choose the same by chance at once


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def wait_for_server(port: int, server: subprocess.Popen[bytes]) -> None:
    """Return once the server accepts connections, which takes long on a busy machine."""
    while True:
        assert server.poll() is None, "the server has ended"
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)


def start(
    storage: str | Path, log: Path, evaluations: int, host: str = ""
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, str(storage), str(log), str(evaluations), host]
    )


def begun_by(log: Path, process: subprocess.Popen[bytes]) -> list[str]:
    """Wait until the process has started to evaluate an architecture. Returns those that it has
    started.
    """
    while True:
        lines = log.read_text().splitlines() if log.exists() else []
        mine = [line.split(" ", 1)[1] for line in lines if line.startswith(f"{process.pid} ")]
        if mine:
            return mine
        assert process.poll() is None
        time.sleep(0.01)


def check_that_lost_trials_are_reclaimed(storage: str | Path, log: Path, hosts: list[str]) -> None:
    """Start a worker per host and kill two. The others evaluate everything, including what these
    left.
    """
    wanted = 40
    workers = [start(storage, log, wanted, host) for host in hosts]
    for worker in workers:
        begun_by(log, worker)
    for victim in workers[:2]:
        os.kill(victim.pid, signal.SIGKILL)
        victim.wait()
    lost = [begun_by(log, victim)[-1] for victim in workers[:2]]
    assert [worker.wait() for worker in workers[2:]] == [0] * len(hosts[2:])
    study = optuna.load_study(study_name="search", storage=open_storage(storage))
    trials = study.get_trials(deepcopy=False)
    done = [
        SPACE.format(SPACE.architecture(t.params)) for t in trials if t.state == TrialState.COMPLETE
    ]
    assert set(lost) <= set(done)
    # Each of the others may be evaluating when one has counted to the end.
    assert wanted <= len(set(done)) < wanted + len(hosts) - 2
    assert len(read_search(storage).evaluated.architectures) == len(set(done))
    assert len(log.read_text().splitlines()) <= len(set(done)) + len(
        lost
    )  # nothing but what was lost is evaluated twice


@pytest.mark.slow
def test_workers_of_one_machine_reclaim_what_killed_ones_left_in_a_journal(tmp_path: Path) -> None:
    check_that_lost_trials_are_reclaimed(tmp_path / "search.journal", tmp_path / "log", [""] * 4)


@pytest.mark.slow
def test_workers_of_many_machines_reclaim_what_vanished_ones_left_in_a_database(
    postgresql: str, tmp_path: Path
) -> None:
    check_that_lost_trials_are_reclaimed(postgresql, tmp_path / "log", ["a", "b", "c", "d"])


@pytest.fixture
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a new PostgreSQL on a free port."""
    pytest.importorskip("psycopg", reason="psycopg, the driver, is not installed")
    binaries = [
        *Path("/usr/lib/postgresql").glob("*/bin"),
        Path(shutil.which("initdb") or "/nowhere").parent,
    ]
    found = [
        folder
        for folder in binaries
        if (folder / "initdb").exists() and (folder / "pg_ctl").exists()
    ]
    if not found:
        pytest.skip("PostgreSQL is not installed (Debian package postgresql)")
    folder = Path("/tmp") / f"nas-postgresql-{os.getpid()}"
    user = "postgres" if os.getuid() == 0 else None  # the server refuses to be run by root
    folder.mkdir(mode=0o700)
    if user:
        shutil.chown(folder, user)
    port = free_port()

    def run(program: str, *arguments: str) -> None:
        command = [str(found[0] / program), "-D", str(folder / "data"), *arguments]
        subprocess.run(
            command, user=user, cwd=folder, check=True, stdout=subprocess.DEVNULL, timeout=60
        )

    try:
        run("initdb", "-U", "nas", "--auth=trust", "--no-sync")
        options = (
            f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off"
        )
        run("pg_ctl", "-w", "-l", str(folder / "log"), "-o", options, "start")
        yield f"postgresql://nas@127.0.0.1:{port}/postgres"
        run("pg_ctl", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_a_proxy_serves_a_search(tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="grpcio is not installed")
    port = free_port()
    serve = (
        "import sys; from optuna.storages import run_grpc_proxy_server as run; "
        "from nas.search.study.storage import open_storage; "
    )
    serve += "run(open_storage(sys.argv[1]), host='127.0.0.1', port=int(sys.argv[2]))"
    database = f"sqlite:///{tmp_path / 'study.db'}"
    server = subprocess.Popen(
        [sys.executable, "-c", serve, database, str(port)], stderr=subprocess.DEVNULL
    )
    try:
        wait_for_server(port, server)
        url = f"grpc://127.0.0.1:{port}"
        found = search(
            Problem(SPACE, Costs(), "params:max,flops"),
            sampler="random",
            evaluations=5,
            storage=url,
        )
        assert read_search(database).front_rows == found.front_rows
    finally:
        server.kill()
        server.wait()


def test_a_proxy_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("grpc", reason="grpcio is not installed")
    monkeypatch.setattr(storage, "PROXY_TIMEOUT_SECONDS", 0.2)
    port = free_port()  # of its own: gRPC keeps a connection for a while after its server has gone
    with pytest.raises(InputError, match=f"grpc://127.0.0.1:{port}"):
        open_storage(f"grpc://127.0.0.1:{port}")


class Costs:
    metrics = ("params", "flops")

    def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
        return np.array([[SPACE.params(a), SPACE.flops(a)] for a in architectures], dtype=float)


@pytest.mark.parametrize(
    "message",
    [
        "UNIQUE constraint failed: alembic_version.version_num",  # SQLite
        "table studies already exists",
        'duplicate key value violates unique constraint "pg_type_typname_nsp_index"',  # PostgreSQL
    ],
)
def test_database_that_another_process_creates_at_the_same_time_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    first_try = [True]

    def collides_once(kind: type) -> Callable[..., Any]:
        def create(*args: Any, **options: Any) -> Any:
            if first_try:
                first_try.clear()
                raise IntegrityError("INSERT INTO alembic_version", {}, Exception(message))
            return patient(kind)(*args, **options)

        return create

    monkeypatch.setattr(storage, "patient", collides_once)
    assert open_storage(f"sqlite:///{tmp_path / 'search.db'}").get_all_studies() == []
    assert not first_try


@pytest.mark.parametrize("state", [TrialState.RUNNING, TrialState.FAIL])
def test_one_of_two_processes_starts_or_gives_back_a_trial_in_an_sqlite_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: TrialState
) -> None:
    monkeypatch.setenv("NAS_STORAGE_TIMEOUT", "0")
    first, second = (
        open_storage(f"sqlite:///{tmp_path / 'search.db'}?timeout=0.01") for _ in range(2)
    )
    assert isinstance(first, optuna.storages.RDBStorage)
    study = optuna.create_study(storage=first)
    study.enqueue_trial({"x": 1})
    (id_,) = (storage.trial_id(trial) for trial in study.trials)
    if state == TrialState.FAIL:
        first.set_trial_state_values(id_, TrialState.RUNNING)
    taken: list[bool] = []

    def second_comes_between(*_: object) -> None:
        """Called after the first process has read the trial's state, before it writes the new
        one.
        """
        with suppress(StorageError):
            taken.append(second.set_trial_state_values(id_, state))

    monkeypatch.setattr(first, "check_trial_is_updatable", second_comes_between)
    assert first.set_trial_state_values(id_, state)
    assert not taken, "the file is locked before the state is read"


# --- joining from the command line


def begun(storage: str, evaluations: int) -> None:
    """A search of a table without any evaluation yet."""
    table = load_benchmark("digits201")
    evaluator = TableEvaluator(table, ("digits_accuracy", "flops"))
    objectives = "digits_accuracy,flops"
    search(
        Problem(table.space, evaluator, objectives),
        sampler="nsga2",
        evaluations=evaluations,
        storage=storage,
        name="mine-0",
        seconds=0,
    )


@pytest.mark.slow
def test_a_worker_finishes_what_another_process_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    begun(storage, 7)
    assert list_searches(storage) == ["mine-0"]
    assert is_unfinished(storage, "mine-0")
    monkeypatch.setattr(sys, "argv", ["nas", "worker", "--storage", storage])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code
    assert not is_unfinished(storage, "mine-0")
    assert len(read_search(storage, "mine-0").evaluated.architectures) == 7


def test_a_search_of_a_users_own_evaluator_is_joined_by_its_script_only(tmp_path: Path) -> None:
    path = tmp_path / "search.journal"
    search(
        Problem(SPACE, Costs(), "params:max,flops"), sampler="random", evaluations=3, storage=path
    )
    with pytest.raises(InputError, match="script"):
        join(path)


def test_values_of_different_sources_are_not_mixed(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    begun(storage, 7)
    space = read_search(storage, "mine-0").space
    with pytest.raises(InputError, match="digits201"):
        search(
            Problem(space, Fixed(), "digits_accuracy,flops"),
            sampler="nsga2",
            evaluations=7,
            storage=storage,
            name="mine-0",
        )


class Fixed:
    metrics = ("digits_accuracy", "flops")

    def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
        return np.ones((len(architectures), 2))


# --- limits and processes


def begin_table(storage: str, **limits: Any) -> None:
    """Start a search of a table that another process continues."""
    table = load_benchmark("digits201")
    evaluator = TableEvaluator(table, ("digits_accuracy", "flops"))
    search(
        Problem(table.space, evaluator, "digits_accuracy,flops"),
        sampler="random",
        evaluations=300,
        storage=storage,
        **limits,
    )


@pytest.mark.slow
def test_a_worker_keeps_to_the_patience_and_time_of_a_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient, hasty = f"sqlite:///{tmp_path / 'a.db'}", f"sqlite:///{tmp_path / 'b.db'}"
    with monkeypatch.context() as patch:
        patch.setattr(TableEvaluator, "__call__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            begin_table(patient, patience=5)
    assert 5 < len(join(patient).evaluated.architectures) < 300
    begin_table(hasty, seconds=1e-6)
    assert len(join(hasty).evaluated.architectures) == 0
    begin_table(hasty, seconds=0, patience=3)
    assert len(join(hasty).evaluated.architectures) > 0, "begun for workers, who have all the time"


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.slow
def test_a_worker_takes_prior_observations_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, storage = load_benchmark("digits201"), f"sqlite:///{tmp_path / 's.db'}"
    known = {table.architectures[i]: [1.0 + i, 2.0] for i in range(5)}
    evaluator = TableEvaluator(table, ("digits_accuracy", "flops"))
    with monkeypatch.context() as patch:
        patch.setattr(TableEvaluator, "__call__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            search(
                Problem(table.space, evaluator, "digits_accuracy,flops"),
                sampler="nsga2",
                evaluations=6,
                storage=storage,
                known=known,
            )
    assert is_unfinished(storage, "search")
    found = join(storage)
    assert not is_unfinished(storage, "search")
    assert len(found.evaluated.architectures) == 5 + 6
    assert found.evaluated.values[:5].tolist() == list(known.values())


def test_a_process_that_reuses_the_id_of_a_worker_is_not_that_worker(tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    class Deadly(Costs):
        def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
            raise Killed

    path = tmp_path / "search.journal"
    with pytest.raises(Killed):
        search(
            Problem(SPACE, Deadly(), "params:max,flops"),
            sampler="random",
            evaluations=3,
            storage=path,
        )
    study = optuna.load_study(study_name="search", storage=open_storage(path))
    (mine,) = [key for key in study.user_attrs if key.startswith("nas:worker:")]
    host = mine.split(":")[2]
    for other in (
        f"nas:worker:{host}:{os.getppid()}:earlier-1",
        f"nas:worker:{host}:{os.getppid()}",
    ):
        study.set_user_attr(other, "running")  # as a process left it that ended without a word
        set_owner(study, other.removeprefix("nas:worker:"))
    found = search(
        Problem(SPACE, Costs(), "params:max,flops"), sampler="random", evaluations=3, storage=path
    )
    assert len(found.evaluated.architectures) == 3


def test_a_resumed_trial_keeps_the_curve_from_before_the_interrupt(tmp_path: Path) -> None:
    path = tmp_path / "search.journal"

    class Interrupted(Costs):
        def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
            study = optuna.load_study(study_name="search", storage=open_storage(path))
            (trial,) = study.get_trials(states=(TrialState.RUNNING,))
            study._storage.set_trial_intermediate_value(trial._trial_id, 1, 0.5)
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt, InputError):
        search(
            Problem(SPACE, Interrupted(), "params:max,flops"),
            sampler="random",
            evaluations=2,
            storage=path,
        )
    study = optuna.load_study(study_name="search", storage=open_storage(path))
    (waiting,) = study.get_trials(states=(TrialState.WAITING,))
    assert waiting.intermediate_values == {1: 0.5}


def test_a_worker_sends_a_heartbeat_before_it_owns_a_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others wait for a trial's owner until its heartbeats stop, so the first one must come before
    the owner.
    """
    monkeypatch.setattr(
        storage, "get_heartbeat_thread", lambda *_: nullcontext()
    )  # its thread has not run yet
    database = tmp_path / "search.db"
    study = optuna.create_study(study_name="search", storage=open_storage(f"sqlite:///{database}"))
    with Worker(study) as worker, worker.evaluating(study.ask()):
        assert study.get_trials()[0].user_attrs["nas:worker"]
        with sqlite3.connect(database) as opened:
            assert opened.execute("select count(*) from trial_heartbeats").fetchone() == (1,)


def test_a_worker_resumes_no_trial_of_one_that_starts_right_after_it(tmp_path: Path) -> None:
    study = optuna.create_study(
        study_name="search", storage=open_storage(tmp_path / "search.journal")
    )
    left = study.ask()
    with Worker(study) as first:
        begun = study.ask()  # by another process, before the first one has read the study
        study.set_user_attr(f"nas:worker:{first.host}:{os.getppid()}:earlier", "running")
        assert [storage.trial_id(left)] == first.interrupted
        assert storage.trial_id(begun) not in first.interrupted
    with Worker(study) as second:
        assert second.alone, "the other's process never existed"


def test_a_worker_that_starts_while_another_registers_keeps_its_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Registering reads trials and workers. Whichever it reads first, the other worker starts right
    after that.
    """
    study = optuna.create_study(
        study_name="search", storage=open_storage(tmp_path / "search.journal")
    )
    first = Worker(study)
    begun: list[int | None] = []

    def then_another_starts(read: Callable[..., Any]) -> Callable[..., Any]:
        def reads(*args: Any, **options: Any) -> Any:
            found = read(*args, **options)
            if not begun:
                begun.append(None)  # `ask` may read trials as well
                pid = os.getppid()
                study.set_user_attr(
                    f"nas:worker:{first.host}:{pid}:{workers._started(pid)}", "running"
                )
                begun.append(storage.trial_id(study.ask()))
            return found

        return reads

    monkeypatch.setattr(study, "get_trials", then_another_starts(study.get_trials))
    monkeypatch.setattr(first, "has_others", then_another_starts(first.has_others))
    with first:
        assert len(begun) == 2, "another worker has started and begun a trial"
        assert begun[-1] not in first.interrupted


def test_a_trial_that_was_given_back_is_not_given_back_again_while_a_worker_takes_it(
    tmp_path: Path,
) -> None:
    study = optuna.create_study(
        study_name="search", storage=open_storage(tmp_path / "search.journal")
    )
    gone = f"{socket.gethostname()}:{os.getpid()}:earlier-1"
    study.enqueue_trial({"x": 1})
    study.ask()
    set_owner(study, gone)
    with Worker(study) as first, Worker(study) as second:
        study.set_user_attr(f"nas:worker:{gone}", "running")
        first.reclaim_stale_trials()
        taken = first.ask()  # it does not name its worker yet
        assert taken.number == 1
        assert taken.user_attrs["nas:worker"] == f"{gone}#0"
        study.set_user_attr(
            f"nas:worker:{gone}", "running"
        )  # as the second has read it, before the first finished
        second.reclaim_stale_trials()
        assert [trial.state for trial in study.trials] == [TrialState.FAIL, TrialState.RUNNING]


def test_a_worker_that_starts_alone_does_not_end_one_that_registers_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = optuna.create_study(
        study_name="search", storage=open_storage(tmp_path / "search.journal")
    )
    first, pid = Worker(study), os.getppid()
    other = f"nas:worker:{first.host}:{pid}:{workers._started(pid)}"
    dead = f"nas:worker:{first.host}:{pid}:earlier-1"
    study.set_user_attr(dead, "running")
    has_others = first.has_others

    def then_another_registers() -> bool:
        found = has_others()
        study.set_user_attr(other, "running")
        return found

    monkeypatch.setattr(first, "has_others", then_another_registers)
    with first:
        assert first.alone
        assert study.user_attrs[other] == "running", "its trials are given back if it ends"
        assert study.user_attrs[dead] == "finished"


@pytest.mark.parametrize("storage", ["sqlite:///{}/search.db", "{}/search.journal"])
def test_a_trial_that_another_machine_never_started_is_not_waited_for(
    tmp_path: Path, storage: str
) -> None:
    place = storage.format(tmp_path)
    search(
        Problem(SPACE, Costs(), "params:max,flops"), sampler="random", evaluations=2, storage=place
    )
    study = optuna.load_study(study_name="search", storage=open_storage(place))
    study.ask()
    study.set_user_attr("nas:worker:elsewhere:1:earlier-1", "running")
    assert (
        len(
            search(
                Problem(SPACE, Costs(), "params:max,flops"),
                sampler="random",
                evaluations=3,
                storage=place,
            ).evaluated.architectures
        )
        == 3
    )


def set_owner(study: optuna.Study, owner: str) -> None:
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        optuna.Trial(study, trial._trial_id).set_user_attr("nas:worker", f"{owner}#{trial.number}")


def test_a_foreign_study_with_other_directions_is_refused_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "search.journal"
    optuna.create_study(study_name="search", storage=open_storage(path))
    with pytest.raises(InputError, match="was not made by a search"):
        search(
            Problem(SPACE, Costs(), "params:max,flops"),
            sampler="random",
            evaluations=3,
            storage=path,
        )


def test_the_duration_of_a_resumed_trial_is_that_of_its_last_evaluation() -> None:
    study = optuna.create_study(directions=["minimize"])
    with Worker(study) as worker:
        trial = study.ask()
        with suppress(KeyError), worker.evaluating(trial):
            raise KeyError  # as if the process had ended here
        started = study.trials[0].datetime_start
        assert started is not None
        assert began(study.trials[0]) == started.timestamp()
        time.sleep(0.3)
        before = time.time()
        with worker.evaluating(trial):
            study.tell(trial, 1.0)
    completed = study.trials[0].datetime_complete
    assert completed is not None
    assert before <= began(study.trials[0]) <= completed.timestamp()
