"""Tables of measured networks, a family each: our populations, and those of `$NAS_DATA`."""

from __future__ import annotations

import csv
import gzip
import json
import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from search_spaces import get_space

if TYPE_CHECKING:
    from search_spaces import Architecture

POPULATIONS = tuple(f"digits-{n}" for n in ("fbnet", "nasbench101", "nasnet", "amoeba", "pnas", "enas", "darts"))
TABLES = ("nasbench201", "darts", "ofa_mbv3_accuracy", "nasbench101")  # files of $NAS_DATA
FAMILIES = {"accuracy": (*POPULATIONS, *TABLES), "latency": (*POPULATIONS, "nasbench201")}  # that have the metric
NASBENCH201_DEVICE = "raspi4_latency_ms"


class Labelled(NamedTuple):
    """n architectures, their texts, and values (n,) of one metric."""

    architectures: Sequence[Architecture]
    texts: list[str]
    values: np.ndarray


@lru_cache(maxsize=2)
def labelled(family: str, metric: str) -> Labelled:
    """One family's table of accuracies, or of latencies on one device; networks without a value are left out."""
    from nas.benchmarks import load_benchmark

    if family in POPULATIONS or metric == "latency":
        table = load_benchmark(family)
        own = {"accuracy": "digits_accuracy", "latency": "cpu_latency_ms"} if family in POPULATIONS else {}
        return Labelled(table.architectures, table.load_texts(), table.values(own.get(metric, NASBENCH201_DEVICE)))
    rows = _rows(family)
    space, parse, column = _READERS[family]()
    architectures = [parse(row) for row in rows]
    texts = [space.to_text(architecture) for architecture in architectures]
    return Labelled(architectures, texts, np.array([float(row[column]) for row in rows]))


def _rows(family: str) -> list[dict[str, str]]:
    with gzip.open(Path(os.environ["NAS_DATA"]) / f"{family}.csv.gz", "rt") as file:
        rows = list(csv.DictReader(file))
    return [rows[i] for i in np.random.default_rng(0).permutation(len(rows))[:3000]]


Reader = tuple[Any, Callable[[dict[str, str]], "Architecture"], str]


def _nasbench201() -> Reader:
    space = get_space("nasbench201")
    return space, lambda row: space.parse(row["arch"]), "cifar10_validation_accuracy"


def _nasbench101() -> Reader:
    space = get_space("nasbench101")

    def parse(row: dict[str, str]) -> Architecture:
        return space.parse(json.dumps({"matrix": json.loads(row["matrix"]), "ops": json.loads(row["operations"])}))

    return space, parse, "cifar10_validation_accuracy"


def _darts() -> Reader:
    space = get_space("darts", width=32, cells=8)
    return space, lambda row: space.parse(row["genotype"]), "surrogate_cifar10_validation_accuracy"


def _once_for_all() -> Reader:
    space = get_space("ofa-mbv3")

    def parse(row: dict[str, str]) -> Architecture:
        lists = {"ks": "kernel_sizes", "e": "expand_ratios", "d": "depths"}
        native: dict[str, Any] = {k: [int(v) for v in row[name].split("_")] for k, name in lists.items()}
        return space.parse(str({**native, "r": int(row["resolution"])}))

    return space, parse, "imagenet_top1_accuracy"


_READERS: dict[str, Callable[[], Reader]] = {
    "nasbench201": _nasbench201,
    "nasbench101": _nasbench101,
    "darts": _darts,
    "ofa_mbv3_accuracy": _once_for_all,
}
