"""Compares predictors on a benchmark: how well each ranks unseen architectures after few
examples.
"""

from __future__ import annotations

import itertools
import json
import logging
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nas.comparison.significance import differences
from nas.evaluation.devices import quantiles
from nas.evaluation.journal import Journal
from predictors.metrics import Metric
from predictors.registry import version
from search_spaces.common.errors import InputError, unknown, user_errors_as_input
from search_spaces.common.process import one_thread
from search_spaces.common.progress import Progress
from search_spaces.common.seeds import check_seed

if TYPE_CHECKING:
    from nas.benchmarks import Benchmark

log = logging.getLogger(__name__)
MAX_TOP = 1000  # best architectures for `tau_top`
SELECTED = 10  # architectures that a predictor selects for `top10` and `regret`
SAMPLES = 32  # per prediction
MEASURES = (
    "tau", "spearman", "tau_top", "top10", "regret", "rmse", "cover50", "cover90", "fit_seconds", "predict_seconds",
)  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """Settings of a comparison: train on some architectures of a benchmark, and rank all others.

    Args:
        benchmark: its name, or a CSV file.
        train_metric: metric that is learned, in the syntax of `Metric.parse`, such as `top1:max`.
        test_metric: metric of the true ranking, in the same syntax.
        predictors: names for `predictors.create`, also `FILE.py:CLASS`.
        sizes: numbers of training architectures.
        seeds: number of seeds; each draws another training set.
        given: exact metrics (`params`, `flops`) that predictors know for all architectures.
        first_seed: the seeds are consecutive from here.
    """

    benchmark: str
    train_metric: str
    test_metric: str
    predictors: tuple[str, ...]
    sizes: tuple[int, ...]
    seeds: int
    given: tuple[str, ...] = ()
    first_seed: int = 0

    @property
    def learned(self) -> Metric:
        """The metric that is learned."""
        return Metric.parse(self.train_metric)

    @property
    def ranked(self) -> Metric:
        """The metric of the true ranking."""
        return Metric.parse(self.test_metric)


@dataclass(frozen=True)
class Score:
    """Scores of one predictor, training size and seed.

    They are over all architectures that the predictor was not trained on.

    Attributes:
        predictor: its name.
        size: number of training architectures.
        seed: of the training set and the predictor.
        tau: Kendall's τ between prediction and `test_metric`; 0 if all predictions are equal.
        spearman: Spearman's ρ between the same.
        tau_top: Kendall's τ among the truly best 1,000 architectures, or among the best half if
            that is fewer.
        top10: mean true value of the 10 predicted best.
        regret: difference between the best of these 10 and the best of all, at least 0, in the unit
            of `test_metric`.
        rmse: root mean square error, in the unit of `train_metric`.
        cover50: share of true values of `train_metric` within the central 50 % of the samples; .50
            if calibrated.
        cover90: the same for 90 %.
        fit_seconds: wall time on one core.
        predict_seconds: wall time on one core.
    """

    predictor: str
    size: int
    seed: int
    tau: float
    spearman: float
    tau_top: float
    top10: float
    regret: float
    rmse: float
    cover50: float
    cover90: float
    fit_seconds: float
    predict_seconds: float


class Predicted(NamedTuple):
    """Predictions of `train_metric` (n,) for n unseen architectures, and true values.

    True values (n,) are those of `train_metric` (NaN for missing) and of `test_metric`.
    """

    predicted: np.ndarray
    learned: np.ndarray
    truth: np.ndarray


Task = tuple[str, int, int]
"""Predictor, training size, seed."""


@dataclass(frozen=True)
class Compared:
    """All scores of a comparison, and some predictions.

    `predicted` has each predictor's predictions for the largest training size and first seed.
    """

    comparison: Comparison
    scores: list[Score]
    predicted: dict[str, Predicted]

    def rows(self) -> list[dict[str, Any]]:
        """Mean and standard deviation over seeds, one row per predictor and size."""
        rows = []
        for key in dict.fromkeys((s.predictor, s.size) for s in self.scores):
            group = [asdict(s) for s in self.scores if (s.predictor, s.size) == key]
            row: dict[str, Any] = {
                **self._about(),
                "predictor": key[0],
                "size": key[1],
                "seeds": len(group),
            }
            for name in MEASURES:
                values = np.array([g[name] for g in group])
                spread = float(values.std(ddof=1)) if len(group) > 1 else 0.0
                row[name] = float(values.mean())
                row[f"{name}_std"] = spread
            rows.append(row)
        return rows

    def pairs(self) -> list[dict[str, Any]]:
        """Difference in τ over seeds for each size and pair of predictors, also as a sentence."""
        rows = []
        for size in self.comparison.sizes:
            taus: dict[str, list[float]] = {}
            for score in sorted((s for s in self.scores if s.size == size), key=lambda s: s.seed):
                taus.setdefault(score.predictor, []).append(score.tau)
            for difference in differences(taus):
                row = {**self._about(), "size": size, **difference._asdict()}
                rows.append({**row, "sentence": difference.sentence("τ")})
        return rows

    def _about(self) -> dict[str, str]:
        return {"benchmark": self.comparison.benchmark, "metric": self.comparison.ranked.name}


