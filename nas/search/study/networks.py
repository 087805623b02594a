"""Distinct networks: what one or several searches found, with one entry per network, and their
Pareto front.

Architectures with equal texts are one network (duplicates), also if several searches evaluated
them. Terminal, `front.csv`, `networks.csv`, the folder `front`, reports and figures all show these
networks, numbered in this order.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nas.benchmarks.csv_file import ORIGIN_COLUMNS
from nas.evaluation.trainable import Trainable
from nas.search.objectives import to_losses
from nas.search.pareto import non_dominated
from predictors.features import COUNTS
from search_spaces.ir.text import fingerprint

if TYPE_CHECKING:
    import pandas as pd

    from predictors.metrics import Metric
    from search_spaces import Architecture, SearchSpace


KNOWN = "known"  # instead of a sampler's name: the network is a prior observation
AGAIN = "_again"  # ends the name of a value that was measured again
SHOWN_VIOLATIONS = 5  # networks that are shown if none satisfies the constraints


@dataclass(frozen=True, eq=False)
class Evaluation:
    """An architecture that a search evaluated to finite values.

    Attributes:
        search: number of the search among those that are merged, from 0.
        row: row of the search's `evaluated`.
        space: the search space.
        architecture: the architecture.
        network: what identifies its network.
        trial: number of the trial in its study and log.
        sampler: name of the search's sampler; of the study if the user made it; `KNOWN` for a prior
            observation.
        seed: of the search; "" for a study that the user made, and for a prior observation.
        values: objectives and metrics with constraints, in the metrics' own units.
        further: other values that the evaluator returned, such as test scores.
        spreads: by metric low and high value of repeated measurements, and what these are.
        violations: of each constraint, relative to its bound; at most 0 if it is satisfied, NaN if
            unknown.
        predicted: mean and standard deviation of each metric before it was measured.
        weights: path to which the trained weights were written; None if nothing was trained.
        confirmed: by metric value, low and high value of later measurements, and what these are.
    """

    search: int
    row: int
    space: SearchSpace
    architecture: Architecture
    network: NetworkId
    trial: int
    sampler: str
    seed: int | str
    values: dict[str, float]
    further: dict[str, float]
    spreads: dict[str, tuple[float, float, str]]
    violations: list[float]
    predicted: dict[str, tuple[float, float]]
    weights: str | None
    confirmed: dict[str, tuple[float, float, float, str]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class DistinctNetwork:
    """A network that was evaluated at least once.

    Attributes:
        evaluations: in the order of the searches, then of the trials.
        representative: the first evaluation that no other of this network dominates. Its weights
            are the likeliest to be kept, so that it gives the network its choices and its files.
        values: by metric in its own unit, means over all evaluations. Each architecture counts
            once, however many searches evaluated it, since a table gives all of them the same
            value.
        test: the same for test scores, which must not guide a choice.
        spreads: by metric low and high value and what these are; of repeated measurements, or of
            the evaluations if they differ.
        violation: largest violation of a constraint by the means, relative to its bound; at most 0
            if all are satisfied, NaN if unknown.
        on_front: True if no other of the networks dominates it.
    """

    evaluations: tuple[Evaluation, ...]
    representative: Evaluation
    values: dict[str, float]
    test: dict[str, float]
    spreads: dict[str, tuple[float, float, str]]
    violation: float
    on_front: bool = field(default=False)

    @property
    def architecture(self) -> Architecture:
        """The architecture of the representative."""
        return self.representative.architecture

    @property
    def architectures(self) -> list[Architecture]:
        """The distinct architectures that were evaluated."""
        return list(dict.fromkeys(evaluation.architecture for evaluation in self.evaluations))

    @property
    def notation(self) -> str:
        """`architecture` in the space's notation."""
        return self.representative.space.format(self.architecture)

    @property
    def further(self) -> dict[str, float]:
        """Values that the evaluator returned besides objectives, such as test scores: means."""
        names = {name for evaluation in self.evaluations for name in evaluation.further}
        values = {**self.values, **self.test}
        return {name: value for name, value in values.items() if name in names}

    @property
    def again(self) -> dict[str, float]:
        """Values of later measurements, by names such as `digits_accuracy_again`."""
        return {f"{metric}{AGAIN}": value for metric, (value, *_) in self.confirmed.items()}

    @property
    def origin(self) -> dict[str, Any]:
        """Sampler, seed and trial of the representative, and number of evaluations."""
        first = self.representative
        origin = (first.sampler, first.seed, first.trial, len(self.evaluations))
        return dict(zip(ORIGIN_COLUMNS, origin, strict=True))

    @property
    def confirmed(self) -> dict[str, tuple[float, float, float, str]]:
        """Values that were measured again at the end of a search.

        For each metric: value, low value, high value, and what the low and high values are.
        """
        return {
            metric: value
            for evaluation in reversed(self.evaluations)
            for metric, value in evaluation.confirmed.items()
        }

    def row(self, objectives: Iterable[Metric]) -> dict[str, Any]:
        """Notation and objectives."""
        return {"architecture": self.notation} | {o.name: self.values[o.name] for o in objectives}

    def summary(self, objectives: Iterable[Metric]) -> dict[str, Any]:
        """Notation, objectives, further values and origin."""
        row = self.row(objectives) | self.further | self.again
        return row | {name: value for name, value in self.origin.items() if name not in row}


