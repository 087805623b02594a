"""Finding a benchmark by its name, or reading a user's own CSV file as one."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nas.benchmarks.cache import cache_folder, sha256
from nas.benchmarks.csv_file import parse_csv, read_bytes
from nas.benchmarks.table import FORMAT, Benchmark, Header, Table, canonical
from search_spaces.errors import InputError, unknown

NAMES = ("digits201", "nasbench201")
IDENTIFIERS = ("index", "isomorphism_class")  # columns that name a row and measure nothing
PACKAGE_DATA = Path(__file__).parent / "data"


def load_benchmark(
    name_or_csv: str | Path, space: str = "nasbench201", space_options: Mapping[str, Any] | None = None
) -> Benchmark:
    """A benchmark by name ("nasbench201", "digits201"), or a CSV table of one's own.

    A CSV file (`.csv` or `.csv.gz`) has a column `arch` in the notation of `space`; every other column is a metric whose name
    carries its unit, an empty cell is a missing value. It is converted once to the compact table in the cache folder.

    nasbench201 is `$NAS_DATA/nasbench201.csv.gz` where that exists, else the table that `fetch` or `import_file` made.
    Unknown names, missing files and bad cells are InputErrors.
    """
    if str(name_or_csv) == "nasbench201":
        return _nasbench201()
    if str(name_or_csv) == "digits201":
        return _digits201()
    path = Path(name_or_csv)
    if not path.name.endswith((".csv", ".csv.gz")):
        raise unknown("benchmark", str(name_or_csv), [*NAMES, "or the path of a .csv or .csv.gz file"])
    name = path.name.removesuffix(".gz").removesuffix(".csv")
    return _from_csv(path, Header(name, space, dict(space_options or {})))


@dataclass(frozen=True)
class BenchmarkInfo:
    """One line of the list of benchmarks. `rows` is None where the table is not available; `origin` then says how to get it."""

    name: str
    space: str
    rows: int | None
    metrics: tuple[str, ...]
    origin: str


def list_benchmarks() -> list[BenchmarkInfo]:
    """The benchmarks known by name, available or not."""
    infos = []
    for name in NAMES:
        try:
            benchmark = load_benchmark(name)
        except InputError as error:
            infos.append(BenchmarkInfo(name, "nasbench201", None, (), str(error)))
        else:
            origin = "; ".join(dict.fromkeys(source["from"] for source in benchmark.header.sources))
            infos.append(BenchmarkInfo(name, benchmark.header.space, len(benchmark), benchmark.metrics, origin))
    return infos


def nasbench201_path() -> Path:
    """The compact table that `fetch` writes and `import_file` adds to."""
    return cache_folder() / "tables" / "nasbench201.safetensors"


def _nasbench201() -> Benchmark:
    ready = Path(os.environ.get("NAS_DATA", "")) / "nasbench201.csv.gz"
    if "NAS_DATA" in os.environ and ready.is_file():
        return _from_csv(ready, Header("nasbench201", "nasbench201"))
    if nasbench201_path().is_file():
        return Benchmark(nasbench201_path())
    raise InputError(
        "benchmark nasbench201 is not on this machine: run `nas benchmarks fetch nasbench201`, "
        "or set NAS_DATA to a folder with nasbench201.csv.gz"
    )


def _digits201() -> Benchmark:
    path, card_path = PACKAGE_DATA / "digits201.csv.gz", PACKAGE_DATA / "digits201.json"
    if not path.is_file():
        raise InputError("benchmark digits201 is missing from this installation: run `nas benchmarks build digits201`")
    try:
        options = json.loads(read_bytes(card_path))["space_options"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{card_path}: not a card with `space_options`: reinstall the package") from error
    return _from_csv(path, Header("digits201", "nasbench201", options, by_text=True))


def _from_csv(path: Path, header: Header) -> Benchmark:
    """The compact table of a CSV file, converted if these very bytes were not converted before."""
    data = read_bytes(path)
    checksum = sha256(data)
    key = sha256(json.dumps([FORMAT, checksum, header.name, header.space, header.space_options, header.by_text]).encode())
    converted = cache_folder() / "converted" / f"{header.name}-{key[:16]}.safetensors"
    if not converted.is_file():
        table = parse_csv(data, path, ignore=IDENTIFIERS)
        archs = canonical(header.open_space(), table.archs, lambda i: f"{path}, line {table.lines[i]}")
        header.sources.append({"from": str(path), "sha256": checksum})
        Table(header, archs, table.columns).save(converted)
    return Benchmark(converted)
