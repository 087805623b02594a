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
        assert {"command", "date", "commit"} <= origin.keys(), name
        assert re.search(r"\d{4}-\d\d-\d\d", origin["date"]), name


def test_every_command_is_there() -> None:
    origins = json.loads(PROVENANCE.read_text())
    for origin in origins.values():
        for module in re.findall(r"python -m ([\w.]+)", origin["command"]):
            path = ROOT.joinpath(*module.split("."))
            assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module


def test_the_page_has_no_gaps_and_fits_two_pages() -> None:
    page = RESULTS.read_text()
    assert "@" not in page
    assert len(page.splitlines()) < 240
