"""Plots the figures of searches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nas.report.plots import plot_front, plot_hypervolume, plot_parallel, plot_predicted

if TYPE_CHECKING:
    from nas.comparison.studies import Studies
    from nas.search.study.result import SearchResult


def plot_studies(folder: Path, studies: Studies, kind: str = "png") -> list[Path]:
    """Write the figures `hypervolume`, `pareto` (two objectives) or `parallel` (more), and
    `predicted`.

    `predicted` needs a first search with a predictor.

    Args:
        folder: for the figures.
        studies: the searches.
        kind: "png", "svg" or "pdf".

    Returns:
        The paths of the figures.
    """
    yardstick = "best front found" if studies.benchmark is None else "true front"
    shape, predicted = (
        "pareto" if len(studies.objectives) == 2 else "parallel",
        studies.first.predicted,
    )
    drawn = bool(studies.front_networks) and len(studies.objectives) > 1
    names = ["hypervolume", *([shape] if drawn else []), *(["predicted"] if predicted else [])]
    paths = {name: folder / f"{name}.{kind}" for name in names}
    plot_hypervolume(paths["hypervolume"], studies.curves(), yardstick)
    if "pareto" in names:
        _plot_front(paths["pareto"], studies)
    if "parallel" in names:
        front = np.array([[row[o.name] for o in studies.objectives] for row in studies.front_rows])
        plot_parallel(paths["parallel"], front, studies.objectives)
    if predicted:
        plot_predicted(paths["predicted"], predicted)
    return list(paths.values())


def _plot_front(path: Path, studies: Studies) -> None:
    fronts = {
        name: [_network_values(result) for result in results]
        for name, results in studies.results.items()
    }
    if studies.benchmark is None:
        plot_front(path, None, None, fronts, studies.objectives)
        return
    values = np.stack([studies.benchmark.values(o.name) for o in studies.objectives], 1)
    true_front = studies.reference.true_front * [o.sign for o in studies.objectives]
    plot_front(path, values, true_front, fronts, studies.objectives)


def _network_values(result: SearchResult) -> np.ndarray:
    """Objective values (k, m) of the search's front."""
    front = [[row[o.name] for o in result.objectives] for row in result.front_rows]
    return np.array(front, dtype=float).reshape(-1, len(result.objectives))
