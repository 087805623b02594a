"""A new device from ten measurements, NAS-Bench-201: `python -m experiments.new_device`.

The other devices' latencies are known of all networks; of the new device, ten networks are measured and all others are
ranked. The RLM begins from a base that has learned the other devices; the rivals learn the ten together with 1,000
networks' latencies on the other devices. `nearest` ranks by the known device that ranks the ten best, and `regression`
is a ridge regression from the logarithms of all known devices. Figures are Spearman's rank correlations.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from experiments.runner import AsJson, FirstSeed, Jobs, Quick, Seeds, run_command
from experiments.tables import Scores, chosen, compute, made_once, pivot, publish, show, summarize
from nas.benchmarks import load_benchmark

if TYPE_CHECKING:
    from predictors import Predictor

NEW = tuple(f"{name}_latency_ms" for name in ("titan_rtx_256", "gold_6226", "pixel2", "raspi4", "eyeriss", "fpga"))
PREDICTORS = ("rlm", "gnn", "forest", "ridge", "regression", "nearest")
MEASURED = 10
RIVALS_TRAIN = 1000
TEST = 2000
SAMPLES = 16
EVERY, QUICK_STEPS, QUICK_MOST = (15_625, 21), 5, (60, 2)


def score(
    predictor: str, device: str, base: str, steps: int, most: int, others: int, seed: int, *, folder: Path
) -> Scores:
    """Spearman's correlation on `TEST` networks that were not measured, knowing `others` other devices."""
    from scipy.stats import spearmanr

    import predictors

    table = load_benchmark("nasbench201")
    texts, known, latency = table.load_texts(), _known(others), table.values(device)
    order = np.random.default_rng(seed).permutation(len(table))
    train, test, further = np.split(order, np.cumsum([MEASURED, min(TEST, most), min(RIVALS_TRAIN, most)]))[:3]
    if predictor == "nearest":
        best = max(known.values(), key=lambda values: spearmanr(values[train], latency[train]).statistic)
        predicted = best[test]
    elif predictor == "regression":
        predicted = _regression(np.log(np.stack(list(known.values()), 1)), np.log(latency), train)[test]
    elif predictor == "rlm":
        schedule = {"most_metrics": len(known) + 1}
        start = taught(base, steps, most, others, folder)
        model = predictors.create("rlm", seed=seed, base=start, learn=(device,), schedule=schedule)
        predicted = _learned(model, device, texts, known, latency, train, test)
    else:
        model = predictors.create(predictor, seed=seed)
        predicted = _learned(model, device, texts, known, latency, np.concatenate([train, further]), test)
    return {"spearman": float(spearmanr(predicted, latency[test]).statistic)}


def _known(others: int) -> dict[str, np.ndarray]:
    """Latencies of the first so many of the devices that are never new."""
    table = load_benchmark("nasbench201")
    names = [name for name in table.metrics if name.endswith("_latency_ms") and name not in NEW]
    return {name: table.values(name) for name in names[:others]}


def _regression(inputs: np.ndarray, values: np.ndarray, train: np.ndarray) -> np.ndarray:
    from sklearn.linear_model import RidgeCV

    inputs = (inputs - inputs.mean(0)) / inputs.std(0)
    return RidgeCV(np.logspace(-2, 3, 12)).fit(inputs[train], values[train]).predict(inputs)


def _learned(
    model: Predictor,
    device: str,
    texts: list[str],
    known: dict[str, np.ndarray],
    latency: np.ndarray,
    train: np.ndarray,
    test: np.ndarray,
) -> np.ndarray:
    """The new device's latencies of the rows `test` (n,): of the rows `train`, it knows those of the first ten."""
    measured = np.where(np.arange(len(train)) < MEASURED, latency[train], np.nan)
    model.fit([texts[i] for i in train], {**{name: values[train] for name, values in known.items()}, device: measured})
    given = {name: values[test] for name, values in known.items()}
    return model.predict([texts[i] for i in test], [device], given=given, samples=SAMPLES, seed=model.seed)[device]


def taught(base: str, steps: int, most: int, others: int, folder: Path) -> str:
    """A checkpoint of `base` that has learned so many known devices, of at most so many networks; made once."""
    import predictors
    from predictors.base import checkpoint

    def learned() -> predictors.Predictor:
        known = {name: values[:most] for name, values in _known(others).items()}
        schedule = {"most_metrics": len(known), "jitter": 0.05, "batch": 64}
        model = predictors.create("rlm", base=base, steps=steps, rehearse=True, schedule=schedule)
        return model.fit(load_benchmark("nasbench201").load_texts()[:most], known)

    return made_once(folder / f"{checkpoint(base).name}-{steps}-{most}-{others}", learned)


def _short(metric: str) -> str:
    return metric.removesuffix("_latency_ms")


def main(
    base: Annotated[str, typer.Option(help="An RLM that knows no latency of a device.")] = "rlm-label-free",
    out: Annotated[Path, typer.Option(help="Folder in which finished rows and bases are kept.")] = Path(
        "results/new-device"
    ),
    steps: Annotated[int, typer.Option(min=1, help="Steps in which the base learns the other devices.")] = 1000,
    seeds: Seeds = 5,
    first_seed: FirstSeed = 0,
    only: Annotated[str, typer.Option(help="Predictors, separated by commas.")] = ",".join(PREDICTORS),
    jobs: Jobs = 1,
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Train and rank; a table of means over the seeds."""
    names = chosen(only, PREDICTORS)
    devices, (most, others) = NEW, EVERY
    if quick:
        devices, (most, others), steps, seeds = NEW[:1], QUICK_MOST, QUICK_STEPS, 1
    numbers = range(first_seed, first_seed + seeds)
    tasks = [(p, d, base, steps, most, others, seed) for d in devices for p in names for seed in numbers]
    if "rlm" in names:
        taught(base, steps, most, others, out)
    rows = compute(tasks, partial(score, folder=out), out, jobs)
    about = ("predictor", "device", "base", "steps", "networks", "known devices")
    summary = summarize(tasks, rows)
    found = pivot(summary, "spearman").items()
    publish(out, {n: {_short(d): cell for d, cell in row.items()} for n, row in found}, "Spearman's correlation")
    show("Spearman's correlation on a new device", about, summary, as_json)


if __name__ == "__main__":
    run_command(main)
