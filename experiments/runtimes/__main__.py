"""Networks × runtimes on this machine: `python -m experiments.runtimes OUT`.

The table of latencies in `OUT` is continued: `python -m experiments.runtimes OUT --networks 0`
leaves it as it is. Then each runtime in turn is the new one, of which few measurements are known
(`experiments.runtimes.study`). The table shows means over all runtimes that are new in turn, and
seeds.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from experiments.runner import AsJson, FirstSeed, Jobs, Quick, Seeds, run_command
from experiments.runtimes.measuring import BASE, INT8, INT8_RUNTIMES, measure_table, read_table
from experiments.runtimes.study import COUNTS, METHODS, TARGETS, score
from experiments.tables import Scores, chosen, compute
from nas.cli.console import print_json, print_table
from nas.cli.progress import progress_bar
from nas.evaluation.runtimes import RUNTIMES
from search_spaces.common.files import replacing

INSTALLED = [BASE, *(name for name, runtime in RUNTIMES.items() if runtime.is_installed)]
# Only if they are named: the compiler takes half a minute for each network, and files in 8-bit
# integers are another question.
COLUMNS = [*INSTALLED, *(f"{name}{INT8}" for name in INT8_RUNTIMES if name in INSTALLED)]
MEASURED = [name for name in INSTALLED if name != "torch_compile"]
AVAILABLE = [name for name in METHODS if name != "gp" or find_spec("botorch")]
QUICK_NETWORKS, QUICK_RUNTIMES, QUICK_METHODS = 30, 3, ("regression", "log-linear")


def main(
    out: Annotated[Path, typer.Argument(help="Folder of the measurements, which are continued.")],
    networks: Annotated[
        int, typer.Option(min=0, help="Networks of the table; 0 measures nothing.")
    ] = 300,
    only: Annotated[str, typer.Option(help="Runtimes, separated by commas.")] = ",".join(MEASURED),
    methods: Annotated[str, typer.Option(help="Methods, separated by commas.")] = ",".join(
        AVAILABLE
    ),
    new: Annotated[
        str, typer.Option(help="Runtimes that are the new one in turn; all by default.")
    ] = "",
    seeds: Seeds = 10,
    first_seed: FirstSeed = 0,
    jobs: Jobs = 1,
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Measure the table, then judge predictions of each runtime from few measurements."""
    runtimes = chosen(only, COLUMNS)
    names = chosen(methods, METHODS)
    if quick:
        networks = min(networks, QUICK_NETWORKS)
        seeds = 1
        runtimes = runtimes[:QUICK_RUNTIMES]
        names = list(QUICK_METHODS)
    targets = chosen(new, runtimes) if new else runtimes
    out.mkdir(parents=True, exist_ok=True)
    if networks:
        with progress_bar("networks", as_json) as bar:
            measure_table(out, networks, runtimes, bar)

    # A row for each method, new runtime and number of measurements; the table's size is part of
    # the task, since it grows.
    table = read_table(out, runtimes)
    size = len(table.networks)
    counts = [count for count in COUNTS if count <= size // 2]
    numbers = range(first_seed, first_seed + seeds)
    tasks = [
        (method, runtime, count, str(out), ",".join(runtimes), seed)
        for method in names
        for runtime in targets
        for count in counts
        for seed in numbers
    ]
    scores = compute(tasks, score, out / f"{size}-networks", jobs)
    rows = _rows(names, counts, tasks, scores)
    summary = {
        "networks": size,
        "runtimes": runtimes,
        "new": targets,
        "failed measurements": table.failed,
        "median latency ratio to the fastest": _ratios(table.latency, runtimes),
        "rows": rows,
    }
    with replacing(out / "summary.json") as path:
        path.write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n")
    if as_json:
        print_json(summary)
        return
    shown = f"{len(targets)} of {len(runtimes)} runtimes as the new one"
    print_table(f"{shown}, {size} networks, {seeds} seeds", rows)


def _rows(
    methods: list[str], counts: list[int], tasks: list[Any], scores: list[Scores]
) -> list[dict[str, Any]]:
    """For each method the mean ρ and the mean of the median errors by number of measurements, and
    how many measurements reach an error: "–" if none of the counts does.
    """
    rows = []
    for method in methods:
        row: dict[str, Any] = {"method": method}
        errors = {}
        for count in counts:
            own = []
            for task, scores_of_task in zip(tasks, scores, strict=True):
                if task[0] == method and task[2] == count:
                    own.append(scores_of_task)
            errors[count] = float(np.mean([one["error"] for one in own]))
            row[f"ρ, {count}"] = round(float(np.mean([one["rho"] for one in own])), 3)
            row[f"error in %, {count}"] = round(errors[count], 1)
        for target in TARGETS:
            enough = [count for count in counts if errors[count] <= 100 * target]
            row[f"for {target:.0%}"] = str(min(enough)) if enough else "–"
        rows.append(row)
    return rows


def _ratios(latency: np.ndarray, runtimes: list[str]) -> dict[str, float]:
    """How much slower than the fastest runtime each one is, median over networks (n, runtimes)."""
    ratios = latency / latency.min(axis=1, keepdims=True)
    return dict(zip(runtimes, np.median(ratios, axis=0).round(3).tolist(), strict=True))


if __name__ == "__main__":
    run_command(main)
