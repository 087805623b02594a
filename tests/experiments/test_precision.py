"""Claims about the study of precisions: its greedy rival, its latencies, its files."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path

import numpy as np
import pytest

from experiments.precision import (
    BLOCKS,
    COLUMNS,
    PrecisionNet,
    blocks_of,
    by_sensitivity,
    fitted_latencies,
    relative_error,
    search_score,
    table_of,
)
from search_spaces import InputError


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Four blocks are chosen; later ones add more error, and save less time."""
    path = tmp_path / "table.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for row in PrecisionNet(4).rows():
            bits = [int(bit) for bit in row[4:8]]
            lost = sum(bit * (place + 1) for place, bit in enumerate(bits))
            saved = sum(bit * (8 - place) for place, bit in enumerate(bits))
            writer.writerow([row, 0.1 * lost, 90.0, 1.0 - 0.01 * saved])
    return path


def test_assignments_are_networks_and_back() -> None:
    space = PrecisionNet(4)
    rows = space.rows()
    assert len(rows) == space.size == 16
    networks = [space.assignment([int(bit) for bit in row]) for row in rows]
    assert [blocks_of(network) for network in networks] == rows
    assert len({space.to_text(network) for network in networks}) == 16
    assert PrecisionNet().size == 2**BLOCKS


def test_greedy_sensitivity_quantizes_the_cheapest_blocks_first(table: Path) -> None:
    order = list(by_sensitivity(table_of(str(table), 4), seed=0))
    chosen = [row[4:8] for row in order]
    assert chosen[0] == "0000"
    assert {*chosen[1:5]} == {"1000", "0100", "0010", "0001"}
    assert chosen[5:8] == ["1100", "1110", "1111"]
    assert len(order) == len({*order}) == 16, "in the end it has measured everything, once"


def test_latencies_are_sums_over_blocks_and_neighbours() -> None:
    rows = ["".join(bits) for bits in itertools.product("01", repeat=5)]
    exact = np.array([2.0 - 0.1 * row.count("1") - 0.05 * row.count("11") for row in rows])
    fitted, error = fitted_latencies(rows, exact)
    # "111" has two pairs of neighbours, which `count` takes for one: only these rows differ.
    simple = np.array(["111" not in row for row in rows])
    assert np.abs(fitted - exact)[simple].max() < 0.05
    linear = np.array([2.0 - 0.1 * row.count("1") for row in rows])
    assert fitted_latencies(rows, linear)[1] < 1e-9 < error


def test_a_search_sees_the_true_front_at_last(table: Path) -> None:
    for method in ("sensitivity", "random"):
        score = search_score(str(table), 4, method, 16, 0)
        assert 1 <= score["to 95%"] <= 16
        assert score["HV@10"] <= 1.0


def test_an_unfinished_table_is_not_searched(table: Path) -> None:
    lines = table.read_text().splitlines()
    table.write_text("\n".join(lines[:-2]) + "\n")
    with pytest.raises(InputError, match="lacks 2 assignments"):
        table_of(str(table), 4)


def test_the_error_is_relative_to_the_logits() -> None:
    exact = np.full((4, 3), 2.0)
    assert relative_error(exact, exact + 0.1) == pytest.approx(5)
    assert relative_error(exact, exact) == 0
