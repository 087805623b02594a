"""Tables of measured networks, one per family: populations that come with the project, and tables
of `$NAS_DATA`.
"""

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

from experiments import own_families
from search_spaces import get_space

if TYPE_CHECKING:
    from search_spaces import Architecture

POPULATIONS = tuple(
    f"digits-{n}" for n in ("fbnet", "nasbench101", "nasnet", "amoeba", "pnas", "enas", "darts")
)
TABLES = ("nasbench201", "darts", "ofa_mbv3_accuracy", "nasbench101")  # files of $NAS_DATA
OWN = tuple(own_families.POPULATIONS)  # trained by `experiments.own_families`
FAMILIES = {
    "accuracy": (*POPULATIONS, *TABLES, *OWN),
    "latency": (*POPULATIONS, "nasbench201", *OWN),
}
MEASURED = {"accuracy": "digits_accuracy", "latency": "cpu_latency_ms"}  # columns of our own tables
NASBENCH201_DEVICE = "raspi4_latency_ms"


class Labelled(NamedTuple):
    """n architectures, their texts, and values (n,) of one metric."""

    architectures: Sequence[Architecture]
    texts: list[str]
    values: np.ndarray


def available(metric: str) -> list[str]:
    """The families whose tables are on this machine."""
    there = dict.fromkeys(TABLES, "NAS_DATA" in os.environ) | {
        own: own_families.table(own).exists() for own in OWN
    }
    return [family for family in FAMILIES[metric] if there.get(family, True)]


@lru_cache(maxsize=2)
def labelled(family: str, metric: str) -> Labelled:
    """A family's networks with their accuracies, or their latencies on one device ("latency")."""
    from nas.benchmarks import load_benchmark

    if family not in TABLES or metric == "latency":
        table = own_families.load(family) if family in OWN else load_benchmark(family)
        column = NASBENCH201_DEVICE if family in TABLES else MEASURED[metric]
        return Labelled(table.architectures, table.load_texts(), table.values(column))
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
        matrix = json.loads(row["matrix"])
        operations = json.loads(row["operations"])
        return space.parse(json.dumps({"matrix": matrix, "ops": operations}))

    return space, parse, "cifar10_validation_accuracy"


def _darts() -> Reader:
    space = get_space("darts", width=32, cells=8)
    return space, lambda row: space.parse(row["genotype"]), "surrogate_cifar10_validation_accuracy"


def _once_for_all() -> Reader:
    space = get_space("ofa-mbv3")

    def parse(row: dict[str, str]) -> Architecture:
        def integers(column: str) -> list[int]:
            return [int(number) for number in row[column].split("_")]

        native = {
            "ks": integers("kernel_sizes"),
            "e": integers("expand_ratios"),
            "d": integers("depths"),
            "r": int(row["resolution"]),
        }
        return space.parse(str(native))

    return space, parse, "imagenet_top1_accuracy"


_READERS: dict[str, Callable[[], Reader]] = {
    "nasbench201": _nasbench201,
    "nasbench101": _nasbench101,
    "darts": _darts,
    "ofa_mbv3_accuracy": _once_for_all,
}
