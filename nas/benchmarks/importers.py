"""Imports official files of NAS-Bench-201 and HW-NAS-Bench without executing code in their
pickles.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nas.benchmarks.loading import update_nasbench201
from nas.benchmarks.restricted_pickle import load_pickle, load_torch_file
from nas.benchmarks.table import Benchmark, Header, Table, canonical
from search_spaces.common.errors import InputError
from search_spaces.common.progress import Progress

if TYPE_CHECKING:
    from nas_201_api import ArchResults

HWNASBENCH_DEVICES = ("edgegpu", "raspi4", "edgetpu", "pixel3", "eyeriss", "fpga")
HWNASBENCH_UNITS = {"latency": "ms", "energy": "mj"}


def import_file(path: str | Path, progress: Progress | None = None) -> Benchmark:
    """Merge an official file into the cached nasbench201 table. New values replace old ones.

    `NAS-Bench-201-v1_*.pth` holds accuracies, parameters, FLOPs and latencies on the authors' GPU
    (see `read_nasbench201`). `HW-NAS-Bench-v1_0.pickle` holds latencies and energies of six devices
    (see `read_hwnasbench`). `load_benchmark("nasbench201")` prefers a table in `NAS_DATA` to the
    cached one.

    Args:
        path: the file.
        progress: called with ("architectures", done, total).

    Returns:
        The updated table.

    Raises:
        InputError: the file is damaged, has another format, or refers to anything but plain data.
    """
    path = Path(path)
    readers: dict[str, Callable[[Path, Progress | None], Table]] = {
        ".pth": read_nasbench201,
        ".pickle": read_hwnasbench,
        ".pkl": read_hwnasbench,
    }
    if path.suffix not in readers:
        raise InputError(f"{path}: not a NAS-Bench-201 .pth or a HW-NAS-Bench .pickle file")
    return update_nasbench201(readers[path.suffix](path, progress))


def read_hwnasbench(path: Path, progress: Progress | None = None) -> Table:
    """Read `<device>_latency_ms` and `<device>_energy_mj` of the CIFAR-10 networks.

    Paper: arXiv 2103.10584.

    Layout of the file: {"nasbench201": {"cifar10": {"edgegpu_latency": (n), "config": [{"arch_str":
        …}, …], …}, …}, …}.
    """
    contents = load_pickle(path)
    try:
        measured = contents["nasbench201"]["cifar10"]
        archs = [config["arch_str"] for config in measured["config"]]
        columns = {
            f"{device}_{quantity}_{unit}": _column(
                path, measured[f"{device}_{quantity}"], len(archs)
            )
            for device in HWNASBENCH_DEVICES
            for quantity, unit in HWNASBENCH_UNITS.items()
            if f"{device}_{quantity}" in measured
        }
    except (KeyError, TypeError, IndexError) as error:
        raise InputError(
            f"{path}: not in the layout of HW-NAS-Bench v1.0 ({error!r} is missing)"
        ) from error
    if progress:
        progress("architectures", len(archs), len(archs))
    return _table(path, archs, columns)


def read_nasbench201(path: Path, progress: Progress | None = None) -> Table:
    """Read the final results of the official file (arXiv 2001.00326), averaged over seeds.

    Columns:

    - accuracies in % after 200 epochs: CIFAR-10 in the "cifar10-valid" setting (trained on 25,000
      images), CIFAR-100 and ImageNet16-120 on their validation and test halves;
    - `…_12epochs`: the same after 12 epochs, but CIFAR-10 test accuracy after training on all
      50,000 images;
    - `…_params` and `…_flops`: counts;
    - `…_batch256_latency_ms`: latency of a batch of 256 on the authors' GPU.

    A network that was not trained on a data set has NaN there. The whole file is held in memory:
    v1.1 has 4.7 GB and needs about 28 GB.
    """
    from nas_201_api import ArchResults

    contents = load_torch_file(path)
    rows, archs = [], []
    try:
        infos = contents["arch2infos"]
        indexes = sorted(contents["evaluated_indexes"])
        for done, index in enumerate(indexes, start=1):
            # dict(), because the package would load a string as a path.
            full = ArchResults.create_from_state_dict(dict(infos[index]["full"]))
            less = ArchResults.create_from_state_dict(dict(infos[index]["less"]))
            archs.append(contents["meta_archs"][index])
            rows.append(_results(full, less))
            if progress:
                progress("architectures", done, len(indexes))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, AssertionError) as error:
        raise InputError(
            f"{path}: not in the layout of NAS-Bench-201's official file ({error!r})"
        ) from error
    if not rows:
        raise InputError(f"{path}: has no evaluated architecture")
    columns = {name: _column(path, [row[name] for row in rows], len(rows)) for name in rows[0]}
    return _table(path, archs, columns)


def _results(full: ArchResults, less: ArchResults) -> dict[str, float]:
    """Metrics of one architecture from its 200-epoch and 12-epoch trials."""
    row: dict[str, float] = {}
    for name, dataset, test_dataset_12epochs, test_set in (
        ("cifar10", "cifar10-valid", "cifar10", "ori-test"),
        ("cifar100", "cifar100", "cifar100", "x-test"),
        ("imagenet16_120", "ImageNet16-120", "ImageNet16-120", "x-test"),
    ):
        row[f"{name}_validation_accuracy"] = _accuracy(full, dataset, "x-valid")
        row[f"{name}_test_accuracy"] = _accuracy(full, dataset, test_set)
        row[f"{name}_validation_accuracy_12epochs"] = _accuracy(less, dataset, "x-valid")
        row[f"{name}_test_accuracy_12epochs"] = _accuracy(less, test_dataset_12epochs, test_set)
        costs = full.get_compute_costs(dataset) if dataset in full.dataset_seed else {}
        row[f"{name}_params"] = _scaled(costs.get("params"), 1e6)  # from millions with six decimals
        row[f"{name}_flops"] = _scaled(costs.get("flops"), 1e6)
        # From seconds
        row[f"{name}_batch256_latency_ms"] = (
            costs["latency"] * 1e3 if costs.get("latency") else np.nan
        )
    return row


def _accuracy(results: ArchResults, dataset: str, subset: str) -> float:
    if dataset not in results.dataset_seed:
        return np.nan
    trials = results.query(dataset).values()
    if not all(subset in trial.get_eval_set() for trial in trials):
        return np.nan
    return float(results.get_metrics(dataset, subset, is_random=False)["accuracy"])


def _scaled(count: float | None, unit: float) -> float:
    return np.nan if count is None else float(round(count * unit))


def _column(path: Path, values: Any, rows: int) -> np.ndarray:
    """Values (n) as float64 (n,)."""
    try:
        column = np.array(values, np.float64)
    except (OverflowError, TypeError, ValueError) as error:
        raise InputError(f"{path}: a value is not a number") from error
    if column.shape != (rows,):
        raise InputError(f"{path}: a column has shape {column.shape} for {rows} architectures")
    return column


def _table(path: Path, archs: list[str], columns: dict[str, np.ndarray]) -> Table:
    with path.open("rb") as stream:
        checksum = hashlib.file_digest(stream, "sha256").hexdigest()
    header = Header("nasbench201", "nasbench201", sources=[{"from": path.name, "sha256": checksum}])
    return Table(
        header,
        canonical(header.open_space(), archs, lambda i: f"{path}, architecture {i}"),
        columns,
    )
