"""Compare parameters and FLOPs with published tables, row by row.

Run `python -m tests.stress.exactness`.

The environment variable NAS_DATA names the folder with the tables. FLOPs are counted by each
table's own convention, which the result names. For a random sample of rows, parameters are also
counted in the ONNX models.
"""

from __future__ import annotations

import ast
import csv
import gzip
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import islice
from math import prod
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

from experiments.runner import AsJson, Quick, run_command
from nas.cli.console import print_json, print_table
from nas.cli.progress import progress_bar
from search_spaces import SearchSpace, get_space, params
from search_spaces.common.errors import InputError
from search_spaces.common.progress import Progress
from search_spaces.ir.costs import graph_flops, graph_params
from search_spaces.ir.graph import Graph

POOLINGS, SKIP, SEPARABLE, DILATED = (
    (0, 1),
    2,
    (3, 4),
    (5, 6),
)  # operations of DARTS in NASLib's numbers
Row = dict[str, str]


class Table(NamedTuple):
    """Published counts of a space's networks. `flops` compares by the table's own `convention`."""

    name: str
    file: str
    space: SearchSpace
    native: Callable[[Row], str]
    params: Callable[[Row], int]
    flops: Callable[[Row, Graph], bool] | None
    convention: str


class Result(NamedTuple):
    """Numbers of rows, of rows with equal counts, and of models with equal counts. `first` names
    the first mismatch.
    """

    rows: int
    params: int
    flops: int
    models: int
    first: str


# --- the tables' own ways of counting FLOPs


def _elements(graph: Graph, value: int) -> int:
    return prod(int(d) for d in graph.shapes[value][1:])


def _nasbench101_flops(row: Row, graph: Graph) -> int:
    total = graph_flops(graph)
    for node in graph.nodes:
        window: Any = dict(node.attrs).get("kernel_shape", ())
        each = {"ConvBn": 2, "Relu": 1, "MaxPool": prod(window)}.get(node.op, 0)
        total += each * _elements(graph, node.outputs[0])
    return total


def _darts_flops(row: Row, graph: Graph) -> int:
    """Count convolutions in our graph, and the rest from the genotype, since our graph merges equal
    computations.
    """
    kilo = 1 << 10
    # Elements of one node in the six normal cells, in the two reduction cells, and of the latter's
    # inputs.
    normal, reduced, entering = 2 * (32 + 16 + 8) * kilo, (16 + 8) * kilo, (64 + 32) * kilo
    # Stem and preprocessing (BatchNorm with scale and shift, ReLU), and the pooling of the last 512
    # channels.
    total = graph_flops(graph) + 2 * (96 + 416) * kilo + 1280 * kilo + 81 * 512
    for cell, elements in zip(ast.literal_eval(row["genotype"]), (normal, reduced), strict=True):
        for source, operation in cell:
            strided = elements == reduced and source < 2
            relu = entering if strided else elements
            total += {
                **dict.fromkeys(POOLINGS, 10 * elements),
                SKIP: relu + elements if strided else 0,
                **dict.fromkeys(SEPARABLE, relu + 3 * elements),
                **dict.fromkeys(DILATED, relu + elements),
            }[operation]
    return total


# --- tables


def _column(name: str) -> Callable[[Row], int]:
    return lambda row: int(float(row[name]))


def _nasbench201(data_set: str, classes: int, size: int) -> Table:
    return Table(
        f"nasbench201 {data_set}",
        "nasbench201.csv.gz",
        get_space("nasbench201", num_classes=classes, input_shape=(3, size, size)),
        lambda row: row["arch"],
        _column(f"{data_set}_params"),
        lambda row, graph: int(float(row[f"{data_set}_flops"])) == graph_flops(graph) + classes,
        "multiply-accumulates, and 1 per class for the classifier's bias",
    )


def _ofa_lists(row: Row) -> str:
    lists = {"ks": "kernel_sizes", "e": "expand_ratios", "d": "depths"}
    native: dict[str, Any] = {
        key: [int(v) for v in row[name].split("_")] for key, name in lists.items()
    }
    return repr({**native, "r": int(row["resolution"])})


def fbnet_params(row: Row) -> int:
    """Closed formula for the CIFAR-100 variant of HW-NAS-Bench (arXiv 2103.10584), independent of
    the space's code.
    """
    kernels, expansions = (3, 3, 3, 3, 5, 5, 5, 5), (1, 1, 3, 6, 1, 1, 3, 6)
    stages = ((16, 1, 1), (24, 4, 1), (32, 4, 2), (64, 4, 2), (112, 4, 1), (184, 4, 2), (352, 1, 1))
    layers = [(width, 1 if i else stride) for width, count, stride in stages for i in range(count)]
    total, inputs = 3 * 9 * 16 + 2 * 16, 16
    for block, (width, stride) in zip(map(int, row["arch"].split("-")), layers, strict=True):
        if block < len(kernels):
            kernel, inner, groups = (
                kernels[block],
                inputs * expansions[block],
                2 if block in (1, 5) else 1,
            )
            total += inner * (inputs + width) // groups + inner * kernel**2 + 4 * inner + 2 * width
        elif inputs != width or stride != 1:
            total += inputs * width + 2 * width
        inputs = width
    return total + inputs * 1504 + 2 * 1504 + 1504 * 100 + 100


