"""Every table of results says where it comes from."""

from __future__ import annotations

import json
import re

from tests.test_layers import ROOT

RESULTS = ROOT / "docs" / "results.md"
PROVENANCE = ROOT / "docs" / "results.json"


def test_every_section_has_a_command_a_date_and_a_commit() -> None:
    origins = json.loads(PROVENANCE.read_text())
    for name, origin in origins.items():
        assert {"section", "command", "date", "commit", "networks"} <= origin.keys(), name
        assert re.search(r"\d{4}-\d\d-\d\d", origin["date"]), name


def test_every_section_of_the_page_has_an_origin_and_the_other_way_round() -> None:
    sections = set(re.findall(r"^## (.+)$", RESULTS.read_text(), re.MULTILINE))
    named = {origin["section"] for origin in json.loads(PROVENANCE.read_text()).values()}
    assert named == sections - {"Published figures of others"}


def test_every_checkpoint_is_a_shipped_one_that_the_page_describes() -> None:
    page = RESULTS.read_text()
    described = set(re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE))
    origins = json.loads(PROVENANCE.read_text()).values()
    named = [name for origin in origins for name in origin.get("checkpoints", {}).values()]
    used = set(re.findall(r"\b(?:rlm|gnn)-[a-z]+(?:-free)?\b", " ".join(named)))
    assert described | {"rlm-zoo"} >= used, "made as rlm-zoo: the page says from what"
    shipped = {path.name for path in (ROOT / "predictors" / "checkpoints").iterdir()}
    assert described <= shipped


def test_every_command_is_there() -> None:
    origins = json.loads(PROVENANCE.read_text())
    for origin in origins.values():
        for module in re.findall(r"python -m ([\w.]+)", origin["command"]):
            path = ROOT.joinpath(*module.split("."))
            assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module


def test_the_page_has_no_gaps_and_stays_one_page() -> None:
    page = RESULTS.read_text()
    assert "@" not in page
    assert len(page.splitlines()) < 325
