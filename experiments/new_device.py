"""A new device from ten measurements, NAS-Bench-201: `python -m experiments.new_device`.

All networks have been measured on the other devices. Ten are measured on the new device, and all
others are ranked, given their latencies on the other devices. The RLM has the ten as its only
examples, and their ratios to the known devices as targets (`nas/evaluation/new_device.py`). The other
predictors learn the ten together with the latencies of 1,000 networks on the other devices.
`nearest` ranks by the known device that ranks the ten best. `regression` is a ridge regression on
the logarithms of all known devices. Figures are Spearman's rank correlations.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from experiments.runner import AsJson, FirstSeed, Jobs, Quick, Seeds, run_command
from experiments.tables import Scores, Table, chosen, compute, pivot, publish, show, summarize
from nas.benchmarks import load_benchmark

if TYPE_CHECKING:
    from predictors import Predictor

NEW = tuple(
    f"{name}_latency_ms"
    for name in ("titan_rtx_256", "gold_6226", "pixel2", "raspi4", "eyeriss", "fpga")
)
PREDICTORS = ("rlm", "gnn", "gp", "gp-choices", "forest", "ridge", "regression", "nearest")
MEASURED = 10
RIVALS_TRAIN = 1000
TEST = 2000
SAMPLES = 16
SIZES, QUICK_SIZES = (15_625, 21), (60, 2)  # networks at most, and known devices


def score(predictor: str, device: str, max_networks: int, others: int, seed: int) -> Scores:
    """Spearman's correlation on `TEST` networks (at most `max_networks`).

    Their latencies on `others` other devices are given.
    """
    from scipy.stats import spearmanr

    import predictors
    from nas.evaluation.new_device import relative_samples

    table = load_benchmark("nasbench201")
    texts = table.load_texts()
    by_device = _latencies_by_device(others)
    others_latency = np.stack(list(by_device.values()), 1)  # (n, others)
    latency = table.values(device)
    order = np.random.default_rng(seed).permutation(len(table))
    train, test, further = np.split(
        order, np.cumsum([MEASURED, min(TEST, max_networks), min(RIVALS_TRAIN, max_networks)])
    )[:3]
    if predictor == "nearest":
        best = max(
            by_device.values(),
            key=lambda values: spearmanr(values[train], latency[train]).statistic,
        )
        predicted = best[test]
    elif predictor == "regression":
        logs = _regression(np.log(others_latency), np.log(latency), train)
        predicted = np.exp(logs[test])
    elif predictor == "rlm":
        model = predictors.create("rlm", seed=seed)
        measured = [texts[i] for i in train]
        query_texts = [texts[i] for i in test]
        values, of_others = latency[train], others_latency[train]
        drawn = relative_samples(
            model, measured, values, of_others, query_texts, others_latency[test], SAMPLES, seed
        )
        predicted = np.median(drawn, 1)
    else:
        learned = np.concatenate([train, further])
        model = predictors.create(predictor, seed=seed)
        inputs = table.architectures if model.reads_choices else texts
        predicted = _learned(model, device, inputs, by_device, latency, learned, test)
    return {
        "spearman": float(spearmanr(predicted, latency[test]).statistic),
        "error (%)": float(np.median(100 * np.abs(predicted / latency[test] - 1))),
    }


def _latencies_by_device(others: int) -> dict[str, np.ndarray]:
    """Latencies on the first `others` devices that are never new."""
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
    inputs: Sequence[Any],
    by_device: dict[str, np.ndarray],
    latency: np.ndarray,
    train: np.ndarray,
    test: np.ndarray,
) -> np.ndarray:
    """Predict the new device's latencies (n,) of the rows `test`.

    Of the rows `train`, the first ten are measured.
    """
    measured = np.where(np.arange(len(train)) < MEASURED, latency[train], np.nan)
    examples = {name: values[train] for name, values in by_device.items()}
    model.fit([inputs[i] for i in train], {**examples, device: measured})
    conditions = {name: values[test] for name, values in by_device.items()}
    return model.predict(
        [inputs[i] for i in test], [device], given=conditions, samples=SAMPLES, seed=model.seed
    )[device]


def _short(metric: str) -> str:
    return metric.removesuffix("_latency_ms")


def main(
    out: Annotated[Path, typer.Option(help="Folder for finished rows and tables.")] = Path(
        "results/new-device"
    ),
    seeds: Seeds = 5,
    first_seed: FirstSeed = 0,
    only: Annotated[str, typer.Option(help="Predictors, separated by commas.")] = ",".join(
        PREDICTORS
    ),
    jobs: Jobs = 1,
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Train and rank; print a table of means over the seeds."""
    names = chosen(only, PREDICTORS)
    devices, (max_networks, others) = NEW, SIZES
    if quick:
        devices, (max_networks, others), seeds = NEW[:1], QUICK_SIZES, 1
    numbers = range(first_seed, first_seed + seeds)
    tasks = [(p, d, max_networks, others, seed) for d in devices for p in names for seed in numbers]
    rows = compute(tasks, score, out, jobs)
    about = ("predictor", "device", "networks", "known devices")
    summary = summarize(tasks, rows)
    table: Table = {}
    for predictor, row in pivot(summary, "spearman").items():
        table[predictor] = {_short(device): cell for device, cell in row.items()}
    publish(out, table, "Spearman's correlation")
    show("Spearman's correlation on a new device", about, summary, as_json)


if __name__ == "__main__":
    run_command(main)
