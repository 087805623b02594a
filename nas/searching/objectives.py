"""What a search optimizes: objectives with a direction, and constraints, both parsed from short strings."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from predictors.metrics import Direction, Metric
from search_spaces.common.errors import InputError


@dataclass(frozen=True)
class Objective:
    """A metric and the direction in which it gets better."""

    metric: str
    direction: Direction

    @classmethod
    def parse(cls, text: str) -> Objective:
        """`"pixel3_latency_ms"`, or with the direction: `"score:max"`; see `predictors.Metric.parse`.

        Raises:
            InputError: for an empty name or a bad suffix.
        """
        metric = Metric.parse(text)
        return cls(metric.name, metric.direction)

    @property
    def sign(self) -> float:
        """Factor that turns the metric into a loss (lower is better)."""
        return -1.0 if self.direction == "maximize" else 1.0

    def __str__(self) -> str:
        return f"{self.metric}:{self.direction[:3]}"


def parse_objectives(objectives: str | Iterable[str | Objective]) -> tuple[Objective, ...]:
    """Objectives from a comma-separated string or from a list of strings; Objective instances pass through.

    Raises InputError for an empty list, a bad direction or a metric given twice.
    """
    items = objectives.split(",") if isinstance(objectives, str) else list(objectives)
    parsed = tuple(item if isinstance(item, Objective) else Objective.parse(item) for item in items)
    if not parsed:
        raise InputError("no objectives: give at least one metric name")
    metrics = [objective.metric for objective in parsed]
    for metric in metrics:
        if metrics.count(metric) > 1:
            raise InputError(f"objective {metric!r} is given twice: name each metric once")
    return parsed


def to_losses(values: np.ndarray, objectives: Sequence[Objective]) -> np.ndarray:
    """Objective values (..., m) in their own units as losses (..., m), every one to be minimized; NaN stays NaN."""
    return np.asarray(values, dtype=float) * [objective.sign for objective in objectives]


_CONSTRAINT = re.compile(r"\s*([\w.-]+)\s*(<=|>=)\s*(\S+)\s*")


@dataclass(frozen=True)
class Constraint:
    """A bound that a metric has to keep, in the metric's own unit."""

    metric: str
    op: Literal["<=", ">="]
    bound: float

    @classmethod
    def parse(cls, text: str) -> Constraint:
        """`"pixel3_latency_ms <= 8"` or `"cifar10_validation_accuracy >= 90"`. Raises InputError."""
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
        """By how much values (...) break the bound, in the metric's unit; at most zero where it is kept."""
        excess = np.asarray(values, dtype=float) - self.bound
        return excess if self.op == "<=" else -excess

    def value(self, violation: float) -> float:
        """The metric's value that has this violation."""
        return self.bound + violation if self.op == "<=" else self.bound - violation

    def __str__(self) -> str:
        return f"{self.metric} {self.op} {self.bound:.12g}"


def parse_constraints(constraints: str | Iterable[str | Constraint] | None) -> tuple[Constraint, ...]:
    """Constraints from a comma-separated string or a list of strings; Constraint instances pass through."""
    if constraints is None:
        return ()
    items = constraints.split(",") if isinstance(constraints, str) else constraints
    return tuple(item if isinstance(item, Constraint) else Constraint.parse(item) for item in items)
