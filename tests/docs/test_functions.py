"""The page about users' models lists exactly the torch functions that can be read."""

from __future__ import annotations

import re
from pathlib import Path

from search_spaces.ir.pytorch import record  # noqa: F401  its import names all functions
from search_spaces.ir.pytorch.recorder import HANDLERS

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "own_model.md"


def names(begin: str, end: str) -> list[str]:
    """The names in a part of the page."""
    part = PAGE.read_text().split(begin)[1].split(end)[0]
    return re.findall(r"`(\w+)`", part)


def test_the_page_lists_every_function_that_is_read() -> None:
    listed = names("functions of other libraries that consist of them:", "What is not supported")
    assert listed == sorted((name for name in HANDLERS if not name.startswith("_")), key=str.lower)


def test_functions_that_the_page_calls_missing_are_missing() -> None:
    missing = names("functions of torch that have no operators here:", "\n\n")
    assert len(missing) > 20
    assert not HANDLERS.keys() & set(missing) - {"meshgrid"}
