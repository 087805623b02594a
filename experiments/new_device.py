"""A new device from ten measurements, NAS-Bench-201: `python -m experiments.new_device`.

The other devices' latencies are known of all networks; of the new device, ten networks are measured and all others are
ranked. The RLM begins from a base that has learned the other devices; the rivals learn the ten together with 1,000
networks' latencies on the other devices. `nearest` ranks by the known device that ranks the ten best, and `regression`
is a ridge regression from the logarithms of all known devices. Figures are Spearman's rank correlations.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from experiments.tables import Scores, chosen, compute, made_once, show, summarize
from nas.benchmarks import load_benchmark
from search_spaces.errors import InputError

NEW = tuple(f"{name}_latency_ms" for name in ("titan_rtx_256", "gold_6226", "pixel2", "raspi4", "eyeriss", "fpga"))
PREDICTORS = ("rlm", "gnn", "forest", "ridge", "regression", "nearest")
MEASURED = 10
RIVALS_TRAIN = 1000
TEST = 2000
SAMPLES = 16


def score(predictor: str, device: str, base: str, steps: int, seed: int) -> Scores:
    """Spearman's correlation on `TEST` networks that were not measured."""
    from scipy.stats import spearmanr

    table = load_benchmark("nasbench201")
    texts, known, latency = table.load_texts(), _known(), table.values(device)
    order = np.random.default_rng(seed).permutation(len(table))
    train, test = order[:MEASURED], order[MEASURED : MEASURED + TEST]
    if predictor == "nearest":
        best = max(known.values(), key=lambda values: spearmanr(values[train], latency[train]).statistic)
        predicted = best[test]
    elif predictor == "regression":
        predicted = _regression(np.log(np.stack(list(known.values()), 1)), np.log(latency), train)[test]
    else:
        predicted = _learned(predictor, device, taught(base, steps), seed, texts, known, latency, order)
    return {"spearman": float(spearmanr(predicted, latency[test]).statistic)}


def _known() -> dict[str, np.ndarray]:
    """Latencies of all devices that are never new."""
    table = load_benchmark("nasbench201")
    return {name: table.values(name) for name in table.metrics if name.endswith("_latency_ms") and name not in NEW}


def _regression(inputs: np.ndarray, values: np.ndarray, train: np.ndarray) -> np.ndarray:
    from sklearn.linear_model import RidgeCV

    inputs = (inputs - inputs.mean(0)) / inputs.std(0)
    return RidgeCV(np.logspace(-2, 3, 12)).fit(inputs[train], values[train]).predict(inputs)


def _learned(
    predictor: str,
    device: str,
    base: str,
    seed: int,
    texts: list[str],
    known: dict[str, np.ndarray],
    latency: np.ndarray,
    order: np.ndarray,
) -> np.ndarray:
    import predictors

    train, test = order[:MEASURED], order[MEASURED : MEASURED + TEST]
    if predictor == "rlm":
        schedule = {"most_metrics": len(known) + 1}
        model = predictors.create("rlm", seed=seed, base=base, learn=(device,), schedule=schedule)
    else:
        train = order[[*range(MEASURED), *range(MEASURED + TEST, MEASURED + TEST + RIVALS_TRAIN)]]
        model = predictors.create(predictor, seed=seed)
    measured = np.where(np.arange(len(train)) < MEASURED, latency[train], np.nan)
    model.fit([texts[i] for i in train], {**{name: values[train] for name, values in known.items()}, device: measured})
    given = {name: values[test] for name, values in known.items()}
    return model.predict([texts[i] for i in test], [device], given=given, samples=SAMPLES, seed=seed)[device]


def taught(base: str, steps: int) -> str:
    """A checkpoint of `base` that has learned all known devices; made once."""
    import predictors
    from predictors.base import checkpoint

    def learned() -> predictors.Predictor:
        known = _known()
        schedule = {"most_metrics": len(known), "jitter": 0.05, "batch": 64}
        model = predictors.create("rlm", base=base, steps=steps, rehearse=True, schedule=schedule)
        return model.fit(load_benchmark("nasbench201").load_texts(), known)

    return made_once(Path("results/new-device") / f"{checkpoint(base).name}-{steps}", learned)


def main(
    base: Annotated[str, typer.Option(help="An RLM that knows no latency of a device.")] = "rlm-label-free",
    out: Annotated[Path, typer.Option(help="Folder in which finished rows are kept.")] = Path("results/new-device"),
    steps: Annotated[int, typer.Option(min=1, help="Steps in which the base learns the other devices.")] = 1000,
    seeds: Annotated[int, typer.Option(min=1)] = 5,
    first_seed: Annotated[int, typer.Option(min=0)] = 0,
    only: Annotated[str, typer.Option(help="Predictors, separated by commas.")] = ",".join(PREDICTORS),
    jobs: Annotated[int, typer.Option(min=1)] = 1,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Train and rank; a table of means over the seeds."""
    names = chosen(only, PREDICTORS)
    tasks = [(p, d, base, steps, seed) for d in NEW for p in names for seed in range(first_seed, first_seed + seeds)]
    if "rlm" in names:
        taught(base, steps)
    rows = compute(tasks, score, out, jobs)
    about = ("predictor", "device", "base", "steps")
    show("Spearman's correlation on a new device", about, summarize(tasks, rows), as_json)


if __name__ == "__main__":
    try:
        typer.run(main)
    except InputError as error:
        sys.exit(f"new_device: {error}")
