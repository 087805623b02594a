"""Claims about messages: they name the user's own line, never one of an installed package."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path

import pytest

from search_spaces.common.errors import describe


@pytest.mark.parametrize(
    ("folder", "named"),
    [("mine", True), (".local/lib/python3/site-packages", False), ("lib/dist-packages", False)],
)
def test_only_the_users_own_files_are_named(folder: str, named: bool, tmp_path: Path) -> None:
    file = tmp_path / folder / "code.py"
    file.parent.mkdir(parents=True)
    file.write_text("\n1 / 0\n")
    with pytest.raises(ZeroDivisionError) as failed:
        run_path(str(file))
    assert (f"{file}, line 2: " in describe(failed.value)) is named
