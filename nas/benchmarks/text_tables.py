"""Tables of any texts with numbers: networks, programs, configurations. Parquet or CSV, one number or several per row.

The column layout of the public Code-Regression data set ("Regression Language Models for Code", arXiv 2509.26476) is
`identifier, space, input, target, target_type, metadata`: one number per row, whose metric `target_type` names.
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
WHOLE = "all"  # what the space is called where the table names none


@dataclass(frozen=True)
class TextTable:
    """n different texts, the space that each is from, and their metrics, each (n,), NaN where unknown."""

    texts: list[str]
    spaces: list[str]
    metrics: dict[str, np.ndarray]

    def rows(self, rows: np.ndarray) -> TextTable:
        """The part of these rows."""
        metrics = {name: values[rows] for name, values in self.metrics.items()}
        return TextTable([self.texts[i] for i in rows], [self.spaces[i] for i in rows], metrics)


def read_text_table(path: Path, text: str, targets: Sequence[str]) -> TextTable:
    """The table of a .parquet, .csv or .csv.gz file.

    text: column with the texts. targets: columns with numbers, empty where unknown; each is a metric of its name. Where
    there is just one and a column `target_type`, that names each row's metric. The texts' spaces are in the column
    `space`, if there is one. A text that is there several times has the mean of its values.
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
    spaces = _strings(table, SPACE_COLUMN, path) if SPACE_COLUMN in table.column_names else [WHOLE] * count
    named = METRIC_COLUMN in table.column_names and len(targets) == 1
    names = [_strings(table, METRIC_COLUMN, path)] if named else [[target] * count for target in targets]
    position = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    row = np.array([position[text] for text in texts])
    sums: dict[str, np.ndarray] = {}
    counts: dict[str, np.ndarray] = {}
    for target, metric in zip(targets, names, strict=True):
        values, labels = _numbers(table, target, path), np.array(metric)
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
        raise InputError(f"{path}: cannot be read as a table ({' '.join(str(error).split())[:200]})") from None
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
        values = np.array([np.nan if v is None or v == "" else float(v) for v in table[column].to_pylist()])
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}: the column {column!r} does not hold numbers ({error})") from None
    if np.isinf(values).any():
        row = int(np.flatnonzero(np.isinf(values))[0]) + 1
        raise InputError(f"{path}, row {row}: {column!r} is infinite; leave unknown values empty")
    return values


def split(table: TextTable, share: float, seed: int) -> tuple[TextTable, TextTable]:
    """A random part of the texts to train on, and the others, `share` of all, to test on: no text is in both."""
    order = np.random.default_rng(seed).permutation(len(table.texts))
    tests = round(share * len(order))
    if tests and len(order) - tests < 2:
        raise InputError(f"a test share of {share} leaves {len(order) - tests} of {len(order)} texts to train on")
    return table.rows(order[tests:]), table.rows(order[:tests])


def rank_correlations(predictor: Predictor, table: TextTable, samples: int = 64, seed: int = 0) -> list[dict[str, Any]]:
    """Spearman's ρ and Kendall's τ of predicted and true values, for every space and metric of three texts or more.

    Each is in [-1, 1], higher is better; 0 where all predictions or all true values are equal, so that none is ranked.
    """
    from scipy.stats import kendalltau, spearmanr

    metrics = [name for name in table.metrics if name in predictor.metrics]
    predicted = predictor.predict(table.texts, metrics, samples=samples, seed=seed)
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
