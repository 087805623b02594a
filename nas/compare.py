"""Predictors against each other on a benchmark: how well each ranks what it has not seen, after few examples."""

from __future__ import annotations

import csv
import json
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nas.significance import differences
from predictors.metrics import is_accuracy
from search_spaces.errors import InputError, unknown
from search_spaces.files import replacing

if TYPE_CHECKING:
    from nas.benchmarks import Benchmark

TOP = 1000
SAMPLES = 32
MEASURES = (
    "tau", "spearman", "tau_top", "top10", "rmse", "cover50", "cover90", "fit_seconds", "predict_seconds",
)  # fmt: skip
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
    1,000 of them (half of them where there are fewer than 2,000). top10: mean true value of the 10 predicted best. All
    these: of `test_metric`; of `train_metric`, what was learned: rmse, in its unit, and cover50 and cover90, the share
    of true values within the samples' central 50 % and 90 % (calibrated: .50 and .90). fit_seconds, predict_seconds:
    wall time on one core.
    """

    predictor: str
    size: int
    seed: int
    tau: float
    spearman: float
    tau_top: float
    top10: float
    rmse: float
    cover50: float
    cover90: float
    fit_seconds: float
    predict_seconds: float


Task = tuple[str, int, int]
"""Predictor, training size, seed."""


def compare(
    comparison: Comparison,
    benchmark: Benchmark,
    journal: Path | None = None,
    progress: Progress | None = None,
    jobs: int = 1,
) -> list[Score]:
    """All scores of a comparison, by `jobs` processes of one thread each: their number does not change a score.

    With a `journal`, finished scores are kept there and not computed again. Other processes load the benchmark anew, by
    the comparison's name for it.
    """
    _check(comparison, benchmark)
    done = _read(journal, comparison) if journal else {}
    seeds = range(comparison.first_seed, comparison.first_seed + comparison.seeds)
    tasks = [(p, n, s) for s in seeds for n in comparison.sizes for p in comparison.predictors]
    waiting = [task for task in tasks if task not in done]
    for task, score in _scores(comparison, benchmark, waiting, jobs):
        done[task] = score
        if journal:
            _append(journal, score)
        if progress:
            progress(f"{task[0]}, {task[1]} architectures, seed {task[2]}", len(done), len(tasks))
    return [done[task] for task in tasks]


def _scores(
    comparison: Comparison, benchmark: Benchmark, tasks: Sequence[Task], jobs: int
) -> Iterator[tuple[Task, Score]]:
    """Each task's score as soon as it is there."""
    if jobs == 1 or len(tasks) < 2:
        with _one_thread():
            for task in tasks:
                yield task, _score(comparison, benchmark, *task)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(tasks)), context, _start_worker, (comparison,)) as pool:
        futures = {pool.submit(_score_in_worker, task): task for task in tasks}
        for future in as_completed(futures):
            yield futures[future], future.result()


@contextmanager
def _one_thread() -> Iterator[None]:
    """torch's sums depend on the number of threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


_worker: dict[str, Any] = {}


def _start_worker(comparison: Comparison) -> None:
    import torch

    from nas.benchmarks import load_benchmark

    torch.set_num_threads(1)
    _worker.update(comparison=comparison, benchmark=load_benchmark(comparison.benchmark))


def _score_in_worker(task: Task) -> Score:
    return _score(_worker["comparison"], _worker["benchmark"], *task)


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
    predictions = predictor.predict([texts[i] for i in test], [metric], given=known, samples=SAMPLES, seed=seed)
    finished = time.perf_counter()
    predicted, learned = predictions[metric], values[test]
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
        rmse=float(np.sqrt(np.nanmean((predicted - learned) ** 2))),
        cover50=_coverage(predictions.samples[:, :, 0], learned, 0.5),
        cover90=_coverage(predictions.samples[:, :, 0], learned, 0.9),
        fit_seconds=fitted - started,
        predict_seconds=finished - fitted,
    )  # fmt: skip


def _coverage(samples: np.ndarray, truth: np.ndarray, share: float) -> float:
    """Share of the true values (n,) within the central `share` of samples (n, samples)."""
    low, high = np.quantile(samples, [(1 - share) / 2, (1 + share) / 2], axis=1)
    known = np.isfinite(truth)
    return float(((low <= truth) & (truth <= high))[known].mean())


def _settings(comparison: Comparison) -> dict[str, Any]:
    kept = asdict(comparison)
    given = {name: list(kept[name]) if name == "given" else kept[name] for name in _SETTINGS}
    return {**given, "scores": [field.name for field in fields(Score)]}


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
        for name in MEASURES:
            values = np.array([g[name] for g in group])
            row[name], row[f"{name}_std"] = float(values.mean()), float(values.std(ddof=1)) if len(group) > 1 else 0.0
        rows.append(row)
    return rows


def pairs(scores: Sequence[Score]) -> list[dict[str, Any]]:
    """For every size and two predictors: the difference of their τ over the seeds, and what it says in plain words."""
    rows = []
    for size in dict.fromkeys(s.size for s in scores):
        taus: dict[str, list[float]] = {}
        for score in sorted((s for s in scores if s.size == size), key=lambda s: s.seed):
            taus.setdefault(score.predictor, []).append(score.tau)
        for difference in differences(taus):
            rows.append({"size": size, **difference._asdict(), "sentence": difference.sentence("τ")})
    return rows


def write_csv(path: Path, scores: Sequence[Score]) -> None:
    """A row per score."""
    with replacing(path) as partial, partial.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Score)])
        writer.writeheader()
        writer.writerows(asdict(score) for score in scores)
