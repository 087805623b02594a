"""Claims about result folders: each belongs to one command, and no search overwrites another one's results."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

import pytest

from nas.comparison import folders
from nas.comparison.folders import choose_folder, claim, folder_name, searched_table
from search_spaces.common.errors import InputError

ORIGIN: dict[str, Any] = {
    "settings": {"space": "s"},
    "source": {"benchmark": "digits201", "sha256": "0"},
    "identity": {
        "text_version": 1, "networks": [["a", "b"]], "machine": {"processor": "P", "device": "cpu"}, "versions": {},
    },
}  # fmt: skip


def test_the_default_name_is_of_space_objectives_and_date(monkeypatch: pytest.MonkeyPatch) -> None:
    class Day(datetime.date):
        @classmethod
        def today(cls) -> Day:
            return cls(2026, 11, 24)

    monkeypatch.setattr(folders.datetime, "date", Day)
    metrics = ["top1", "pi latency/ms"]
    assert folder_name("digits201", ["digits_accuracy"]) == "digits201-digits_accuracy-2026-11-24"
    for searched in ("Mine", "my_space.py:Mine", "/home/me/my_space.py:Mine", "../a b/Mine.csv"):
        assert folder_name(searched, metrics) == "Mine-top1+pi_latency_ms-2026-11-24"
    assert folder_name("my_space.py", metrics) == "my_space-top1+pi_latency_ms-2026-11-24"
    assert len(folder_name("x" * 500, metrics)) < 200
    assert os.sep not in folder_name("../../etc", ["../../x"])


def test_a_command_goes_on_in_its_folder_and_another_one_has_its_own(tmp_path: Path) -> None:
    first = tmp_path / "r"
    assert choose_folder(first, {"a": "1"}, ["rlm-0"], False) == first
    claim(first, ["rlm-0"], ORIGIN, {"a": "1"})
    assert choose_folder(first, {"a": "1"}, ["rlm-0"], False) == first
    assert choose_folder(first, {"a": "1"}, ["rlm-0", "nsga2-0"], False) == first, "more samplers join"
    second = choose_folder(first, {"a": "2"}, ["rlm-0"], False)
    assert second == tmp_path / "r-2"
    claim(second, ["rlm-0"], ORIGIN, {"a": "2"})
    assert choose_folder(first, {"a": "2"}, ["rlm-0"], False) == second
    assert choose_folder(first, {"a": "1"}, ["nsga2-0"], False) == tmp_path / "r-3", "rlm would be lost"
    assert choose_folder(first, {"a": "1"}, ["rlm-0"], True) == tmp_path / "r-3"


def test_a_folder_with_other_searches_is_refused(tmp_path: Path) -> None:
    claim(tmp_path, ["rlm-0"], ORIGIN, {})
    other = {**ORIGIN, "settings": {"space": "t"}}
    with pytest.raises(InputError, match=r"holds another search, begun with space 's', not 't': .*--new"):
        claim(tmp_path, ["rlm-0"], other, {})
    with pytest.raises(InputError, match="holds the search rlm-0, too"):
        claim(tmp_path, ["nsga2-0"], ORIGIN, {})
    claim(tmp_path, ["rlm-0", "nsga2-0"], ORIGIN, {})
    assert searched_table(tmp_path) == {"benchmark": "digits201"}
    assert json.loads((tmp_path / "search.json").read_text())["searches"] == ["rlm-0", "nsga2-0"]


@pytest.mark.parametrize("name", ["front.csv", "summary.json", "front"])
def test_results_of_another_origin_are_not_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("precious")
    with pytest.raises(InputError, match=f"holds {name} of another origin"):
        claim(tmp_path, ["rlm-0"], ORIGIN, {})


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"searches": 1}', "\0"])
def test_a_damaged_record_is_one_clear_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "search.json").write_text(content)
    with pytest.raises(InputError, match=r"search\.json: not the record of a search"):
        claim(tmp_path, ["rlm-0"], ORIGIN, {})
