"""Measurements that exist before a search: taken over instead of made again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nas.benchmarks.csv_file import parse_csv, read_bytes
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    from nas.searching.evaluators import Evaluator
    from search_spaces import Architecture, SearchSpace

ARCHITECTURE = "architecture"
Known = Mapping["Architecture", Sequence[float]]
"""Values of the metrics of an evaluator, in its order, by architecture."""


class KnownFirst:
    """An evaluator that gives what is known, and asks another one for the rest."""

    def __init__(self, evaluator: Evaluator, known: Known) -> None:
        self.evaluator, self.known = evaluator, dict(known)
        self.metrics = evaluator.metrics

    def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
        rows = [self.known[a] if a in self.known else self.evaluator([a])[0] for a in architectures]
        return np.array(rows, dtype=float).reshape(-1, len(self.metrics))


def read_known(path: Path, space: SearchSpace, metrics: Sequence[str]) -> dict[Architecture, list[float]]:
    """Measurements in a CSV file: a column `architecture`, in the space's notation, and one for each metric.

    So `front.csv` of another search can be read. Rows without a value for every metric are left out. Raises InputError
    that names the file, and the line or column.
    """
    table = parse_csv(read_bytes(path), path, ARCHITECTURE)
    if missing := [metric for metric in metrics if metric not in table.columns]:
        raise InputError(f"{path}: no column {missing[0]!r}; its columns: {', '.join(table.columns)}")
    values = np.column_stack([table.columns[metric] for metric in metrics])
    found = {}
    for notation, line, row in zip(table.archs, table.lines, values.tolist(), strict=True):
        try:
            architecture = space.parse(notation)
        except InputError as error:
            raise InputError(f"{path}, line {line}: {error}") from None
        if np.isfinite(row).all():
            found[architecture] = row
    return found
