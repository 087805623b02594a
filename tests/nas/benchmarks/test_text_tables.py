"""Claims about tables of any texts: layouts, repeated texts, splits, errors, and a real one from
end to end.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from experiments.programs.table import SHIPPED
from nas.benchmarks.text_tables import TextTable, read_text_table, split
from nas.cli import app
from search_spaces import InputError


def _csv(path: Path, *rows: Sequence[object]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def test_a_column_of_types_names_the_metric_of_every_row(tmp_path: Path) -> None:
    path = _csv(
        tmp_path / "t.csv",
        ("space", "input", "target", "target_type"),
        ("a", "x = 1\ny = 2", 3, "time_ms"),
        ("a", "x = 1\ny = 2", 5, "memory_kib"),
        ("b", "z", 4, "time_ms"),
    )
    table = read_text_table(path, "input", ["target"])
    assert (table.texts, table.spaces) == (["x = 1\ny = 2", "z"], ["a", "b"])
    np.testing.assert_array_equal(table.metrics["time_ms"], [3, 4])
    np.testing.assert_array_equal(table.metrics["memory_kib"], [5, np.nan])


def test_several_columns_are_metrics_and_empty_cells_are_unknown(tmp_path: Path) -> None:
    path = _csv(tmp_path / "t.csv", ("code", "m", "n"), ("p", 1, ""), ("q", 2, 7))
    table = read_text_table(path, "code", ["m", "n"])
    assert table.spaces == ["all", "all"]
    np.testing.assert_array_equal(table.metrics["m"], [1, 2])
    np.testing.assert_array_equal(table.metrics["n"], [np.nan, 7])


def test_a_repeated_text_is_one_text_with_the_mean_of_its_values(tmp_path: Path) -> None:
    path = _csv(tmp_path / "t.csv", ("input", "target"), ("p", 1), ("q", 5), ("p", 2))
    table = read_text_table(path, "input", ["target"])
    assert table.texts == ["p", "q"]
    np.testing.assert_array_equal(table.metrics["target"], [1.5, 5])


def test_parquet_and_csv_give_the_same_table(tmp_path: Path) -> None:
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    path = _csv(tmp_path / "t.csv", ("input", "target"), ("p", 1.25), ("q", ""))
    parquet.write_table(arrow_csv.read_csv(path), tmp_path / "t.parquet")
    tables = [
        read_text_table(tmp_path / name, "input", ["target"]) for name in ("t.csv", "t.parquet")
    ]
    assert tables[0].texts == tables[1].texts
    np.testing.assert_array_equal(tables[0].metrics["target"], tables[1].metrics["target"])


@given(st.integers(4, 60), st.floats(0, 0.5), st.integers(0, 5))
def test_no_text_is_trained_and_tested_on(count: int, share: float, seed: int) -> None:
    table = TextTable(
        [f"t{i}" for i in range(count)], ["all"] * count, {"m": np.arange(float(count))}
    )
    training, tests = split(table, share, seed)
    assert sorted(training.texts + tests.texts) == sorted(table.texts)
    assert len(tests.texts) == round(share * count)
    assert [f"t{int(m)}" for m in tests.metrics["m"]] == tests.texts


@pytest.mark.parametrize(
    ("content", "text", "target", "message"),
    [
        ("input,target\np,1\n", "inptu", "target", "did you mean 'input'"),
        ("input,target\np,1\n", "input", "goal", "unknown column 'goal'"),
        ("input,target\n,1\n", "input", "target", "row 1: 'input' is empty"),
        ("input,target\np,one\n", "input", "target", "'target' has a value that is not a number"),
        ("input,target\np,1\nq,inf\n", "input", "target", "row 2: 'target' is infinite"),
        ("input,target\n", "input", "target", "no rows"),
        ("input,target,target\np,1,2\n", "input", "target", "several columns 'target'"),
        ("input,target\np,1,2\n", "input", "target", "cannot be read as a table"),
    ],
)
def test_bad_tables_say_what_is_wrong(
    tmp_path: Path, content: str, text: str, target: str, message: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        read_text_table(path, text, [target])


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(InputError, match="cannot be read as a table"):
        read_text_table(tmp_path / "t.parquet", "input", ["target"])
    with pytest.raises(InputError, match=r"a \.parquet, \.csv or \.csv\.gz file"):
        read_text_table(tmp_path / "t.xlsx", "input", ["target"])


def _trained(table: Path, out: Path, *options: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(
        app, ["train", "rlm", "--table", str(table), "--out", str(out), "--json", *options]
    )
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["tests"]


@pytest.mark.slow
def test_a_number_that_depends_on_the_text_is_learned(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sizes = (10 ** rng.uniform(1, 6, 40)).astype(int)
    programs = [
        (f"values = list(range({n}))\nprint(sum(values[:{rng.integers(1000)}]))", n) for n in sizes
    ]
    table = _csv(tmp_path / "t.csv", ("input", "target"), *programs)
    (row,) = _trained(table, tmp_path / "rlm", "--test-share", "0.45", "--steps", "30")
    assert (row["space"], row["metric"], row["texts"]) == ("all", "target", 18)
    assert row["spearman"] > 0.6


@pytest.mark.slow
def test_measured_programs_are_trained_on_and_tested_by_language_and_metric(tmp_path: Path) -> None:
    with gzip.open(SHIPPED, "rt", newline="") as file:
        table = _csv(tmp_path / "programs.csv", *islice(csv.reader(file), 31))
    options = ("--targets", "run_time_ms,peak_memory_kib", "--test-share", "0.4", "--steps", "2")
    tests = _trained(table, tmp_path / "rlm", *options)
    assert {row["metric"] for row in tests} == {"run_time_ms", "peak_memory_kib"}
    assert {row["space"] for row in tests} == {"python", "c", "c++"}
    assert sum(row["texts"] for row in tests) == 2 * round(0.4 * 30)
