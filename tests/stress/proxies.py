"""Rank agreement of our zero-cost proxies with published ones.

Run `python -m tests.stress.proxies`.

The reference is NASLib's values for 1,104 NAS-Bench-201 architectures (NAS-Bench-Suite-Zero, arXiv
2210.03230), from one initialization and one batch of 32 CIFAR-10 images each. They are columns
zc_PROXY, beside arch, in `$NAS_DATA/nasbench201_proxies.csv.gz`. Our proxies use synthetic images.
Since proxies depend on the random initialization, the agreement between two initializations of ours
is an approximate upper bound.
"""

from __future__ import annotations

import csv
import gzip
import math
import os
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from experiments.runner import AsJson, Quick, run_command
from nas.cli.console import print_json, print_table
from nas.cli.progress import progress_bar
from search_spaces import get_space
from search_spaces.common.errors import InputError
from search_spaces.common.progress import Progress

TABLE = "nasbench201_proxies.csv.gz"
MISSING = -1e8  # NASLib's value for an undefined proxy


def main(
    rows: Annotated[int, typer.Option(min=2, help="Random rows of the reference table.")] = 200,
    seed: Annotated[int, typer.Option(help="Seed of rows, weights and images.")] = 0,
    skip: Annotated[int, typer.Option(min=0, help="Skip so many of the random rows.")] = 0,
    batch: Annotated[int, typer.Option(min=2, help="Images per batch.")] = 32,
    size: Annotated[int, typer.Option(min=8, help="Height and width of an image in pixels.")] = 32,
    proxy: Annotated[
        list[str] | None, typer.Option(help="Only this proxy; may be repeated. All by default.")
    ] = None,
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Print Kendall's tau and Spearman's rho per proxy, and processor seconds per network and
    initialization.
    """
    import torch

    if quick:
        rows, batch, size = 5, 8, 16
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    archs, reference = read_reference(_path())
    names = tuple(proxy or reference)
    for name in names:
        if name not in reference:
            raise InputError(f"{TABLE} has no proxy {name}; it has {', '.join(reference)}")
    chosen = np.random.default_rng(seed).permutation(len(archs))[skip : skip + rows]
    if len(chosen) < rows:
        raise InputError(f"{TABLE} has {len(archs)} rows: {rows} after {skip} are too many")
    with progress_bar("proxies") as bar:
        own, seconds = _own([archs[i] for i in chosen], names, (seed, seed + 1), batch, size, bar)
    table = [{"proxy": name, **agreement(own[name], reference[name][chosen])} for name in names]
    if as_json:
        print_json(
            {
                "rows": rows,
                "batch": batch,
                "size": size,
                "seconds_per_network": seconds,
                "proxies": table,
            }
        )
    else:
        print_table(f"{rows} architectures, batches of {batch}, {seconds:.2f} s per network", table)


def _path() -> Path:
    folder = os.environ.get("NAS_DATA")
    if not folder or not Path(folder, TABLE).is_file():
        raise InputError(f"set NAS_DATA to a folder with {TABLE}")
    return Path(folder, TABLE)


def read_reference(path: Path) -> tuple[list[str], dict[str, np.ndarray]]:
    """The n architectures and, by proxy, reference values (n,), NaN if missing or undefined."""
    with gzip.open(path, "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    names = [name for name in rows[0] if name.startswith("zc_")] if rows else []
    if not names or "arch" not in rows[0]:
        raise InputError(f"{path}: no columns arch and zc_PROXY")
    columns = {
        name.removeprefix("zc_"): np.array([_value(row[name]) for row in rows]) for name in names
    }
    return [row["arch"] for row in rows], columns


def _value(cell: str) -> float:
    value = float(cell or "nan")
    return value if math.isfinite(value) and value != MISSING else math.nan


def _own(
    archs: list[str],
    names: tuple[str, ...],
    seeds: tuple[int, int],
    batch: int,
    size: int,
    progress: Progress,
) -> tuple[dict[str, np.ndarray], float]:
    """By proxy, our values (2, n) of two initializations; and processor seconds per network and
    initialization.
    """
    from nas.evaluation.proxies import compute_proxies

    space = get_space("nasbench201", input_shape=(3, size, size))
    values = np.empty((len(names), 2, len(archs)))
    started = time.process_time()
    for i, arch in enumerate(archs):
        graph = space.graph(space.parse(arch))
        for j, seed in enumerate(seeds):
            scores = compute_proxies(graph, seed, names, batch)
            values[:, j, i] = [scores[name] for name in names]
        progress("", i + 1, len(archs))
    seconds = (time.process_time() - started) / (2 * len(archs))
    return dict(zip(names, values, strict=True)), seconds


def agreement(own: np.ndarray, reference: np.ndarray) -> dict[str, Any]:
    """Rank correlations of two initializations of ours (2, n) with the reference (n,), over defined
    values.

    Returns:
        tau and rho of the first, tau of the second, tau of both together, and tau between the two
        (`tau_own`).
    """
    from scipy.stats import kendalltau, spearmanr

    defined = np.isfinite(own).all(0) & np.isfinite(reference)
    (first, second), reference = own[:, defined], reference[defined]

    def tau(a: np.ndarray, b: np.ndarray) -> float:
        return float(kendalltau(a, b).statistic)

    return {
        "n": int(defined.sum()),
        "tau": tau(first, reference),
        "rho": float(spearmanr(first, reference).statistic),
        "tau_second": tau(second, reference),
        "tau_mean": tau(first + second, reference),
        "tau_own": tau(first, second),
    }


if __name__ == "__main__":
    run_command(main)
