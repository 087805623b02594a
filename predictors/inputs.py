"""Checks of what predictors get: texts, targets and known values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

from search_spaces import to_text
from search_spaces.common.errors import InputError, unknown

if TYPE_CHECKING:
    import onnx

    from search_spaces import Architecture

Inputs = Sequence["str | onnx.ModelProto | Architecture"]
Metrics = Mapping[str, Sequence[float] | np.ndarray]
LARGEST = 1e150  # absolute value: the square of a larger one is no number
SMALLEST = 1e-150  # spread: the square of a smaller one is 0


class Trained(Protocol):
    """What a request is checked against."""

    kind: str

    @property
    def metrics(self) -> tuple[str, ...]: ...


def as_texts(architectures: Inputs) -> list[str]:
    """Texts as they are, ONNX models as their text."""
    from search_spaces import Architecture

    for a in architectures:
        if isinstance(a, Architecture):
            raise InputError(f"this predictor reads text: give space.to_text(architecture), not {str(a)[:80]}")
        if not isinstance(a, str) and not hasattr(a, "graph"):
            raise InputError(f"this predictor reads texts and ONNX models, not {type(a).__name__}")
    return [a if isinstance(a, str) else to_text(cast("onnx.ModelProto", a)) for a in architectures]


def as_targets(architectures: Inputs, metrics: Metrics) -> dict[str, np.ndarray]:
    """Checked training targets: float64 (n,) per metric, at least one finite value in each, no infinite one.

    Values whose squares are 0 count as 0 beside larger ones.
    """
    if not len(architectures):
        raise InputError("there is no architecture to learn from")
    if not metrics:
        raise InputError("there is no metric to learn")
    targets = as_given(architectures, metrics)
    for name, values in targets.items():
        known = values[~np.isnan(values)]
        if not len(known):
            raise InputError(f"metric {name!r} has no value to learn from")
        if 0 < np.ptp(known) < SMALLEST:
            raise InputError(f"metric {name!r} spans {np.ptp(known):.3g}: give it in a larger unit")
        targets[name] = np.where(np.abs(values) < SMALLEST, 0.0, values)
    return targets


def as_given(architectures: Inputs, metrics: Metrics | None) -> dict[str, np.ndarray]:
    """Checked known values: float64 (n,) per metric, NaN where unknown."""
    checked: dict[str, np.ndarray] = {}
    for name, values in (metrics or {}).items():
        try:
            array = np.asarray(values, np.float64)
        except (TypeError, ValueError):
            raise InputError(f"metric {name!r} has a value that is no number") from None
        if array.shape != (len(architectures),):
            raise InputError(f"metric {name!r} has shape {array.shape} for {len(architectures)} architectures")
        if np.isinf(array).any():
            raise InputError(f"metric {name!r} has an infinite value; use NaN for a missing one")
        if (np.abs(array) > LARGEST).any():
            raise InputError(f"metric {name!r} has the value {np.nanmax(np.abs(array)):.3g}: give it in another unit")
        checked[name] = array
    return checked


def check_request(
    predictor: Trained, architectures: Inputs, metrics: Sequence[str], given: Metrics | None, samples: int
) -> dict[str, np.ndarray]:
    """Check what `predict` is asked; returns the given values."""
    if not predictor.metrics:
        raise InputError(f"the {predictor.kind} predictor is not trained: call fit first, or load a checkpoint")
    for name in metrics:
        if name not in predictor.metrics:
            raise unknown("metric", name, predictor.metrics)
    if samples < 1:
        raise InputError(f"samples must be at least 1, not {samples}")
    known = as_given(architectures, given)
    for name in known:
        if name not in predictor.metrics:
            raise unknown("given metric", name, predictor.metrics)
    return known


def patterns(count: int, known: Metrics) -> list[tuple[np.ndarray, list[str]]]:
    """Rows of `count`, grouped by which metrics (count,) are known for them, and not NaN."""
    if not known:
        return [(np.arange(count), [])]
    names = list(known)
    present = ~np.isnan(np.stack([known[name] for name in names], 1))
    found, group = np.unique(present, axis=0, return_inverse=True)
    return [
        (np.flatnonzero(group.ravel() == g), [n for n, here in zip(names, pattern, strict=True) if here])
        for g, pattern in enumerate(found)
    ]
