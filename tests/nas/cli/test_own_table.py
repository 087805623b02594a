"""Claims about a table and a space of the user's: they are searched, compared and learned."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from nas import cli
from search_spaces import get_space

SPACE_FILE = """
from search_spaces import SearchSpace


class Mine(SearchSpace):
    name = "my-space"
    input_shape = (1, 8, 8)

    def build(self, trial, net):
        x = net.input
        for i in range(3):
            width = trial.suggest_categorical(f"width{i}", [2, 4, 8, 16])
            x = net.conv_bn_relu(x, width, kernel=trial.suggest_int(f"kernel{i}", 1, 5, step=2))
        return net.classifier(x)
"""


@pytest.fixture
def mine(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Options of a table of 40 networks whose best accuracy is 45 %, and of its space."""
    monkeypatch.chdir(tmp_path)
    Path("my_space.py").write_text(SPACE_FILE)
    space = get_space("my_space.py:Mine")
    rng = np.random.default_rng(0)
    rows = list(dict.fromkeys(space.sample(rng) for _ in range(50)))[:40]
    lines = [
        f'"{space.format(a)}",{min(45, space.params(a) ** 0.5)},{space.flops(a) / 1e5}'
        for a in rows
    ]
    Path("my.csv").write_text("\n".join(["architecture,test_accuracy,pi_latency_ms", *lines]))
    return "my.csv", "my_space.py:Mine"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Exit status of `nas …` in this process."""
    monkeypatch.setattr(sys, "argv", ["nas", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


@pytest.mark.slow
def test_a_table_is_searched_and_reported_without_a_hidden_floor(
    mine: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table, space = mine
    command = (
        "search",
        "--benchmark",
        table,
        "--space",
        space,
        "--objectives",
        "test_accuracy,pi_latency_ms",
    )
    assert (
        run(
            monkeypatch,
            *command,
            "--sampler",
            "nsga2",
            "--evaluations",
            "20",
            "--out",
            "out",
            "--json",
        )
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["front"], "its best accuracy is 45 %: no floor is put on it"
    assert max(row["test_accuracy"] for row in found["front"]) <= 45
    assert run(monkeypatch, "report", "out", "--trust", "--json") == 0
    assert json.loads(capsys.readouterr().out)["true_front"] > 1
    floor = (
        "--constraint",
        "test_accuracy >= 40",
        "--sampler",
        "random",
        "--evaluations",
        "30",
        "--out",
        "floor",
    )
    assert run(monkeypatch, *command, *floor, "--json") == 0
    assert min(row["test_accuracy"] for row in json.loads(capsys.readouterr().out)["front"]) >= 40


def begin_empty(mine: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Start a search in `s.db` that ends before its first evaluation. Returns the files of table
    and space.
    """
    table, space = mine
    command = (
        "search",
        "--benchmark",
        table,
        "--space",
        space,
        "--objectives",
        "test_accuracy,pi_latency_ms",
    )
    options = (
        "--sampler",
        "random",
        "--evaluations",
        "12",
        "--storage",
        "sqlite:///s.db",
        "--out",
        "out",
    )
    assert run(monkeypatch, *command, *options, "--hours", "0") == 0, "the search is prepared"
    return table, space


@pytest.mark.slow
def test_a_worker_joins_the_search_of_a_space_with_a_name_of_its_own(
    mine: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begin_empty(mine, monkeypatch)
    assert run(monkeypatch, "worker", "--storage", "sqlite:///s.db", "--trust") == 0
    assert "search-random-0: finished" in capsys.readouterr().out
    assert run(monkeypatch, "report", "sqlite:///s.db", "--out", "report", "--trust", "--json") == 0
    assert json.loads(capsys.readouterr().out)["samplers"]["random"]["evaluations"] == [12]


@pytest.mark.slow
def test_a_worker_finds_table_and_space_at_its_own_paths(
    mine: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table, space = begin_empty(mine, monkeypatch)
    Path("moved").mkdir()
    file = space.partition(":")[0]
    for path in (table, file):
        Path(path).rename(Path("moved", Path(path).name))
    moved = ("--space", f"moved/{Path(space).name}", "--path", f"moved/{Path(table).name}")
    assert run(monkeypatch, "worker", "--storage", "sqlite:///s.db", *moved, "--jobs", "2") == 0
    assert "search-random-0: finished" in capsys.readouterr().out


@pytest.mark.slow
def test_a_folder_is_reported_from_another_one(
    mine: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table, space = mine
    command = (
        "search",
        "--benchmark",
        table,
        "--space",
        space,
        "--objectives",
        "test_accuracy,pi_latency_ms",
    )
    assert (
        run(monkeypatch, *command, "--sampler", "random", "--evaluations", "5", "--out", "out") == 0
    )
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert run(monkeypatch, "report", "../out", "--trust", "--out", "report") == 0
    assert "not drawn" not in Path("report/summary.json").read_text()
    assert json.loads(Path("report/summary.json").read_text())["benchmark"] == Path(table).stem


@pytest.mark.slow
def test_predictors_are_compared_and_trained_on_it(
    mine: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table, space = mine
    own = ("--benchmark", table, "--space", space)
    scores = (
        "compare",
        *own,
        "--metric",
        "pi_latency_ms",
        "--predictors",
        "ridge",
        "--sizes",
        "20",
        "--seeds",
        "2",
    )
    assert run(monkeypatch, *scores, "--jobs", "2", "--json") == 0
    assert json.loads(capsys.readouterr().out)["predictors"][0]["tau"] > 0.5
    assert (
        run(
            monkeypatch, "train", "ridge", *own, "--metrics", "pi_latency_ms", "--out", "checkpoint"
        )
        == 0
    )
    assert Path("checkpoint/config.json").exists()


def test_an_edited_space_is_not_read_from_the_cache(
    mine: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table, space = mine
    command = (
        "train",
        "ridge",
        "--benchmark",
        table,
        "--space",
        space,
        "--metrics",
        "pi_latency_ms",
        "--out",
        "c",
    )
    assert run(monkeypatch, *command) == 0
    Path("my_space.py").write_text(SPACE_FILE.replace("[2, 4, 8, 16]", "[2, 4, 8]"))
    assert run(monkeypatch, *command) == 2
    assert "my.csv, line" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--benchmark", "digits201", "--space", "my_space.py:Mine"),
            "digits201 has its own space",
        ),
        (("--benchmark", "my.csv", "--epochs", "3"), "--epochs applies to --space"),
        (
            ("--benchmark", "my.csv", "--space", "my_space.py:Mine", "--epochs", "3"),
            "nothing is measured on a benchmark",
        ),
        (("--benchmark", "none.csv", "--space", "my_space.py:Mine"), "none.csv: cannot be read"),
        (
            ("--benchmark", "odd.csv", "--space", "my_space.py:Mine"),
            "no column 'arch' or 'architecture'",
        ),
    ],
)
def test_mistakes_are_one_line(
    arguments: tuple[str, ...],
    message: str,
    mine: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("odd.csv").write_text("network,x\na,1\n")
    assert run(monkeypatch, "search", *arguments, "--objectives", "test_accuracy") == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
