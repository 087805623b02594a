"""NAS-Bench-101 exactly as published: parameters, FLOPs, and one text for every class of isomorphic
cells.
"""

from __future__ import annotations

import ast
import csv
import gzip
import os
from collections.abc import Iterator
from itertools import combinations, permutations, product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from search_spaces import InputError, get_space
from search_spaces.ir.costs import graph_flops, graph_params
from search_spaces.ir.graph import Graph
from search_spaces.published.nasbench101 import MAX_EDGES, OPERATIONS
from search_spaces.testing import check_space

CONV3X3, CONV1X1, MAXPOOL = OPERATIONS
Matrix = list[list[int]]

needs_table = pytest.mark.skipif(
    not (
        os.environ.get("NAS_DATA") and Path(os.environ["NAS_DATA"], "nasbench101.csv.gz").exists()
    ),
    reason="the real NAS-Bench-101 table is not there: set NAS_DATA to a folder with "
    "nasbench101.csv.gz",
)


def _native(matrix: Matrix, inner: tuple[str, ...] | list[str]) -> str:
    return repr({"matrix": matrix, "ops": ["input", *inner, "output"]})


def _matrix(vertices: int, edges: Any) -> Matrix:
    return [[int((s, t) in edges) for t in range(vertices)] for s in range(vertices)]


def _cells(vertices: int) -> Iterator[tuple[frozenset[tuple[int, int]], tuple[str, ...]]]:
    """All matrices of that many vertices without one to prune, with all labels."""
    pairs = list(combinations(range(vertices), 2))
    for count in range(1, MAX_EDGES + 1):
        for edges in map(frozenset, combinations(pairs, count)):
            if {s for s, _ in edges} == set(range(vertices - 1)) and {t for _, t in edges} == set(
                range(1, vertices)
            ):
                yield from ((edges, labels) for labels in product(OPERATIONS, repeat=vertices - 2))


def _isomorphism_class(edges: frozenset[tuple[int, int]], labels: tuple[str, ...]) -> object:
    """The same for two cells if and only if a renumbering of the vertices makes them equal (brute
    force).
    """
    last = len(labels) + 1
    renamed = []
    for order in permutations(range(1, last)):
        number = (0, *order, last)
        moved = sorted((number[s], number[t]) for s, t in edges)
        renamed.append((moved, [label for _, label in sorted(zip(order, labels, strict=True))]))
    return str(min(renamed))


# --- published numbers


def _flops_of_the_table(graph: Graph) -> int:
    """Multiply-accumulates, and for every output of a batch normalization 2, of a ReLU 1, of a pool
    its window's size.

    Adding, concatenating, global pooling and the classifier's bias count nothing.
    """
    flops = graph_flops(graph)
    for node in graph.nodes:
        given: dict[str, Any] = dict(node.attrs)
        window = prod(given.get("kernel_shape", ()))
        each = {"ConvBn": 2, "Relu": 1, "MaxPool": window}.get(node.op, 0)
        flops += each * prod(int(d) for d in graph.shapes[node.outputs[0]][1:])
    return flops


@needs_table
def test_costs_of_all_rows_equal_the_table() -> None:
    space = get_space("nasbench101")
    with gzip.open(Path(os.environ["NAS_DATA"], "nasbench101.csv.gz"), "rt") as file:
        rows = list(csv.DictReader(file))
    wrong = []
    for row in rows:
        native = f'{{"matrix": {row["matrix"]}, "ops": {row["operations"]}}}'
        graph = space.graph(space.parse(native))
        if (graph_params(graph), _flops_of_the_table(graph)) != (
            float(row["params"]),
            float(row["flops"]),
        ):
            wrong.append(native)
    assert len(rows) == 350
    assert not wrong


INCEPTION = _native(
    _matrix(7, {(0, 1), (0, 2), (0, 3), (0, 5), (1, 6), (2, 6), (3, 4), (4, 6), (5, 6)}),
    [CONV1X1, CONV3X3, CONV3X3, CONV3X3, MAXPOOL],
)


