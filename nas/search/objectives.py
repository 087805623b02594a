"""Objectives and constraints of a search, parsed from short strings."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal

import numpy as np

from predictors.metrics import COST, DIRECTIONS, Metric
from search_spaces.common.errors import InputError

ObjectivesLike = str | Metric | Mapping[str, str] | Iterable[str | Metric]
"""What users may give as objectives: see `parse_objectives`."""

_OBJECTIVES_REMEDY = (
    'write "top1:max,params", ["top1:max", "params"] or {"top1": "max", "params": "min"}'
)
_CONSTRAINTS_REMEDY = (
    'write "params <= 2e5", ["params <= 2e5", "top1 >= 90"] or '
    '{"params": "<= 2e5", "top1": ">= 90"}'
)


# --- objectives


def parse_objectives(objectives: ObjectivesLike) -> tuple[Metric, ...]:
    """Parse objectives, whose order is kept.

    Args:
        objectives: a comma-separated string (`"top1,params"`), one Metric, a list or another
            sequence of strings (see `Metric.parse`) and Metrics, or a dictionary from metric to
            direction (`{"top1": "max", "params": "min"}`, also with `"maximize"` and `"minimize"`).

    Raises:
        InputError: for an empty list, a bad direction, a repeated metric, or anything else that is
            no objective.
    """
    parsed = []
    if isinstance(objectives, Mapping):
        for name, direction in objectives.items():
            if not _is_direction(direction) or not isinstance(name, str):
                entry = f"{{{name!r}: {direction!r}}}"
                raise InputError(f"bad objective {entry}: {_OBJECTIVES_REMEDY}")
            parsed.append(Metric.parse(f"{name}:{direction}"))
    else:
        for item in _as_list(objectives, Metric, _OBJECTIVES_REMEDY):
            if isinstance(item, str):
                parsed.append(Metric.parse(item))
            elif isinstance(item, Metric):
                parsed.append(item)
            else:
                raise InputError(f"bad objective {item!r}: {_OBJECTIVES_REMEDY}")
    if not parsed:
        raise InputError("no objectives: give at least one metric name")
    names = [objective.name for objective in parsed]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"objective {name!r} is given twice: name each metric once")
    return tuple(parsed)


def _is_direction(direction: object) -> bool:
    return isinstance(direction, str) and direction.strip().lower() in DIRECTIONS


# Costs that `Metric` guesses without a word for them.
_FURTHER_COST = re.compile(
    r"param|flop|mac|cost|count|cycle|area|weight|byte|depth|layer", re.IGNORECASE
)


def unclear_directions(objectives: Iterable[str]) -> list[str]:
    """Objectives that are minimized only by default: their names say nothing, and they have no
    suffix.
    """
    unclear = []
    for objective in objectives:
        name = objective.strip()
        if COST.search(name) or _FURTHER_COST.search(name):
            continue
        by_default = Metric(name, "measured", "minimize", "")
        if Metric.parse(name) == by_default:
            unclear.append(name)
    return unclear


def to_losses(values: np.ndarray, objectives: Sequence[Metric]) -> np.ndarray:
    """Convert objective values (..., m) in their own units to losses (..., m), all minimized; NaN
    stays NaN.
    """
    signs = [objective.sign for objective in objectives]
    return np.asarray(values, dtype=float) * signs


# --- constraints


_CONSTRAINT = re.compile(r"\s*([^\s<>=][^<>=]*?)\s*(<=|>=)\s*([^\s<>=]+)\s*")


@dataclass(frozen=True)
class Constraint:
    """A bound on a metric, in the metric's own unit."""

    metric: str
    op: Literal["<=", ">="]
    bound: float

    @classmethod
    def parse(cls, text: str) -> Constraint:
        """Parse `"pixel3_latency_ms <= 8"` or `"cifar10_validation_accuracy >= 90"`. Raises
        InputError.
        """
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
        """How far values (...) exceed the bound, in the metric's unit; at most zero if they satisfy
        it.
        """
        excess = np.asarray(values, dtype=float) - self.bound
        return excess if self.op == "<=" else -excess

    def value(self, violation: float) -> float:
        """The metric's value for a violation: the inverse of `violation`."""
        return self.bound + violation if self.op == "<=" else self.bound - violation

    def __str__(self) -> str:
        return f"{self.metric} {self.op} {self.bound:.12g}"


ConstraintsLike = str | Constraint | Mapping[str, str] | Iterable[str | Constraint] | None
"""What users may give as constraints: see `parse_constraints`."""


def parse_constraints(constraints: ConstraintsLike) -> tuple[Constraint, ...]:
    """Parse constraints.

    Args:
        constraints: None for no constraint, a comma-separated string (`"params <= 2e5, top1 >=
            90"`), one Constraint, a list or another sequence of strings and Constraints, or a
            dictionary from metric to bound (`{"params": "<= 2e5"}`).

    Raises:
        InputError: for anything else. A bare number is refused, since it does not say which side is
            good.
    """
    if constraints is None:
        return ()
    parsed = []
    if isinstance(constraints, Mapping):
        for metric, bound in constraints.items():
            if not isinstance(metric, str) or not isinstance(bound, str):
                entry = f"{{{metric!r}: {bound!r}}}"
                raise InputError(f"bad constraint {entry}: {_CONSTRAINTS_REMEDY}")
            parsed.append(Constraint.parse(f"{metric} {bound}"))
    else:
        for item in _as_list(constraints, Constraint, _CONSTRAINTS_REMEDY):
            if isinstance(item, str):
                parsed.append(Constraint.parse(item))
            elif isinstance(item, Constraint):
                parsed.append(item)
            else:
                raise InputError(f"bad constraint {item!r}: {_CONSTRAINTS_REMEDY}")
    return tuple(parsed)


def broken_constraint(constraints: Iterable[Constraint], values: Mapping[str, float]) -> str:
    """The first constraint that values by metric break, with the value; "" if there is none.

    Constraints on other metrics are skipped.
    """
    for constraint in constraints:
        value = values.get(constraint.metric, math.nan)
        if constraint.violation(np.array(value)) > 0:
            return f"{constraint}: it is {value:g}"
    return ""


def _as_list(items: object, single: type, remedy: str) -> list[object]:
    """The entries of a comma-separated string, of one object of the type `single`, or of an ordered
    collection.

    Sets are refused: the order of objectives matters, and Python's sets have another order in each
    process.
    """
    if isinstance(items, str):
        return list(items.split(","))
    if isinstance(items, single):
        return [items]
    if isinstance(items, Set | bytes) or not isinstance(items, Iterable):
        raise InputError(f"{items!r} cannot be read: {remedy}")
    return list(items)
