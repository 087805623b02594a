"""Searches of several samplers and seeds, compared with the true front or the best front found."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from nas.benchmarks import Benchmark
from nas.search.pareto import Reference
from nas.search.study.load import RecordedSpace
from nas.search.study.networks import (
    DistinctNetwork,
    UntrainedNetwork,
    distinct_networks,
    least_violating,
    mean,
    networks_csv,
    networks_table,
)
from nas.search.study.result import SearchResult
from predictors.metrics import Metric

if TYPE_CHECKING:
    import pandas as pd

REPORTED_EVALUATIONS = (20, 50, 100, 200, 500)


@dataclass(frozen=True)
class Studies:
    """Searches with the same m objectives.

    Attributes:
        objectives: the metrics.
        reference: the benchmark's true front, or the best front of all these searches together.
        results: for each sampler, one result per seed.
        benchmark: the searched table; None if networks were measured.
        point: reference point (m,) of the hypervolume in the metrics' own units; None for a table.
    """

    objectives: tuple[Metric, ...]
    reference: Reference
    results: dict[str, list[SearchResult]]
    benchmark: Benchmark | None = None
    point: np.ndarray | None = None

    @property
    def searches(self) -> list[SearchResult]:
        """The results of all searches."""
        return [result for group in self.results.values() for result in group]

    @cached_property
    def distinct(self) -> list[DistinctNetwork]:
        """The distinct networks of all searches together, the front first.

        They have all metrics of the benchmark.
        """
        networks = distinct_networks(
            (
                one
                for number, result in enumerate(self.searches)
                for one in result.evaluations(number)
            ),
            self.objectives,
        )
        for network in networks if self.benchmark is not None else ():
            self._look_up(network)
        return networks

    def _look_up(self, network: DistinctNetwork) -> None:
        """Add the table's other metrics: means over the network's evaluated architectures."""
        assert self.benchmark is not None
        measured = network.representative.values
        rows = [self.benchmark.query(architecture) for architecture in network.architectures]
        for name in self.benchmark.metrics:
            known = [row[name] for row in rows if row[name] == row[name]]
            if known and name not in measured:
                network.values[name] = mean(known)

    @property
    def networks(self) -> pd.DataFrame:
        """All networks of all searches, one row each, the front first."""
        return networks_table(self.distinct, self.objectives, self.untrained)

    @property
    def front(self) -> pd.DataFrame:
        """The Pareto front of all searches together, one row per network.

        Rows are sorted by the first objective.
        """
        return networks_table(self.front_networks, self.objectives)

    @property
    def front_networks(self) -> list[DistinctNetwork]:
        """The Pareto front of all searches together."""
        return [network for network in self.distinct if network.on_front]

    @property
    def untrained(self) -> list[UntrainedNetwork]:
        """Networks of all searches that were measured and not trained."""
        return [network for search in self.searches for network in search.untrained]

    @property
    def ruled_out(self) -> list[UntrainedNetwork]:
        """Networks of all searches that broke a constraint before their training."""
        return [network for search in self.searches for network in search.ruled_out]

    @property
    def first(self) -> SearchResult:
        """The first sampler's first seed."""
        return next(iter(self.results.values()))[0]

    @property
    def not_built(self) -> str | None:
        """One line that says why networks cannot be built from their choices; None if they can."""
        return self.first.space.reason if isinstance(self.first.space, RecordedSpace) else None

    @property
    def failures(self) -> list[dict[str, Any]]:
        """Failed trials of all searches, with reasons."""
        return [failure for result in self.searches for failure in result.failures]

    def curves(self) -> dict[str, np.ndarray]:
        """Hypervolume ratios (seeds, evaluations) of each sampler.

        A ratio is the share of the reference's hypervolume, 0 to 1. Prior observations count for
        the hypervolume, but not as evaluations.
        """
        by_sampler = {}
        longest = 0
        for name, results in self.results.items():
            by_sampler[name] = [self._curve(result) for result in results]
            longest = max(longest, *map(len, by_sampler[name]))

        curves = {}
        for name, of_seeds in by_sampler.items():
            # A search that ends early keeps its last value.
            padded = [np.pad(one, (0, longest - len(one)), mode="edge") for one in of_seeds]
            curves[name] = np.stack(padded)
        return curves

    def _curve(self, result: SearchResult) -> np.ndarray:
        """Hypervolume ratio (evaluations,) after each evaluation.

        It is one value for a search without any.
        """
        curve = self.reference.curve(result.feasible_values)
        return curve[-1:] if result.prior.all() else curve[~result.prior]

    def table(self) -> list[dict[str, Any]]:
        """One row per sampler: hypervolume ratio after some numbers of evaluations, and final IGD+.

        If networks were measured, also the hypervolume with respect to `point`.
        """
        rows = []
        for name, curve in self.curves().items():
            seeds, evaluations = curve.shape
            row: dict[str, Any] = {"sampler": name}
            reported = [count for count in REPORTED_EVALUATIONS if count < evaluations]
            for count in (*reported, evaluations):
                row[f"HV@{count}"] = _mean_std(curve[:, count - 1])
            if self.point is not None:
                row["hypervolume"] = _mean_std(self._volumes(name))
            igd = [self.reference.igd_plus(result.feasible_values) for result in self.results[name]]
            row["IGD+"] = _mean_std(np.array(igd))
            row["seeds"] = seeds
            rows.append(row)
        return rows

    def _volumes(self, sampler: str) -> np.ndarray:
        """Hypervolume (seeds,) with respect to the reference point.

        The unit is the product of the metrics' units.
        """
        assert self.point is not None
        return np.array(
            [result.hypervolume(self.point.tolist()) for result in self.results[sampler]]
        )

    def summary(self) -> dict[str, Any]:
        """All reported figures as JSON values."""
        means = {name: curve.mean(0).round(6).tolist() for name, curve in self.curves().items()}
        return {
            **self._yardstick(),
            "objectives": [str(objective) for objective in self.objectives],
            "table": self.table(),
            "front": self.front_rows,
            "samplers": {name: self._summary_of(name) for name in self.results},
            "curves": means,
        }

    def _summary_of(self, sampler: str) -> dict[str, Any]:
        """The figures of one sampler: lists with an item per search."""
        results = self.results[sampler]
        values = [result.feasible_values for result in results]
        summary: dict[str, Any] = {
            "evaluations": [len(result.evaluated.architectures) for result in results],
            "hypervolume_ratio": [self.reference.ratio(feasible) for feasible in values],
        }
        if self.point is not None:
            summary["hypervolume"] = self._volumes(sampler).tolist()
        return summary | {
            "igd_plus": [_finite(self.reference.igd_plus(feasible)) for feasible in values],
            "fronts": [result.front_rows for result in results],
            "failures": [result.failures for result in results],
        }

    def _yardstick(self) -> dict[str, Any]:
        """What was searched, and the front with which results are compared."""
        size = len(self.reference.true_front)
        if self.benchmark is not None:
            return {"benchmark": self.benchmark.name, "true_front": size}
        assert self.point is not None
        point = dict(zip([o.name for o in self.objectives], self.point.tolist(), strict=True))
        return {"space": self.first.space.name, "best_front": size, "reference_point": point}

    @property
    def front_rows(self) -> list[dict[str, Any]]:
        """The front of all searches together as rows.

        A row has a network, its measured metrics, and where it comes from.
        """
        return [network.summary(self.objectives) for network in self.front_networks]

    @property
    def least_violating(self) -> list[dict[str, Any]]:
        """The networks of all searches with the smallest violations of the constraints."""
        return least_violating(self.distinct, self.objectives)

    @property
    def front_csv(self) -> str:
        """The front of all searches together as CSV (`nas.search.study.networks.networks_csv`)."""
        return networks_csv(self.front_networks, self.objectives)

    @property
    def networks_csv(self) -> str:
        """All networks as CSV, with test scores of the front only."""
        return networks_csv(self.distinct, self.objectives, self.untrained)


def _finite(value: float) -> float | None:
    """The value, or None without a front: JSON has no infinity."""
    return value if math.isfinite(value) else None


def _mean_std(values: np.ndarray) -> str:
    """Mean, with standard deviation if there are several values.

    Numbers have three decimals, or five digits if they are large.
    """
    text = _number(values.mean())
    return f"{text} ± {_number(values.std(ddof=1))}" if len(values) > 1 else text


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "–"
    return f"{value:.3f}" if abs(value) < 100 else f"{float(f'{value:.5g}'):,.10g}"