@pytest.mark.parametrize("canonical", [False, True])
def test_published_example_has_its_published_parameters(canonical: bool) -> None:
    """The Inception-like cell of the benchmark's README."""
    space = get_space("nasbench101", canonical=canonical)
    assert space.params(space.parse(INCEPTION)) == 2_694_282


@pytest.mark.slow
def test_texts_are_one_to_one_with_the_isomorphism_classes_of_up_to_five_vertices() -> None:
    """Including channels that do not divide evenly: 8 by three sources of the output. 2,532 as
    published.
    """
    space = get_space("nasbench101", channels=8, stacks=1, modules=1, canonical=True)
    pairs = set()
    for vertices in range(2, 6):
        for edges, labels in _cells(vertices):
            arch = space.parse(_native(_matrix(vertices, edges), labels))
            pairs.add((space.to_text(arch), _isomorphism_class(edges, labels)))
    assert (
        len(pairs) == len({text for text, _ in pairs}) == len({kind for _, kind in pairs}) == 2532
    )


# --- cells


def _ops(count: int) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(OPERATIONS), min_size=count, max_size=count)


def _edge_sets() -> st.SearchStrategy[frozenset[tuple[int, int]]]:
    return st.frozensets(
        st.sampled_from(list(combinations(range(7), 2))), min_size=5, max_size=MAX_EDGES
    )


def _on_paths(edges: frozenset[tuple[int, int]]) -> set[int]:
    def reached(start: int, step: dict[int, list[int]]) -> set[int]:
        return {start}.union(*(reached(v, step) for v in step.get(start, [])))

    after: dict[int, list[int]] = {}
    before: dict[int, list[int]] = {}
    for s, t in edges:
        after.setdefault(s, []).append(t)
        before.setdefault(t, []).append(s)
    return reached(0, after) & reached(6, before)


@given(_edge_sets(), _ops(5))
@settings(max_examples=150, deadline=None)
def test_every_matrix_can_be_chosen_and_is_pruned_to_the_paths(
    edges: frozenset[tuple[int, int]], labels: list[str]
) -> None:
    kept = _on_paths(edges)
    assume({0, 6} <= kept)
    space = get_space("nasbench101")
    written = ast.literal_eval(space.format(space.parse(_native(_matrix(7, edges), labels))))
    assert written["matrix"] == _matrix(7, {(s, t) for s, t in edges if {s, t} <= kept})
    assert all(written["ops"][v] == labels[v - 1] for v in kept - {0, 6})


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_order_of_the_vertices_does_not_change_the_text(seed: int) -> None:
    """The default needs channels that are divisible by two to five, `canonical=True` does not."""
    rng = np.random.default_rng(seed)
    default = get_space("nasbench101", channels=60, modules=1)
    canonical = get_space("nasbench101", channels=16, modules=1, canonical=True)
    native = default.format(default.sample(rng))
    renumbered = _renumbered(ast.literal_eval(native), rng)
    for space in (default, canonical):
        assert space.to_text(space.parse(native)) == space.to_text(space.parse(renumbered))


def _renumbered(cell: dict[str, Any], rng: np.random.Generator) -> str:
    """The same cell with its vertices in another order in which edges go forward."""
    edges = {(s, t) for s in range(7) for t in range(7) if cell["matrix"][s][t]}
    order, left = [0], set(range(1, 6))
    while left:
        ready = sorted(v for v in left if not any((s, v) in edges for s in left))
        order.append(ready[rng.integers(len(ready))])
        left.remove(order[-1])
    order.append(6)
    moved = {(order.index(s), order.index(t)) for s, t in edges}
    return _native(_matrix(7, moved), [cell["ops"][v] for v in order[1:-1]])


