"""The documentation is built without a warning: no broken link, no page that is not listed, no
missing name.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None, reason="pip install 'rlm-nas[docs]' brings mkdocs"
)
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    built = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    assert "Pareto" in (tmp_path / "site" / "index.html").read_text()
