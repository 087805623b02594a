"""Objectives and constraints of a search, parsed from short strings."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from predictors.metrics import COST, Metric
from search_spaces.common.errors import InputError


def parse_objectives(objectives: str | Iterable[str | Metric]) -> tuple[Metric, ...]:
    """Parse objectives: a comma-separated string, or an iterable of strings (see `Metric.parse`) and Metrics.

    Raises InputError for an empty list, a bad direction or a repeated metric.
    """
    items = objectives.split(",") if isinstance(objectives, str) else list(objectives)
    parsed = tuple(item if isinstance(item, Metric) else Metric.parse(item) for item in items)
    if not parsed:
        raise InputError("no objectives: give at least one metric name")
    metrics = [objective.name for objective in parsed]
    for metric in metrics:
        if metrics.count(metric) > 1:
            raise InputError(f"objective {metric!r} is given twice: name each metric once")
    return parsed


# Costs that `Metric` guesses without a word for them.
_FURTHER_COST = re.compile(r"param|flop|mac|cost|count|cycle|area|weight|byte|depth|layer", re.IGNORECASE)


def unclear_directions(objectives: Iterable[str]) -> list[str]:
    """Objectives that are minimized only by default: their names say nothing, and they have no suffix."""
    names = [name for name in map(str.strip, objectives) if not COST.search(name) and not _FURTHER_COST.search(name)]
    return [name for name in names if Metric.parse(name) == Metric(name, "measured", "minimize", "")]


def to_losses(values: np.ndarray, objectives: Sequence[Metric]) -> np.ndarray:
    """Convert objective values (..., m) in their own units to losses (..., m), all minimized; NaN stays NaN."""
    return np.asarray(values, dtype=float) * [objective.sign for objective in objectives]


_CONSTRAINT = re.compile(r"\s*(\S.*?)\s*(<=|>=)\s*(\S+)\s*")


@dataclass(frozen=True)
class Constraint:
    """A bound on a metric, in the metric's own unit."""

    metric: str
    op: Literal["<=", ">="]
    bound: float

    @classmethod
    def parse(cls, text: str) -> Constraint:
        """Parse `"pixel3_latency_ms <= 8"` or `"cifar10_validation_accuracy >= 90"`. Raises InputError."""
        match = _CONSTRAINT.fullmatch(text)
        if not match:
            raise InputError(f"bad constraint {text!r}: write METRIC <= NUMBER or METRIC >= NUMBER")
        metric, op, number = match.groups()
        try:
            bound = float(number)
        except ValueError:
            bound = math.nan
        if not math.isfinite(bound):
            raise InputError(f"bad constraint {text!r}: {number!r} is not a finite number")
        return cls(metric, op, bound)  # type: ignore[arg-type]  # the pattern admits only the two operators

    def violation(self, values: np.ndarray) -> np.ndarray:
        """How far values (...) exceed the bound, in the metric's unit; at most zero if they satisfy it."""
        excess = np.asarray(values, dtype=float) - self.bound
        return excess if self.op == "<=" else -excess

    def value(self, violation: float) -> float:
        """The metric's value for a violation: the inverse of `violation`."""
        return self.bound + violation if self.op == "<=" else self.bound - violation

    def __str__(self) -> str:
        return f"{self.metric} {self.op} {self.bound:.12g}"


def parse_constraints(constraints: str | Iterable[str | Constraint] | None) -> tuple[Constraint, ...]:
    """Parse constraints: a comma-separated string, or an iterable of strings and Constraints. Raises InputError."""
    if constraints is None:
        return ()
    items = constraints.split(",") if isinstance(constraints, str) else constraints
    return tuple(item if isinstance(item, Constraint) else Constraint.parse(item) for item in items)
