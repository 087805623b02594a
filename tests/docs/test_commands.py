"""The page of the command line says what `--help` says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nas.cli.application import BENCHMARK_COMMANDS, COMMANDS, DEVICE_COMMANDS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "api" / "commands.md"


def test_the_page_lists_every_command() -> None:
    headings = [line[3:] for line in PAGE.read_text().splitlines() if line.startswith("## ")]
    headings += [line[4:] for line in PAGE.read_text().splitlines() if line.startswith("### ")]
    expected = [f"`nas {name}`" for name in (*COMMANDS, "benchmarks", "device")]
    expected += [f"`nas benchmarks {name}`" for name in BENCHMARK_COMMANDS]
    expected += [f"`nas device {name}`" for name in DEVICE_COMMANDS]
    assert sorted(headings) == sorted(expected)


@pytest.mark.slow
def test_the_page_is_made_from_the_present_help(tmp_path: Path) -> None:
    """`make docs` makes it anew."""
    made = tmp_path / "commands.md"
    command = [sys.executable, "-m", "typer", "nas.cli", "utils", "docs", "--name", "nas"]
    subprocess.run([*command, "--output", str(made)], cwd=ROOT, check=True, capture_output=True)
    assert PAGE.read_text() == made.read_text()
