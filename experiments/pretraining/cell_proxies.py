"""NAS-Bench-201's table with zero-cost proxies of every cell: `python -m experiments.pretraining.cell_proxies`.

Proxies need no training and no device: they may be given to a predictor of all architectures, as

    nas compare --benchmark results/proxies/nasbench201-proxies.csv --given params,flops,nwot,jacov …

does. A tenth of a second for each of the 6,040 distinct cells; an interrupted run goes on where it was. Where a proxy
is undefined, as where the output does not depend on the input, the table has the lowest value of all.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from experiments.runner import Quick, run_command
from nas.cli.console import progress_bar
from search_spaces.common.errors import InputError
from search_spaces.common.files import replacing

QUICK_MOST = 20


def write_table(benchmark: str, out: Path, quick: bool = False) -> Path:
    """Compute the proxies of every distinct cell of a table, `quick`: of its first 20 rows, and write it with them."""
    from experiments.pretraining.corpus import CELLS, PROXIES, cell_proxies
    from nas.benchmarks import load_benchmark

    table = load_benchmark(benchmark)
    if table.space.name != CELLS:
        raise InputError(f"{benchmark} is a table of {table.space.name}; its cells are not those of {CELLS}")
    most = QUICK_MOST if quick else len(table)
    with progress_bar("proxies") as bar:
        known = cell_proxies(table.architectures[:most], out, progress=bar)
    metrics = [metric for metric in table.metrics if metric not in PROXIES]
    columns = [table.values(metric) for metric in metrics]
    path = out / f"{table.name}-proxies.csv"
    with replacing(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["arch", *metrics, *PROXIES])
        lowest = _lowest(known.values(), PROXIES)
        for i, arch in enumerate(table.architectures[:most]):
            values = [column[i] for column in columns] + [known[arch].get(proxy, lowest[proxy]) for proxy in PROXIES]
            writer.writerow([table.notations[i], *("" if np.isnan(value) else f"{value:.9g}" for value in values)])
    return path


def _lowest(rows: Collection[dict[str, float]], proxies: Sequence[str]) -> dict[str, float]:
    values = {proxy: [row[proxy] for row in rows if proxy in row] for proxy in proxies}
    return {proxy: min(found, default=np.nan) for proxy, found in values.items()}


def main(
    benchmark: Annotated[str, typer.Option(help="A table of NAS-Bench-201's architectures.")] = "nasbench201",
    out: Annotated[Path, typer.Option(help="Folder for the table and the proxies.")] = Path("results/proxies"),
    quick: Quick = False,
) -> None:
    """Compute the proxies of every distinct cell and write the table beside them."""
    print(write_table(benchmark, out, quick))


if __name__ == "__main__":
    run_command(main)
