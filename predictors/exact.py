"""Exact metrics: params and FLOPs are counted in the network, not predicted."""

from __future__ import annotations

from collections.abc import Container, Sequence

import numpy as np

from predictors.inputs import Inputs, as_texts
from predictors.metrics import EXACT, Metric
from search_spaces import expand, graph_flops, graph_params, read
from search_spaces.common.errors import InputError

COUNTS = dict(zip(EXACT, (graph_params, graph_flops), strict=True))


def exact_costs(texts: Sequence[str], metrics: Sequence[str]) -> dict[str, list[float]]:
    """Counts of n networks per exact metric among `metrics`.

    Raises:
        InputError: if a text is not that of a network.
    """
    asked = {name: count for name, count in COUNTS.items() if name in metrics}
    graphs = [expand(read(text)) for text in texts] if asked else []
    return {name: [float(count(graph)) for graph in graphs] for name, count in asked.items()}


def conditioning_costs(metric: str, known: Container[str]) -> list[str]:
    """The exact metrics among `known` from which a metric is predicted: all for device metrics,
    none for accuracies.
    """
    return (
        [name for name in EXACT if name in known] if Metric.parse(metric).kind == "measured" else []
    )


def with_exact_costs(inputs: Inputs, metrics: Sequence[str], samples: np.ndarray) -> np.ndarray:
    """Write exact costs into the samples of exact metrics, in place.

    Texts that cannot be read as networks keep their predictions.

    Args:
        inputs: n texts or ONNX models.
        metrics: names of the m metrics.
        samples: (n, s, m).

    Returns:
        The same array.
    """
    columns = [column for column, name in enumerate(metrics) if name in COUNTS]
    for row, text in enumerate(as_texts(inputs)) if columns else ():
        try:
            counted = exact_costs([text], metrics)
        except InputError:
            continue
        for column in columns:
            samples[row, :, column] = counted[metrics[column]][0]
    return samples
