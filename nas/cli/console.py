"""Output of commands: tables, JSON and text files."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from predictors.metrics import Metric

MAX_SHOWN = 1e15  # integers from here on are no longer exact, and as long as a line


def print_json(value: object) -> None:
    print(json.dumps(value, indent=1))


def print_table(title: str, rows: list[dict[str, Any]]) -> None:
    """Print rows as a table; transpose it if it is too wide for the terminal."""
    from rich.console import Console
    from rich.table import Table

    # 1. A heading and a line of cells per row. Rows may lack some of the columns.
    heading = list(dict.fromkeys(chain.from_iterable(rows)))
    lines = [heading]
    for row in rows:
        lines.append([_cell(row.get(name, "")) for name in heading])

    # 2. The same with rows as columns, if that is narrower and the table is too wide.
    console = Console(markup=False, emoji=False)  # names of metrics may have brackets and colons
    transposed = [list(column) for column in zip(*lines, strict=True)]
    if _width(lines) > max(console.width, _width(transposed)):
        lines = transposed

    # 3. Print it.
    heading, *body = lines
    table = Table(title=title, title_justify="left")
    for name in heading:
        table.add_column(name, overflow="fold")
    for line in body:
        table.add_row(*line)
    console.print(table)


def print_sentence(sentence: str) -> None:
    """Print a sentence in lines as wide as the terminal."""
    print(textwrap.fill(sentence, shutil.get_terminal_size().columns))


def warn_if_seen(benchmark: str, predictors: Iterable[str]) -> None:
    """Warn on standard error if the RLM's pretraining has seen a benchmark's accuracies.

    Only shipped populations may have been seen.
    """
    from nas.benchmarks.populations import POPULATIONS

    population = POPULATIONS.get(benchmark)
    if (
        population
        and population.pretrains_rlm_base
        and any("rlm" in name.split("+") for name in predictors)
    ):
        print(
            f"nas: rlm-base was pretrained with the accuracies of {benchmark}, so that rlm is too "
            "good here: use digits201 or a table of your own to compare",
            file=sys.stderr,
        )


def warn_of_directions(objectives: str) -> None:
    """Warn on standard error of objectives that are minimized only by default.

    Their names do not suggest a direction.
    """
    from nas.search.objectives import unclear_directions

    for name in unclear_directions(objectives.split(",")):
        print(
            f"nas: {name} is minimized, since its name says nothing else: {name}:max maximizes it",
            file=sys.stderr,
        )


def with_arrows(row: dict[str, Any], objectives: Iterable[Metric]) -> dict[str, Any]:
    """The row with the direction of each objective behind its name.

    ↑ stands for a maximized objective, ↓ for a minimized one.
    """
    names = {}
    for objective in objectives:
        arrow = "↑" if objective.direction == "maximize" else "↓"
        names[objective.name] = f"{objective.name} {arrow}"
    return {names.get(name, name): value for name, value in row.items()}


def _cell(value: Any) -> str:
    """Format a value: four significant digits, or all digits of an integer that is not huge."""
    if not isinstance(value, float):
        return str(value)
    is_exact = value.is_integer() and abs(value) < MAX_SHOWN
    return f"{value:,.0f}" if is_exact else f"{value:.4g}"


def _width(lines: list[list[str]]) -> int:
    """Width in characters of a table of these lines, including its frame."""
    return sum(max(map(len, column)) + 3 for column in zip(*lines, strict=True)) + 1


def write_text(path: Path | None, text: str) -> None:
    """Write text to a file, or print it without one."""
    if path is None:
        print(text, end="")
    else:
        from search_spaces.common.files import replacing

        with replacing(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
