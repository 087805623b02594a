"""What a metric's name says: its role in the order of decoding, and its direction."""

from __future__ import annotations

import re

CHOSEN = " chosen"
QUIETEST = 0.05  # of the usual noise's deviation: noise grows with what is measured, and is no less for the smallest
_MEASURED = re.compile(r"_(ms|us|s|mj|j|mw|w|mib|kib)$")


def is_accuracy(metric: str) -> bool:
    """Whether higher is better: names with `accuracy` in them."""
    return "accuracy" in metric


def is_measured(metric: str) -> bool:
    """Whether the metric is a latency, energy or memory of a device: names that end in such a unit."""
    return _MEASURED.search(metric) is not None


def is_chosen(metric: str) -> bool:
    """Whether it is not a metric but how often an option was chosen, which a text may not show: `skip_connect chosen`.

    Such numbers are only given, never predicted.
    """
    return metric.endswith(CHOSEN)


def is_cheap(metric: str) -> bool:
    """Whether the metric needs neither training nor a device: params, flops, proxies."""
    return not (is_accuracy(metric) or is_measured(metric))


def decoding_order(metric: str) -> int:
    """Cheap metrics first, then accuracies, then device measurements, each conditioned on all before."""
    return 0 if is_cheap(metric) else 1 if is_accuracy(metric) else 2
