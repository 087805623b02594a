"""Params and FLOPs: they follow from a network, and are counted in it instead of predicted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from predictors.inputs import Inputs, Metrics, as_texts
from predictors.metrics import EXACT
from search_spaces import expand, graph_flops, graph_params, read
from search_spaces.common.errors import InputError

COUNTS = dict(zip(EXACT, (graph_params, graph_flops), strict=True))


def exact_costs(texts: Sequence[str], metrics: Sequence[str]) -> dict[str, list[float]]:
    """Those of n networks that are asked for; InputError where a text is no network."""
    asked = {name: count for name, count in COUNTS.items() if name in metrics}
    graphs = [expand(read(text)) for text in texts] if asked else []
    return {name: [float(count(graph)) for graph in graphs] for name, count in asked.items()}


def with_exact_costs(inputs: Inputs, metrics: Sequence[str], known: Metrics, samples: np.ndarray) -> np.ndarray:
    """Samples (n, s, m) with the counts of the n networks; those of texts that are no networks stay as predicted.

    known: metrics that were given, and stay, too.
    """
    columns = [column for column, name in enumerate(metrics) if name in COUNTS and name not in known]
    for row, text in enumerate(as_texts(inputs)) if columns else ():
        try:
            counted = exact_costs([text], metrics)
        except InputError:
            continue
        for column in columns:
            samples[row, :, column] = counted[metrics[column]][0]
    return samples
