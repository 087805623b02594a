"""Real networks with published accuracies and latencies: the tables of `$NAS_DATA/zoo` as texts and
metrics.
"""

from __future__ import annotations

import csv
import gzip
import os
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nas.cli.progress import progress_bar
from nas.networks import network_text
from search_spaces.common.errors import InputError

TOP1 = "imagenet_top1_accuracy"
SPEEDS = "_ms_per_image"  # suffix of the table's latency columns
# One setting per device; GPUs with the largest batch that fits, CPUs with one image at a time
SETTINGS = {
    "rtx3090_ms": "rtx3090_amp_nchw_eager",
    "rtx4090_ms": "rtx4090_amp_nchw_eager",
    "rtx5090_ms": "rtx5090_amp_nchw_eager",
    "pro6000_ms": "pro6000_amp_nchw_dynamo",
    "i9_10940x_ms": "i9_10940x_fp32_nchw_dynamo",
    "i7_12700h_ms": "i7_12700h_fp32_nchw_dynamo",
}
MIN_AIHUB_NETWORKS = 10


class Zoo(NamedTuple):
    """n networks: sources, compact texts, families, and values (n,) per metric.

    Values are NaN where not measured.
    """

    sources: list[str]
    texts: list[str]
    families: np.ndarray
    values: dict[str, np.ndarray]


def zoo_rows(name: str) -> list[dict[str, str]]:
    """Rows of the table `$NAS_DATA/zoo/NAME.csv.gz`. Raises InputError if it does not exist."""
    folder = os.environ.get("NAS_DATA")
    path = Path(folder or "") / "zoo" / f"{name}.csv.gz"
    if not folder or not path.is_file():
        raise InputError(
            f"{path}: no such file; set NAS_DATA to the folder that holds zoo/{name}.csv.gz"
        )
    with gzip.open(path, "rt", newline="") as file:
        return list(csv.DictReader(file))


def timm_source(row: dict[str, str]) -> str:
    """The source (`timm:NAME@SIZE`) of a row of timm.csv.gz."""
    return (
        f"timm:{row['architecture']}@{row['img_size']}"
        if row["img_size"]
        else f"timm:{row['architecture']}"
    )


@lru_cache(maxsize=2)
def timm_zoo(every: int = 1, everything: bool = False) -> Zoo:
    """Networks of timm, with top-1 and latencies on six devices.

    The top-1 is that of weights trained on ImageNet-1k alone.

    Args:
        every: read every so many-th architecture only.
        everything: add the latencies in other settings, and top-1 of weights trained with a teacher
            or more data.
    """
    rows = zoo_rows("timm")[::every]
    sources = [timm_source(row) for row in rows]
    values = {name: _column(rows, f"{setting}{SPEEDS}") for name, setting in SETTINGS.items()}
    values[TOP1] = _top1(rows, "in1k")
    if everything:
        others = [name.removesuffix(SPEEDS) for name in rows[0] if name.endswith(SPEEDS)]
        values |= {
            f"{s}_ms": _column(rows, f"{s}{SPEEDS}") for s in others if s not in SETTINGS.values()
        }
        for kind in ("distilled", "extra_data"):
            values[f"imagenet_top1_{kind}_accuracy"] = _top1(
                rows, "extra_data" if kind == "extra_data" else f"in1k_{kind}"
            )
    families = np.array([row["family"] for row in rows])
    return Zoo(sources, _texts(sources), families, values)


def _top1(rows: list[dict[str, str]], trained_on: str) -> np.ndarray:
    here = np.array([row["trained_on"] == trained_on for row in rows])
    return np.where(here, _column(rows, "imagenet_top1"), np.nan)


def aihub_zoo() -> Zoo:
    """Image networks of AI Hub that torchvision or timm have, with their latencies.

    Each model is its own family. There is one metric for each device, precision and runtime with at
    least `MIN_AIHUB_NETWORKS` measured networks.
    """
    rows = [row for row in zoo_rows("aihub") if row["torchvision_name"] or row["timm_name"]]
    place = {model: i for i, model in enumerate(dict.fromkeys(row["model"] for row in rows))}
    sources = [""] * len(place)
    cells: dict[str, dict[int, str]] = {}
    for row in rows:
        at = place[row["model"]]
        sources[at] = (
            f"torchvision:{row['torchvision_name']}"
            if row["torchvision_name"]
            else f"timm:{row['timm_name']}"
        )
        name = f"{row['device']} {row['precision']} {row['runtime']} ms"
        cells.setdefault("_".join(name.lower().replace("(", "").replace(")", "").split()), {})[
            at
        ] = row["latency_ms"]
    values = {}
    for name, latencies in cells.items():
        if len(latencies) >= MIN_AIHUB_NETWORKS:
            values[name] = np.array([float(latencies.get(i) or "nan") for i in range(len(place))])
    return Zoo(sources, _texts(sources), np.array(list(place)), values)


def _column(rows: list[dict[str, str]], name: str) -> np.ndarray:
    return np.array([float(row[name] or "nan") for row in rows])


def _texts(sources: list[str]) -> list[str]:
    texts = []
    with progress_bar("texts") as bar:
        for i, source in enumerate(sources):
            texts.append(network_text(source))
            bar("texts", i + 1, len(sources))
    return texts
