"""Tables of experiments: rows are computed in parallel, stored as they finish, and summarized over
seeds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed

from nas.cli.console import print_json, print_table
from nas.cli.progress import progress_bar
from nas.evaluation.journal import Journal
from predictors.registry import version
from search_spaces.common.errors import InputError, unknown
from search_spaces.common.files import replacing

Task = tuple[Any, ...]
"""The arguments of a row, JSON values. The last one is its seed."""
Scores = dict[str, float]
CURVE_PREFIX = "at "
"""Scores of this prefix and a place, such as `at 20`, are the points of a curve."""


def compute(
    tasks: Sequence[Task], score: Callable[..., Scores], out: Path, jobs: int = 1
) -> list[Scores]:
    """Compute `score(*task)` for each task, with `jobs` processes of one thread each.

    Finished rows are stored in `out` and not computed again, unless the predictors' result version
    has changed.
    """
    score = _importable(score)
    journal = Journal(out / f"rows-{version()}.jsonl")
    names = [json.dumps(task) for task in tasks]
    waiting = [i for i, name in enumerate(names) if name not in journal.known]
    done = len(tasks) - len(waiting)
    rows = Parallel(n_jobs=jobs, return_as="generator")(
        delayed(_score)(score, tasks[i]) for i in waiting
    )
    with progress_bar("rows") as bar:
        for i, row in zip(waiting, rows, strict=True):
            journal.append(names[i], row)
            done += 1
            bar("rows", done, len(tasks))
    return [journal.known[name] for name in names]


def _importable(score: Callable[..., Scores]) -> Callable[..., Scores]:
    """The function by the name of its module.

    Processes cannot import what `python -m` calls `__main__`.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if score.__module__ != "__main__" or spec is None:
        return score
    function: Callable[..., Scores] = getattr(import_module(spec.name), score.__name__)
    return function


def _score(score: Callable[..., Scores], task: Task) -> Scores:
    import torch

    torch.set_num_threads(1)  # rounding errors depend on the number of threads
    return score(*task)


def chosen(names: str, known: Sequence[str]) -> list[str]:
    """Split comma-separated names.

    Raises:
        InputError: for a name that is not among the known ones.
    """
    for name in names.split(","):
        if name not in known:
            raise unknown("row", name, known)
    return names.split(",")


def integers(numbers: str) -> list[int]:
    """Split comma-separated whole numbers. Raises InputError for anything else."""
    for number in numbers.split(","):
        if not number.isdecimal() or int(number) == 0:
            raise InputError(f"{number!r} in {numbers!r} is no whole number from 1")
    return [int(number) for number in numbers.split(",")]


def summarize(tasks: Sequence[Task], rows: Sequence[Scores]) -> list[dict[str, Any]]:
    """One row per task for all its seeds: mean and standard deviation of each score.

    A row also has the number of seeds.
    """
    groups: dict[Task, list[Scores]] = {}
    for task, row in zip(tasks, rows, strict=True):
        groups.setdefault(task[:-1], []).append(row)
    summary = []
    for task, members in groups.items():
        cells: dict[str, Any] = {f"task{i}": value for i, value in enumerate(task)}
        for name in members[0]:
            values = np.array([member[name] for member in members])
            cells[name] = {
                "mean": float(values.mean()),
                "std": float(values.std(ddof=1)) if len(values) > 1 else 0.0,
            }
        summary.append({**cells, "seeds": len(members)})
    return summary


def curve_of(row: Scores) -> list[float]:
    """The points of a row's curve, in their order."""
    return [value for name, value in row.items() if name.startswith(CURVE_PREFIX)]


def without_curves(rows: Sequence[Scores]) -> list[Scores]:
    """The rows without the points of their curves, which figures show."""
    shown = []
    for row in rows:
        points = {name for name in row if name.startswith(CURVE_PREFIX)}
        shown.append({name: value for name, value in row.items() if name not in points})
    return shown


def at_rows(columns: Mapping[str, np.ndarray], rows: np.ndarray) -> dict[str, np.ndarray]:
    """These rows of each column."""
    return {name: column[rows] for name, column in columns.items()}


def spearman(predicted: np.ndarray, true: np.ndarray) -> float:
    """Spearman's rank correlation of two arrays (n,), in [-1, 1].

    It is 0 if one of them is constant or n < 2.
    """
    from scipy.stats import spearmanr

    if len(true) < 2 or not np.ptp(predicted) or not np.ptp(true):
        return 0.0
    return float(spearmanr(predicted, true).statistic)


Table = dict[str, dict[str, dict[str, float]]]
"""Cells by row and column, each with `mean` and `std`."""


def pivot(summary: Sequence[dict[str, Any]], measure: str, row: int = 0, column: int = 1) -> Table:
    """Arrange one measure of a summary by two parts of its tasks.

    row, column: places of the parts that become the rows and the columns.
    """
    table: Table = {}
    for entry in summary:
        cells = table.setdefault(str(entry[f"task{row}"]), {})
        cells[str(entry[f"task{column}"])] = entry[measure]
    return table


def publish(folder: Path, table: Table, label: str, digits: int = 3) -> None:
    """Write table.md, whose last column is each row's mean, and the figure table.png.

    label: name of the measure.
    """
    from nas.report.plots import plot_scores

    columns = list(dict.fromkeys(column for row in table.values() for column in row))
    lines = markdown_head([label, *columns, "mean"])
    for name, row in table.items():
        cells = [plus_minus(row[column], digits) if column in row else "–" for column in columns]
        mean = float(np.mean([cell["mean"] for cell in row.values()]))
        lines.append(markdown_line([name, *cells, f"{mean:.{digits}f}"]))
    with replacing(folder / "table.md") as path:
        path.write_text("\n".join(lines) + "\n")
    plot_scores(folder / "table.png", table, label)


def plus_minus(cell: Mapping[str, float], digits: int = 3) -> str:
    """A mean and a standard deviation in words."""
    return f"{cell['mean']:.{digits}f} ± {cell['std']:.{digits}f}"


def markdown_head(titles: Sequence[str]) -> list[str]:
    """The first two lines of a table in Markdown."""
    return [markdown_line(titles), "|---" * len(titles) + "|"]


def markdown_line(cells: Sequence[str]) -> str:
    """A line of a table in Markdown."""
    return f"| {' | '.join(cells)} |"


def show(
    title: str, names: Sequence[str], summary: Sequence[dict[str, Any]], as_json: bool
) -> None:
    """Print a summary as a table or as JSON. names: of the parts of its tasks."""
    named: list[dict[str, Any]] = []
    for row in summary:
        by_name = {}
        for key, value in row.items():
            part = key.removeprefix("task")
            by_name[names[int(part)] if part != key else key] = value
        named.append(by_name)
    if as_json:
        print_json(named)
        return
    plain = []
    for row in named:
        cells = {}
        for name, value in row.items():
            cells[name] = plus_minus(value) if isinstance(value, dict) else value
        plain.append(cells)
    print_table(title, plain)
