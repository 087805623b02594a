"""Predictors against each other on a benchmark: how well each ranks what it has not seen, after few examples."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from predictors.metrics import is_accuracy
from search_spaces.errors import InputError, unknown
from search_spaces.files import replacing

if TYPE_CHECKING:
    from nas.benchmarks import Benchmark

TOP = 1000
SAMPLES = 32
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Comparison:
    """What is compared: train on `train_metric` of N architectures, rank all others by `test_metric`.

    seeds, first_seed: how many seeds, from which on; each is a split of its own.
    given: exact cheap metrics (params, flops) that every predictor knows of all architectures.
    """

    benchmark: str
    train_metric: str
    test_metric: str
    predictors: tuple[str, ...]
    sizes: tuple[int, ...]
    seeds: int
    given: tuple[str, ...] = ()
    first_seed: int = 0


@dataclass(frozen=True)
class Score:
    """One predictor, training size and seed.

    tau, spearman: between prediction and truth over all other architectures. tau_top: Kendall's τ among the truly best
    1,000 of them (half of them where there are fewer than 2,000). top10: mean true value of the 10 predicted best.
    fit_seconds, predict_seconds: wall time.
    """

    predictor: str
    size: int
    seed: int
    tau: float
    spearman: float
    tau_top: float
    top10: float
    fit_seconds: float
    predict_seconds: float


def compare(
    comparison: Comparison, benchmark: Benchmark, journal: Path | None = None, progress: Progress | None = None
) -> list[Score]:
    """All scores of a comparison; with a `journal`, finished ones are kept there and not computed again."""
    _check(comparison, benchmark)
    done = _read(journal, comparison) if journal else {}
    seeds = range(comparison.first_seed, comparison.first_seed + comparison.seeds)
    jobs = [(p, n, s) for s in seeds for n in comparison.sizes for p in comparison.predictors]
    for i, job in enumerate(jobs):
        if progress:
            progress(f"{job[0]}, {job[1]} architectures, seed {job[2]}", i, len(jobs))
        if job not in done:
            done[job] = _score(comparison, benchmark, *job)
            if journal:
                _append(journal, done[job])
    return [done[job] for job in jobs]


def _check(comparison: Comparison, benchmark: Benchmark) -> None:
    from predictors import list_predictors

    for metric in (comparison.train_metric, comparison.test_metric, *comparison.given):
        if metric not in benchmark.metrics and metric not in ("params", "flops"):
            raise unknown(f"metric of {benchmark.name}", metric, benchmark.metrics)
    for name in comparison.predictors:
        if name not in list_predictors():
            raise unknown("predictor", name, list_predictors())
    if comparison.seeds < 1:
        raise InputError(f"seeds must be at least 1, not {comparison.seeds}")
    if comparison.first_seed < 0:
        raise InputError(f"the first seed must be at least 0, not {comparison.first_seed}")
    most = len(benchmark) - 10  # at least 10 are ranked
    for size in comparison.sizes:
        if not 1 <= size <= most:
            remedy = f"give 1 to {most}" if most > 0 else "a comparison needs at least 11"
            raise InputError(f"cannot train on {size} of {len(benchmark)} architectures: {remedy}")


def known_metrics(benchmark: Benchmark, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Exact cheap metrics (n,) by name: the table's column, else computed from the networks."""
    from search_spaces.cost import graph_flops, graph_params

    known = {name: benchmark.values(name) for name in names if name in benchmark.metrics}
    missing = [name for name in names if name not in known]
    if missing:
        graphs = [benchmark.space.graph(arch) for arch in benchmark.architectures]
        costs = {"params": graph_params, "flops": graph_flops}
        known |= {name: np.array([float(costs[name](graph)) for graph in graphs]) for name in missing}
    return known


def _score(comparison: Comparison, benchmark: Benchmark, name: str, size: int, seed: int) -> Score:
    from scipy.stats import kendalltau, spearmanr

    import predictors

    texts = benchmark.load_texts()
    # protocols: the first N of the seed's permutation train, all others test
    order = np.random.default_rng(seed).permutation(len(benchmark))
    train, test = order[:size], order[size:]
    truth = benchmark.values(comparison.test_metric)
    test = test[np.isfinite(truth[test])]
    given = known_metrics(benchmark, comparison.given)
    metric = comparison.train_metric
    values = benchmark.values(metric)
    started = time.perf_counter()
    predictor = predictors.create(name, seed=seed)
    predictor.fit([texts[i] for i in train], {metric: values[train], **{n: v[train] for n, v in given.items()}})
    fitted = time.perf_counter()
    known = {n: v[test] for n, v in given.items()}
    predicted = predictor.predict([texts[i] for i in test], [metric], given=known, samples=SAMPLES, seed=seed)[metric]
    finished = time.perf_counter()
    truth = truth[test]
    best_first = -1.0 if is_accuracy(comparison.test_metric) else 1.0
    top = np.argsort(best_first * truth)[: min(TOP, len(test) // 2)]
    chosen = np.argsort(best_first * predicted)[:10]
    return Score(
        name, size, seed,
        tau=float(kendalltau(predicted, truth).statistic),
        spearman=float(spearmanr(predicted, truth).statistic),
        tau_top=float(kendalltau(predicted[top], truth[top]).statistic),
        top10=float(truth[chosen].mean()),
        fit_seconds=fitted - started,
        predict_seconds=finished - fitted,
    )  # fmt: skip


def _settings(comparison: Comparison) -> dict[str, Any]:
    kept = asdict(comparison)
    return {name: list(kept[name]) if name == "given" else kept[name] for name in _SETTINGS}


_SETTINGS = ("benchmark", "train_metric", "test_metric", "given")


def _read(journal: Path, comparison: Comparison) -> dict[tuple[str, int, int], Score]:
    """Scores of an earlier run with the same settings."""
    if not journal.exists():
        journal.parent.mkdir(parents=True, exist_ok=True)
        journal.write_text(json.dumps(_settings(comparison)) + "\n")
        return {}
    lines = journal.read_text().splitlines()
    if not lines or json.loads(lines[0]) != _settings(comparison):
        raise InputError(f"{journal}: holds another comparison; give another --out folder")
    if not journal.read_bytes().endswith(b"\n"):  # a line cut off by a kill
        lines.pop()
        with replacing(journal) as path:
            path.write_text("\n".join(lines) + "\n")
    scores = [Score(**json.loads(line)) for line in lines[1:]]
    return {(s.predictor, s.size, s.seed): s for s in scores}


def _append(journal: Path, score: Score) -> None:
    with journal.open("a") as file:
        file.write(json.dumps(asdict(score)) + "\n")


def summarize(scores: Sequence[Score]) -> list[dict[str, Any]]:
    """Mean and standard deviation over the seeds, a row per predictor and size."""
    rows = []
    for key in dict.fromkeys((s.predictor, s.size) for s in scores):
        group = [asdict(s) for s in scores if (s.predictor, s.size) == key]
        row: dict[str, Any] = {"predictor": key[0], "size": key[1], "seeds": len(group)}
        for name in ("tau", "spearman", "tau_top", "top10", "fit_seconds", "predict_seconds"):
            values = np.array([g[name] for g in group])
            row[name], row[f"{name}_std"] = float(values.mean()), float(values.std(ddof=1)) if len(group) > 1 else 0.0
        rows.append(row)
    return rows
