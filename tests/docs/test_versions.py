"""The table of versions in the documentation has the versions of the code."""

from __future__ import annotations

import re
from pathlib import Path

from nas.benchmarks.table import FORMAT_VERSION as TABLE
from nas.search.search import RESULT_VERSION as SEARCHES
from predictors.checkpoint import FORMAT_VERSION as CHECKPOINT
from predictors.registry import RESULT_VERSION as PREDICTORS
from search_spaces.ir.text import TEXT_VERSION

ROOT = Path(__file__).parents[2]


def test_every_version_is_the_codes_and_its_file_exists() -> None:
    page = (ROOT / "docs" / "development" / "versions.md").read_text()
    rows = dict(re.findall(r"^\| (.+?) \| (\d+) \|", page, re.MULTILINE))
    assert rows == {
        "text of a network": str(TEXT_VERSION),
        "results of searches": str(SEARCHES),
        "results of predictors": str(PREDICTORS),
        "checkpoint": str(CHECKPOINT),
        "table": str(TABLE),
    }
    for file in re.findall(r"`(\w+/[\w/]+\.py)`", page):
        assert (ROOT / file).is_file()
