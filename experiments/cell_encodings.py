"""Published networks on published encodings of cells: `python -m experiments.cell_encodings`.

FLAN and a plain GCN (`predictors/gnn/cells.py`) read a cell's adjacency and operations, our GNN reads the text; all
learn the accuracies of the same N architectures and rank the same others, in NAS-Bench-201 2,000 of them (where another
one may compute the same, as in what is published); of NAS-Bench-101 we have 222 networks. Figures are Kendall's τ,
beside published ones. Tables come from the folder that the environment variable NAS_DATA names.

NAS-Bench-201 has operations on edges: here they are the nodes, and an edge leads from an operation to those that read
the node it ends in. As in BRP-NAS and FLAN, an edge goes past `skip_connect`, none leads to or from `none`, and what is
then on no path from input to output is not there, as in NAS-Bench-101.
"""

from __future__ import annotations

import ast
import csv
import gzip
import os
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import typer

from experiments.runner import AsJson, FirstSeed, Jobs, Quick, Seeds, run_command
from experiments.tables import Scores, Task, chosen, compute, show, summarize
from nas.benchmarks import load_benchmark
from search_spaces import get_space
from search_spaces.base import Architecture
from search_spaces.common.errors import InputError
from search_spaces.published.nasbench101 import OPERATIONS as OPERATIONS_101
from search_spaces.published.nasbench201 import EDGES
from search_spaces.published.nasbench201 import OPERATIONS as OPERATIONS_201

if TYPE_CHECKING:
    from predictors.gnn.cells import Cells

Matrix = list[list[int]]
OPERATIONS = {"nasbench201": OPERATIONS_201, "nasbench101": OPERATIONS_101}
PREDICTORS = ("flan", "gcn", "gnn without its base", "gnn")
VALIDATION, TEST, DIGITS = "cifar10_validation_accuracy", "cifar10_test_accuracy", "digits_accuracy"
SAMPLES = 32


class Protocol(NamedTuple):
    """A table, the metrics that are learned and ranked by, and how many architectures are learned.

    published: a predictor's τ for each size. FLAN's are of its authors' repository (abdelfattah-lab/flan_nas,
    sample_efficiency_results: adjacency encoding, forward and backward), the GCN's are quoted from memory of what TNASP
    and PINAT report for "Neural Predictor". most: at most so many others are ranked.
    """

    table: str
    learned: str
    ranked: str
    sizes: tuple[int, ...]
    published: Mapping[str, tuple[float, ...]]
    most: int = 2000


PROTOCOLS = {
    "201": Protocol(
        "nasbench201", VALIDATION, VALIDATION, (16, 32, 128, 256, 512), {"flan": (0.676, 0.696, 0.785, 0.849, 0.877)}
    ),
    "101": Protocol("nasbench101", VALIDATION, VALIDATION, (16, 32, 128), {"flan": (0.479, 0.597, 0.729)}),
    "201 by test accuracy": Protocol(
        "nasbench201", VALIDATION, TEST, (78, 156, 469, 781), {"gcn": (0.343, 0.413, 0.584, 0.634)}
    ),
}
QUICK_PROTOCOLS = {
    "digits 201": Protocol("digits201", DIGITS, DIGITS, (16,), {}, most=100),
    "digits 101": Protocol("digits-nasbench101", DIGITS, DIGITS, (16,), {}, most=100),
}

# --- tables and encodings --------------------------------------------------------------------------------------------


class Population(NamedTuple):
    """Architectures (n), their ONNX texts (n), and accuracies (n,) by name."""

    archs: Sequence[Architecture]
    texts: Callable[[], list[str]]
    accuracies: dict[str, np.ndarray]


@lru_cache(maxsize=2)
def population(table: str) -> Population:
    """A benchmark, or the published rows of NAS-Bench-101."""
    if table == "nasbench101":
        return _nasbench101()
    benchmark = load_benchmark(table)
    names = [name for name in (VALIDATION, TEST, DIGITS) if name in benchmark.metrics]
    return Population(benchmark.architectures, benchmark.load_texts, {name: benchmark.values(name) for name in names})


def _nasbench101() -> Population:
    """Each network once, with the mean of its accuracies: 350 rows hold 222 networks, one of them 39 times."""
    file = Path(os.environ.get("NAS_DATA", ""), "nasbench101.csv.gz")
    if not file.is_file():
        raise InputError("nasbench101.csv.gz is not there: set NAS_DATA to the folder with the published tables")
    space = get_space("nasbench101")
    archs: dict[str, Architecture] = {}
    accuracies: dict[str, list[float]] = {}
    with gzip.open(file, "rt") as lines:
        for row in csv.DictReader(lines):
            arch = space.parse(f'{{"matrix": {row["matrix"]}, "ops": {row["operations"]}}}')
            text = space.to_text(arch)
            archs.setdefault(text, arch)
            accuracies.setdefault(text, []).append(float(row[VALIDATION]))
    means = np.array([np.mean(values) for values in accuracies.values()])
    return Population(list(archs.values()), lambda: list(archs), {VALIDATION: means})


