"""The three notations of cell networks are read alike, and nothing is evaluated."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces import InputError
from search_spaces.published import genotypes, known_networks
from search_spaces.published.genotypes import Genotype

PAIRS = ([("max_pool_3x3", 0), ("sep_conv_5x5", 1)], [("dil_conv_5x5", 1), ("skip_connect", 0)])
WANTED = Genotype(tuple(PAIRS[0]), (2,), tuple(PAIRS[1]), (2,), 32, 8)

edges = st.lists(
    st.tuples(st.sampled_from(genotypes.COMPACT_OPERATIONS), st.integers(0, 6)), max_size=10
).map(tuple)
concats = st.lists(st.integers(2, 6), max_size=5).map(tuple)
numbers = st.none() | st.integers(1, 99)


def test_notations_are_read_alike() -> None:
    fields = {"normal": PAIRS[0], "normal_concat": [2], "reduce": PAIRS[1], "reduce_concat": [2]}
    arguments = ", ".join(f"{name}={value!r}" for name, value in fields.items())
    record = {"width": 32, "depth": 8, "aux": False, "genotype": fields}
    assert genotypes.read(f"Genotype({arguments}), width=32, cells=8") == WANTED
    assert (
        genotypes.read(f"Genotype({arguments.replace('[2]', 'range(2, 3)')}), width=32, cells=8")
        == WANTED
    )
    assert genotypes.read(f"{json.dumps(fields)}, width=32, cells=8") == WANTED
    assert genotypes.read(json.dumps(record)) == WANTED
    assert genotypes.read(json.dumps({"params": 1.5e6, "net": record, "optim": None})) == WANTED
    compact = genotypes.read("[[(0, 0), (1, 4)], [(1, 6), (0, 2)]], width=32, cells=8")
    assert compact == WANTED._replace(normal_concat=None, reduce_concat=None)


@given(st.builds(Genotype, edges, concats, edges, concats, numbers, numbers))
def test_what_is_written_is_read_back(genotype: Genotype) -> None:
    assert genotypes.read(genotypes.write(genotype)) == genotype


@pytest.mark.parametrize(
    ("native", "reason"),
    [
        ("", "expected one genotype"),
        ("Genotype(", "see the notations"),
        ("__import__('os').getcwd()", "does not belong there"),
        ("Genotype(normal=open('x'))", "does not belong there"),
        ("Genotype(normal=[])", "see the notations"),
        ("[[(0, 7)], [(0, 0)]]", "see the notations"),
        ("[[(0, 0)], [(0, 0)], [(0, 0)]]", "see the notations"),
        ("[[(True, 0)], [(0, 0)]]", "expected a number, not True"),
        ('{"genotype": {}, "width": 32}', "see the notations"),
        ("[[], []], widht=3", "unknown keyword 'widht'"),
        ('{"width": 16, "depth": 8, "genotype": {"normal": [], "normal_concat": [], "reduce": [], "reduce_concat": []}}'
         ", width=32", "width is given twice"),
        ("(" * 5000, "see the notations"),
        ("[" * 30000, "longer than 20000 characters"),
    ],
)  # fmt: skip
def test_anything_else_is_refused(native: str, reason: str) -> None:
    with pytest.raises(InputError, match=f"not a genotype.*{reason}"):
        genotypes.read(native)


@pytest.mark.slow
@given(st.text(max_size=60))
def test_no_text_crashes_the_reader(native: str) -> None:
    with suppress(InputError):
        genotypes.read(native)


def test_known_networks_are_genotypes() -> None:
    for name in ("NASNET_A", "AMOEBANET_A", "PNASNET_5", "ENAS", "DARTS_V1", "DARTS_V2"):
        genotype = genotypes.read(getattr(known_networks, name))
        assert len(genotype.normal) % 2 == len(genotype.reduce) % 2 == 0, "two edges per node"
        assert len(genotype.normal) >= 8