def test_sources_of_the_output_share_its_channels_and_the_first_get_the_remainder() -> None:
    space = get_space("nasbench101", stacks=1, modules=1)
    edges = {(0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (3, 4)}
    for labels, weights in (
        ([CONV3X3, CONV1X1, CONV1X1], 43 * 43 * 9 + 43 * 43 + 42 * 42),
        ([CONV1X1, CONV1X1, CONV3X3], 43 * 43 + 43 * 43 + 42 * 42 * 9),
    ):
        projections = 128 * 128 + 2 * 128
        rest = 27 * 128 + 2 * 128 + 2 * 128 + 1290
        assert (
            space.params(space.parse(_native(_matrix(5, edges), labels)))
            == weights + projections + rest
        )


def test_vertex_that_feeds_a_narrower_one_is_cut() -> None:
    space = get_space("nasbench101", stacks=1, modules=1)
    edges = {(0, 1), (0, 2), (1, 3), (1, 4), (2, 4), (3, 4)}
    graph = space.graph(space.parse(_native(_matrix(5, edges), [CONV1X1, MAXPOOL, MAXPOOL])))
    cuts = [node for node in graph.nodes if node.op == "Slice"]
    assert [(graph.shapes[n.inputs[0]][1], graph.shapes[n.outputs[0]][1]) for n in cuts] == [
        (43, 42)
    ]


def test_random_cells_are_mostly_large_and_different() -> None:
    space, rng = get_space("nasbench101", channels=8, modules=1), np.random.default_rng(0)
    archs = [space.sample(rng) for _ in range(150)]
    sizes = [
        6 - [dict(arch.choices)[f"op{v}"] for v in range(1, 6)].count("none") for arch in archs
    ]
    assert np.mean(sizes) > 4.5
    assert len({space.to_text(arch) for arch in archs}) > 140


@pytest.mark.parametrize("canonical", [False, True])
def test_small_network_for_tiny_images_conforms(canonical: bool) -> None:
    space = get_space(
        "nasbench101", channels=8, modules=1, input_shape=(1, 8, 8), canonical=canonical
    )
    check_space(space, count=10)
    assert get_space("nasbench101", **space.options).options == space.options


# --- notation


def test_json_is_read_too() -> None:
    space = get_space("nasbench101")
    assert space.parse(INCEPTION.replace("'", '"')) == space.parse(INCEPTION)


@pytest.mark.parametrize(
    ("native", "message"),
    [
        ("", "not a literal"),
        ("[1, 2]", "not a literal"),
        ('{"matrix": [[0, 1], [0, 0]]}', "not a literal"),
        ('{"matrix": 3, "ops": ["input", "output"]}', "not a literal"),
        ('{"matrix": [[0, 1], [0]], "ops": ["input", "output"]}', "of one size"),
        (_native(_matrix(8, {(0, 7)}), [MAXPOOL] * 6), "of one size, 2 to 7"),
        (_native([[0, 1], [1, 0]], []), "upper triangular"),
        (_native([[0, 2], [0, 0]], []), "0 or 1"),
        (_native([[0, 0], [0, 0]], []), "no path"),
        (
            _native(_matrix(7, set(combinations(range(7), 2))), [MAXPOOL] * 5),
            "21 edges, but 9 at most",
        ),
        ('{"matrix": [[0, 1], [0, 0]], "ops": ["output", "input"]}', "from 'input' to 'output'"),
        (_native(_matrix(3, {(0, 1), (1, 2)}), ["conv3x3"]), "did you mean 'conv3x3-bn-relu'"),
    ],
)
def test_wrong_notation_is_refused(native: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        get_space("nasbench101").parse(native)


def test_wrong_options_are_refused() -> None:
    with pytest.raises(InputError, match="must be positive"):
        get_space("nasbench101", modules=0)
    with pytest.raises(InputError, match="at least 5, not 4"):
        get_space("nasbench101", channels=4)
