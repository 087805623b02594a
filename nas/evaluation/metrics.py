"""Names of metrics, and what a value of each costs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal

from predictors.metrics import Metric
from search_spaces.common.errors import unknown

FIDELITY = "fidelity"  # agreement with a trained model in %
# Of language models: the prompt, a token after it, and the memory of keys and values
LANGUAGE_METRICS = ("cpu_prefill_latency_ms", "cpu_decoding_latency_ms", "kv_cache_mb")

Price = Literal["counted", "measured", "trained"]
PRICES: dict[Price, str] = {
    "counted": "counted from the network, at no cost",
    "measured": "measured without training, mostly within seconds",
    "trained": "needs a training",
}


def price(metric: Metric) -> Price:
    """What a value of a metric costs, by its kind."""
    prices: dict[str, Price] = {"exact": "counted", "accuracy": "trained"}
    return prices.get(metric.kind, "measured")


def check_metrics(metrics: Iterable[str], known: Collection[str]) -> None:
    """Raise InputError for the first metric that is not in `known`.

    The error suggests the nearest name.
    """
    for metric in metrics:
        if metric not in known:
            raise unknown("metric", metric, known)