def tables() -> list[Table]:
    """All tables, with the spaces to check against them."""
    return [
        _nasbench201("cifar10", 10, 32),
        _nasbench201("cifar100", 100, 32),
        _nasbench201("imagenet16_120", 120, 16),
        Table(
            "nasbench101",
            "nasbench101.csv.gz",
            get_space("nasbench101"),
            lambda row: f'{{"matrix": {row["matrix"]}, "ops": {row["operations"]}}}',
            _column("params"),
            lambda row, graph: int(float(row["flops"])) == _nasbench101_flops(row, graph),
            "multiply-accumulates; per output: BatchNorm 2, ReLU 1, pooling its window",
        ),
        Table(
            "darts",
            "darts.csv.gz",
            get_space("darts", width=32, cells=8, affine=False),
            lambda row: row["genotype"],
            _column("params"),
            lambda row, graph: int(float(row["flops"])) == _darts_flops(row, graph),
            "multiply-accumulates; per output: BatchNorm 1 (affine: 2), ReLU 1, pooling 10; and "
            "41,472 (fitted)",
        ),
        Table(
            "ofa-mbv3",
            "ofa_mbv3_accuracy.csv.gz",
            get_space("ofa-mbv3"),
            _ofa_lists,
            _column("params"),
            lambda row, graph: int(float(row["macs"])) == graph_flops(graph),
            "multiply-accumulates",
        ),
        Table(
            "fbnet",
            "fbnet.csv.gz",
            get_space("fbnet"),
            lambda row: row["arch"],
            fbnet_params,
            None,
            "none published (params: closed formula of the skeleton)",
        ),
    ]


def _rows(file: str, most: int | None = None) -> Iterator[Row]:
    """Rows of a table, at most `most` of them."""
    folder = os.environ.get("NAS_DATA")
    if not folder:
        raise InputError(
            "set NAS_DATA to the folder with the published tables, such as nasbench201.csv.gz"
        )
    path = Path(folder, file)
    if not path.is_file():
        raise InputError(
            f"{path}: no such file; NAS_DATA must name the folder with the published tables"
        )
    with gzip.open(path, "rt") as lines:
        yield from islice(csv.DictReader(lines), most)


# --- comparison


def compare(
    table: Table, models: int, seed: int, progress: Progress | None = None, most: int | None = None
) -> Result:
    """Compare the rows of a table (at most `most`) by their graphs, and `models` random ones also
    by ONNX models.
    """
    rows = list(_rows(table.file, most))
    chosen = set(np.random.default_rng(seed).permutation(len(rows))[:models].tolist())
    equal, first = Counter[str](), ""
    for i, row in enumerate(rows):
        arch = table.space.parse(table.native(row))
        graph, published = table.space.graph(arch), table.params(row)
        same = {"params": graph_params(graph) == published}
        if table.flops:
            same["flops"] = table.flops(row, graph)
        if i in chosen:
            same["models"] = params(table.space.to_onnx(arch)) == published
        equal.update(name for name, is_same in same.items() if is_same)
        if not (first or all(same.values())):
            first = (
                f"{table.name}: {', '.join(n for n, s in same.items() if not s)} of "
                f"{table.space.format(arch)}"
            )
        if progress and i % 50 == 0:
            progress(table.name, i, len(rows))
    return Result(len(rows), equal["params"], equal["flops"], equal["models"], first)


def distinct_texts(most: int | None = None) -> tuple[int, int, bool]:
    """Numbers of distinct NAS-Bench-201 networks and of distinct texts, and whether they match one
    to one.

    most: check so many networks only; None for all.
    """
    space = get_space("nasbench201")
    texts: dict[str, set[str]] = defaultdict(set)
    for row in _rows("nasbench201_graph_classes.csv.gz", most):
        texts[row["graph_class"]].add(space.to_text(space.parse(row["arch"])))
    different = set[str]().union(*texts.values())
    return (
        len(texts),
        len(different),
        len(different) == len(texts) and all(len(found) == 1 for found in texts.values()),
    )


def main(
    models: Annotated[
        int, typer.Option(min=0, help="Random rows per table that are also counted in models.")
    ] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Seed of these rows.")] = 0,
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Compare with all tables. Exit status 1 if a row differs."""
    models, most = (1, 20) if quick else (models, None)
    report, wrong = [], []
    with progress_bar("exactness") as bar:
        for table in tables():
            result = compare(table, models, seed, bar, most)
            report.append(
                {
                    "table": table.name,
                    "rows": result.rows,
                    "params equal": _share(result.params, result.rows),
                    "FLOPs equal": _share(result.flops, result.rows) if table.flops else "-",
                    "models' params equal": _share(result.models, min(models, result.rows)),
                    "FLOPs": table.convention,
                }
            )
            wrong += [result.first] if result.first else []
        bar("texts of nasbench201", 0, 1)
        classes, texts, one_to_one = distinct_texts(most)
    if not one_to_one:
        wrong.append(
            f"nasbench201: {texts} texts are not one to one with {classes} different networks"
        )
    if as_json:
        print_json({"tables": report, "nasbench201_classes": classes, "nasbench201_texts": texts})
    else:
        print_table("Equal to the published tables", report)
        print(f"nasbench201: {texts} different texts, {classes} different networks")
    if wrong:
        sys.exit("\n".join(f"exactness: differs: {line}" for line in wrong))


def _share(equal: int, rows: int) -> str:
    return f"{100 * equal / rows:.4g} %" if rows else "-"


if __name__ == "__main__":
    run_command(main)