def encode(archs: Sequence[Architecture]) -> Cells:
    """Cells of NAS-Bench-101 (7 nodes) or NAS-Bench-201 (8), in the order of the architectures."""
    import torch

    from predictors.gnn.cells import FIRST, INPUT, NONE, OUTPUT, Cells

    space = archs[0].space
    numbers = {"input": INPUT, "output": OUTPUT, "none": NONE}
    names = [name for name in OPERATIONS[space] if name not in numbers]
    numbers |= {name: FIRST + i for i, name in enumerate(names)}
    graphs = [(_graph_201 if space == "nasbench201" else _graph_101)(arch) for arch in archs]
    adjacency = np.array([matrix for matrix, _ in graphs], np.float32)
    operations = np.array([[numbers[name] for name in operations] for _, operations in graphs])
    there: np.ndarray = np.any(adjacency + adjacency.transpose(0, 2, 1), axis=1)
    there[:, [0, -1]] = True  # input and output
    return Cells(torch.from_numpy(adjacency), torch.from_numpy(np.where(there, operations, NONE)))


def _graph_101(arch: Architecture) -> tuple[Matrix, list[str]]:
    """The pruned 7 × 7 matrix."""
    cell = ast.literal_eval(get_space("nasbench101").format(arch))
    return cell["matrix"], cell["ops"]


def _graph_201(arch: Architecture) -> tuple[Matrix, list[str]]:
    """8 × 8: input, an operation for each of `EDGES`, output."""
    chosen = arch.as_dict()
    operations = ["input", *(chosen[f"{source}->{target}"] for source, target in EDGES), "output"]
    ends = [(-1, 0), *EDGES, (3, 4)]  # the input ends in node 0, the output begins in node 3
    edges = {(i, j) for i, (_, end) in enumerate(ends) for j, (start, _) in enumerate(ends) if end == start}
    for node, operation in enumerate(operations):
        if operation in ("none", "skip_connect"):
            sources, readers = [s for s, t in edges if t == node], [t for s, t in edges if s == node]
            edges = {edge for edge in edges if node not in edge}
            if operation == "skip_connect":
                edges |= {(source, reader) for source in sources for reader in readers}
    paths = np.eye(8, dtype=int)
    for source, target in sorted(edges):  # in topological order of the sources
        paths[:, target] |= paths[:, source]
    on_path = (paths[0] & paths[:, -1]).astype(bool)
    matrix = [[int((s, t) in edges and on_path[s] and on_path[t]) for t in range(8)] for s in range(8)]
    return matrix, operations


# --- rows ------------------------------------------------------------------------------------------------------------


def score(protocol: str, predictor: str, size: int, seed: int) -> Scores:
    """Kendall's τ on architectures that were not learned."""
    from scipy.stats import kendalltau

    table, learned, ranked, *_, most = (PROTOCOLS | QUICK_PROTOCOLS)[protocol]
    archs, _, accuracies = population(table)
    order = np.random.default_rng(seed).permutation(len(archs))
    train, test = order[:size], order[size : size + most]
    guess = _by_text if predictor.startswith("gnn") else _by_cell
    predicted = guess(predictor, table, train, test, accuracies[learned][train], seed)
    return {"tau": float(kendalltau(predicted, accuracies[ranked][test]).statistic)}


def _by_cell(name: str, table: str, train: np.ndarray, test: np.ndarray, values: np.ndarray, seed: int) -> np.ndarray:
    from predictors.gnn.cells import FIRST, RECIPES, predict
    from predictors.gnn.cells import train as fit

    archs = population(table).archs
    operations = FIRST + len(OPERATIONS[archs[0].space])
    network = fit(RECIPES[name], encode([archs[i] for i in train]), values, operations, seed)
    return predict(network, encode([archs[i] for i in test]))


def _by_text(name: str, table: str, train: np.ndarray, test: np.ndarray, values: np.ndarray, seed: int) -> np.ndarray:
    import predictors

    known = population(table).texts()
    options: dict[str, Any] = {} if name == "gnn" else {"base": None}
    model = predictors.create("gnn", seed=seed, **options)
    model.fit([known[i] for i in train], {"accuracy": values})
    return model.predict([known[i] for i in test], ["accuracy"], samples=SAMPLES, seed=seed)["accuracy"]


def published(protocol: str, predictor: str, size: int) -> float | str:
    """The τ that was published, "-" where none was."""
    of = (PROTOCOLS | QUICK_PROTOCOLS)[protocol]
    return dict(zip(of.sizes, of.published.get(predictor, ()), strict=False)).get(size, "-")


def main(
    out: Annotated[Path, typer.Option(help="Folder in which finished rows are kept.")] = Path("results/cell-encodings"),
    only: Annotated[str, typer.Option(help="Predictors, separated by commas.")] = ",".join(PREDICTORS),
    protocols: Annotated[str, typer.Option(help="Protocols, separated by commas.")] = ",".join(PROTOCOLS),
    seeds: Seeds = 5,
    first_seed: FirstSeed = 10,
    jobs: Jobs = 1,
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Train and rank; a table of means over the seeds."""
    names, seeds = chosen(only, PREDICTORS), 1 if quick else seeds
    of = QUICK_PROTOCOLS if quick else {name: PROTOCOLS[name] for name in chosen(protocols, tuple(PROTOCOLS))}
    tasks: list[Task] = [
        (protocol, name, size, seed)
        for seed in range(first_seed, first_seed + seeds)
        for protocol, about in of.items()
        for size in about.sizes
        for name in names
        if not (about.table == "digits201" and name.startswith("gnn"))  # its texts take long to write
    ]
    summary = summarize(tasks, compute(tasks, score, out, jobs))
    for row in summary:
        row["published"] = published(row["task0"], row["task1"], row["task2"])
    show("Kendall's τ", ("protocol", "predictor", "trained on"), summary, as_json)


if __name__ == "__main__":
    run_command(main)