def distinct_networks(
    evaluations: Iterable[Evaluation], objectives: Sequence[Metric]
) -> list[DistinctNetwork]:
    """The networks that searches with the same objectives evaluated.

    Returns:
        The front, sorted by the first objective from the best on, then the other networks in the
        order in which they were evaluated.
    """
    # 1. Evaluations of equal texts belong to one network.
    of_network: dict[str, list[Evaluation]] = {}
    for evaluation in evaluations:
        of_network.setdefault(evaluation.network.text, []).append(evaluation)
    if not of_network:
        return []

    # 2. The front of the networks' mean values.
    networks = [_merged(repeated, objectives) for repeated in of_network.values()]
    names = [objective.name for objective in objectives]
    values = np.array([[network.values[name] for name in names] for network in networks])  # (n, m)
    losses = to_losses(values, objectives)
    feasible = np.array([network.violation <= 0 for network in networks])
    on_front = non_dominated(np.where(feasible[:, None], losses, np.nan))

    # 3. The front comes first.
    front = np.flatnonzero(on_front)
    rest = np.flatnonzero(~on_front)
    for i in front:
        object.__setattr__(networks[i], "on_front", True)
    by_objectives = np.lexsort(losses[front].T[::-1])  # the first objective decides, then the next
    return [networks[i] for i in [*front[by_objectives], *rest]]


def least_violating(
    networks: Sequence[DistinctNetwork], objectives: Sequence[Metric]
) -> list[dict[str, Any]]:
    """Rows of the `SHOWN_VIOLATIONS` networks with the smallest violations.

    A row has the notation, the values and the violation.
    """
    comparable = [network for network in networks if not math.isnan(network.violation)]
    comparable.sort(key=lambda network: network.violation)
    rows = []
    for network in comparable[:SHOWN_VIOLATIONS]:
        values = {name: network.values[name] for name in network.representative.values}
        rows.append(network.row(objectives) | values | {"violation": network.violation})
    return rows


@dataclass(frozen=True)
class UntrainedNetwork:
    """A network that was measured and not trained.

    Attributes:
        notation: the architecture in the space's notation.
        values: measured values by metric.
        reason: the constraint that it broke, with the value; "" if another one was chosen.
        sampler, seed, trial: where it comes from, as in `Evaluation`.
    """

    notation: str
    values: dict[str, float]
    reason: str
    sampler: str
    seed: int | str
    trial: int

    @property
    def row(self) -> dict[str, Any]:
        """Notation, measured values and origin, with no evaluation."""
        origin = zip(ORIGIN_COLUMNS, (self.sampler, self.seed, self.trial, 0), strict=True)
        return {**dict(origin), "architecture": self.notation, **self.values}


def networks_table(
    networks: Sequence[DistinctNetwork],
    objectives: Sequence[Metric],
    untrained: Sequence[UntrainedNetwork] = (),
) -> pd.DataFrame:
    """Networks as rows; those that were measured and not trained come last.

    Columns are `architecture` in the space's notation, metrics, and where the network comes from.
    Missing values are NaN. Test scores and later measurements (`METRIC_again`) are those of the
    front only. A metric named like one of `ORIGIN_COLUMNS` takes its place.
    """
    import pandas as pd

    # 1. Rows, and the columns in the order in which they appear.
    columns = ["architecture", *(objective.name for objective in objectives)]
    rows = []
    for network in networks:
        metrics = {**network.row(objectives), **network.values}
        if network.on_front:
            metrics |= network.test | network.again
        columns += metrics
        rows.append({**network.origin, **metrics})
    rows += [network.row for network in untrained]

    # 2. Where a network comes from is shown last, unless a metric has this name.
    columns += ORIGIN_COLUMNS
    return pd.DataFrame(rows, columns=list(dict.fromkeys(columns)))


