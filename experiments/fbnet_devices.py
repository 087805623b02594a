"""FBNet's 10^21 networks, an accuracy and four devices, on predictions alone.

Run `python -m experiments.fbnet_devices`.

The RLM learns latencies of a few hundred networks on four devices from `$NAS_DATA/fbnet.csv.gz`,
and digits accuracy from `digits-fbnet`, which has the same blocks in a small skeleton. NSGA-II then
searches the whole space on predictions alone. The latencies of these devices are sums over blocks.
Formulas fitted to one half of the table and checked on the other half therefore give the true
latencies of each network on the front.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from experiments.runner import AsJson, Quick, run_command
from nas import Evaluator, Problem, search
from nas.benchmarks import load_benchmark
from nas.benchmarks.populations import get_population
from nas.cli.console import print_json, print_table
from nas.cli.progress import progress_bar
from search_spaces import Architecture, get_space
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    from predictors import Predictor

DEVICES = ("raspi4", "pixel3", "eyeriss", "fpga")
LATENCIES = tuple(f"{device}_latency_ms" for device in DEVICES)
ACCURACY = "digits_accuracy"
# Largest relative error allowed for a formula on the half of the table to which it was not fitted
EXACT = 1e-3


class Formulas:
    """Latencies (n, devices) of architectures as sums over their blocks.

    The sums are fitted to values (n, devices).
    """

    def __init__(self, architectures: Sequence[Architecture], values: np.ndarray) -> None:
        options = sorted({choice for arch in architectures for choice in arch.choices})
        self._options = {option: column for column, option in enumerate(options)}
        indicators = self._indicators(architectures)
        self._weights, *_ = np.linalg.lstsq(indicators, values, rcond=None)

    def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
        return self._indicators(architectures) @ self._weights

    def _indicators(self, architectures: Sequence[Architecture]) -> np.ndarray:
        """Matrix (n, options + 1): 1 where an architecture has an option; the last is constant."""
        indicators = np.zeros((len(architectures), 1 + len(self._options)))
        indicators[:, -1] = 1
        for row, architecture in zip(indicators, architectures, strict=True):
            columns = [self._options[choice] for choice in architecture.choices]
            row[columns] = 1
        return indicators


class Predicted(Evaluator):
    """An evaluator that predicts accuracy and latencies.

    It predicts accuracy in the small skeleton, and latencies in the published one.
    """

    metrics = (ACCURACY, *LATENCIES)

    def __init__(self, accuracy: Predictor, latencies: Predictor) -> None:
        self.accuracy, self.latencies = accuracy, latencies
        self.small = get_population("digits-fbnet").open_space()
        self.published = get_space("fbnet")

    def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
        small = [self.small.to_text(architecture) for architecture in architectures]
        published = [self.published.to_text(architecture) for architecture in architectures]
        columns = (
            self.accuracy.estimate(small, [ACCURACY]),
            self.latencies.estimate(published, LATENCIES),
        )
        return np.concatenate(columns, axis=1)


def truth(path: Path) -> tuple[list[Architecture], np.ndarray, Formulas]:
    """The table's networks, their latencies (n, devices), and formulas of these.

    The formulas are fitted to the table's first half, and exact on its second half.

    Raises:
        InputError: if they are not exact.
    """
    table = load_benchmark(path, "fbnet")
    values = np.stack([table.values(metric) for metric in LATENCIES], 1)
    half = len(table) // 2
    formulas = Formulas(table.architectures[:half], values[:half])
    by_formula = formulas(table.architectures[half:])
    error = float(np.abs(by_formula / values[half:] - 1).max())
    if error > EXACT:
        raise InputError(
            f"{path}: latencies of {', '.join(DEVICES)} are not sums over blocks (error "
            f"{error:.2%})"
        )
    return list(table.architectures), values, formulas


def learned(
    kind: str, size: int, seed: int, architectures: Sequence[Architecture], values: np.ndarray
) -> Predicted:
    """Fit predictors: latencies on `size` networks of the table, accuracy on the population."""
    import predictors

    rows = np.random.default_rng(seed).permutation(len(architectures))[:size]
    space = get_space("fbnet")
    population = load_benchmark("digits-fbnet")
    texts = [space.to_text(architectures[row]) for row in rows]
    columns = dict(zip(LATENCIES, values[rows].T, strict=True))
    latencies = predictors.create(kind, seed=seed).fit(texts, columns)
    accuracies = {ACCURACY: population.values(ACCURACY)}
    accuracy = predictors.create(kind, seed=seed).fit(population.load_texts(), accuracies)
    return Predicted(accuracy, latencies)


def checked(predicted: np.ndarray, true: np.ndarray) -> list[dict[str, float | str]]:
    """Per device, compare predicted with true latencies (k, devices).

    The k networks are on a front.
    """
    from scipy.stats import spearmanr

    rows: list[dict[str, float | str]] = []
    for device, of_device, latency in zip(DEVICES, predicted.T, true.T, strict=True):
        errors = np.abs(of_device / latency - 1)
        rows.append(
            {
                "device": device,
                "Spearman's correlation": float(spearmanr(of_device, latency).statistic),
                "mean error (%)": 100 * float(errors.mean()),
                "fastest (ms)": float(latency.min()),
                "slowest (ms)": float(latency.max()),
            }
        )
    return rows


def main(
    kind: Annotated[
        str, typer.Option("--predictor", help="Predictor: rlm, gnn, ridge or forest.")
    ] = "rlm",
    size: Annotated[
        int, typer.Option(min=10, help="Number of networks whose latencies are learned.")
    ] = 500,
    evaluations: Annotated[
        int, typer.Option(min=20, help="Number of networks that the search predicts.")
    ] = 2000,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Learn, search, and check the front against the true latencies."""
    import optuna

    from nas import parse_objectives
    from nas.search.pareto import non_dominated
    from nas.search.progress import labelled

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    folder = os.environ.get("NAS_DATA")
    if folder is None:
        raise InputError("NAS_DATA is not set: set it to the folder that holds fbnet.csv.gz")
    if quick:
        kind, size, evaluations = "ridge", 100, 60

    # 1. Learn, and search on predictions.
    architectures, values, formulas = truth(Path(folder) / "fbnet.csv.gz")
    evaluator = learned(kind, size, seed, architectures, values)
    objectives = parse_objectives(",".join(evaluator.metrics))
    with progress_bar("search on predictions") as bar:
        result = search(
            Problem(evaluator.published, evaluator, objectives),
            sampler="nsga2",
            evaluations=evaluations,
            seed=seed,
            progress=labelled(bar, "search on predictions"),
        )

    # 2. The front, with its true latencies, and the part of it that these leave.
    losses = result.evaluated.values * [objective.sign for objective in objectives]
    front = np.flatnonzero(non_dominated(losses))
    true = formulas([result.evaluated.architectures[i] for i in front])
    rows = checked(result.evaluated.values[front, 1:], true)
    true_losses = np.column_stack([losses[front, 0], true])
    kept = float(non_dominated(true_losses).mean())
    summary = {
        "front": len(front),
        "still a front by true latencies (%)": 100 * kept,
        "devices": rows,
    }
    if as_json:
        print_json(summary)
        return
    print_table(
        f"True latencies of the {len(front)} networks on the front that {kind} predicted", rows
    )
    print(f"{100 * kept:.0f} % of the front are non-dominated by true latencies, too")


if __name__ == "__main__":
    run_command(main)
