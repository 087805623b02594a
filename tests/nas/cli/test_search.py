"""Claims about `nas search`: its messages if networks fail or violate all constraints."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest

from nas import cli

SPACE = (
    "--space",
    "tiny-resnet",
    "--objectives",
    "params,flops",
    "--sampler",
    "random",
    "--evaluations",
    "6",
)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Exit status of `nas …` in this process."""
    monkeypatch.setattr(sys, "argv", ["nas", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


def test_an_unsatisfied_constraint_is_reported_with_a_nonzero_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    command = ("search", *SPACE, "--constraint", "params <= 5", "--out", str(tmp_path))
    assert run(monkeypatch, *command) == 1
    shown = capsys.readouterr()
    assert "nas: no network satisfies params <= 5" in shown.err
    assert "The least violating networks" in shown.out
    assert run(monkeypatch, *command, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["front"] == []
    assert found["least_violating"][0]["violation"] == found["least_violating"][0]["params"] / 5 - 1
    assert found["summary"][0]["HV@6"].startswith("0.000"), (
        "what breaks a constraint has no hypervolume"
    )


def test_failed_trials_are_counted_with_the_last_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(
        "from search_spaces import Infeasible, SearchSpace\n\n\n"
        "class Mine(SearchSpace):\n"
        "    input_shape = (1, 8, 8)\n\n"
        "    def build(self, trial, net):\n"
        "        width, groups = trial.suggest_int('width', 1, 8), trial.suggest_int('groups', 1, "
        "8)\n"
        "        if width % groups:\n"
        "            raise Infeasible(f'{groups} groups do not divide {width}')\n"
        "        return net.classifier(net.conv(net.conv(net.input, width), width, "
        "groups=groups))\n"
    )
    command = (
        "search",
        "--space",
        f"{tmp_path / 'mine.py'}:Mine",
        *SPACE[2:],
        "--out",
        str(tmp_path / "out"),
    )
    assert run(monkeypatch, *command) == 0
    assert "groups do not divide" in capsys.readouterr().err
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    (failures,) = summary["samplers"]["random"]["failures"]
    assert "groups do not divide" in failures[0]["reason"]
    assert run(monkeypatch, "report", str(tmp_path / "out"), "--trust", "--json") == 0
    assert json.loads(capsys.readouterr().out)["samplers"]["random"]["failures"] == [failures]


def test_a_search_with_no_time_is_prepared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(monkeypatch, "search", *SPACE, "--hours", "0", "--out", str(tmp_path)) == 0
    assert "prepared: nas worker" in capsys.readouterr().out


def test_people_read_a_line_for_each_network_of_the_front(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Choices of tiny-resnet would fill sixteen lines of a table's column, so they are only in
    `front.csv`.
    """
    monkeypatch.setenv("COLUMNS", "80")
    options = ("--objectives", "params,flops:max", "--evaluations", "12", "--out", str(tmp_path))
    assert run(monkeypatch, "search", *SPACE, *options) == 0
    shown = capsys.readouterr().out
    front = list(csv.DictReader((tmp_path / "front.csv").open()))
    assert len(front) > 3
    lines = [line for line in shown.splitlines() if "front/" in line]
    assert [line.split()[1] for line in lines] == [
        f"front/{place:02d}" for place in range(len(front))
    ]
    assert all(
        f"{float(row['params']):,.0f}" in line for line, row in zip(lines, front, strict=True)
    )
    assert max(map(len, shown.splitlines()[:-1])) <= 80


def test_an_objective_whose_name_says_nothing_is_minimized_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(
        "def evaluate(model, architecture, report):\n    return {'usefulness': 1.0}\n"
    )
    command: tuple[str, ...] = (
        "search",
        "--space",
        "tiny-resnet",
        "--sampler",
        "random",
        "--evaluations",
        "2",
        "--out",
        "out",
    )
    command = (*command, "--evaluator", f"{tmp_path / 'mine.py'}:evaluate", "--objectives")
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, *command, "usefulness,params", "--new") == 0
    assert (
        "nas: usefulness is minimized, since its name says nothing else: usefulness:max"
        in capsys.readouterr().err
    )
    assert run(monkeypatch, *command, "usefulness:min,params", "--new") == 0
    assert "says nothing" not in capsys.readouterr().err


def test_the_command_names_cheap_columns_and_how_many_are_known_ahead(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table = ("search", "--benchmark", "digits-resnet", "--sampler", "gp-choices,random")
    goal = ("--objectives", "digits_accuracy,cpu_latency_ms", "--evaluations", "12")
    cheap = ("--cheap", "cpu_latency_ms", "--measure", "2", "--out", str(tmp_path))
    assert run(monkeypatch, *table, *goal, *cheap) == 0
    with (tmp_path / "networks.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["evaluations"] == "0"]
    assert rows
    assert {row["sampler"] for row in rows} == {"gp-choices"}
    log = (tmp_path / "nas.log").read_text()
    assert log.count(": measured only, ") >= len(rows)

    refused = {
        ("--cheap", "params"): "unknown cheap metric 'params'",
        ("--measure", "2", "--sampler", "random"): "--measure 2 does not apply to random",
    }
    for arguments, message in refused.items():
        assert run(monkeypatch, *table, *goal, *arguments, "--out", str(tmp_path / "other")) != 0
        assert message in " ".join(capsys.readouterr().err.split())
