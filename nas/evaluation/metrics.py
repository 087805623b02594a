"""Checks names of metrics."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from search_spaces.common.errors import unknown

FIDELITY = "fidelity"  # agreement with a trained model in %


def check_metrics(metrics: Iterable[str], known: Collection[str]) -> None:
    """Raise InputError for the first metric that is not in `known`, with the nearest name as a
    suggestion.
    """
    for metric in metrics:
        if metric not in known:
            raise unknown("metric", metric, known)
