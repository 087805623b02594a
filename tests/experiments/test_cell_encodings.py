"""Encodings of cells: what is not connected is not there, and what NAS-Bench-201's operations do to the edges."""

from __future__ import annotations

import os

import numpy as np
import pytest

from experiments.cell_encodings import PROTOCOLS, VALIDATION, encode, population, published
from predictors.gnn.cells import FIRST, INPUT, NONE, OUTPUT
from search_spaces import get_space


def edges_of(native: str, space: str = "nasbench201") -> tuple[set[tuple[int, int]], list[int]]:
    cells = encode([get_space(space).parse(native)])
    sources, targets = np.nonzero(cells.adjacency[0].numpy())
    return set(zip(sources.tolist(), targets.tolist(), strict=True)), cells.operations[0].tolist()


def test_operations_on_edges_become_nodes() -> None:
    conv = "nor_conv_3x3"
    edges, operations = edges_of(f"|{conv}~0|+|{conv}~0|{conv}~1|+|{conv}~0|{conv}~1|{conv}~2|")
    assert edges == {(0, 1), (0, 2), (0, 4), (1, 3), (1, 5), (2, 6), (3, 6), (4, 7), (5, 7), (6, 7)}
    assert operations == [INPUT, *[FIRST + 2] * 6, OUTPUT]


@pytest.mark.parametrize(
    ("native", "edges", "nodes"),
    [
        ("|nor_conv_1x1~0|+|none~0|skip_connect~1|+|none~0|none~1|nor_conv_3x3~2|", {(0, 1), (1, 6), (6, 7)}, (1, 6)),
        ("|nor_conv_1x1~0|+|none~0|none~1|+|skip_connect~0|none~1|nor_conv_3x3~2|", {(0, 7)}, ()),
        ("|none~0|+|none~0|none~1|+|none~0|none~1|none~2|", set(), ()),
    ],
)
def test_identities_and_what_is_on_no_path_are_left_out(
    native: str, edges: set[tuple[int, int]], nodes: tuple[int, ...]
) -> None:
    found, operations = edges_of(native)
    assert found == edges
    assert [node for node in range(1, 7) if operations[node] != NONE] == list(nodes)


def test_a_pruned_vertex_of_nasbench101_is_not_there() -> None:
    native = (
        '{"matrix": [[0,1,1,0],[0,0,0,1],[0,0,0,0],[0,0,0,0]], "ops": ["input","maxpool3x3","maxpool3x3","output"]}'
    )
    edges, operations = edges_of(native, "nasbench101")
    assert edges == {(0, 1), (1, 6)}
    assert operations == [INPUT, FIRST + 2, NONE, NONE, NONE, NONE, OUTPUT]


def test_published_figures_stand_beside_their_own_sizes() -> None:
    assert published("201", "flan", 128) == 0.785
    assert published("101", "gcn", 16) == "-"
    for protocol in PROTOCOLS.values():
        assert all(len(figures) == len(protocol.sizes) for figures in protocol.published.values())


@pytest.mark.slow
@pytest.mark.skipif("NAS_DATA" not in os.environ, reason="NAS_DATA names no folder with the tables")
def test_no_network_of_nasbench101_is_learned_and_ranked() -> None:
    found = population("nasbench101")
    assert len(found.archs) == len(set(found.texts())) == len(found.accuracies[VALIDATION]) == 222
