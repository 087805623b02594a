"""AGENTS.md is correct: its commands parse, its Python runs, and what it points to is there."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

import pytest
import typer

from nas.cli import app
from tests.test_layers import ROOT

PAGE = (ROOT / "AGENTS.md").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


COMMANDS = [line for block in blocks("sh") for line in block.splitlines()]


def parse(line: str) -> None:
    """Parse a command line with the options of its command, but do not run it."""
    program, name, *arguments = shlex.split(line)
    assert program == "nas"
    group = typer.main.get_command(app)
    parent = group.make_context("nas", [name, *arguments])
    group.commands[name].make_context(name, arguments, parent=parent)  # type: ignore[attr-defined]


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_has_these_options(line: str) -> None:
    parse(line)


def test_an_option_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(Exception, match="No such option: --spaec"):
        parse(COMMANDS[0].replace("--space", "--spaec"))


def test_most_commands_of_the_command_line_have_a_recipe() -> None:
    named = {shlex.split(line)[1] for line in COMMANDS}
    assert named >= {"search", "sample", "profile", "evaluate", "compare", "train", "predict"}
    assert named >= {"worker", "report", "retrain"}


def test_what_it_points_to_is_there() -> None:
    linked = re.findall(r"\]\((.*?)\)", PAGE)
    quoted = re.findall(r"`((?:docs|examples)/[\w/.-]*)`", PAGE)
    assert len(quoted) > 4
    assert [path for path in [*linked, *quoted] if not (ROOT / path).exists()] == []


@pytest.mark.slow
@pytest.mark.usefixtures("brief_guidance")
@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_its_python_runs(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("block.py").write_text(blocks("python")[number])
    runpy.run_path("block.py")
