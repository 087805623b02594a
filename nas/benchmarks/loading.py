"""Loads a benchmark by name, or from a user's CSV file."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nas.benchmarks.csv_file import ORIGIN_COLUMNS, parse_csv, read_bytes
from nas.benchmarks.populations import POPULATIONS
from nas.benchmarks.table import FORMAT_VERSION, Benchmark, Header, Table, canonical
from nas.benchmarks.text_cache import text_version
from nas.evaluation.machine import cache_folder
from search_spaces.common import plug_ins
from search_spaces.common.errors import InputError, unknown

NAMES = (*POPULATIONS, "nasbench201")
# Columns that identify a row; they are no metrics
IDENTIFIERS = (
    "index",
    "isomorphism_class",
    *ORIGIN_COLUMNS,
)
PACKAGE_DATA = Path(__file__).parent / "data"


def load_benchmark(
    benchmark: str | Path, space: str | None = None, space_options: Mapping[str, Any] | None = None
) -> Benchmark:
    """Load a benchmark by name, or from a CSV file.

    A CSV file has a column `arch` or `architecture` in the notation of its space. Every other
    column is a metric, named with its unit; an empty cell is a missing value. The file is converted
    once to a table in the cache folder. `"nasbench201"` is `$NAS_DATA/nasbench201.csv.gz` if that
    exists, else the table that `fetch` or `import_file` made.

    Args:
        benchmark: `"nasbench201"`, a population such as `"digits201"`, or the path of a `.csv` or
            `.csv.gz` file.
        space: space of a CSV file: a name or `FILE.py:NAME`; nasbench201 by default.
        space_options: options of that space.

    Raises:
        InputError: the name is unknown, the file is missing, or a cell is malformed.
    """
    if str(benchmark) in NAMES:
        if space is not None:
            raise InputError(
                f"benchmark {benchmark} has its own space: give a space for CSV files only"
            )
        return _nasbench201() if str(benchmark) == "nasbench201" else _population(str(benchmark))
    path = Path(benchmark)
    if not path.name.endswith((".csv", ".csv.gz")):
        raise unknown(
            "benchmark", str(benchmark), [*NAMES, "or the path of a .csv or .csv.gz file"]
        )
    name = path.name.removesuffix(".gz").removesuffix(".csv")
    header = Header(name, space or "nasbench201", dict(space_options or {}))
    table = _from_csv(path, header, "" if space else "; name another space by --space")
    table.source = {
        "benchmark": str(path.absolute()),
        "space": plug_ins.absolute(header.space),
        "space_options": header.space_options,
    }
    return table


@dataclass(frozen=True)
class BenchmarkInfo:
    """Description of a benchmark.

    If its table is not available, `rows` is None and `origin` says how to get it.
    """

    name: str
    space: str
    rows: int | None
    metrics: tuple[str, ...]
    origin: str


def list_benchmarks() -> list[BenchmarkInfo]:
    """All named benchmarks, available or not."""
    infos = []
    for name in NAMES:
        try:
            benchmark = load_benchmark(name)
        except InputError as error:
            space = POPULATIONS[name].space if name in POPULATIONS else name
            infos.append(BenchmarkInfo(name, space, None, (), str(error)))
        else:
            sources = dict.fromkeys(source["from"] for source in benchmark.header.sources)
            origin = f"shipped as {name}.csv.gz" if name in POPULATIONS else "; ".join(sources)
            infos.append(
                BenchmarkInfo(
                    name, benchmark.header.space, len(benchmark), benchmark.metrics, origin
                )
            )
    return infos


def update_nasbench201(table: Table) -> Benchmark:
    """Merge rows and columns into the cached nasbench201 table. New values replace old ones."""
    path = _nasbench201_path()
    if path.is_file():
        table = Table.read(path).merged(table)
    table.save(path)
    return Benchmark(path)


def _nasbench201_path() -> Path:
    return cache_folder() / "tables" / "nasbench201.safetensors"


def _nasbench201() -> Benchmark:
    folder = os.environ.get("NAS_DATA")
    if folder and (ready := Path(folder) / "nasbench201.csv.gz").is_file():
        return _from_csv(ready, Header("nasbench201", "nasbench201"))
    if _nasbench201_path().is_file():
        return Benchmark(_nasbench201_path())
    raise InputError(
        "benchmark nasbench201 is not on this machine: run `nas benchmarks fetch nasbench201`, or "
        "set NAS_DATA to a folder with nasbench201.csv.gz"
    )


def _population(name: str) -> Benchmark:
    """A table of the package, in the space that its card names."""
    path = PACKAGE_DATA / f"{name}.csv.gz"
    card_path = PACKAGE_DATA / f"{name}.json"
    if not path.is_file():
        raise InputError(
            f"benchmark {name} is missing from this installation: run `nas benchmarks build {name}`"
        )
    try:
        card = json.loads(read_bytes(card_path))
        whole = POPULATIONS[name].count is None
        header = Header(name, card["space"], card["space_options"], by_text=True, is_whole=whole)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{card_path}: not a card with `space` and `space_options`: reinstall the package"
        ) from error
    return _from_csv(path, header)


def _from_csv(path: Path, header: Header, hint: str = "") -> Benchmark:
    """The compact table of a CSV file.

    It is converted unless the cache has it for the same contents and space.

    Args:
        path: the CSV file.
        header: name and space of the table.
        hint: what to do about an architecture that is not of the space.
    """
    data = read_bytes(path)
    checksum = sha256(data)
    space = header.open_space()
    key = sha256(
        json.dumps([FORMAT_VERSION, checksum, asdict(header), text_version(space)]).encode()
    )
    converted = cache_folder() / "converted" / f"{header.name}-{key[:16]}.safetensors"
    if not converted.is_file():
        table = parse_csv(data, path, ignore=IDENTIFIERS)
        archs = canonical(space, table.archs, lambda i: f"{path}, line {table.lines[i]}", hint)
        header.sources.append({"from": str(path), "sha256": checksum})
        Table(header, archs, table.columns).save(converted)
    return Benchmark(converted)


def sha256(data: bytes) -> str:
    """Hexadecimal SHA-256 of `data`."""
    return hashlib.sha256(data).hexdigest()
