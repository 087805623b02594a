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
        settings = [name.removesuffix(SPEEDS) for name in rows[0] if name.endswith(SPEEDS)]
        for setting in settings:
            if setting not in SETTINGS.values():
                values[f"{setting}_ms"] = _column(rows, f"{setting}{SPEEDS}")
        values["imagenet_top1_distilled_accuracy"] = _top1(rows, "in1k_distilled")
        values["imagenet_top1_extra_data_accuracy"] = _top1(rows, "extra_data")
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
    # 1. The source of each model, and its latencies by metric.
    sources: dict[str, str] = {}  # by model
    latencies: dict[str, dict[str, str]] = {}  # by metric, then by model
    for row in rows:
        model = row["model"]
        sources[model] = f"timm:{row['timm_name']}"
        if row["torchvision_name"]:
            sources[model] = f"torchvision:{row['torchvision_name']}"
        setting = f"{row['device']} {row['precision']} {row['runtime']} ms"
        words = setting.lower().replace("(", "").replace(")", "").split()
        latencies.setdefault("_".join(words), {})[model] = row["latency_ms"]

    # 2. A column for each metric of enough models.
    values = {}
    for name, of_models in latencies.items():
        if len(of_models) >= MIN_AIHUB_NETWORKS:
            values[name] = np.array([float(of_models.get(model) or "nan") for model in sources])
    networks = list(sources.values())
    return Zoo(networks, _texts(networks), np.array(list(sources)), values)


def _column(rows: list[dict[str, str]], name: str) -> np.ndarray:
    return np.array([float(row[name] or "nan") for row in rows])


def _texts(sources: list[str]) -> list[str]:
    texts = []
    with progress_bar("texts") as bar:
        for i, source in enumerate(sources):
            texts.append(network_text(source))
            bar("texts", i + 1, len(sources))
    return texts
