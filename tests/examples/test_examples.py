"""Every script of `examples/` runs as a user would run it, and those of one's own parts are short."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
SIZES = {
    "EVALUATIONS = 40": "EVALUATIONS = 12",
    "LABELS, OTHERS = 50, 300": "LABELS, OTHERS = 20, 40",
}
EVALUATIONS = "3"  # the argument of every script
MAX_LINES = 40  # of code in the scripts `own_*.py`


def code_lines(script: Path) -> int:
    """Number of lines without empty ones, comments and docstrings."""
    source = script.read_text()
    documented: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            continue
        if ast.get_docstring(node) is not None:
            docstring = node.body[0]
            documented.update(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    lines = enumerate(source.splitlines(), start=1)
    code = [line for number, line in lines if number not in documented]
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in code)


def test_there_are_examples() -> None:
    assert SCRIPTS
    assert NOTEBOOKS


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_an_example_runs_to_its_end(script: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(script), EVALUATIONS]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip()
    assert "Traceback" not in run.stderr


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_the_cells_of_a_notebook_run_in_their_order(notebook: Path, tmp_path: Path) -> None:
    cells = json.loads(notebook.read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert all(not cell.get("outputs") for cell in cells), "outputs are not stored"
    script = tmp_path / "notebook.py"
    script.write_text("\n".join(SIZES.get(cell, cell) for cell in code))
    assert set(code) & set(SIZES), "the first cell has the sizes, so that a test can be short"
    environment = {**os.environ, "MPLBACKEND": "agg"}
    command = [sys.executable, str(script)]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize(
    "script", [s for s in SCRIPTS if s.stem.startswith("own_")], ids=lambda script: script.stem
)
def test_a_part_of_ones_own_is_short(script: Path) -> None:
    assert code_lines(script) <= MAX_LINES
