"""Searches on a benchmark, several samplers and seeds side by side, measured against the true front."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna

from nas.benchmarks import Benchmark, load_benchmark
from nas.evaluation import TableEvaluator
from nas.objectives import Objective, parse_constraints, parse_objectives
from nas.pareto import Reference
from nas.plots import plot_front, plot_hypervolume
from nas.result import SearchResult
from nas.searching import search
from predictors import list_predictors
from search_spaces.files import replacing

Progress = Callable[[str, int, int], None]
MARKS = (20, 50, 100, 200, 500)


@dataclass(frozen=True)
class Studies:
    """Finished searches: per sampler one result per seed."""

    benchmark: Benchmark
    objectives: tuple[Objective, ...]
    reference: Reference
    results: dict[str, list[SearchResult]]

    def curves(self) -> dict[str, np.ndarray]:
        """Per sampler the ratios (seeds, evaluations) to the true hypervolume; higher is better, 1 is the truth."""
        curves = {
            name: [self.reference.curve(result.evaluated.values) for result in results]
            for name, results in self.results.items()
        }
        # A search of a space with fewer architectures ends early: its last value holds from then on.
        longest = max(len(curve) for group in curves.values() for curve in group)
        return {
            name: np.stack([np.pad(curve, (0, longest - len(curve)), mode="edge") for curve in group])
            for name, group in curves.items()
        }

    def table(self) -> list[dict[str, Any]]:
        """A row per sampler: ratio to the true hypervolume at round numbers of evaluations, and IGD+ at the end."""
        rows = []
        for name, curve in self.curves().items():
            marks = sorted({m for m in MARKS if m < curve.shape[1]} | {curve.shape[1]})
            igd = np.array([self.reference.igd_plus(r.evaluated.values) for r in self.results[name]])
            row: dict[str, Any] = {"sampler": name}
            row |= {f"HV@{m}": _mean_std(curve[:, m - 1]) for m in marks}
            rows.append({**row, "IGD+": _mean_std(igd), "seeds": len(curve)})
        return rows

    def save(self, folder: Path) -> None:
        """Write `summary.json`, `front.csv`, `front/*.onnx|txt`, `pareto.png` (two objectives) and `hypervolume.png`.

        `front.csv` and the networks are those of the first sampler's first seed.
        """
        first = next(iter(self.results.values()))[0]
        first.save(folder)
        with replacing(folder / "front.csv") as path:
            path.write_text(self._front_csv(first))
        with replacing(folder / "summary.json") as path:
            path.write_text(json.dumps(self.summary(), indent=1) + "\n")
        plot_hypervolume(folder / "hypervolume.png", self.curves())
        if len(self.objectives) == 2:
            values = self._table_values()
            fronts = {name: [r.evaluated.values for r in results] for name, results in self.results.items()}
            true_front = self.reference.true_front * [o.sign for o in self.objectives]
            plot_front(folder / "pareto.png", values, true_front, fronts, self.objectives)

    def summary(self) -> dict[str, Any]:
        """Everything reported, as plain values."""
        return {
            "benchmark": self.benchmark.name,
            "objectives": [str(o) for o in self.objectives],
            "true_front": len(self.reference.true_front),
            "table": self.table(),
            "samplers": {
                name: {
                    "evaluations": [len(r.evaluated.architectures) for r in results],
                    "hypervolume_ratio": [self.reference.ratio(r.evaluated.values) for r in results],
                    "igd_plus": [self.reference.igd_plus(r.evaluated.values) for r in results],
                    "fronts": [r.front for r in results],
                }
                for name, results in self.results.items()
            },
            "curves": {name: curve.mean(0).round(6).tolist() for name, curve in self.curves().items()},
        }

    def _table_values(self) -> np.ndarray:
        return np.stack([self.benchmark.values(o.metric) for o in self.objectives], 1)

    def _front_csv(self, result: SearchResult) -> str:
        """The front with every metric that the benchmark has."""
        rows = [
            {"architecture": row["architecture"], **self.benchmark.query(result.space.parse(row["architecture"]))}
            for row in result.front
        ]
        text = io.StringIO()
        writer = csv.DictWriter(text, ["architecture", *self.benchmark.metrics], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()


def _mean_std(values: np.ndarray) -> str:
    return f"{values.mean():.3f} ± {values.std(ddof=1) if len(values) > 1 else 0.0:.3f}"


def run_studies(
    benchmark: Benchmark | str,
    objectives: str,
    samplers: Sequence[str],
    evaluations: int,
    seeds: Iterable[int],
    folder: Path,
    constraints: Sequence[str] = (),
    progress: Progress | None = None,
    sampler_options: Mapping[str, Any] | None = None,
) -> Studies:
    """Run or resume every search; each keeps its study in `folder/studies/SAMPLER-SEED.journal`.

    sampler_options: of the guided samplers (`nas.sampler.PredictorSampler`), such as `refit_every`.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    table = load_benchmark(benchmark) if isinstance(benchmark, str) else benchmark
    parsed, limits = parse_objectives(objectives), parse_constraints(constraints)
    metrics = list(dict.fromkeys([*(o.metric for o in parsed), *(c.metric for c in limits)]))
    evaluator = TableEvaluator(table, metrics)
    reference = Reference.of_table(np.stack([table.values(o.metric) for o in parsed], 1), parsed)
    (folder / "studies").mkdir(parents=True, exist_ok=True)
    results: dict[str, list[SearchResult]] = {name: [] for name in samplers}
    for seed in seeds:
        for name in samplers:
            label = f"{name}, seed {seed}"
            results[name].append(
                search(
                    table.space, parsed, evaluator, name, evaluations, seed,
                    sampler_options=sampler_options if name in list_predictors() else None,
                    storage=folder / "studies" / f"{name}-{seed}.journal",
                    constraints=limits,
                    progress=_labelled(progress, label),
                )
            )  # fmt: skip
    return Studies(table, parsed, reference, results)


def _labelled(progress: Progress | None, label: str) -> Callable[[int, int], None] | None:
    return None if progress is None else lambda done, total: progress(label, done, total)
