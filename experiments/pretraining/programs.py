"""A small real table beyond networks: Python programs, their peak memory and run time.

    python -m experiments.pretraining.programs --out results/programs.csv
    nas train rlm --table results/programs.csv --out results/rlm-programs

Programs are put together at random from a few templates (their `space`), run one at a time in a Python of their own,
and measured inside it: the peak of allocated memory (tracemalloc), and the least processor time of several runs.
"""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import indent
from typing import Annotated, NamedTuple

import numpy as np
import typer

from experiments.runner import run_command
from nas.cli.progress import progress_bar
from search_spaces.common.errors import InputError
from search_spaces.common.files import replacing

COLUMNS = ("identifier", "space", "input", "target", "target_type", "metadata")
TIME_LIMIT_S = 60
_MEASURE = """
import time, tracemalloc

def program():
{body}
times = []
for _ in range(5):
    begin = time.process_time()
    program()
    times.append(time.process_time() - begin)
tracemalloc.start()
program()
print(1e3 * min(times), tracemalloc.get_traced_memory()[1] / 1024)
"""


class Measured(NamedTuple):
    """Processor time of one run in ms, and peak of allocated memory in KiB."""

    run_time_ms: float
    peak_memory_kib: float


def _size(rng: np.random.Generator, low: int, high: int) -> int:
    """Log-uniform, so that programs of all sizes are there."""
    return int(np.exp(rng.uniform(np.log(low), np.log(high))))


def _one(rng: np.random.Generator, *options: str) -> str:
    return options[int(rng.integers(len(options)))]


def _loops(rng: np.random.Generator) -> str:
    body = _one(rng, "total += i * j", "total += i % (j + 1)", "total ^= i + j")
    outer, inner = _size(rng, 5, 300), _size(rng, 5, 300)
    return f"total = 0\nfor i in range({outer}):\n    for j in range({inner}):\n        {body}\n"


def _lists(rng: np.random.Generator) -> str:
    item = _one(rng, "i", "i * i", "str(i)", "(i, i + 1)", "[i] * 4")
    tail = _one(rng, "", "values.sort(key=str)\n", "values = values + values\n", "values = set(map(str, values))\n")
    return f"values = [{item} for i in range({_size(rng, 100, 30_000)})]\n{tail}"


def _dictionaries(rng: np.random.Generator) -> str:
    key = _one(rng, "i", "i % 97", "str(i)", "i // 3")
    return f"counts = {{}}\nfor i in range({_size(rng, 100, 30_000)}):\n    counts[{key}] = counts.get({key}, 0) + 1\n"


def _recursion(rng: np.random.Generator) -> str:
    depth = int(rng.integers(8, 21))
    step = _one(rng, "f(n - 1) + f(n - 2)", "f(n - 2) + f(n - 3) + 1", "max(f(n - 1), f(n - 3))")
    end = int(rng.integers(3, 6))
    return f"def f(n):\n    return n if n < {end} else {step}\n\nresult = f({depth})\n"


def _matrices(rng: np.random.Generator) -> str:
    n = _size(rng, 4, 50)
    return (
        f"n = {n}\na = [[i * j % 7 for j in range(n)] for i in range(n)]\n"
        f"for _ in range({int(rng.integers(1, 4))}):\n"
        "    a = [[sum(a[i][k] * a[k][j] for k in range(n)) % 11 for j in range(n)] for i in range(n)]\n"
    )


def _strings(rng: np.random.Generator) -> str:
    times = _size(rng, 100, 30_000)
    make = _one(rng, "text += 'ab'", "text = text[-50:] + str(i)", "parts.append(str(i))")
    return f"text, parts = '', []\nfor i in range({times}):\n    {make}\nresult = text + ','.join(parts)\n"


TEMPLATES: dict[str, Callable[[np.random.Generator], str]] = {
    "loops": _loops,
    "lists": _lists,
    "dictionaries": _dictionaries,
    "recursion": _recursion,
    "matrices": _matrices,
    "strings": _strings,
}


def programs(count: int, seed: int) -> Iterator[tuple[str, str]]:
    """Template and source of different programs, of templates at random."""
    rng = np.random.default_rng(seed)
    seen: set[str] = set()
    names = list(TEMPLATES)
    while len(seen) < count:
        name = names[int(rng.integers(len(names)))]
        source = TEMPLATES[name](rng)
        if source not in seen:
            seen.add(source)
            yield name, source


def measure(source: str) -> Measured:
    """Run one of our programs, as the body of a function, in a Python of its own."""
    script = _MEASURE.format(body=indent(source, "    "))
    done = subprocess.run(
        [sys.executable, "-I", "-"], input=script, capture_output=True, text=True, timeout=TIME_LIMIT_S
    )
    if done.returncode:
        raise InputError(f"a program failed: {done.stderr.strip().splitlines()[-1]}")
    milliseconds, kib = done.stdout.split()
    return Measured(float(milliseconds), float(kib))


def main(
    out: Annotated[Path, typer.Option(help="The table, a .csv file.")] = Path("results/programs.csv"),
    count: Annotated[int, typer.Option(min=1, help="Programs.")] = 400,
    seed: Annotated[int, typer.Option(help="Seed of the programs.")] = 0,
) -> None:
    """Write the table: two rows for every program, its run time and its peak memory."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    with progress_bar("programs") as bar:
        for i, (space, source) in enumerate(programs(count, seed)):
            bar(space, i, count)
            for name, value in measure(source)._asdict().items():
                writer.writerow([f"{space}-{i}", space, source, f"{value:.6g}", name, "{}"])
    with replacing(out) as path:
        path.write_text(text.getvalue())
    print(out)


if __name__ == "__main__":
    run_command(main)
