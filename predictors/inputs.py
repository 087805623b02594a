"""Checks of the inputs of predictors: texts, targets and given values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

from predictors.values import MAX_VALUE
from search_spaces import to_text
from search_spaces.common.errors import InputError, unknown

if TYPE_CHECKING:
    import onnx

    from search_spaces import Architecture

Inputs = Sequence["str | onnx.ModelProto | Architecture"]
Stream = Iterable["str | onnx.ModelProto | Architecture"]
Metrics = Mapping[str, Sequence[float] | np.ndarray]
MIN_RANGE = 1e-150  # smallest range of values: the square of smaller ones underflows to 0


class Trained(Protocol):
    """The attributes of a predictor that `check_request` reads."""

    kind: str

    @property
    def metrics(self) -> tuple[str, ...]: ...


def as_texts(architectures: Inputs) -> list[str]:
    """Convert ONNX models to texts; texts stay as they are.

    Raises:
        InputError: for any other type.
    """
    from search_spaces import Architecture

    if isinstance(architectures, str):
        raise InputError(f"give a list of texts, not a text: [{architectures[:60]!r}]")
    for a in architectures:
        if isinstance(a, Architecture):
            raise InputError(
                f"this predictor reads text: give space.to_text(architecture), not {str(a)[:80]}"
            )
        if not isinstance(a, str) and not hasattr(a, "graph"):
            raise InputError(f"this predictor reads texts and ONNX models, not {type(a).__name__}")
    return [a if isinstance(a, str) else to_text(cast("onnx.ModelProto", a)) for a in architectures]


def as_targets(architectures: Inputs, metrics: Metrics) -> dict[str, np.ndarray]:
    """Check training targets of n architectures.

    Returns:
        float64 (n,) per metric, NaN where missing. Values below `MIN_RANGE` become 0.

    Raises:
        InputError: if there is no architecture or metric, a metric has no value or a range between
            0 and `MIN_RANGE`, or `as_given` refuses the values.
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
        if 0 < np.ptp(known) < MIN_RANGE:
            raise InputError(f"metric {name!r} spans {np.ptp(known):.3g}: give it in a larger unit")
        targets[name] = np.where(np.abs(values) < MIN_RANGE, 0.0, values)
    return targets


def as_given(architectures: Inputs, metrics: Metrics | None) -> dict[str, np.ndarray]:
    """Check known values of n architectures.

    Returns:
        float64 (n,) per metric, NaN where unknown.

    Raises:
        InputError: if values are not numbers, are infinite or above `MAX_VALUE`, or if there are
            not n of them.
    """
    checked: dict[str, np.ndarray] = {}
    for name, values in (metrics or {}).items():
        try:
            array = np.asarray(values, np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"metric {name!r} has a value that is not a number") from error
        if array.shape != (len(architectures),):
            raise InputError(
                f"metric {name!r} has shape {array.shape} for {len(architectures)} architectures"
            )
        if np.isinf(array).any():
            raise InputError(f"metric {name!r} has an infinite value; use NaN for a missing one")
        if (np.abs(array) > MAX_VALUE).any():
            raise InputError(
                f"metric {name!r} has the value {np.nanmax(np.abs(array)):.3g}: give it in another "
                "unit"
            )
        checked[name] = array
    return checked


def check_request(
    predictor: Trained,
    architectures: Inputs,
    metrics: Sequence[str],
    given: Metrics | None,
    samples: int,
) -> dict[str, np.ndarray]:
    """Check the arguments of `Predictor.predict`.

    Returns:
        The given values, float64 (n,) per metric.

    Raises:
        InputError: if the predictor is not trained, a metric is unknown, samples < 1, or `as_given`
            refuses a value.
    """
    if not predictor.metrics:
        raise InputError(
            f"the {predictor.kind} predictor is not trained: call fit first, or load a checkpoint"
        )
    for name in metrics:
        if name not in predictor.metrics:
            raise unknown("metric", name, predictor.metrics)
    if isinstance(samples, float) or samples < 1:
        raise InputError(f"samples must be a whole number of at least 1, not {samples}")
    known = as_given(architectures, given)
    for name in known:
        if name not in predictor.metrics:
            raise unknown("given metric", name, predictor.metrics)
    return known


def group_by_known(count: int, known: Metrics) -> list[tuple[np.ndarray, list[str]]]:
    """Row numbers and known metrics of each group of `count` rows that know the same ones; NaN
    means unknown.
    """
    if not known:
        return [(np.arange(count), [])] if count else []
    names = list(known)
    present = ~np.isnan(np.stack([known[name] for name in names], 1))
    found, group = np.unique(present, axis=0, return_inverse=True)
    return [
        (
            np.flatnonzero(group.ravel() == g),
            [n for n, here in zip(names, pattern, strict=True) if here],
        )
        for g, pattern in enumerate(found)
    ]
