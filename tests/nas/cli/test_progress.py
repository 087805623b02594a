"""Claims about progress: a bar that fits 80 columns, lines where there is no terminal, nothing with `--quiet`."""

from __future__ import annotations

import io
import re
import time

import pytest

from nas.cli import progress
from nas.cli.progress import progress_bar

WHAT = "rlm, seed 0: 12 on the front, hypervolume 0.812, best digits_accuracy 95.31, cpu_latency_ms 0.2134"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_fits_80_columns_and_loses_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar("comparing cifar10_test_accuracy on nasbench201-of-many") as bar:
        for done in (100, 110):
            bar(WHAT, done, 200)
        time.sleep(0.4)  # until it is drawn
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue()).replace("\r", "\n").splitlines()
    assert max(map(len, lines)) <= 80
    shown = " ".join(" ".join(lines).split())
    for part in ("110/200", " left", "hypervolume 0.812", "cpu_latency_ms 0.2134"):
        assert part in shown


def test_without_a_terminal_there_are_lines_from_time_to_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.05)
    with progress_bar("searching") as bar:
        bar(WHAT, 0, 200)
        time.sleep(0.3)  # one long evaluation: the line says that the command is alive
        bar(WHAT, 200, 200)
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert not captured.out
    assert len(lines) >= 3
    assert re.fullmatch(rf"\d\d:\d\d:\d\d searching: 0/200, {re.escape(WHAT)}, 0:00:00", lines[0])
    assert re.fullmatch(rf"\d\d:\d\d:\d\d searching: 200/200, {re.escape(WHAT)}, 0:00:00", lines[-1])


def test_time_left_goes_by_what_this_run_has_done(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    state = progress._State("searching")
    state.update("", 150, 200)  # it goes on from there
    assert state.left == ""
    now[0] = 60
    state.update("", 160, 200)
    assert state.left == "0:04:00 left"
    state.update("", 5, 100)  # something new begins
    now[0] = 90
    state.update("", 10, 100)
    assert state.left == "0:09:00 left"


def test_quiet_shows_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal()
    with progress_bar("searching", quiet=True) as bar:
        bar(WHAT, 1, 2)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("sys.stderr", terminal)
    with progress_bar("searching", quiet=True) as bar:
        bar(WHAT, 1, 2)
    assert not terminal.getvalue()


def test_an_error_is_not_followed_by_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        with progress_bar("searching") as bar:
            bar(WHAT, 1, 2)
            raise KeyError("x")

    with pytest.raises(KeyError):
        fail()
    assert len(capsys.readouterr().err.splitlines()) == 1
