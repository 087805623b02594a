"""One model, five metrics of NAS-Bench-201: accuracy, then four latencies.

Run `python -m experiments.joint_metrics`.

Each predictor learns all five metrics of 1,000 architectures and ranks all others: from the text
alone, given the true accuracy, and given the true latency of one device. Figures are Spearman's
rank correlations.

`same text` is an upper bound for predictors that read text: each network's value is the mean over
all networks of the table with the same text. On some devices, operators without effect take time
although the text omits them. `gp-choices` and `ridge on choices` read the operation of each edge
instead of the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from experiments.runner import AsJson, FirstSeed, Jobs, Quick, Seeds, run_command
from experiments.tables import Scores, at_rows, chosen, compute, publish, show, summarize

if TYPE_CHECKING:
    from search_spaces import Architecture

ACCURACY = "cifar10_test_accuracy"
DEVICES = ("pixel3", "eyeriss", "gold_6240", "1080ti_1")
LATENCIES = tuple(f"{device}_latency_ms" for device in DEVICES)
METRICS = (ACCURACY, *LATENCIES)
GIVEN_DEVICE = "gold_6240_latency_ms"
SAME_TEXT = "same text"
ON_CHOICES = "ridge on choices"
PREDICTORS = ("rlm", "gnn", "gp", "gp-choices", "forest", "ridge", ON_CHOICES, SAME_TEXT)
PENALTIES = np.logspace(-3, 3, 13)
SAMPLES = 16


def score(predictor: str, size: int, max_networks: int, seed: int) -> Scores:
    """Spearman's correlation of each metric on at most `max_networks` other networks.

    The score `a | x` is that of a, given x.
    """
    from scipy.stats import spearmanr

    import predictors
    from nas.benchmarks import load_benchmark

    table = load_benchmark("nasbench201")
    texts = table.load_texts()
    values = {metric: table.values(metric) for metric in METRICS}
    order = np.random.default_rng(seed).permutation(len(table))
    train, test = order[:size], order[size : size + max_networks]

    def correlation(predicted: np.ndarray, metric: str) -> float:
        return float(spearmanr(predicted, values[metric][test]).statistic)

    # 1. Rivals that predict each metric alone.
    scores = {}
    if predictor == SAME_TEXT:
        for metric in METRICS:
            means = _means(texts, values[metric])
            scores[_short(metric)] = correlation(means[test], metric)
        return scores
    if predictor == ON_CHOICES:
        predictions = _ridge_on_choices(table.architectures, values, train, test)
        for metric in METRICS:
            scores[_short(metric)] = correlation(predictions[metric], metric)
        return scores

    # 2. A predictor of all metrics, also where one of them is given.
    model = predictors.create(predictor, seed=seed)
    inputs: Sequence[Any] = table.architectures if model.reads_choices else texts
    model.fit([inputs[i] for i in train], at_rows(values, train))
    queries = [inputs[i] for i in test]
    for conditions in ((), (ACCURACY,), (GIVEN_DEVICE,)):
        metrics = [metric for metric in METRICS if metric not in conditions]
        observed = {metric: values[metric][test] for metric in conditions}
        predicted = model.predict(queries, metrics, given=observed, samples=SAMPLES, seed=seed)
        for metric in metrics:
            name = " | ".join(_short(m) for m in (metric, *conditions))
            scores[name] = correlation(predicted[metric], metric)
    return scores


def _means(texts: list[str], values: np.ndarray) -> np.ndarray:
    """For each network, the mean value (n,) of all networks with the same text."""
    _, group, counts = np.unique(texts, return_inverse=True, return_counts=True)
    return (np.bincount(group, values) / counts)[group]


def _ridge_on_choices(
    architectures: Sequence[Architecture],
    values: Mapping[str, np.ndarray],
    train: np.ndarray,
    test: np.ndarray,
) -> dict[str, np.ndarray]:
    """Predictions of ridge regression on one-hot choices, by metric.

    Cross-validation selects the penalty.
    """
    from sklearn.linear_model import RidgeCV
    from sklearn.preprocessing import OneHotEncoder

    choices = []
    for architecture in architectures:
        choices.append([str(option) for _, option in architecture.choices])
    inputs = OneHotEncoder(sparse_output=False).fit_transform(choices)
    predictions = {}
    for metric, column in values.items():
        model = RidgeCV(PENALTIES).fit(inputs[train], column[train])
        predictions[metric] = model.predict(inputs[test])
    return predictions


def _short(metric: str) -> str:
    return "accuracy" if metric == ACCURACY else metric.removesuffix("_latency_ms")


def main(
    out: Annotated[Path, typer.Option(help="Folder for finished rows and tables.")] = Path(
        "results/joint-metrics"
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
    size, max_networks, seeds = (30, 60, 1) if quick else (1000, 15_625, seeds)
    names = chosen(only, PREDICTORS)
    tasks = [
        (p, size, max_networks, seed)
        for seed in range(first_seed, first_seed + seeds)
        for p in names
    ]
    summary = summarize(tasks, compute(tasks, score, out, jobs))
    shown = [_short(metric) for metric in METRICS]
    table = {row["task0"]: {name: row[name] for name in shown} for row in summary}
    publish(out, table, "Spearman's correlation")
    about = ("predictor", "trained on", "at most tested on")
    show("Spearman's correlation of jointly learned metrics", about, summary, as_json)


if __name__ == "__main__":
    run_command(main)
