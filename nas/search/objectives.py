"""Objectives and constraints of a search, parsed from short strings."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal, TypeVar

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

    Example:

        >>> import nas
        >>> [str(metric) for metric in nas.parse_objectives({"top1": "max", "params": "min"})]
        ['top1:max', 'params:min']
        >>> nas.parse_objectives("top1_accuracy,pi_latency_ms")[1].direction
        'minimize'

    Args:
        objectives: a comma-separated string (`"top1,params"`), one Metric, a list or another
            sequence of strings (see `Metric.parse`) and Metrics, or a dictionary from metric to
            direction (`{"top1": "max", "params": "min"}`, also with `"maximize"` and `"minimize"`).

    Returns:
        The metrics. Without a direction, the name decides: accuracies are maximized, all others
        minimized.

    Raises:
        InputError: for an empty list, a bad direction, a repeated metric, or anything else that is
            no objective.
    """
    parsed = _parse(objectives, Metric, "objective", _directed, _OBJECTIVES_REMEDY)
    if not parsed:
        raise InputError("no objectives: give at least one metric name")
    names = [objective.name for objective in parsed]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"objective {name!r} is given twice: name each metric once")
    return tuple(parsed)


def _directed(name: object, direction: object) -> str | None:
    """The short string of a metric with a direction; None for other objects."""
    if not isinstance(name, str) or not isinstance(direction, str):
        return None
    is_direction = direction.strip().lower() in DIRECTIONS
    return f"{name}:{direction}" if is_direction else None


# Costs that `Metric` guesses without a word for them.
_FURTHER_COST = re.compile(
    r"param|flop|mac|cost|count|cycle|area|weight|byte|depth|layer", re.IGNORECASE
)


def unclear_directions(objectives: Iterable[str]) -> list[str]:
    """Objectives that are minimized only by default.

    Their names do not suggest a direction, and they have no suffix.
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
    """Convert objective values (..., m) in their own units to losses (..., m).

    Losses are all minimized. NaN stays NaN.
    """
    signs = [objective.sign for objective in objectives]
    return np.asarray(values, dtype=float) * signs


# --- constraints


_CONSTRAINT = re.compile(r"\s*([^\s<>=][^<>=]*?)\s*(<=|>=)\s*([^\s<>=]+)\s*")


@dataclass(frozen=True)
class Constraint:
    """A bound on a metric, in the metric's own unit.

    Example:

        >>> import nas, numpy as np
        >>> limit = nas.Constraint.parse("pi_latency_ms <= 8")
        >>> limit.violation(np.array([10.0, 7.5])).tolist()
        [2.0, -0.5]

    Attributes:
        metric: name of the metric.
        op: "<=" for an upper bound, ">=" for a lower one.
        bound: a finite number in the metric's unit.
    """

    metric: str
    op: Literal["<=", ">="]
    bound: float

    @classmethod
    def parse(cls, text: str) -> Constraint:
        """Parse a constraint: `"pixel3_latency_ms <= 8"`, `"cifar10_validation_accuracy >= 90"`.

        Raises InputError for anything else, or a bound that is not finite.
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
        """How far values (...) exceed the bound, in the metric's unit.

        It is at most zero where they satisfy the constraint.
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

    Example:

        >>> import nas
        >>> [str(bound) for bound in nas.parse_constraints("params <= 2e5, top1 >= 90")]
        ['params <= 200000', 'top1 >= 90']

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
    return tuple(_parse(constraints, Constraint, "constraint", _bounded, _CONSTRAINTS_REMEDY))


def _bounded(metric: object, bound: object) -> str | None:
    """The short string of a metric with a bound; None for other objects."""
    are_texts = isinstance(metric, str) and isinstance(bound, str)
    return f"{metric} {bound}" if are_texts else None


def broken_constraint(constraints: Iterable[Constraint], values: Mapping[str, float]) -> str:
    """The first constraint that values by metric break, with the value; "" if there is none.

    Constraints on other metrics are skipped.
    """
    for constraint in constraints:
        value = values.get(constraint.metric, math.nan)
        if constraint.violation(np.array(value)) > 0:
            return f"{constraint}: it is {value:g}"
    return ""


# --- what both have in common


def metric_names(
    objectives: Iterable[Metric], constraints: Iterable[Constraint]
) -> tuple[str, ...]:
    """Names of the objectives, then of metrics that have a constraint and are no objectives."""
    names = [objective.name for objective in objectives]
    bounded = [constraint.metric for constraint in constraints]
    return tuple(dict.fromkeys([*names, *bounded]))


Parsed = TypeVar("Parsed", Metric, Constraint)


def _parse(
    entries: object,
    kind: type[Parsed],
    noun: str,
    joined: Callable[[object, object], str | None],
    remedy: str,
) -> list[Parsed]:
    """Objectives or constraints from any of the forms that users may give.

    Sets are refused: the order of objectives matters, and Python's sets have another order in each
    process.

    Args:
        entries: a comma-separated string, one object of the type `kind`, an ordered collection of
            strings and such objects, or a dictionary.
        kind: what is parsed.
        noun: its name, for messages.
        joined: the short string of an entry of a dictionary; None if it is not valid.
        remedy: what to write, for messages.

    Raises:
        InputError: for anything else.
    """
    # 1. A list of entries; those of a dictionary are written as strings.
    if isinstance(entries, Mapping):
        texts = []
        for name, value in entries.items():
            text = joined(name, value)
            if text is None:
                raise InputError(f"bad {noun} {{{name!r}: {value!r}}}: {remedy}")
            texts.append(text)
        entries = texts
    elif isinstance(entries, str):
        entries = entries.split(",")
    elif isinstance(entries, kind):
        entries = [entries]
    if isinstance(entries, Set | bytes) or not isinstance(entries, Iterable):
        raise InputError(f"{entries!r} cannot be read: {remedy}")

    # 2. Strings are parsed.
    parsed: list[Parsed] = []
    for item in entries:
        if isinstance(item, str):
            parsed.append(kind.parse(item))
        elif isinstance(item, kind):
            parsed.append(item)
        else:
            raise InputError(f"bad {noun} {item!r}: {remedy}")
    return parsed
