"""Overhead of a search compared with Optuna: `python -m experiments.timing.search` (minutes).

`nas.search` and a plain Optuna loop evaluate random architectures of a table, in turns and with the
same kind of storage. Processor time per trial is averaged over the last fifth of the trials. It
excludes the waits for the disk, which both have. For searches guided by a predictor, the times per
proposal and per evaluation are measured with 10,000 candidates and 500 evaluations. A proposal then
serves 25 evaluations.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import optuna
import typer

from experiments.runner import AsJson, run_command
from nas import Problem, search
from nas.benchmarks import Benchmark, load_benchmark
from nas.cli.console import print_json, print_table
from nas.cli.progress import progress_bar
from nas.search.evaluators import TableEvaluator
from nas.search.sampler import PredictorSampler
from nas.search.samplers import create_sampler
from nas.search.study.storage import open_storage

MEASURED_SHARE = 0.2  # share of the trials, the last ones, over which time is averaged
# Predictors, candidates, first and last timed evaluation
GUIDED, POOL, BETWEEN = ("rlm", "gnn"), 10_000, (500, 550)
OBJECTIVES = "cifar10_validation_accuracy,fpga_latency_ms"
Side = Callable[[Benchmark, "Path | None", int], list[float]]


def plain(table: Benchmark, path: Path | None, trials: int) -> list[float]:
    """Processor time in seconds at the start of each trial of an Optuna loop."""
    evaluator = TableEvaluator(table, OBJECTIVES.split(","))
    times = []

    def objective(trial: optuna.Trial) -> tuple[float, ...]:
        times.append(time.process_time())
        return tuple(evaluator([table.space.choose(trial)])[0].tolist())

    sampler = optuna.samplers.RandomSampler(seed=0)
    study = optuna.create_study(
        storage=open_storage(path), sampler=sampler, directions=["maximize", "minimize"]
    )
    study.optimize(objective, n_trials=trials)
    return times


def ours(table: Benchmark, path: Path | None, trials: int) -> list[float]:
    """The same for `nas.search`.

    Trials are counted, not evaluations, since a search may repeat an architecture.
    """
    times: list[float] = []

    class Timed(optuna.samplers.RandomSampler):
        def before_trial(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
            times.append(time.process_time())
            if len(times) == trials:
                raise KeyboardInterrupt

    evaluator = TableEvaluator(table, OBJECTIVES.split(","))
    with suppress(KeyboardInterrupt):
        search(
            Problem(table.space, evaluator, OBJECTIVES),
            sampler=Timed(seed=0),
            evaluations=trials,
            storage=path,
        )
    return times


def per_trial(side: Side, table: Benchmark, journal: bool, trials: int) -> float:
    """Processor milliseconds per trial, averaged over the last trials."""
    with tempfile.TemporaryDirectory() as folder:
        times = np.array(side(table, Path(folder) / "search.journal" if journal else None, trials))
    last = times[-int(MEASURED_SHARE * trials) :]
    return 1e3 * float(np.diff(last).mean())


def guided(
    predictor: str, table: Benchmark, pool: int, between: tuple[int, int]
) -> dict[str, float]:
    """Processor seconds per proposal and per evaluation, fits included.

    pool: the number of candidates of the search.
    """
    times: list[float] = []
    first, last = between
    sampler = create_sampler(predictor, table.space, OBJECTIVES, n_startup=first, pool=pool)
    assert isinstance(sampler, PredictorSampler)
    evaluate = TableEvaluator(table, OBJECTIVES.split(","))
    usual = sampler.fresh

    def objective(trial: optuna.Trial) -> tuple[float, ...]:
        sampler.fresh = pool if len(times) < first else usual  # the first fit fills the pool
        times.append(time.process_time())
        return tuple(evaluate([table.space.choose(trial)])[0].tolist())

    study = optuna.create_study(sampler=sampler, directions=["maximize", "minimize"])
    study.optimize(objective, n_trials=last + sampler.refit_every + 1)
    timed = np.array(times[first + sampler.refit_every : last + sampler.refit_every + 1])
    return {
        "s per proposal": float(np.diff(timed).max()),
        "s per evaluation": float(np.diff(timed).mean()),
    }


def main(
    trials: Annotated[
        list[int] | None,
        typer.Option(help="Trials of a search; may be repeated. 1000 and 5000 by default."),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1)] = 3,
    as_json: AsJson = False,
) -> None:
    """Print the median milliseconds per trial, a row per storage and number of trials."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    table = load_benchmark("nasbench201")
    rows = []
    cases = [(kind, count) for kind in ("memory", "journal") for count in trials or (1000, 5000)]
    with progress_bar("searches") as bar:
        for done, (kind, count) in enumerate(cases):
            pairs = []
            for repeat in range(repeats):
                bar(f"{kind}, {count} trials", repeats * done + repeat, repeats * len(cases))
                pairs.append(
                    [per_trial(side, table, kind == "journal", count) for side in (plain, ours)]
                )
            optuna_ms, ours_ms = np.median(pairs, axis=0).tolist()
            row: dict[str, Any] = {
                "storage": kind,
                "trials": count,
                "Optuna, ms": optuna_ms,
                "nas.search, ms": ours_ms,
            }
            rows.append(row | {"above, ms": ours_ms - optuna_ms})
        by_predictor: list[dict[str, Any]] = []
        for name in GUIDED:
            bar(f"{name}, {POOL:,} candidates", repeats * len(cases), repeats * len(cases))
            by_predictor.append(
                {"predictor": name, "candidates": POOL, **guided(name, table, POOL, BETWEEN)}
            )
    if as_json:
        print_json({"trials": rows, "guided": by_predictor})
    else:
        print_table("Processor time per trial", rows)
        print_table(f"Processor time after {BETWEEN[0]} evaluations, fits included", by_predictor)


if __name__ == "__main__":
    run_command(main)
