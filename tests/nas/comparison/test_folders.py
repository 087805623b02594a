"""Claims about result folders: each belongs to one command, and no search overwrites another one's
results.
"""

from __future__ import annotations

import datetime
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from nas import cli
from nas.comparison.folders import (
    chosen_folder,
    claim,
    earlier_folders,
    folder_name,
    searched_table,
)
from search_spaces.common.errors import InputError

ORIGIN: dict[str, Any] = {
    "settings": {"space": "s"},
    "source": {"benchmark": "digits201", "sha256": "0"},
    "identity": {
        "text_version": 1, "networks": [["a", "b"]], "machine": {"processor": "P", "device": "cpu"}, "versions": {},
    },
}  # fmt: skip


def test_the_default_name_contains_space_objectives_and_date(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Day(datetime.date):
        @classmethod
        def today(cls) -> Day:
            return cls(2026, 11, 24)

    monkeypatch.setattr(datetime, "date", Day)
    metrics = ["top1", "pi latency/ms"]
    assert folder_name("digits201", ["digits_accuracy"]) == "digits201-digits_accuracy-2026-11-24"
    for searched in ("Mine", "my_space.py:Mine", "/home/me/my_space.py:Mine", "../a b/Mine.csv"):
        assert folder_name(searched, metrics) == "Mine-top1+pi_latency_ms-2026-11-24"
    assert folder_name("my_space.py", metrics) == "my_space-top1+pi_latency_ms-2026-11-24"
    assert len(folder_name("x" * 500, metrics)) < 200
    assert os.sep not in folder_name("../../etc", ["../../x"])


def choose(folder: Path, arguments: dict[str, Any], searches: list[str], new: bool = False) -> Path:
    with chosen_folder(folder, arguments, searches, new) as chosen:
        return chosen


def test_a_command_resumes_in_its_folder_and_another_one_gets_its_own(tmp_path: Path) -> None:
    first = tmp_path / "r"
    assert choose(first, {"a": "1"}, ["rlm-0"]) == first
    claim(first, ["rlm-0"], ORIGIN, {"a": "1"})
    assert choose(first, {"a": "1"}, ["rlm-0"]) == first
    assert choose(first, {"a": "1"}, ["rlm-0", "nsga2-0"]) == first, "more samplers join"
    second = choose(first, {"a": "2"}, ["rlm-0"])
    assert second == tmp_path / "r-2"
    claim(second, ["rlm-0"], ORIGIN, {"a": "2"})
    assert choose(first, {"a": "2"}, ["rlm-0"]) == second
    assert choose(first, {"a": "1"}, ["nsga2-0"]) == tmp_path / "r-3", "rlm would be lost"
    assert choose(first, {"a": "1"}, ["rlm-0"], new=True) == tmp_path / "r-4"


def test_no_two_searches_that_begin_at_once_choose_one_folder(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(
            pool.map(
                lambda i: choose(tmp_path / "r", {"a": i}, [f"random-{i}"], new=i % 2 == 0),
                range(16),
            )
        )
    assert len(set(found)) == 16


def test_a_folder_that_an_error_leaves_empty_vanishes(tmp_path: Path) -> None:
    with (
        pytest.raises(InputError, match="no such metric"),
        chosen_folder(tmp_path / "results" / "r", {}, [], False),
    ):
        raise InputError("no such metric")
    assert list(tmp_path.iterdir()) == [], "neither it nor the folder that was made for it"


def test_of_two_searches_that_claim_one_folder_at_once_one_is_refused(tmp_path: Path) -> None:
    def attempt(i: int) -> str:
        try:
            claim(tmp_path, ["random-0"], {**ORIGIN, "settings": {"space": str(i)}}, {})
        except InputError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(8) as pool:
        messages = list(pool.map(attempt, range(8)))
    assert messages.count("") == 1
    assert sum("started with space" in message for message in messages) == 7
    assert [path.name for path in tmp_path.iterdir()] == ["search.json"]


@pytest.mark.slow
def test_no_report_or_comparison_overwrites_the_results_of_a_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> int:
        monkeypatch.setattr("sys.argv", ["nas", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return int(stop.value.code or 0)

    goals = (
        "search",
        "--benchmark",
        "digits201",
        "--sampler",
        "random",
        "--evaluations",
        "4",
        "--objectives",
    )
    for name, metrics in (("a", "digits_accuracy,params"), ("b", "digits_accuracy,flops")):
        url = f"sqlite:///{tmp_path}/{name}.db"
        assert run(*goals, metrics, "--storage", url, "--out", str(tmp_path / name)) == 0
    front = (tmp_path / "b" / "front.csv").read_bytes()
    assert run("report", f"{tmp_path}/a.db", "--out", str(tmp_path / "b")) == 2
    compared = (
        "compare",
        "--benchmark",
        "digits201",
        "--metric",
        "params",
        "--predictors",
        "ridge",
        "--sizes",
        "5",
    )
    assert run(*compared, "--out", str(tmp_path / "b")) == 2
    assert (
        capsys.readouterr().err.count("holds the results of another search: give another --out")
        == 2
    )
    assert (tmp_path / "b" / "front.csv").read_bytes() == front
    assert run("report", f"{tmp_path}/b.db", "--out", str(tmp_path / "b")) == 0, "its own"


def test_the_same_command_finds_its_folder_on_another_day(tmp_path: Path) -> None:
    today = tmp_path / folder_name("digits201", ["params"])
    for day, arguments in (
        ("2026-01-02", {"a": "1"}),
        ("2026-01-03-2", {"a": "1"}),
        ("2026-01-04", {"a": "2"}),
    ):
        claim(tmp_path / f"digits201-params-{day}", ["rlm-0"], ORIGIN, arguments)
    found = {path.name for path in earlier_folders(today, {"a": "1"})}
    assert found == {"digits201-params-2026-01-02", "digits201-params-2026-01-03-2"}


def test_a_folder_with_other_searches_is_refused(tmp_path: Path) -> None:
    claim(tmp_path, ["rlm-0"], ORIGIN, {})
    other = {**ORIGIN, "settings": {"space": "t"}}
    with pytest.raises(
        InputError, match=r"holds another search, started with space 's', not 't': .*--new"
    ):
        claim(tmp_path, ["rlm-0"], other, {})
    with pytest.raises(InputError, match="also holds the search rlm-0"):
        claim(tmp_path, ["nsga2-0"], ORIGIN, {})
    claim(tmp_path, ["rlm-0", "nsga2-0"], ORIGIN, {})
    assert searched_table(tmp_path) == {"benchmark": "digits201"}
    assert json.loads((tmp_path / "search.json").read_text())["searches"] == ["rlm-0", "nsga2-0"]


@pytest.mark.parametrize("name", ["front.csv", "summary.json", "front"])
def test_results_of_another_origin_are_not_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("precious")
    with pytest.raises(InputError, match=f"already holds {name}"):
        claim(tmp_path, ["rlm-0"], ORIGIN, {})


@pytest.mark.parametrize("place", ["file", "/proc/none"])
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError) as error:
        claim(tmp_path / place, ["rlm-0"], ORIGIN, {})
    assert str(error.value).startswith(f"{tmp_path / place}: cannot be written (")


DAMAGED = [
    '{"arguments": {}, "searches": [], "begun_with": 3}',
    '{"arguments": {}, "searches": 3, "begun_with": {"settings": {}, "source": {}}}',
    '{"arguments": {}, "searches": [{}], "begun_with": {"settings": {}, "source": {}}}',
    '{"arguments": {}, "searches": [], "begun_with": {"settings": {}, "source": []}}',
]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"searches": 1}', "\0", *DAMAGED])
def test_a_damaged_record_is_one_clear_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "search.json").write_text(content)
    with pytest.raises(InputError, match=r"search\.json: damaged, or not the record"):
        claim(tmp_path, ["rlm-0"], ORIGIN, {})
