"""Searches of several samplers and seeds, compared with the true front or the best front found."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from nas.benchmarks import Benchmark
from nas.searching.pareto import Reference
from nas.searching.reading import RecordedSpace
from nas.searching.result import SearchResult
from predictors.metrics import Metric

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
    def first(self) -> SearchResult:
        """The first sampler's first seed."""
        return next(iter(self.results.values()))[0]

    @property
    def not_built(self) -> str | None:
        """One line that says why networks cannot be built from their choices; None if they can."""
        return self.first.space.reason if isinstance(self.first.space, RecordedSpace) else None

    @property
    def failures(self) -> list[dict[str, str]]:
        """Failed trials of all searches, with reasons."""
        return [failure for group in self.results.values() for result in group for failure in result.failures]

    def curves(self) -> dict[str, np.ndarray]:
        """Hypervolume ratios (seeds, evaluations) of each sampler: share of the reference's hypervolume, 0 to 1.

        Prior observations count for the hypervolume, but not as evaluations.
        """
        curves = {name: [self._curve(result) for result in results] for name, results in self.results.items()}
        # A search that ends early keeps its last value.
        longest = max(len(curve) for group in curves.values() for curve in group)
        return {
            name: np.stack([np.pad(curve, (0, longest - len(curve)), mode="edge") for curve in group])
            for name, group in curves.items()
        }

    def _curve(self, result: SearchResult) -> np.ndarray:
        """Hypervolume ratio (evaluations,) after each evaluation; one value for a search without any."""
        curve = self.reference.curve(result.feasible_values)
        return curve[-1:] if result.prior.all() else curve[~result.prior]

    def table(self) -> list[dict[str, Any]]:
        """One row per sampler: hypervolume ratio after some numbers of evaluations, and final IGD+.

        If networks were measured, also the hypervolume with respect to `point`.
        """
        rows = []
        for name, curve in self.curves().items():
            marks = sorted({m for m in REPORTED_EVALUATIONS if m < curve.shape[1]} | {curve.shape[1]})
            igd = np.array([self.reference.igd_plus(r.feasible_values) for r in self.results[name]])
            row: dict[str, Any] = {"sampler": name}
            row |= {f"HV@{m}": _mean_std(curve[:, m - 1]) for m in marks}
            if self.point is not None:
                row["hypervolume"] = _mean_std(self._volumes(name))
            rows.append({**row, "IGD+": _mean_std(igd), "seeds": len(curve)})
        return rows

    def _volumes(self, sampler: str) -> np.ndarray:
        """Hypervolume (seeds,) with respect to the reference point, in the product of the metrics' units."""
        assert self.point is not None
        return np.array([result.hypervolume(self.point.tolist()) for result in self.results[sampler]])

    def summary(self) -> dict[str, Any]:
        """All reported figures as JSON values."""
        return {
            **self._yardstick(),
            "objectives": [str(o) for o in self.objectives],
            "table": self.table(),
            "samplers": {
                name: {
                    "evaluations": [len(r.evaluated.architectures) for r in results],
                    "hypervolume_ratio": [self.reference.ratio(r.feasible_values) for r in results],
                    **({} if self.point is None else {"hypervolume": self._volumes(name).tolist()}),
                    "igd_plus": [_finite(self.reference.igd_plus(r.feasible_values)) for r in results],
                    "fronts": [r.front for r in results],
                    "failures": [r.failures for r in results],
                }
                for name, results in self.results.items()
            },
            "curves": {name: curve.mean(0).round(6).tolist() for name, curve in self.curves().items()},
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
    def front(self) -> list[dict[str, Any]]:
        """The first search's front with all measured metrics of its networks, such as test scores."""
        first = self.first
        further = {first.space.format(arch): values for arch, values in first.further.items()}
        return [row | further.get(row["architecture"], {}) for row in first.front]

    def front_csv(self) -> str:
        """The front as CSV, with all metrics of the benchmark, or with params and FLOPs of measured networks.

        Missing values are empty, as `read_prior_observations` expects.
        """
        rows = [{**row, **self._metrics_of(row["architecture"])} for row in self.front]
        columns = ["architecture", *(o.name for o in self.objectives), *(name for row in rows for name in row)]
        text = io.StringIO()
        writer = csv.DictWriter(text, dict.fromkeys(columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: "" if value != value else value for name, value in row.items()} for row in rows)
        return text.getvalue()

    def _metrics_of(self, architecture: str) -> dict[str, float]:
        """The table's values of an architecture, or its exact costs without a table."""
        space = self.first.space
        arch = space.parse(architecture)
        if self.benchmark is not None:
            return self.benchmark.query(arch)
        return {} if self.not_built else {"params": space.params(arch), "flops": space.flops(arch)}


def _finite(value: float) -> float | None:
    """The value, or None without a front: JSON has no infinity."""
    return value if math.isfinite(value) else None


def _mean_std(values: np.ndarray) -> str:
    """Mean, with standard deviation if there are several values: three decimals, or five digits if large."""
    text = _number(values.mean())
    return f"{text} ± {_number(values.std(ddof=1))}" if len(values) > 1 else text


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "–"
    return f"{value:.3f}" if abs(value) < 100 else f"{float(f'{value:.5g}'):,.10g}"
