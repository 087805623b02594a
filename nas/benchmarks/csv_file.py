"""Reads a table of measurements from CSV: one architecture per row, one metric per column."""

from __future__ import annotations

import csv
import gzip
import io
import logging
import re
import zlib
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from predictors.metrics import MAX_VALUE, Metric, is_valid
from search_spaces.common.errors import InputError

log = logging.getLogger(__name__)
ARCHITECTURE_COLUMNS = ("arch", "architecture")
# Of a search's networks; they are no metrics
ORIGIN_COLUMNS = (
    "sampler",
    "seed",
    "trial",
    "evaluations",
)
# How pandas writes an index without a name, and how it reads it again
_INDEX = re.compile(r"|Unnamed: \d+")
MAX_BYTES = 1 << 30  # of uncompressed text, about ten million rows; stops decompression bombs


@dataclass(frozen=True)
class CsvTable:
    """A table.

    Attributes:
        archs: architecture strings (n).
        lines: their line numbers (n).
        columns: float64 columns (n,) with NaN for empty cells.
        skipped: names of the columns that were not read.
    """

    archs: list[str]
    lines: list[int]
    columns: dict[str, np.ndarray]
    skipped: list[str]


def read_bytes(path: Path) -> bytes:
    """The file's bytes; InputError if it is missing or unreadable."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error


def parse_csv(
    data: bytes,
    path: Path,
    arch_columns: Sequence[str] = ARCHITECTURE_COLUMNS,
    ignore: Container[str] = (),
    only: Container[str] | None = None,
) -> CsvTable:
    """Parse a CSV table, which may be gzip-compressed.

    An index that pandas wrote is ignored with a warning.

    Args:
        data: contents of the file.
        path: the file's path, for error messages.
        arch_columns: names of the architecture column; the first one that exists is used.
        ignore: columns to skip. All others must hold finite numbers or empty cells.
        only: columns to read. All others may hold anything; `CsvTable.skipped` names them.

    Raises:
        InputError: the table is malformed; the message names file, line, column and value.
    """
    reader = csv.reader(io.StringIO(_decode(data, path), newline=""))
    try:
        header = [name.strip() for name in next(reader, [])]
        index = {place for place, name in enumerate(header) if _INDEX.fullmatch(name)}
        arch_column = _check_header(
            [name for i, name in enumerate(header) if i not in index], arch_columns, path, only
        )
        rows, lines = [], []
        for row in reader:
            if not row:
                continue
            if len(row) != len(header):
                raise InputError(
                    f"{path}, line {reader.line_num}: {len(row)} cells for {len(header)} columns"
                )
            rows.append(row)
            lines.append(reader.line_num)
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: not CSV ({error})") from error
    if not rows:
        raise InputError(f"{path}: the table has no rows")
    columns_of_cells = list(zip(*rows, strict=True))
    for place in sorted(index) if only is None else ():
        _check_index(header[place], columns_of_cells[place], place, path)
    cells = {name: columns_of_cells[i] for i, name in enumerate(header) if i not in index}
    archs = [arch.strip() for arch in cells.pop(arch_column)]
    read = [name for name in cells if name not in ignore and (only is None or name in only)]
    columns = {name: _numbers(cells[name], lines, name, path) for name in read}
    for name, values in columns.items():
        _check_sign(values, lines, name, path)
    nameless = (
        [f"column {place + 1} without a name" for place in sorted(index)]
        if only is not None
        else []
    )
    return CsvTable(
        archs, lines, columns, [*nameless, *(name for name in cells if name not in read)]
    )


def _check_index(name: str, cells: Sequence[str], place: int, path: Path) -> None:
    """Warn of a nameless column of whole numbers, which is ignored.

    Raises InputError if it holds anything else.
    """
    if not all(cell.strip().isdecimal() for cell in cells):
        raise InputError(
            f"{path}: column {place + 1} needs a name, not {name!r}, and is no index of rows: "
            "name it, remove it, or write the table with to_csv(index=False)"
        )
    log.warning(
        "%s: column %d (%r) is ignored: it numbers the rows, as pandas does", path, place + 1, name
    )


def _decode(data: bytes, path: Path) -> str:
    try:
        if data.startswith(b"\x1f\x8b"):
            with gzip.open(io.BytesIO(data)) as stream:
                data = stream.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise InputError(f"{path}: more than {MAX_BYTES >> 20} MiB of text")
        return data.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: broken or truncated gzip file ({error})") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text at byte {error.start}") from error


def _check_header(
    header: list[str], arch_columns: Sequence[str], path: Path, only: Container[str] | None
) -> str:
    """The name of the architecture column. Columns that are not read may have any names."""
    for name in header:
        if only is not None and name not in only and name not in arch_columns:
            continue
        if not name or header.count(name) > 1:
            raise InputError(
                f"{path}: each column needs a unique name; {name!r} is empty or repeated"
            )
    for name in arch_columns:
        if name in header:
            return name
    expected = " or ".join(map(repr, arch_columns))
    raise InputError(f"{path}: no column {expected}; its columns: {', '.join(header) or 'none'}")


def _numbers(cells: Sequence[str], lines: Sequence[int], column: str, path: Path) -> np.ndarray:
    """Cells (n) of one column as float64 (n,)."""
    try:
        values = np.array([float(cell or "nan") for cell in cells])
        if is_valid(values).sum() + cells.count("") == len(cells):
            return values
    except ValueError:
        pass  # the slow search below finds the bad cell
    row = next(i for i, cell in enumerate(cells) if cell and not _is_number(cell))
    where = f"{path}, line {lines[row]}, column {column!r}"
    remedy = "leave missing values empty, and remove columns that are no metrics"
    raise InputError(
        f"{where}: {cells[row]!r} is not a finite number of at most {MAX_VALUE:.0e}: {remedy}"
    )


def _check_sign(values: np.ndarray, lines: Sequence[int], column: str, path: Path) -> None:
    """Raise InputError for a negative time, energy or memory.

    -1 for a failed measurement would be the best of all.
    """
    is_negative = values < 0
    if ":" in column or not is_negative.any():
        return
    metric = Metric.parse(column)
    if metric.unit and metric.kind == "measured":
        row = int(np.argmax(is_negative))
        raise InputError(
            f"{path}, line {lines[row]}, column {column!r}: {values[row]:g} is less than zero: "
            "leave missing values empty, and give a column of differences a name without a unit"
        )


def _is_number(cell: str) -> bool:
    try:
        return bool(is_valid(float(cell)))
    except ValueError:
        return False
