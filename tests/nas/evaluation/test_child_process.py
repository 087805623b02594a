"""Programs that may hang end in time, and with the process that waits for them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from nas.evaluation.child_process import run_killable

WAITING = """
import sys
from nas.evaluation.child_process import run_killable

run_killable(sys.argv[1] if len(sys.argv) == 2 else sys.argv[1:], 600)
"""
# A program, its child process, and a file that says that both run
SLEEPING = "sleep 600 & echo $$ $! > pids.part; mv pids.part pids; wait; : done"


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@contextmanager
def processes_in(file: str) -> Iterator[list[psutil.Process]]:
    """The processes whose ids a program writes to a file; none is left."""
    deadline = time.monotonic() + 60
    while not Path(file).exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    started = [psutil.Process(int(pid)) for pid in Path(file).read_text().split()]
    try:
        yield started
    finally:
        for process in filter(runs, started):
            process.kill()


def runs(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("command", [[SLEEPING], ["sh", "-c", SLEEPING]])
def test_a_program_ends_with_its_child_processes_when_the_waiting_process_is_killed(
    command: list[str],
) -> None:
    waiting = subprocess.Popen([sys.executable, "-c", WAITING, *command])
    with processes_in("pids") as started:
        assert len(started) == 2
        assert all(map(runs, started))
        time.sleep(0.2)  # until the watcher runs, too
        waiting.send_signal(signal.SIGKILL)
        waiting.wait()
        deadline = time.monotonic() + 20
        while any(map(runs, started)):
            assert time.monotonic() < deadline, "a program outlived the process that waited for it"
            time.sleep(0.02)


def test_nothing_is_killed_after_a_program_has_ended() -> None:
    assert run_killable("sleep 60 & echo $! > pids", 20).failure == ""
    with processes_in("pids") as (server,):
        assert runs(server)
        children = psutil.Process().children()
        assert not [child for child in children if child.name() == "sh"], "a watcher is left"
