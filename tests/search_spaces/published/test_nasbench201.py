"""NAS-Bench-201 exactly as published: parameters, FLOPs, distinct networks."""

from __future__ import annotations

import csv
import gzip
import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from nas import load_benchmark
from search_spaces import InputError, get_space
from search_spaces.ir.costs import graph_flops, graph_params
from search_spaces.ir.text import compact, expand, read, write

needs_table = pytest.mark.skipif(
    not (
        os.environ.get("NAS_DATA") and Path(os.environ["NAS_DATA"], "nasbench201.csv.gz").exists()
    ),
    reason="the real NAS-Bench-201 table is not there: set NAS_DATA to a folder with "
    "nasbench201.csv.gz",
)


@cache
def _rows(name: str) -> list[dict[str, str]]:
    with gzip.open(Path(os.environ["NAS_DATA"], name), "rt") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
@needs_table
@pytest.mark.parametrize(
    ("data_set", "classes", "size", "every"),
    [
        ("cifar10", 10, 32, 20),  # every twentieth network
        ("cifar10", 10, 32, 1),
        ("cifar100", 100, 32, 1),
        ("imagenet16_120", 120, 16, 1),
    ],
)
def test_costs_of_networks_equal_the_table(
    data_set: str, classes: int, size: int, every: int
) -> None:
    """FLOPs convention of the table: multiply-accumulates, and one addition per class for the
    classifier's bias.
    """
    space = get_space("nasbench201", num_classes=classes, input_shape=(3, size, size))
    wrong = []
    for row in _rows("nasbench201.csv.gz")[::every]:
        graph = space.graph(space.parse(row["arch"]))
        costs = (graph_params(graph), graph_flops(graph) + classes)
        if costs != (float(row[f"{data_set}_params"]), float(row[f"{data_set}_flops"])):
            wrong.append(row["arch"])
    assert not wrong


@needs_table
def test_texts_are_one_to_one_with_the_distinct_networks() -> None:
    table = load_benchmark("nasbench201")  # its texts are written once for all tests
    texts = dict(zip(table.architectures, table.load_texts(), strict=True))
    classes: dict[str, set[str]] = {}
    for row in _rows("nasbench201_graph_classes.csv.gz"):
        classes.setdefault(texts[table.space.parse(row["arch"])], set()).add(row["graph_class"])
    assert len(classes) == 7360
    assert all(len(found) == 1 for found in classes.values())
    assert len({next(iter(found)) for found in classes.values()}) == 7360


@pytest.mark.slow
def test_pruned_networks_are_6040() -> None:
    space = get_space("nasbench201", channels=4, cells=1, prune=True)
    graphs = {space.graph(arch) for arch in space.enumerate()}
    texts = {write(compact(graph)) for graph in graphs}
    assert len(texts) == 6040
    for text in sorted(texts)[::20]:
        assert write(compact(expand(read(text)))) == text


def test_official_notation_is_read_and_written() -> None:
    space, rng = get_space("nasbench201"), np.random.default_rng(0)
    for _ in range(50):
        arch = space.sample(rng)
        assert space.parse(space.format(arch)) == arch
    first = "|avg_pool_3x3~0|+|nor_conv_1x1~0|skip_connect~1|+|nor_conv_1x1~0|skip_connect~1|skip_connect~2|"
    assert space.params(space.parse(first)) == 129306


@pytest.mark.parametrize(
    ("native", "message"),
    [
        ("", "not a NAS-Bench-201 architecture"),
        ("|none~0|+|none~0|none~1|", "3 of 6 edges"),
        ("|none~0|+|none~0|none~2|+|none~0|none~1|none~2|", "at 'none~2'"),
        ("|none~0|+|none~0|none~0|+|none~0|none~1|none~2|", "5 of 6 edges"),
        ("|conv_3x3~0|+|none~0|none~1|+|none~0|none~1|none~2|", "did you mean 'nor_conv_3x3'"),
    ],
)
def test_wrong_notation_is_refused(native: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        get_space("nasbench201").parse(native)