def compare(
    comparison: Comparison,
    benchmark: Benchmark,
    journal: Path | None = None,
    progress: Progress | None = None,
    jobs: int = 1,
) -> Compared:
    """Run a comparison.

    Args:
        comparison: its settings.
        benchmark: the table. Other processes load it again by its `source`.
        journal: file that keeps finished scores. They are not computed again unless the predictor's
            `version` changes.
        progress: called with the current step, the number of scores done and the total.
        jobs: number of processes, of one thread each. It does not change the scores.

    Raises:
        InputError: a setting is invalid, or the journal belongs to another comparison.
    """
    _check(comparison, benchmark)
    comparison = replace(comparison, sizes=tuple(dict.fromkeys(comparison.sizes)))
    versions = {name: version(name) for name in comparison.predictors}
    seeds = range(comparison.first_seed, comparison.first_seed + comparison.seeds)
    by_seed = itertools.product(seeds, comparison.sizes, comparison.predictors)
    tasks = [(predictor, size, seed) for seed, size, predictor in by_seed]
    shown = {(p, max(comparison.sizes), comparison.first_seed) for p in comparison.predictors}
    names = {task: json.dumps([*task, versions[task[0]]]) for task in tasks}
    kept = _open(journal, comparison) if journal else None
    known: dict[str, Any] = kept.known if kept else {}
    waiting = [
        t
        for t in tasks
        if names[t] not in known or (t in shown and not known[names[t]]["predicted"])
    ]
    done = len(tasks) - len(waiting)
    if progress and waiting:
        progress(waiting[0][0], done, len(tasks))
    for task, score, predicted in _scores(comparison, benchmark, waiting, jobs):
        columns = [column.tolist() for column in predicted] if task in shown else []
        result = {"score": asdict(score), "predicted": columns}
        if kept:
            kept.append(names[task], result)
        else:
            known[names[task]] = result
        done += 1
        log.info(
            "%s, %d architectures, seed %d: τ %.3f, fitted in %.1f s",
            *task,
            score.tau,
            score.fit_seconds,
        )
        if progress:
            progress(f"{task[0]}, {task[1]} architectures, seed {task[2]}", done, len(tasks))
    scores = [Score(**known[names[task]]["score"]) for task in tasks]
    columns_of = {task[0]: known[names[task]]["predicted"] for task in tasks if task in shown}
    return Compared(
        comparison,
        scores,
        {n: Predicted(*map(np.array, columns)) for n, columns in columns_of.items()},
    )


def _open(path: Path, comparison: Comparison) -> Journal:
    """The journal of an earlier run with the same settings, or a new one."""
    is_new = not path.exists()
    journal = Journal(path)
    settings = {
        name: value for name, value in asdict(comparison).items() if name in _CHECKED_SETTINGS
    }
    settings = {
        **settings,
        "given": list(comparison.given),
        "scores": [field.name for field in fields(Score)],
    }
    if is_new:
        journal.append(_SETTINGS_ENTRY, settings)
    if journal.known.get(_SETTINGS_ENTRY) != settings:
        raise InputError(f"{path}: belongs to another comparison; give another --out folder")
    return journal


_SETTINGS_ENTRY = "comparison"
_CHECKED_SETTINGS = ("benchmark", "train_metric", "test_metric")


def _scores(
    comparison: Comparison, benchmark: Benchmark, tasks: Sequence[Task], jobs: int
) -> Iterator[tuple[Task, Score, Predicted]]:
    """Score and predictions of each task, as soon as they are available."""
    if jobs == 1 or len(tasks) < 2:
        for task in tasks:
            yield task, *_score(comparison, benchmark, *task)
        return
    context = multiprocessing.get_context("spawn")
    others = {process.pid for process in multiprocessing.active_children()}
    with ProcessPoolExecutor(
        min(jobs, len(tasks)), context, _start_worker, (comparison, benchmark.source)
    ) as pool:
        futures = {pool.submit(_score_in_worker, task): task for task in tasks}
        try:
            for future in as_completed(futures):
                yield futures[future], *future.result()
        except BaseException:  # an interrupt, too: do not wait for the scores that are left
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                if process.pid not in others:
                    process.terminate()
            raise


_worker: dict[str, Any] = {}


def _start_worker(comparison: Comparison, source: dict[str, Any]) -> None:
    # Ctrl-C reaches all processes; the first one ends the others
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from nas.benchmarks import load_benchmark

    _worker.update(comparison=comparison, benchmark=load_benchmark(**source))


def _score_in_worker(task: Task) -> tuple[Score, Predicted]:
    with user_errors_as_input():  # the other process does not get the traceback
        return _score(_worker["comparison"], _worker["benchmark"], *task)


