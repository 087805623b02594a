"""Tables of texts with numeric targets, in Parquet or CSV: networks, programs, configurations.

The public Code-Regression data set ("Regression Language Models for Code", arXiv 2509.26476) has
the columns `identifier, space, input, target, target_type, metadata`: one target per row, whose
metric `target_type` names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from search_spaces.common.errors import InputError, unknown

if TYPE_CHECKING:
    import pyarrow

    from predictors.base import Predictor

METRIC_COLUMN = "target_type"
SPACE_COLUMN = "space"
DEFAULT_SPACE = "all"  # name of the space if the table has no column for it


@dataclass(frozen=True)
class TextTable:
    """Distinct texts (n), the space of each (n), and their metrics.

    Each metric is (n,) with NaN for missing values.
    """

    texts: list[str]
    spaces: list[str]
    metrics: dict[str, np.ndarray]

    def rows(self, rows: np.ndarray) -> TextTable:
        """The table of these rows only."""
        metrics = {name: values[rows] for name, values in self.metrics.items()}
        return TextTable([self.texts[i] for i in rows], [self.spaces[i] for i in rows], metrics)


def read_text_table(path: Path, text: str, targets: Sequence[str]) -> TextTable:
    """Read a `.parquet`, `.csv` or `.csv.gz` file.

    The optional column `space` names the space of each text. Values of a repeated text are
    averaged.

    Args:
        path: the file.
        text: name of the column with the texts.
        targets: names of the columns with numbers, in which empty cells are missing values. Each
            column is a metric of its name. If there is one target and a column `target_type`, that
            column names the metric of each row.

    Raises:
        InputError: the file cannot be read, a column is missing, or a cell is malformed.
    """
    table = _read(path)
    for name in (text, *targets):
        if name not in table.column_names:
            raise InputError(f"{path}: {unknown('column', name, table.column_names)}")
    for name in (text, *targets, SPACE_COLUMN, METRIC_COLUMN):
        if table.column_names.count(name) > 1:
            raise InputError(f"{path}: has several columns {name!r}")
    texts = _strings(table, text, path)
    count = len(texts)
    spaces = (
        _strings(table, SPACE_COLUMN, path)
        if SPACE_COLUMN in table.column_names
        else [DEFAULT_SPACE] * count
    )
    named = METRIC_COLUMN in table.column_names and len(targets) == 1
    names = (
        [_strings(table, METRIC_COLUMN, path)]
        if named
        else [[target] * count for target in targets]
    )
    position = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    row = np.array([position[text] for text in texts])
    sums: dict[str, np.ndarray] = {}
    counts: dict[str, np.ndarray] = {}
    for target, metric in zip(targets, names, strict=True):
        values = _numbers(table, target, path)
        labels = np.array(metric)
        for name in dict.fromkeys(metric):
            here = np.flatnonzero((labels == name) & ~np.isnan(values))
            np.add.at(sums.setdefault(name, np.zeros(len(position))), row[here], values[here])
            np.add.at(counts.setdefault(name, np.zeros(len(position))), row[here], 1)
    with np.errstate(invalid="ignore"):
        metrics = {name: sums[name] / counts[name] for name in sums}
    first = dict(zip(reversed(texts), reversed(spaces), strict=True))
    return TextTable(list(position), [first[text] for text in position], metrics)


def _read(path: Path) -> pyarrow.Table:
    import pyarrow
    from pyarrow import csv, parquet

    if not path.name.endswith((".parquet", ".csv", ".csv.gz")):
        raise InputError(f"{path}: a table is a .parquet, .csv or .csv.gz file")
    try:
        table = (
            parquet.read_table(path)
            if path.suffix == ".parquet"
            else csv.read_csv(path, parse_options=csv.ParseOptions(newlines_in_values=True))
        )
    except (OSError, pyarrow.ArrowException) as error:
        raise InputError(
            f"{path}: cannot be read as a table ({' '.join(str(error).split())[:200]})"
        ) from error
    if table.num_rows == 0:
        raise InputError(f"{path}: the table has no rows")
    return table


def _strings(table: pyarrow.Table, column: str, path: Path) -> list[str]:
    values = table[column].to_pylist()
    for i, value in enumerate(values):
        if value is None or value == "":
            raise InputError(f"{path}, row {i + 1}: {column!r} is empty")
    return [str(value) for value in values]


def _numbers(table: pyarrow.Table, column: str, path: Path) -> np.ndarray:
    try:
        values = np.array(
            [np.nan if v is None or v == "" else float(v) for v in table[column].to_pylist()]
        )
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{path}: the column {column!r} has a value that is not a number ({error})"
        ) from error
    if np.isinf(values).any():
        row = int(np.flatnonzero(np.isinf(values))[0]) + 1
        raise InputError(f"{path}, row {row}: {column!r} is infinite; leave missing values empty")
    return values


def split(table: TextTable, share: float, seed: int) -> tuple[TextTable, TextTable]:
    """Split a table at random into a training part and a test part with `share` of the texts.

    Raises:
        InputError: fewer than two texts are left for training.
    """
    order = np.random.default_rng(seed).permutation(len(table.texts))
    tests = round(share * len(order))
    if tests and len(order) - tests < 2:
        raise InputError(
            f"a test share of {share} leaves {len(order) - tests} of {len(order)} texts for "
            "training"
        )
    return table.rows(order[tests:]), table.rows(order[:tests])


def rank_correlations(
    predictor: Predictor, table: TextTable, seed: int = 0
) -> list[dict[str, Any]]:
    """Spearman's ρ and Kendall's τ between predictions and true values, per space and metric.

    Args:
        predictor: a fitted predictor.
        table: texts with true values.
        seed: of the predictions.

    Returns:
        One row per space and metric with at least three texts. A correlation is 0 if all
        predictions or all true values are equal.
    """
    from scipy.stats import kendalltau, spearmanr

    metrics = [name for name in table.metrics if name in predictor.metrics]
    predicted = predictor.predict(table.texts, metrics, seed=seed)
    spaces = np.array(table.spaces)
    rows = []
    for space in dict.fromkeys(table.spaces):
        for name in metrics:
            here = (spaces == space) & ~np.isnan(table.metrics[name])
            if here.sum() < 3:
                continue
            truth, guess = table.metrics[name][here], predicted[name][here]
            ranked = np.ptp(guess) > 0 and np.ptp(truth) > 0
            scores = {
                "spearman": float(spearmanr(guess, truth)[0]) if ranked else 0.0,
                "tau": float(kendalltau(guess, truth)[0]) if ranked else 0.0,
            }
            rows.append({"space": space, "metric": name, "texts": int(here.sum()), **scores})
    return rows
