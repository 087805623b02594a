"""Claims about the comparison with published tables: equal rows are counted, others are named."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from search_spaces import InputError, get_space
from tests.stress.exactness import Table, compare, fbnet_params, main, tables

BEST = "|nor_conv_3x3~0|+|nor_conv_3x3~0|nor_conv_3x3~1|+|skip_connect~0|nor_conv_3x3~1|nor_conv_3x3~2|"


def _table(name: str) -> Table:
    return next(table for table in tables() if table.name == name)


def needs(file: str) -> pytest.MarkDecorator:
    there = os.environ.get("NAS_DATA") and Path(os.environ["NAS_DATA"], file).exists()
    return pytest.mark.skipif(
        not there, reason=f"a real table is not there: set NAS_DATA to a folder with {file}"
    )


def _write(folder: Path, params: list[int]) -> None:
    rows = [f"{BEST},{count},{189_610_000}" for count in params]
    with gzip.open(folder / "nasbench201.csv.gz", "wt") as file:
        file.write("\n".join(["arch,cifar10_params,cifar10_flops", *rows]) + "\n")


def test_equal_and_different_rows_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAS_DATA", str(tmp_path))
    true = get_space("nasbench201").params(get_space("nasbench201").parse(BEST))
    _write(tmp_path, [true, true + 1, true])
    result = compare(_table("nasbench201 cifar10"), models=3, seed=0)
    assert (result.rows, result.params, result.models) == (3, 2, 2)
    assert result.first.startswith("nasbench201 cifar10: ")
    assert BEST in result.first


def test_formula_of_fbnet_gives_the_spaces_parameters() -> None:
    space, rng = get_space("fbnet"), np.random.default_rng(0)
    for _ in range(20):
        arch = space.sample(rng)
        native = space.format(arch).strip("[]").replace(", ", "-")
        assert fbnet_params({"arch": native}) == space.params(arch)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rows"),
    [
        pytest.param("nasbench101", 350, marks=needs("nasbench101.csv.gz")),
        pytest.param("darts", 500, marks=needs("darts.csv.gz")),
    ],
)
def test_all_rows_of_the_real_table_are_equal(name: str, rows: int) -> None:
    result = compare(_table(name), models=3, seed=0)
    assert result == (rows, rows, rows, 3, "")


def test_missing_tables_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAS_DATA", raising=False)
    with pytest.raises(InputError, match="set NAS_DATA"):
        main()
    monkeypatch.setenv("NAS_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r"nasbench201\.csv\.gz: no such file"):
        main()
