"""Searches, several samplers and seeds side by side: on a benchmark, against its true front, or by measuring."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import optuna

from nas.benchmarks import Benchmark, load_benchmark
from nas.reporting.plots import plot_front, plot_hypervolume, plot_parallel, plot_predicted
from nas.reporting.report import write_report
from nas.searching.evaluators import Evaluator, MeasuredEvaluator, PredictionEvaluator, TableEvaluator
from nas.searching.loop import list_searches, read_search, search
from nas.searching.objectives import Constraint, Objective, parse_constraints, parse_objectives
from nas.searching.pareto import Reference
from nas.searching.prior import read_known
from nas.searching.progress import Progress, labelled
from nas.searching.result import SETTINGS_KEY, SearchResult
from predictors import list_predictors
from search_spaces import SearchSpace
from search_spaces.common.errors import InputError
from search_spaces.common.files import replacing

if TYPE_CHECKING:
    from nas.evaluation.measurement import Measurement

MARKS = (20, 50, 100, 200, 500)
BENCHMARK = "benchmark.json"  # beside the journals: which table was searched


class Terms(NamedTuple):
    """What a search begins with, a CSV of known measurements, what ends it, and where it is kept.

    storage: of all searches, by URL; a journal each in the result folder by default. study: how their names begin.
    """

    known: Path | None = None
    seconds: float = math.inf
    patience: float = math.inf
    storage: str | None = None
    study: str = "search"

    def kept(self, folder: Path, sampler: str, seed: int) -> tuple[str | Path, str]:
        """Storage and name of a search."""
        if self.storage is None:
            return folder / "studies" / f"{sampler}-{seed}.journal", "search"
        return self.storage, f"{self.study}-{sampler}-{seed}"


NO_TERMS = Terms()


@dataclass(frozen=True)
class Studies:
    """Finished searches: per sampler one result per seed.

    reference: the yardstick: a benchmark's true front, or the best front of all these searches together.
    benchmark: the table that was searched; None where networks were measured.
    point: reference point (m,) of the hypervolume in the metrics' own units, where networks were measured.
    """

    objectives: tuple[Objective, ...]
    reference: Reference
    results: dict[str, list[SearchResult]]
    benchmark: Benchmark | None = None
    point: np.ndarray | None = None

    @property
    def first(self) -> SearchResult:
        """The first sampler's first seed."""
        return next(iter(self.results.values()))[0]

    def curves(self) -> dict[str, np.ndarray]:
        """Per sampler the shares (seeds, evaluations) of the reference's hypervolume; higher is better, 1 is all."""
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
        """A row per sampler: share of the reference's hypervolume at round numbers of evaluations, and IGD+ at the end.

        Where networks were measured, also the hypervolume itself, up to `point`.
        """
        rows = []
        for name, curve in self.curves().items():
            marks = sorted({m for m in MARKS if m < curve.shape[1]} | {curve.shape[1]})
            igd = np.array([self.reference.igd_plus(r.evaluated.values) for r in self.results[name]])
            row: dict[str, Any] = {"sampler": name}
            row |= {f"HV@{m}": _mean_std(curve[:, m - 1]) for m in marks}
            if self.point is not None:
                row["hypervolume"] = _mean_std(self._volumes(name))
            rows.append({**row, "IGD+": _mean_std(igd), "seeds": len(curve)})
        return rows

    def _volumes(self, sampler: str) -> np.ndarray:
        """Hypervolume of each seed's search up to the reference point, in the product of the metrics' units."""
        assert self.point is not None
        return np.array([result.hypervolume(self.point.tolist()) for result in self.results[sampler]])

    def save(self, folder: Path) -> None:
        """Write `summary.json`, `front.csv`, `front/*.onnx|txt`, figures (see `plot`) and `report.html`.

        `front.csv` and the networks are those of the first sampler's first seed.
        """
        self.first.save(folder)
        with replacing(folder / "front.csv") as path:
            path.write_text(self.front_csv())
        with replacing(folder / "summary.json") as path:
            path.write_text(json.dumps(self.summary(), indent=1) + "\n")
        self.plot(folder)
        write_report(folder / "report.html", self)

    def plot(self, folder: Path, kind: str = "png") -> list[Path]:
        """Write `hypervolume`, `pareto` (two objectives) or `parallel`, and `predicted` of a guided search."""
        yardstick = "best front found" if self.benchmark is None else "true front"
        shape, predicted = "pareto" if len(self.objectives) == 2 else "parallel", self.first.predicted
        names = ["hypervolume", *([shape] if self.first.front else []), *(["predicted"] if predicted else [])]
        paths = {name: folder / f"{name}.{kind}" for name in names}
        plot_hypervolume(paths["hypervolume"], self.curves(), yardstick)
        if "pareto" in names:
            self._plot_front(paths["pareto"])
        if "parallel" in names:
            front = np.array([[row[o.metric] for o in self.objectives] for row in self.first.front])
            plot_parallel(paths["parallel"], front, self.objectives)
        if predicted:
            plot_predicted(paths["predicted"], predicted)
        return list(paths.values())

    def _plot_front(self, path: Path) -> None:
        fronts = {name: [r.evaluated.values for r in results] for name, results in self.results.items()}
        if self.benchmark is None:
            plot_front(path, None, None, fronts, self.objectives)
            return
        values = np.stack([self.benchmark.values(o.metric) for o in self.objectives], 1)
        true_front = self.reference.true_front * [o.sign for o in self.objectives]
        plot_front(path, values, true_front, fronts, self.objectives)

    def summary(self) -> dict[str, Any]:
        """Everything reported, as plain values."""
        return {
            **self._yardstick(),
            "objectives": [str(o) for o in self.objectives],
            "table": self.table(),
            "samplers": {
                name: {
                    "evaluations": [len(r.evaluated.architectures) for r in results],
                    "hypervolume_ratio": [self.reference.ratio(r.evaluated.values) for r in results],
                    **({} if self.point is None else {"hypervolume": self._volumes(name).tolist()}),
                    "igd_plus": [self.reference.igd_plus(r.evaluated.values) for r in results],
                    "fronts": [r.front for r in results],
                }
                for name, results in self.results.items()
            },
            "curves": {name: curve.mean(0).round(6).tolist() for name, curve in self.curves().items()},
        }

    def _yardstick(self) -> dict[str, Any]:
        """What was searched and what the results are held against."""
        size = len(self.reference.true_front)
        if self.benchmark is not None:
            return {"benchmark": self.benchmark.name, "true_front": size}
        assert self.point is not None
        point = dict(zip([o.metric for o in self.objectives], self.point.tolist(), strict=True))
        return {"space": self.first.space.name, "best_front": size, "reference_point": point}

    def front_csv(self) -> str:
        """The front with every metric that the benchmark has, or with the costs of the measured networks."""
        metrics = [o.metric for o in self.objectives]
        columns = [*metrics, "params", "flops"] if self.benchmark is None else self.benchmark.metrics
        text = io.StringIO()
        writer = csv.DictWriter(text, dict.fromkeys(["architecture", *columns]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({**row, **self._known(row["architecture"])} for row in self.first.front)
        return text.getvalue()

    def _known(self, architecture: str) -> dict[str, float]:
        """All that is known of an architecture beside its objectives."""
        space = self.first.space
        arch = space.parse(architecture)
        if self.benchmark is not None:
            return self.benchmark.query(arch)
        return {"params": space.params(arch), "flops": space.flops(arch)}


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
    terms: Terms = NO_TERMS,
) -> Studies:
    """Run or resume every search; each keeps its study in `folder/studies/SAMPLER-SEED.journal`.

    sampler_options: of the guided samplers (`nas.searching.sampler.PredictorSampler`), such as `refit_every`. terms: of
    each search.
    """
    table = load_benchmark(benchmark) if isinstance(benchmark, str) else benchmark
    goal = _Goal.parse(objectives, constraints)
    evaluator = TableEvaluator(table, goal.metrics)
    reference = _truth(table, goal.objectives)
    name = benchmark if isinstance(benchmark, str) else benchmark.name
    _check_settings(folder / "studies" / BENCHMARK, {"benchmark": name})
    results = _run_all(
        table.space, goal, evaluator, samplers, evaluations, seeds, folder, progress, terms, sampler_options
    )
    return Studies(goal.objectives, reference, results, table)


def run_measured_studies(
    space: SearchSpace,
    measurement: Measurement,
    objectives: str,
    samplers: Sequence[str],
    evaluations: int,
    seeds: Iterable[int],
    folder: Path,
    constraints: Sequence[str] = (),
    progress: Progress | None = None,
    point: Sequence[float] | None = None,
    terms: Terms = NO_TERMS,
) -> Studies:
    """Run or resume searches that train and time every network that they look at, kept as in `run_studies`.

    The truth is not known: shares of hypervolume and IGD+ are held against the best front of all these searches
    together, and the hypervolume itself goes up to `point`, one value per objective in its own unit; by default the
    worst value in each objective that any search measured.

    measurement: of at least the metrics of objectives and constraints. Raises InputError for settings other than those
    that the folder's searches were started with, and where no network at all gave finite values.
    """
    goal = _Goal.parse(objectives, constraints)
    if point is not None and len(point) != len(goal.objectives):
        raise InputError(f"the reference point has {len(point)} values for {len(goal.objectives)} objectives")
    _check_settings(folder / "studies" / "measurement.json", measurement.settings)
    evaluator = MeasuredEvaluator(space, measurement, folder / "studies" / "training")
    results = _run_all(space, goal, evaluator, samplers, evaluations, seeds, folder, progress, terms)
    return _against_best(results, point)


def run_predicted_studies(
    space: SearchSpace,
    checkpoint: str,
    objectives: str,
    samplers: Sequence[str],
    evaluations: int,
    seeds: Iterable[int],
    folder: Path,
    constraints: Sequence[str] = (),
    progress: Progress | None = None,
    terms: Terms = NO_TERMS,
) -> Studies:
    """Run or resume searches that believe a predictor and evaluate nothing, kept as in `run_studies`.

    checkpoint: folder of a fitted predictor, or the name of a shipped one.
    """
    goal = _Goal.parse(objectives, constraints)
    _check_settings(folder / "studies" / "predictor.json", {"predictor": checkpoint})
    evaluator = PredictionEvaluator.load(checkpoint, space, goal.metrics)
    results = _run_all(space, goal, evaluator, samplers, evaluations, seeds, folder, progress, terms)
    return _against_best(results)


def open_studies(source: str | Path, benchmark: str | None = None, name: str | None = None) -> Studies:
    """Searches as they are, finished or not, for plots and reports.

    source: a folder of `run_studies` or its like, or a storage. name: one of the storage's searches. benchmark: the
    table that was searched, where the folder does not say; without one, fronts are held against the best found.
    Raises InputError where there is none, or where they have different objectives.
    """
    folder = Path(source)
    if "://" in str(source) or folder.is_file():
        storage = folder if folder.is_file() else str(source)
        found = [read_search(storage, study) for study in ([name] if name else list_searches(storage))]
    else:
        paths = sorted((folder / "studies").glob("*.journal"))
        found = [read_search(path) for path in paths]
        if not found:
            raise InputError(f"{folder} has no searches: give a folder that `nas search` wrote, or a storage")
        if benchmark is None and (folder / "studies" / BENCHMARK).exists():
            benchmark = json.loads((folder / "studies" / BENCHMARK).read_text())["benchmark"]
    found = [result for result in found if result.evaluated.architectures]
    if not found:
        raise InputError(f"{source}: nothing has been evaluated yet")
    results: dict[str, list[SearchResult]] = {}
    for result in sorted(found, key=_started):
        if result.objectives != found[0].objectives:
            raise InputError(f"{source}: its searches have different objectives")
        results.setdefault(result.study.user_attrs[SETTINGS_KEY]["sampler"], []).append(result)
    if benchmark is None:
        return _against_best(results)
    table = load_benchmark(benchmark)
    return Studies(found[0].objectives, _truth(table, found[0].objectives), results, table)


def _started(result: SearchResult) -> float:
    """When a search began, in seconds."""
    times = [trial.datetime_start for trial in result.study.get_trials(deepcopy=False) if trial.datetime_start]
    return min((time.timestamp() for time in times), default=0.0)


def _truth(table: Benchmark, objectives: Sequence[Objective]) -> Reference:
    return Reference.of_table(np.stack([table.values(o.metric) for o in objectives], 1), objectives)


def _against_best(results: dict[str, list[SearchResult]], point: Sequence[float] | None = None) -> Studies:
    """Searches without a known truth, against the best front that they found together."""
    first = next(iter(results.values()))[0]
    values = np.concatenate([result.evaluated.values for group in results.values() for result in group])
    values = values[np.isfinite(values).all(axis=1)]
    if not len(values):
        raise InputError(f"none of the networks of {first.space.name} could be measured: every training diverged")
    signs = np.array([o.sign for o in first.objectives])
    worst = (values * signs).max(axis=0) * signs
    reference = Reference.of_table(values, first.objectives, floor=0.0)
    return Studies(first.objectives, reference, results, point=worst if point is None else np.array(point, dtype=float))


@dataclass(frozen=True)
class _Goal:
    """What is searched for."""

    objectives: tuple[Objective, ...]
    constraints: tuple[Constraint, ...]

    @classmethod
    def parse(cls, objectives: str, constraints: Sequence[str]) -> _Goal:
        return cls(parse_objectives(objectives), parse_constraints(constraints))

    @property
    def metrics(self) -> list[str]:
        return list(dict.fromkeys([*(o.metric for o in self.objectives), *(c.metric for c in self.constraints)]))


def _run_all(
    space: SearchSpace,
    goal: _Goal,
    evaluator: Evaluator,
    samplers: Sequence[str],
    evaluations: int,
    seeds: Iterable[int],
    folder: Path,
    progress: Progress | None,
    terms: Terms,
    sampler_options: Mapping[str, Any] | None = None,
) -> dict[str, list[SearchResult]]:
    """Every sampler with every seed, each study in `folder/studies/SAMPLER-SEED.journal`."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    (folder / "studies").mkdir(parents=True, exist_ok=True)
    known = read_known(terms.known, space, evaluator.metrics) if terms.known else None
    results: dict[str, list[SearchResult]] = {name: [] for name in samplers}
    for seed in seeds:
        for name in samplers:
            label = f"{name}, seed {seed}"
            storage, study = terms.kept(folder, name, seed)
            results[name].append(
                search(
                    space, goal.objectives, evaluator, name, evaluations, seed,
                    sampler_options=sampler_options if name in list_predictors() else None,
                    storage=storage,
                    name=study,
                    constraints=goal.constraints,
                    progress=labelled(progress, label),
                    known=known,
                    seconds=terms.seconds,
                    patience=terms.patience,
                )
            )  # fmt: skip
    return results


def _check_settings(path: Path, settings: dict[str, Any]) -> None:
    """Values that were measured in another way must not stand beside these."""
    wanted = json.loads(json.dumps(settings))
    if not path.exists():
        with replacing(path) as file:
            file.write_text(json.dumps(settings, indent=1) + "\n")
        return
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        found = {}
    for key, value in wanted.items():
        if found.get(key) != value:
            raise InputError(f"{path}: the searches in this folder measured with other {key}: give another folder")
