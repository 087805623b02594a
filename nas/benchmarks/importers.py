"""Reading the field's official files into the NAS-Bench-201 table, without executing what their pickles say."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nas.benchmarks.loading import update_nasbench201
from nas.benchmarks.restricted_pickle import load_pickle, load_torch_file
from nas.benchmarks.table import Benchmark, Header, Progress, Table, canonical
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    from nas_201_api import ArchResults

HWNASBENCH_DEVICES = ("edgegpu", "raspi4", "edgetpu", "pixel3", "eyeriss", "fpga")
HWNASBENCH_UNITS = {"latency": "ms", "energy": "mj"}


def import_file(path: str | Path, progress: Progress | None = None) -> Benchmark:
    """Merge an official file into the cached nasbench201 table, by architecture; its values replace those there before.

    `NAS-Bench-201-v1_*.pth` brings accuracies, params, FLOPs and the authors' own latencies (see `read_nasbench201`),
    `HW-NAS-Bench-v1_0.pickle` latencies and energies of six devices (see `read_hwnasbench`). A file that is damaged, of
    another format, or that names anything but plain data is refused with an InputError and executes nothing.

    Note that `load_benchmark("nasbench201")` prefers a table in NAS_DATA to the cached one.
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
    """`<device>_latency_ms` and `<device>_energy_mj` of the CIFAR-10 networks; lower is better.

    The file is {"nasbench201": {"cifar10": {"edgegpu_latency": (n), "config": [{"arch_str": …}, …], …}, …}, …}.
    """
    contents = load_pickle(path)
    try:
        measured = contents["nasbench201"]["cifar10"]
        archs = [config["arch_str"] for config in measured["config"]]
        columns = {
            f"{device}_{quantity}_{unit}": _column(path, measured[f"{device}_{quantity}"], len(archs))
            for device in HWNASBENCH_DEVICES
            for quantity, unit in HWNASBENCH_UNITS.items()
            if f"{device}_{quantity}" in measured
        }
    except (KeyError, TypeError, IndexError) as error:
        raise InputError(f"{path}: not laid out as HW-NAS-Bench v1.0 is ({error!r} is missing)") from error
    if progress:
        progress("architectures", len(archs), len(archs))
    return _table(path, archs, columns)


def read_nasbench201(path: Path, progress: Progress | None = None) -> Table:
    """The official file's results at the end of training, mean over seeds.

    Accuracies in % after 200 epochs: CIFAR-10 in the "cifar10-valid" setting (trained on 25,000 images), CIFAR-100 and
    ImageNet16-120 on their validation and test halves; the same after 12 epochs (`…_12epochs`), where the CIFAR-10 test
    accuracy is of training on all 50,000 images. Params and FLOPs as counts. `…_batch256_latency_ms`: the authors'
    latency of a batch of 256 on their GPU. What a network was not trained on is NaN. The whole file is held in memory:
    the 4.7 GB of v1.1 need about 28 GB.
    """
    from nas_201_api import ArchResults

    contents = load_torch_file(path)
    rows, archs = [], []
    try:
        infos, indexes = contents["arch2infos"], sorted(contents["evaluated_indexes"])
        for done, index in enumerate(indexes, start=1):
            # dict(): given a string, the package would take it for a path and load that file
            full = ArchResults.create_from_state_dict(dict(infos[index]["full"]))
            less = ArchResults.create_from_state_dict(dict(infos[index]["less"]))
            archs.append(contents["meta_archs"][index])
            rows.append(_results(full, less))
            if progress:
                progress("architectures", done, len(indexes))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, AssertionError) as error:
        raise InputError(f"{path}: not laid out as NAS-Bench-201's official file is ({error!r})") from error
    if not rows:
        raise InputError(f"{path}: holds no evaluated architecture")
    columns = {name: _column(path, [row[name] for row in rows], len(rows)) for name in rows[0]}
    return _table(path, archs, columns)


def _results(full: ArchResults, less: ArchResults) -> dict[str, float]:
    """One architecture's metrics from its 200-epoch and its 12-epoch trials."""
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
        row[f"{name}_params"] = _scaled(costs.get("params"), 1e6)  # from millions, six decimals
        row[f"{name}_flops"] = _scaled(costs.get("flops"), 1e6)
        row[f"{name}_batch256_latency_ms"] = costs["latency"] * 1e3 if costs.get("latency") else np.nan  # from seconds
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
        raise InputError(f"{path}: holds values that are not numbers") from error
    if column.shape != (rows,):
        raise InputError(f"{path}: a column has shape {column.shape} for {rows} architectures")
    return column


def _table(path: Path, archs: list[str], columns: dict[str, np.ndarray]) -> Table:
    with path.open("rb") as stream:
        checksum = hashlib.file_digest(stream, "sha256").hexdigest()
    header = Header("nasbench201", "nasbench201", sources=[{"from": path.name, "sha256": checksum}])
    return Table(header, canonical(header.open_space(), archs, lambda i: f"{path}, architecture {i}"), columns)
