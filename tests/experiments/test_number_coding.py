"""Numbers in other bases, and the comparison of ways to learn them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import number_coding
from experiments.number_coding import VARIANTS, Positional
from predictors.rlm.numbers import NumberFormat

VALUES = st.lists(st.floats(-400, 400), min_size=1).map(np.array)


@given(VALUES, st.integers(2, 10), st.integers(2, 8))
def test_every_value_is_written_to_half_a_unit_of_its_last_digit(values: np.ndarray, base: int, digits: int) -> None:
    number = Positional(digits, base)
    tokens = number.encode(values)
    assert number.allowed[np.arange(number.length), tokens].all()
    smallest = float(base) ** -9
    unit = np.maximum(np.abs(values), smallest) * float(base) ** (1 - digits)
    assert (np.abs(number.decode(tokens) - values) <= 0.5001 * unit).all()


@given(VALUES)
def test_base_ten_is_what_the_rlm_writes(values: np.ndarray) -> None:
    np.testing.assert_allclose(
        Positional(3).decode(Positional(3).encode(values)), NumberFormat(3).decode(NumberFormat(3).encode(values))
    )


@pytest.mark.slow
@pytest.mark.skipif("NAS_DATA" not in os.environ, reason="NAS_DATA names no folder with the table")
def test_every_variant_learns(tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    names = ["three decimal digits", "10 bits", "pairwise ranking of weight 1.0", "head with squared error"]
    assert set(names) <= set(VARIANTS)
    number_coding.main("rlm-label-free", tmp_path, ",".join(names), quick=True, as_json=True)
    rows = json.loads(capsys.readouterr().out)
    assert [row["variant"] for row in rows] == names
    assert all(row["τ"]["mean"] > 0.4 for row in rows), rows
