"""Claims about progress: a bar that fits 80 columns, lines without a terminal, nothing with
`--quiet`.
"""

from __future__ import annotations

import io
import re
import time
from pathlib import Path

import numpy as np
import pytest

from nas import cli
from nas.cli import progress
from nas.cli.progress import progress_bar
from nas.report import folders
from search_spaces import get_space

WHAT = (
    "rlm, seed 0: 12 on the front, hypervolume 0.812, best digits_accuracy 95.31, "
    "cpu_latency_ms 0.2134"
)


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
    lines = (
        re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue()).replace("\r", "\n").splitlines()
    )
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
    # The time that has passed: a busy machine may need seconds for what takes 0.3 s.
    line = rf"\d\d:\d\d:\d\d searching: {{}}/200, {re.escape(WHAT)}, 0:00:\d\d"
    assert re.fullmatch(line.format(0), lines[0])
    assert re.fullmatch(line.format(200), lines[-1])


def test_time_left_is_estimated_from_the_speed_of_this_run(monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize("seed", range(5))
def test_time_left_is_stable_with_several_processes_and_unequal_durations(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes evaluate 24 networks whose durations vary by a factor of ten; the bar is drawn
    every second.
    """
    rng, now = np.random.default_rng(seed), [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    ends, free = [], [0.0, 20.0]  # the second process begins later
    for duration in 30 * np.exp(rng.normal(0, 0.7, 24)):
        process = int(np.argmin(free))
        free[process] += duration
        ends.append(free[process])
    ends.sort()
    state = progress._State("searching")
    state.update("", 0, 24)
    shown = []
    for now[0] in np.arange(1.0, ends[-1]):
        if (done := sum(end <= now[0] for end in ends)) != state.done:
            state.update("", done, 24)
        if done >= 4:
            hours, minutes, seconds = map(int, state.left.split()[0].split(":"))
            shown.append((3600 * hours + 60 * minutes + seconds, ends[-1] - now[0]))
    left, truth = np.array(shown).T
    early = truth > 60
    assert np.abs(np.log(left[early] / truth[early])).max() < np.log(2.5)
    steps = np.abs(np.diff(left))
    assert steps.max() < 0.25 * left.max(), "it does not jump"


def test_a_long_unit_raises_the_estimate_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    state = progress._State("searching")
    state.update("", 0, 24)
    now[0] = 60
    state.update("", 5, 24)
    shown = []
    for now[0] in range(60, 301, 60):  # nothing ends for four minutes
        shown.append(state.left)
    assert shown == ["0:03:48 left", "0:06:00 left", "0:09:00 left", "0:12:00 left", "0:15:00 left"]
    state.update("", 6, 24)
    assert state.left == "0:15:00 left", "it does not jump when the unit ends"


def test_quiet_shows_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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


@pytest.mark.slow
def test_compare_and_train_report_and_log_their_progress(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    space = get_space("nasbench201")
    rows = [
        f"{space.format(a)},{i * i % 17}"
        for i, a in zip(range(20), space.enumerate(), strict=False)
    ]
    table = tmp_path / "t.csv"
    table.write_text("\n".join(["arch,x_accuracy", *rows]))
    out = {command: tmp_path / command for command in ("compare", "train")}
    monkeypatch.setattr(folders, "save_comparison", lambda *arguments: None)
    commands = {
        "compare": ("--benchmark", str(table), "--metric", "x_accuracy", "--predictors", "ridge", "--sizes", "5",
                    "--seeds", "2"),
        "train": ("gnn", "--benchmark", str(table), "--metrics", "x_accuracy", "--steps", "3"),
    }  # fmt: skip
    shown: dict[str, list[str]] = {}
    for command, arguments in commands.items():
        for quiet in ([], ["--quiet"]):
            monkeypatch.setattr(
                "sys.argv", ["nas", command, *arguments, "--out", str(out[command]), *quiet]
            )
            with pytest.raises(SystemExit) as stop:
                cli.main()
            assert not stop.value.code
            lines = capsys.readouterr().err.splitlines()
            assert not quiet or not lines
            shown[command] = lines if not quiet else shown[command]
    assert "comparing x_accuracy on" in shown["compare"][0]
    assert "0/2" in shown["compare"][0]
    assert "2/2" in shown["compare"][-1]
    assert "training gnn: 3/3, fitting, loss" in shown["train"][-1]
    logs = {command: (folder / "nas.log").read_text() for command, folder in out.items()}
    assert "INFO ridge, 5 architectures, seed 1: τ " in logs["compare"]
    assert "training gnn: 3/3, fitting, loss" in logs["train"]


def test_a_metric_that_is_a_path_stays_in_the_folder(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    space = get_space("nasbench201")
    rows = [
        f"{space.format(a)},{i},{-i}" for i, a in zip(range(16), space.enumerate(), strict=False)
    ]
    (tmp_path / "t.csv").write_text("\n".join(["arch,../../x,../../y", *rows]))
    monkeypatch.setattr(folders, "save_comparison", lambda *arguments: None)
    out = tmp_path / "a" / "b"
    command = (
        "compare",
        "--benchmark",
        str(tmp_path / "t.csv"),
        "--metric",
        "../../x",
        "--metric",
        "../../y",
    )
    options = (
        "--predictors",
        "ridge",
        "--sizes",
        "5",
        "--seeds",
        "1",
        "--out",
        str(out),
        "--quiet",
    )
    monkeypatch.setattr("sys.argv", ["nas", *command, *options])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code
    assert {path.name for path in out.iterdir()} == {"t-.._.._x", "t-.._.._y"}
    assert {path.name for path in tmp_path.iterdir()} == {"a", "cache", "t.csv"}
