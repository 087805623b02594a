"""Builds the table of a population: trains every network on digits and times it on this CPU.

Each result is appended to a journal, so that an interrupted build resumes where it stopped. The
table is written when all stages are complete.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from nas.benchmarks.populations import Population
from nas.evaluation.journal import Journal
from search_spaces import Architecture, SearchSpace
from search_spaces.common.errors import InputError, unknown
from search_spaces.common.files import replacing
from search_spaces.common.progress import Progress

STAGES = ("accuracy", "proxies", "latency")

Measure = Callable[[SearchSpace, Architecture], Any]


def build(
    population: Population,
    folder: Path,
    *,
    stages: tuple[str, ...] = STAGES,
    progress: Progress | None = None,
) -> Path:
    """Train, score and time all networks of a population, resuming from the journals in `folder`.

    Args:
        population: the networks and how they are trained.
        folder: holds the journals and the table.
        stages: stages to run now. They can run separately, because latencies need an otherwise idle
            machine.
        progress: called with the stage, the number of networks done and the total.

    Returns:
        The path of the table.

    Raises:
        InputError: a stage is unknown, or not yet complete for all networks.
    """
    for stage in stages:
        if stage not in STAGES:
            raise unknown("stage", stage, STAGES)
    builder = _Builder(population, folder, progress)
    if "accuracy" in stages:
        builder.run("accuracy", _accuracy(population))
    if "proxies" in stages and population.proxies:
        builder.run("proxies", _proxies(population.seeds))
    if "latency" in stages:
        for number in range(population.latency_passes):
            builder.run(f"latency{number}", _latency)
    return builder.write()


def _accuracy(population: Population) -> Measure:
    """Measures test accuracy in %, and seconds per epoch.

    Accuracies are those of each seed, and their mean over seeds after each epoch. Seconds are CPU
    time of all seeds together, which other processes do not affect.
    """
    import torch

    from nas.evaluation.training import DigitsTask, train_digits

    torch.set_num_threads(1)
    task = DigitsTask(**population.task)

    def measure(space: SearchSpace, arch: Architecture) -> dict[str, Any]:
        curve: list[float] = []
        started = time.process_time()
        seeds = train_digits(space.graph(arch), population.seeds, task, curve)
        return {
            "seeds": seeds,
            "curve": curve,
            "epoch_s": (time.process_time() - started) / task.epochs,
        }

    return measure


def _proxies(seeds: tuple[int, ...]) -> Measure:
    """Measures zero-cost proxies, averaged over initializations; undefined ones are omitted."""
    import torch

    from nas.evaluation.proxies import PROXIES, compute_proxies

    torch.set_num_threads(1)

    def measure(space: SearchSpace, arch: Architecture) -> dict[str, float]:
        scores = [compute_proxies(space.graph(arch), seed) for seed in seeds]
        means = {name: float(np.mean([score[name] for score in scores])) for name in PROXIES}
        return {name: value for name, value in means.items() if np.isfinite(value)}

    return measure


def _latency(space: SearchSpace, arch: Architecture) -> float:
    from nas.evaluation.latency import measure_latency

    return measure_latency(space.to_onnx(arch))


class _Builder:
    """The networks of a population and the journals of their results."""

    def __init__(self, population: Population, folder: Path, progress: Progress | None) -> None:
        self.population, self.folder, self.progress = population, folder, progress
        self.space = population.open_space()
        self.archs = population.architectures()
        self.names = [self.space.format(arch) for arch in self.archs]

    def _journal(self, stage: str) -> Journal:
        return Journal(self.folder / f"{stage}.jsonl")

    def run(self, stage: str, measure: Measure) -> None:
        journal = self._journal(stage)
        for i in self._missing(journal, stage):
            journal.append(self.names[i], measure(self.space, self.archs[i]))

    def _missing(self, journal: Journal, stage: str) -> Iterator[int]:
        """Indices without a result, in random order.

        An incomplete journal is thus a random sample.
        """
        repetition = int(stage[-1]) if stage[-1].isdigit() else 0
        total = len(self.names)
        order = np.random.default_rng(repetition).permutation(total).tolist()
        missing = [i for i in order if self.names[i] not in journal.known]
        done = total - len(missing)
        for i in missing:
            if self.progress:
                self.progress(stage, done, total)
            yield i
            done += 1

    def write(self) -> Path:
        """Write the table `NAME.csv.gz` and its card `NAME.json`."""
        accuracy = [
            known if isinstance(known, dict) else {"seeds": known}
            for known in self._complete("accuracy")
        ]
        proxies = self._complete("proxies") if self.population.proxies else [{} for _ in self.names]
        passes = np.array(
            [self._complete(f"latency{i}") for i in range(self.population.latency_passes)]
        ).T
        seeds = np.array([known["seeds"] for known in accuracy])
        path = self.folder / f"{self.population.name}.csv.gz"
        with replacing(path) as file:
            file.write_bytes(
                gzip.compress(self._csv(seeds, accuracy, proxies, passes).encode(), mtime=0)
            )
        with replacing(self.folder / f"{self.population.name}.json") as file:
            file.write_text(json.dumps(_card(self.population, seeds, passes), indent=1) + "\n")
        return path

    def _complete(self, stage: str) -> list[Any]:
        """The stage's results, one per network."""
        known = self._journal(stage).known
        count = sum(name in known for name in self.names)
        if count < len(self.names):
            total = len(self.names)
            raise InputError(
                f"{self.folder}: {stage} has {count} of {total} networks; run the build again to "
                "resume"
            )
        return [known[name] for name in self.names]

    def _csv(
        self,
        seeds: np.ndarray,
        trained: list[dict[str, Any]],
        proxies: list[dict[str, float]],
        passes: np.ndarray,
    ) -> str:
        # Older journals have neither curves nor seconds
        curves = [known.get("curve", []) for known in trained]
        scores = sorted({name for row in proxies for name in row})
        rows = io.StringIO()
        writer = csv.writer(rows, lineterminator="\n")
        by_seed = [f"digits_accuracy_seed{s}" for s in self.population.seeds]
        # Without the last epoch, whose value is the final accuracy
        epochs = range(1, max(map(len, curves)))
        by_epoch = [f"digits_accuracy@{epoch}" for epoch in epochs]
        writer.writerow(
            [
                "arch",
                "digits_accuracy",
                *by_seed,
                *by_epoch,
                "epoch_s",
                "cpu_latency_ms",
                "params",
                "flops",
                *scores,
            ]
        )
        for i, name in enumerate(self.names):
            values = [f"{seeds[i].mean():.4f}", *(f"{v:.4f}" for v in seeds[i])]
            values += [f"{curves[i][epoch - 1]:.4f}" if curves[i] else "" for epoch in epochs]
            values.append(f"{trained[i]['epoch_s']:.4g}" if "epoch_s" in trained[i] else "")
            values.append(f"{passes[i].min():.6g}")
            costs = [self.space.params(self.archs[i]), self.space.flops(self.archs[i])]
            writer.writerow(
                [
                    name,
                    *values,
                    *costs,
                    *(f"{proxies[i][s]:.6g}" if s in proxies[i] else "" for s in scores),
                ]
            )
        return rows.getvalue()


def _card(population: Population, seeds: np.ndarray, passes: np.ndarray) -> dict[str, Any]:
    import onnxruntime
    import torch
    from scipy.stats import kendalltau

    from nas.evaluation.training import DigitsTask

    def tau(a: np.ndarray, b: np.ndarray) -> float:
        return round(float(kendalltau(a, b).statistic), 4)

    return {
        "space": population.space,
        "space_options": population.space_options,
        "rows": len(seeds),
        "command": f"nas benchmarks build {population.name}",
        "accuracy": {
            "task": asdict(DigitsTask(**population.task)),
            "seeds": list(population.seeds),
            "tau_between_seeds": tau(seeds[:, 0], seeds[:, 1]),
        },
        "latency": {
            # Other processes can only slow a network down, so the minimum is the best estimate.
            "how": "ONNX Runtime, CPU, batch 1, one thread, windows beside a reference network "
            f"(nas.evaluation.latency), least of {population.latency_passes} passes over all "
            "networks",
            "tau_between_halves_of_the_passes": tau(passes[:, ::2].min(1), passes[:, 1::2].min(1)),
        },
        "hardware": _processor(),
        "software": {"torch": torch.__version__, "onnxruntime": onnxruntime.__version__},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(
            line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
