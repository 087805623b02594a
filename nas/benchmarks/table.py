"""The compact table: one safetensors file with the architectures of a space and their measured metrics.

The file holds one float64 column (n,) per metric, the architectures as one newline-joined UTF-8 string (uint8), and a
JSON header. float64 because FLOPs exceed the integers that float32 counts exactly. Nothing in it can be executed, and a
column is read from disk when it is first asked for.
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
from search_spaces import Architecture, SearchSpace, get_space
from search_spaces.common.errors import InputError, unknown
from search_spaces.common.files import replacing

FORMAT = 1
Progress = Callable[[str, int, int], None]  # what is counted, done, total


@dataclass(frozen=True)
class Header:
    """What a table says about itself.

    `sources` has one entry per file that the numbers come from ("from" and "sha256"). With `by_text` the table holds
    one row per distinct network, and an architecture that is not in it is looked up by its text. `is_whole`: every
    network of the space is there.
    """

    name: str
    space: str
    space_options: dict[str, Any] = field(default_factory=dict)
    sources: list[dict[str, str]] = field(default_factory=list)
    by_text: bool = False
    is_whole: bool = False

    def open_space(self) -> SearchSpace:
        """The search space of the rows."""
        options = {key: tuple(value) if isinstance(value, list) else value for key, value in self.space_options.items()}
        return get_space(self.space, **options)


@dataclass(frozen=True)
class Table:
    """A whole table in memory: architecture strings (n) in the space's notation, columns (n,) with NaN for missing."""

    header: Header
    archs: list[str]
    columns: dict[str, np.ndarray]

    def save(self, path: Path) -> None:
        """Write the compact file; readers see the old file or the whole new one."""
        tensors = {name: np.ascontiguousarray(column, np.float64) for name, column in self.columns.items()}
        tensors["arch"] = np.frombuffer("\n".join(self.archs).encode(), np.uint8)
        header = json.dumps({"format": FORMAT, "metrics": list(self.columns), **asdict(self.header)})
        with replacing(path) as temporary:
            temporary.write_bytes(save(tensors, {"table": header}))

    @classmethod
    def read(cls, path: Path) -> Table:
        """Read a compact file back as a whole."""
        benchmark = Benchmark(path)
        return cls(benchmark.header, benchmark.notations, {name: benchmark.values(name) for name in benchmark.metrics})

    def merged(self, update: Table) -> Table:
        """This table with `update`'s rows and columns added; where both have a value, the update's is kept."""
        row_of = {arch: row for row, arch in enumerate(dict.fromkeys([*self.archs, *update.archs]))}
        columns = {name: np.full(len(row_of), np.nan) for name in [*self.columns, *update.columns]}
        for table in (self, update):
            rows = np.array([row_of[arch] for arch in table.archs])
            for name, column in table.columns.items():
                known = ~np.isnan(column)
                columns[name][rows[known]] = column[known]
        sources = [entry for entry in self.header.sources if entry not in update.header.sources]
        return Table(replace(self.header, sources=[*sources, *update.header.sources]), list(row_of), columns)


def canonical(space: SearchSpace, archs: Iterable[str], where: Callable[[int], str]) -> list[str]:
    """The architectures in the space's own spelling; one that is invalid or repeated is an InputError.

    `where(i)` says where the i-th was found, for the message.
    """
    first: dict[str, int] = {}
    for i, arch in enumerate(archs):
        try:
            notation = space.format(space.parse(arch))
        except InputError as error:
            raise InputError(f"{where(i)}: {error}") from error
        if notation in first:
            raise InputError(f"{where(i)}: architecture {notation!r} is there already, at {where(first[notation])}")
        first[notation] = i
    return list(first)


class Benchmark:
    """A table of measured architectures of one search space, read lazily from its compact file.

    `metrics` are the column names; they carry the unit, and the direction follows from them ("accuracy": higher is
    better, all others: lower is better). A missing measurement is NaN.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = safe_open(str(path), framework="np")
            stored = json.loads((self._file.metadata() or {})["table"])
            if stored.pop("format") != FORMAT:
                raise InputError(f"{path}: a table of another version: delete it and make it again")
            self.metrics: tuple[str, ...] = tuple(stored.pop("metrics"))
            self.header = Header(**stored)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{path}: not a benchmark table, or a damaged one: delete it and make it again") from error
        self.source: dict[str, Any] = {"benchmark": self.header.name}  # what `load_benchmark` finds it by
        self._columns: dict[str, np.ndarray] = {}
        self._texts: list[str] | None = None

    @property
    def name(self) -> str:
        """The benchmark's name, as `load_benchmark` takes it or the CSV file's stem."""
        return self.header.name

    @cached_property
    def space(self) -> SearchSpace:
        """The search space that the architectures come from."""
        return self.header.open_space()

    @property
    def is_whole(self) -> bool:
        """True if every architecture of the space has a row."""
        return self.header.is_whole or len(self) == self.space.size

    @cached_property
    def notations(self) -> list[str]:
        """The architectures (n) as strings in the space's own notation."""
        return self._file.get_tensor("arch").tobytes().decode().split("\n")

    @cached_property
    def architectures(self) -> Sequence[Architecture]:
        """The architectures (n), each parsed when it is first looked at."""
        return _Architectures(self.space, self.notations)

    def __len__(self) -> int:
        return len(self.notations)

    def values(self, metric: str) -> np.ndarray:
        """A copy of one column: float64 (n,) in the unit its name says, NaN where it was not measured."""
        return self._column(metric).copy()

    def query(self, arch: Architecture) -> dict[str, float]:
        """All metrics of one architecture; InputError if the table does not have it."""
        row = self._row(arch)
        return {metric: float(self._column(metric)[row]) for metric in self.metrics}

    def checksum(self, metrics: Iterable[str]) -> str:
        """SHA-256 of the architectures and of these columns."""
        digest = hashlib.sha256("\n".join(self.notations).encode())
        for metric in metrics:
            digest.update(self._column(metric).tobytes())
        return digest.hexdigest()

    @property
    def texts(self) -> list[str]:
        """The ONNX text of every architecture (n); made once, then kept in memory and in the cache folder."""
        return self.load_texts()

    def load_texts(self, progress: Progress | None = None) -> list[str]:
        """`texts`, reporting progress while they are made for the first time."""
        if self._texts is None:
            key = json.dumps([self.header.space, self.header.space_options])
            self._texts = cached_texts(self.space, key, self.architectures, self.notations, progress)
        return self._texts

    def _column(self, metric: str) -> np.ndarray:
        if metric not in self._columns:
            if metric not in self.metrics:
                raise unknown(f"metric of benchmark {self.name!r}:", metric, self.metrics)
            column = self._file.get_tensor(metric)
            if column.shape != (len(self),):
                raise InputError(f"{self.path}: {metric!r} has shape {column.shape}, not ({len(self)},): delete it")
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
            raise InputError(f"benchmark {self.name!r} is of space {self.space.name!r}, not of {arch.space!r}")
        notation = self.space.format(arch)
        row = self._row_of_notation.get(notation)
        if row is None and self.header.by_text:
            row = self._row_of_text.get(self.space.to_text(arch))
        if row is None:
            raise InputError(f"benchmark {self.name!r} has no row for architecture {notation!r}")
        return row


class _Architectures(Sequence[Architecture]):
    """Architecture strings that become architectures when they are looked at."""

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