def networks_csv(
    networks: Sequence[DistinctNetwork],
    objectives: Sequence[Metric],
    untrained: Sequence[UntrainedNetwork] = (),
) -> str:
    """The table as CSV, which `read_prior_observations` reads; missing values are empty."""
    table = networks_table(networks, objectives, untrained)
    return str(table.to_csv(index=False, lineterminator="\n"))


def _merged(evaluations: Sequence[Evaluation], objectives: Sequence[Metric]) -> DistinctNetwork:
    """One network from its evaluations."""
    # 1. The values of each evaluation: test scores apart from all others. Objectives come first. They
    #    replace further values of the same name, and both replace counts.
    metrics, tests, violations = [], [], []
    for evaluation in evaluations:
        further = evaluation.further
        test = {name: value for name, value in further.items() if is_test_score(name)}
        others = {name: value for name, value in further.items() if name not in test}
        measured = {**evaluation.values, **others, **evaluation.values}
        metrics.append({**measured, **evaluation.network.counts, **measured})
        tests.append(test)
        violations.append(dict(enumerate(evaluation.violations)))

    # 2. Means. A violation that one evaluation does not know is unknown of the network.
    violation = max(0.0, *_means(evaluations, violations).values())
    if any(math.isnan(value) for row in violations for value in row.values()):
        violation = math.nan
    return DistinctNetwork(
        tuple(evaluations),
        _representative(evaluations, objectives),
        values=_means(evaluations, metrics),
        test=_means(evaluations, tests),
        spreads=_spreads(evaluations, metrics),
        violation=violation,
    )


def is_test_score(metric: str) -> bool:
    """True if the metric's name says that it is a test score, which must not guide a choice."""
    return "test" in re.split(r"[^a-z]+", metric.lower())


def _representative(evaluations: Sequence[Evaluation], objectives: Sequence[Metric]) -> Evaluation:
    """The first evaluation that no other dominates."""
    names = [objective.name for objective in objectives]
    values = np.array([[evaluation.values[name] for name in names] for evaluation in evaluations])
    is_best = non_dominated(to_losses(values, objectives))  # (evaluations,)
    return evaluations[int(np.argmax(is_best))]


def _means(
    evaluations: Sequence[Evaluation], rows: Sequence[Mapping[Any, float]]
) -> dict[Any, float]:
    """Mean of each named value, without NaN.

    Evaluations are averaged for each architecture, then the architectures.
    """
    by_name: dict[Any, dict[Architecture, list[float]]] = {}
    for evaluation, row in zip(evaluations, rows, strict=True):
        for name, value in row.items():
            if not math.isnan(value):
                by_architecture = by_name.setdefault(name, {})
                by_architecture.setdefault(evaluation.architecture, []).append(value)
    means = {}
    for name, by_architecture in by_name.items():
        means[name] = mean([mean(values) for values in by_architecture.values()])
    return means


def mean(values: Sequence[float]) -> float:
    """The mean; exactly the common value if all are equal."""
    return values[0] if min(values) == max(values) else sum(values) / len(values)


def _spreads(
    evaluations: Sequence[Evaluation], rows: Sequence[Mapping[str, float]]
) -> dict[str, tuple[float, float, str]]:
    """Ranges of the evaluations by metric; of equal ones, the spread of the first."""
    spreads = dict(evaluations[0].spreads)
    for name in rows[0]:
        values = [row[name] for row in rows if not math.isnan(row.get(name, math.nan))]
        if values and min(values) < max(values):
            spreads[name] = (
                min(values),
                max(values),
                f"range of {len(values)} evaluations, whose mean is shown",
            )
    return spreads


class NetworkId(NamedTuple):
    """What identifies a network, and its exact costs.

    Attributes:
        text: fingerprint of the network's text, and of which weights it inherits; the choices if it
            cannot be built.
        counts: params and FLOPs; empty if the network cannot be built.
    """

    text: str
    counts: dict[str, int]

    @classmethod
    def of(cls, network: Trainable) -> NetworkId:
        counts = {name: count(network.graph) for name, count in COUNTS.items()}
        return cls(fingerprint(network.identity), counts)

    @classmethod
    def of_stored(cls, stored: Mapping[str, Any]) -> NetworkId:
        """The identity that `stored` wrote."""
        counts = {name: int(stored[name]) for name in COUNTS if name in stored}
        return cls(str(stored["text"]), counts)

    @property
    def stored(self) -> dict[str, Any]:
        """Plain values for the trial's user attribute `nas:network`."""
        return {"text": self.text, **self.counts}
