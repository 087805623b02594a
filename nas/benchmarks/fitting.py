"""Fits a predictor to a benchmark or to a table of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nas.benchmarks.text_tables import TextTable, rank_correlations, split
from search_spaces.common.errors import InputError
from search_spaces.common.progress import Progress

if TYPE_CHECKING:
    from nas.benchmarks.table import Benchmark
    from predictors import Predictor


def fit_to_benchmark(
    model: Predictor,
    table: Benchmark,
    metrics: Sequence[str],
    size: int | None,
    seed: int,
    progress: Progress,
) -> None:
    """Fit a predictor to random architectures of a table.

    Args:
        model: the predictor.
        table: the table.
        metrics: the metrics to learn.
        size: number of architectures; None for all.
        seed: draws the architectures.
        progress: called with the name of the step, the amount done and the total.

    Raises:
        InputError: the table lacks a metric or has fewer architectures.
    """
    count = len(table) if size is None else size
    if not 1 <= count <= len(table):
        raise InputError(f"--size {count}: {table.name} has {len(table)} architectures")
    rows = np.random.default_rng(seed).permutation(len(table))[:count]
    columns = {name: table.values(name) for name in metrics}
    inputs: Sequence[Any] = (
        table.architectures if model.reads_choices else table.load_texts(progress)
    )
    _show_steps(model, progress)
    model.fit([inputs[i] for i in rows], {name: values[rows] for name, values in columns.items()})


def fit_to_texts(
    model: Predictor, table: TextTable, test_share: float, seed: int, progress: Progress
) -> list[dict[str, Any]]:
    """Fit a predictor to the training part of a table of texts, and score it on the test part.

    Args:
        model: the predictor.
        table: the texts and their metrics.
        test_share: share of the texts in the test part.
        seed: draws the split and the predictions.
        progress: called with the name of the step, the amount done and the total.

    Returns:
        Rank correlations on the test part, one row per space and metric; empty without a test part.
    """
    training, tests = split(table, test_share, seed)
    _show_steps(model, progress)
    model.fit(training.texts, training.metrics)
    progress("testing", 0, 1)
    return rank_correlations(model, tests, seed=seed) if tests.texts else []


def _show_steps(model: Predictor, progress: Progress) -> None:
    """Report that fitting begins, and each training step if the predictor has any."""
    progress("fitting", 0, 1)
    if hasattr(model, "progress"):
        model.progress = lambda step, done, total: progress(f"fitting, {step}", done, total)
