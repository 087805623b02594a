"""The compact table: one safetensors file with architectures of a space and their measured metrics.

The file holds a float64 column (n,) per metric, the architectures as one newline-joined UTF-8
string (uint8), and a JSON header. Columns are float64 because FLOPs exceed the integers that
float32 represents exactly. Reading executes nothing. A column is read from disk when it is first
used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from nas.benchmarks.text_cache import cached_texts
from predictors.features import COUNTS
from search_spaces import Architecture, SearchSpace, get_space
from search_spaces.common.errors import InputError, unknown
from search_spaces.common.files import replacing
from search_spaces.common.progress import Progress

FORMAT_VERSION = 1
MAX_DEVIATION = 0.1  # of a column from the counts, relative: conventions differ a little


@dataclass(frozen=True)
class Header:
    """Metadata of a table.

    Attributes:
        name: of the benchmark.
        space: name of the search space, or `FILE.py:NAME`.
        space_options: options of the space.
        sources: one entry per source file, with keys "from" and "sha256".
        by_text: the table has one row per distinct text, and other architectures are looked up by
            their text.
        is_whole: the table covers every network of the space.
    """

    name: str
    space: str
    space_options: dict[str, Any] = field(default_factory=dict)
    sources: list[dict[str, str]] = field(default_factory=list)
    by_text: bool = False
    is_whole: bool = False

    def open_space(self) -> SearchSpace:
        """The search space of the rows."""
        options = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in self.space_options.items()
        }
        return get_space(self.space, **options)


@dataclass(frozen=True)
class Table:
    """A table in memory.

    `archs` are n architecture strings in the space's notation; columns are (n,) with NaN for
    missing values.
    """

    header: Header
    archs: list[str]
    columns: dict[str, np.ndarray]

    def save(self, path: Path) -> None:
        """Write the compact file atomically."""
        tensors = {
            name: np.ascontiguousarray(column, np.float64) for name, column in self.columns.items()
        }
        tensors["arch"] = np.frombuffer("\n".join(self.archs).encode(), np.uint8)
        header = json.dumps(
            {"format": FORMAT_VERSION, "metrics": list(self.columns), **asdict(self.header)}
        )
        with replacing(path) as temporary:
            temporary.write_bytes(save(tensors, {"table": header}))

    @classmethod
    def read(cls, path: Path) -> Table:
        """Read a whole compact file."""
        benchmark = Benchmark(path)
        return cls(
            benchmark.header,
            benchmark.notations,
            {name: benchmark.values(name) for name in benchmark.metrics},
        )

    def merged(self, update: Table) -> Table:
        """This table with the rows and columns of `update`, whose values take precedence."""
        # 1. All rows and columns of both.
        archs = list(dict.fromkeys([*self.archs, *update.archs]))
        row_of = {arch: row for row, arch in enumerate(archs)}
        columns = {}
        for name in (*self.columns, *update.columns):
            columns[name] = np.full(len(archs), np.nan)

        # 2. The values of this table, then those of the update.
        for table in (self, update):
            rows = np.array([row_of[arch] for arch in table.archs])
            for name, column in table.columns.items():
                known = ~np.isnan(column)
                columns[name][rows[known]] = column[known]

        # 3. The sources of both.
        newer = update.header.sources
        older = [source for source in self.header.sources if source not in newer]
        header = replace(self.header, sources=[*older, *newer])
        return Table(header, archs, columns)


def canonical(
    space: SearchSpace, archs: Iterable[str], where: Callable[[int], str], hint: str = ""
) -> list[str]:
    """Normalize architecture strings to the space's notation.

    Args:
        space: the search space.
        archs: architecture strings.
        where: location of the i-th string, for error messages.
        hint: what to do about an invalid string, after its error message.

    Raises:
        InputError: an architecture is invalid or repeated.
    """
    first: dict[str, int] = {}
    for i, arch in enumerate(archs):
        try:
            notation = space.format(space.parse(arch))
        except InputError as error:
            raise InputError(f"{where(i)}: {error}{hint}") from error
        if notation in first:
            raise InputError(
                f"{where(i)}: architecture {notation!r} repeats {where(first[notation])}"
            )
        first[notation] = i
    return list(first)


class Benchmark:
    """A table of n measured architectures of one search space, read lazily from its compact file.

    `metrics` are the names of its columns, with units. The name also gives the direction, see
    `predictors.metrics.Metric.parse`. Missing measurements are NaN. `params` and `flops` are
    counted in the networks if the table has no such column.

    Args:
        path: the compact file.

    Raises:
        InputError: the file is damaged, or of another version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = safe_open(str(path), framework="np")
            stored = json.loads((self._file.metadata() or {})["table"])
            if stored.pop("format") != FORMAT_VERSION:
                raise InputError(f"{path}: a table of another version: delete it and make it again")
            self.metrics: tuple[str, ...] = tuple(stored.pop("metrics"))
            self.header = Header(**stored)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"{path}: not a benchmark table, or a damaged one: delete it and make it again"
            ) from error
        # Arguments of `load_benchmark`
        self.source: dict[str, Any] = {"benchmark": self.header.name}
        self._columns: dict[str, np.ndarray] = {}
        self._texts: list[str] | None = None

    @property
    def name(self) -> str:
        """The name for `load_benchmark`, or the stem of the CSV file."""
        return self.header.name

    @cached_property
    def space(self) -> SearchSpace:
        """The search space that the architectures come from."""
        return self.header.open_space()

    @property
    def is_whole(self) -> bool:
        """True if every architecture of the space has a row."""
        return self.header.is_whole or len(self) == self.space.size

    @property
    def known_metrics(self) -> tuple[str, ...]:
        """`metrics`, and the exact costs that can be counted."""
        return tuple(dict.fromkeys([*self.metrics, *COUNTS]))

    @cached_property
    def notations(self) -> list[str]:
        """The architectures (n) as strings in the space's notation."""
        return self._file.get_tensor("arch").tobytes().decode().split("\n")

    @cached_property
    def architectures(self) -> Sequence[Architecture]:
        """The architectures (n), each parsed on first access."""
        return _Architectures(self.space, self.notations)

    def __len__(self) -> int:
        return len(self.notations)

    def values(self, metric: str) -> np.ndarray:
        """A copy of one column: float64 (n,) in the unit of its name.

        NaN stands for missing measurements.
        """
        return self._column(metric).copy()

    def query(self, arch: Architecture, metrics: Iterable[str] | None = None) -> dict[str, float]:
        """Some or, by default, all metrics of one architecture.

        Raises InputError if the table lacks it.
        """
        row = self._row(arch)
        requested = self.metrics if metrics is None else metrics
        return {metric: float(self._column(metric)[row]) for metric in requested}

    def check_counts(self, metrics: Iterable[str]) -> None:
        """Raise InputError if a column `params` or `flops` holds other numbers than the counts.

        Only columns among the metrics are checked. Predictors count both, and would mix the counts
        with the column's numbers.
        """
        for metric in COUNTS.keys() & set(self.metrics) & set(metrics):
            column = self._column(metric)
            # The first with a value; a column without any has NaN there
            row = int(np.isfinite(column).argmax())
            counted = COUNTS[metric](self.space.graph(self.architectures[row]))
            if abs(column[row] - counted) > MAX_DEVIATION * counted:
                raise InputError(
                    f"{self.name}: {metric} of {self.notations[row]} is {column[row]:g}, but the "
                    f"network has {counted:,}: name the column otherwise, for example {metric}_m"
                )

    def checksum(self, metrics: Iterable[str]) -> str:
        """SHA-256 of the architectures and of these columns."""
        digest = hashlib.sha256("\n".join(self.notations).encode())
        for metric in metrics:
            digest.update(self._column(metric).tobytes())
        return digest.hexdigest()

    @property
    def texts(self) -> list[str]:
        """The ONNX texts of all architectures (n), cached in memory and in the cache folder."""
        return self.load_texts()

    def load_texts(self, progress: Progress | None = None) -> list[str]:
        """`texts`, with progress reports while they are made for the first time."""
        if self._texts is None:
            key = json.dumps([self.header.space, self.header.space_options])
            self._texts = cached_texts(
                self.space, key, self.architectures, self.notations, progress
            )
        return self._texts

    def _column(self, metric: str) -> np.ndarray:
        if metric not in self._columns:
            if metric not in self.known_metrics:
                raise unknown(f"metric of benchmark {self.name!r}:", metric, self.known_metrics)
            if metric in self.metrics:
                column = self._file.get_tensor(metric)
            else:
                column = np.array(
                    [float(COUNTS[metric](self.space.graph(arch))) for arch in self.architectures]
                )
            if column.shape != (len(self),):
                raise InputError(
                    f"{self.path}: {metric!r} has shape {column.shape}, not ({len(self)},): delete "
                    "it"
                )
            self._columns[metric] = column
        return self._columns[metric]

    @cached_property
    def _row_of_notation(self) -> dict[str, int]:
        return {notation: row for row, notation in enumerate(self.notations)}

    @cached_property
    def _row_of_text(self) -> dict[str, int]:
        return {text: row for row, text in enumerate(self.texts)}

    def _row(self, arch: Architecture) -> int:
        if arch.space != self.space.name:
            raise InputError(
                f"benchmark {self.name!r} has architectures of {self.space.name!r}, not of "
                f"{arch.space!r}"
            )
        notation = self.space.format(arch)
        row = self._row_of_notation.get(notation)
        if row is None and self.header.by_text:
            row = self._row_of_text.get(self.space.to_text(arch))
        if row is None:
            raise InputError(f"benchmark {self.name!r} has no row for architecture {notation!r}")
        return row


class _Architectures(Sequence[Architecture]):
    """Architecture strings that are parsed on first access."""

    def __init__(self, space: SearchSpace, notations: Sequence[str]) -> None:
        self._space = space
        self._notations = notations
        self._parsed: dict[int, Architecture] = {}

    def __len__(self) -> int:
        return len(self._notations)

    @overload
    def __getitem__(self, index: int) -> Architecture: ...
    @overload
    def __getitem__(self, index: slice) -> list[Architecture]: ...
    def __getitem__(self, index: int | slice) -> Architecture | list[Architecture]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        row = range(len(self))[index]
        if row not in self._parsed:
            self._parsed[row] = self._space.parse(self._notations[row])
        return self._parsed[row]
