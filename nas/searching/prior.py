"""Prior observations: measurements that exist before a search, which does not make them again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nas.benchmarks.csv_file import parse_csv, read_bytes
from nas.searching.evaluators import evaluate_one
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    from nas.searching.evaluators import Evaluator
    from nas.searching.record import TrialRecord
    from search_spaces import Architecture, SearchSpace

PriorObservations = Mapping["Architecture", Sequence[float]]
"""Values by architecture, in the order of the evaluator's metrics."""


class PriorFirst:
    """An evaluator that returns prior observations, and calls another evaluator for all other architectures."""

    def __init__(self, evaluator: Evaluator, prior: PriorObservations) -> None:
        self.evaluator, self.prior = evaluator, dict(prior)
        self.metrics = evaluator.metrics

    def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
        rows = [self.prior[a] if a in self.prior else self.evaluator([a])[0] for a in architectures]
        return np.array(rows, dtype=float).reshape(-1, len(self.metrics))

    def evaluate(self, architecture: Architecture, record: TrialRecord) -> Sequence[float] | np.ndarray:
        if architecture in self.prior:
            return self.prior[architecture]
        return evaluate_one(self.evaluator, architecture, record)


def read_prior_observations(path: Path, space: SearchSpace, metrics: Sequence[str]) -> dict[Architecture, list[float]]:
    """Read prior observations from a CSV file, such as `front.csv` of another search.

    Rows without a value for every metric are left out.

    Args:
        path: a file with a column `architecture` or `arch`, in the space's notation, and a column for each metric.
        space: the search space.
        metrics: the m metrics of the evaluator.

    Returns:
        The m values of each architecture.

    Raises:
        InputError: the file cannot be read; the message names the line or column.
    """
    table = parse_csv(read_bytes(path), path)
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
