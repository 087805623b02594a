"""How well measured latencies hold: `python -m experiments.latencies`.

Thirty networks of three kinds of spaces are measured in several passes that lie minutes or hours
apart, each without and with another busy process on the machine, in three ways:

    in a row   the median wall time of 60 inferences in a row, as most benchmarks do
    alone      `nas.evaluation.latency`, one network after the other, as a search measures them
    together   `nas.evaluation.latency`, all in one interleaved pass, as a search measures its front

Every pass is stored, and a later call adds to them. The table compares each pair of passes: how well
ranks agree (Kendall's τ), how much latencies differ, and how often the later value lies in the
interval of the earlier one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from experiments.runner import AsJson, Quick, run_command
from nas.cli.console import print_json, print_table
from nas.cli.progress import progress_bar
from nas.evaluation.latency import CPU, LatencyTask, open_session, random_inputs, time_serialized
from nas.evaluation.machine import OtherLoad, measuring
from search_spaces import SearchSpace, get_space
from search_spaces.common.files import replacing

RUNS_IN_A_ROW = 60
WAYS = ("in a row", "alone", "together")
OWN = Path(__file__).parent / "own_spaces"
SPACES = (
    "tiny-resnet",
    "nasbench201",
    f"{OWN / 'inverted_residuals.py'}:build",
    f"{OWN / 'widths.py'}:build",
)
SHARES = (10, 10, 5, 5)  # networks of each space
BUSY = "import numpy as np\na = np.random.rand(300, 300)\nwhile True: a @ a"


def main(
    passes: Annotated[int, typer.Option(min=0, help="Passes; 0 shows the stored ones.")] = 2,
    apart: Annotated[float, typer.Option(min=0, help="Minutes between two passes.")] = 60,
    out: Annotated[Path, typer.Option(help="Folder that keeps the passes.")] = Path(
        "results/latencies"
    ),
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Measure how well latencies agree between passes, without and with another busy process."""
    if quick:
        passes, apart = 2, 0
    models = networks(SHARES if not quick else (2, 1, 0, 0))
    with progress_bar("passes", as_json) as bar:
        for number in range(passes):
            if number:
                time.sleep(60 * apart)
            for is_busy in (False, True):
                step = partial(bar, f"pass {number + 1}, {'busy' if is_busy else 'free'}")
                store(out, measured(models, is_busy, step))
    rows = compared([json.loads(path.read_text()) for path in sorted(out.glob("pass-*.json"))])
    print_json(rows) if as_json else print_table("Latencies of one network, measured twice", rows)


def networks(shares: tuple[int, ...]) -> list[bytes]:
    """Serialized ONNX models of random networks of each space, the same in every call."""
    models = []
    for name, count in zip(SPACES, shares, strict=True):
        space: SearchSpace = get_space(name)
        rng = np.random.default_rng(0)
        drawn = dict.fromkeys(space.sample(rng) for _ in range(4 * count))
        models += [space.to_onnx(one).SerializeToString() for one in list(drawn)[:count]]
    return models


def measured(models: list[bytes], is_busy: bool, step: Any) -> dict[str, Any]:
    """One pass over all networks: latency, low and high end of its interval by way."""
    values: dict[str, list[list[float]]] = {}
    with other_process(is_busy):
        load = OtherLoad()
        step(0, len(models))
        values["in a row"] = [in_a_row(model) for model in models]
        values["alone"] = []
        for done, model in enumerate(models):
            step(done, len(models))
            values["alone"].append(list(time_serialized([model], LatencyTask())[0][:3]))
        values["together"] = [list(one[:3]) for one in time_serialized(models, LatencyTask())]
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "busy": is_busy,
        "other_cores": round(load.cores(), 2),
        "values": values,
    }


@contextmanager
def other_process(is_busy: bool) -> Iterator[None]:
    """Another program on the machine that multiplies matrices all the time, if `is_busy`."""
    if not is_busy:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def in_a_row(model: bytes) -> list[float]:
    """Median, 10 % and 90 % quantile of the wall time of inferences in a row, in ms."""
    session = open_session(model, 1, CPU)
    feed = random_inputs(session, 1)
    for _ in range(10):
        session.run(None, feed)
    times = np.empty(RUNS_IN_A_ROW)
    with measuring():
        for run in range(RUNS_IN_A_ROW):
            start = time.perf_counter()
            session.run(None, feed)
            times[run] = time.perf_counter() - start
    return (1e3 * np.quantile(times, [0.5, 0.1, 0.9])).tolist()


def store(folder: Path, result: dict[str, Any]) -> None:
    """Write a pass into a file of its own."""
    with replacing(folder / f"pass-{result['time'].replace(':', '')}-{result['busy']:d}.json") as p:
        p.write_text(json.dumps(result, indent=1) + "\n")


def compared(passes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each way and kind of pair (neither, one or both passes beside a busy process)."""
    from scipy.stats import kendalltau

    kinds = ("none", "one", "both")
    pairs: dict[tuple[str, str], list[tuple[np.ndarray, np.ndarray]]] = {}
    for first, later in combinations(passes, 2):
        kind = kinds[first["busy"] + later["busy"]]
        for way in WAYS:
            values = (np.array(first["values"][way]), np.array(later["values"][way]))
            pairs.setdefault((way, kind), []).append(values)
    rows = []
    for (way, kind), some in sorted(pairs.items(), key=lambda item: WAYS.index(item[0][0])):
        tau = [kendalltau(first[:, 0], later[:, 0]).statistic for first, later in some]
        ratio = np.concatenate([later[:, 0] / first[:, 0] for first, later in some])
        change = np.abs(ratio - 1)
        covered = []
        for before, after in some:
            low, high = before[:, 1], before[:, 2]
            covered.append((low <= after[:, 0]) & (after[:, 0] <= high))
        rows.append(
            {
                "way": way,
                "busy passes": kind,
                "pairs": len(some),
                "τ": round(float(np.mean(tau)), 3),
                "lowest τ": round(float(np.min(tau)), 3),
                "median change (%)": _percent(float(np.median(change))),
                "90 % of changes below (%)": _percent(float(np.quantile(change, 0.9))),
                "covered (%)": _percent(float(np.mean(covered))),
            }
        )
    return rows


def _percent(share: float) -> float:
    return round(100 * share, 1)


if __name__ == "__main__":
    run_command(main)