def _check(comparison: Comparison, benchmark: Benchmark) -> None:
    from predictors.registry import predictor_class

    learned = (comparison.learned.name, comparison.ranked.name)
    for metrics, known in (
        (learned, benchmark.metrics),
        (comparison.given, benchmark.known_metrics),
    ):
        for metric in metrics:
            if metric not in known:
                raise unknown(f"metric of {benchmark.name}", metric, known)
        benchmark.check_counts(metrics)
    for name in comparison.predictors:
        predictor_class(name)  # raises for an unknown name before any work is done
    if comparison.seeds < 1:
        raise InputError(f"seeds must be at least 1, not {comparison.seeds}")
    for seed in (comparison.first_seed, comparison.first_seed + comparison.seeds - 1):
        check_seed(seed)
    labelled, ranked = (int(np.isfinite(benchmark.values(name)).sum()) for name in learned)
    # The others have errors, and at least `SELECTED` are ranked
    most = min(labelled - 1, ranked - SELECTED)
    for size in comparison.sizes:
        if not 1 <= size <= most:
            remedy = f"give 1 to {most}" if most > 0 else "a comparison needs at least 11"
            there = f"{labelled} architectures with a value of {learned[0]}"
            raise InputError(f"cannot train on {size} of {there}: {remedy}")


@one_thread()
def _score(
    comparison: Comparison, benchmark: Benchmark, name: str, size: int, seed: int
) -> tuple[Score, Predicted]:
    import predictors

    values, truth = (
        benchmark.values(metric.name) for metric in (comparison.learned, comparison.ranked)
    )
    train, test = _split(values, size, seed)
    test = test[np.isfinite(truth[test])]
    given = {name: benchmark.values(name) for name in comparison.given}
    metric = comparison.learned.key
    predictor = predictors.create(name, seed=seed)
    inputs: Sequence[Any] = (
        benchmark.architectures if predictor.reads_choices else benchmark.load_texts()
    )
    started = time.perf_counter()
    predictor.fit(
        [inputs[i] for i in train],
        {metric: values[train], **{n: v[train] for n, v in given.items()}},
    )
    fitted = time.perf_counter()
    known = {n: v[test] for n, v in given.items()}
    predictions = predictor.predict(
        [inputs[i] for i in test], [metric], given=known, samples=SAMPLES, seed=seed
    )
    finished = time.perf_counter()
    predicted = Predicted(predictions[metric], values[test], truth[test])
    score = Score(
        name, size, seed,
        **_ranking(predicted.predicted, predicted.truth, comparison.ranked.sign),
        rmse=float(np.sqrt(np.nanmean((predicted.predicted - predicted.learned) ** 2))),
        cover50=_coverage(predictions.samples[:, :, 0], predicted.learned, 0.5),
        cover90=_coverage(predictions.samples[:, :, 0], predicted.learned, 0.9),
        fit_seconds=fitted - started,
        predict_seconds=finished - fitted,
    )  # fmt: skip
    return score, predicted


def _split(values: np.ndarray, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows for training, and all other rows.

    Training takes the first `size` of a permutation of the rows with a value.
    """
    measured = np.flatnonzero(np.isfinite(values))
    missing = np.flatnonzero(~np.isfinite(values))
    order = measured[np.random.default_rng(seed).permutation(len(measured))]
    return order[:size], np.concatenate([order[size:], missing])


def _ranking(predicted: np.ndarray, truth: np.ndarray, sign: float) -> dict[str, float]:
    """Ranking scores of predictions (n,) against true values (n,)."""
    from scipy.stats import kendalltau, spearmanr

    losses = sign * truth
    top = np.argsort(losses)[: min(MAX_TOP, len(truth) // 2)]
    chosen = np.argsort(sign * predicted, kind="stable")[:SELECTED]
    return {
        "tau": _correlation(kendalltau, predicted, truth),
        "spearman": _correlation(spearmanr, predicted, truth),
        "tau_top": _correlation(kendalltau, predicted[top], truth[top]),
        "top10": float(truth[chosen].mean()),
        "regret": float(losses[chosen].min() - losses.min()),
    }


def _correlation(
    measure: Callable[[np.ndarray, np.ndarray], Any], a: np.ndarray, b: np.ndarray
) -> float:
    """The correlation of a (n,) and b (n,).

    It is 0 if it is undefined because all values of one are equal.
    """
    return float(measure(a, b).statistic) if len(a) > 1 and np.ptp(a) and np.ptp(b) else 0.0


def _coverage(samples: np.ndarray, truth: np.ndarray, share: float) -> float:
    """Share of the true values (n,) within the central `share` of samples (n, samples)."""
    low, high = quantiles(samples, [(1 - share) / 2, (1 + share) / 2])
    known = np.isfinite(truth)
    return float(((low <= truth) & (truth <= high))[known].mean())
