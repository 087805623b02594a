"""Claims about blocks found from a graph's edges: dominators, runs, and regions that a function can
stand for.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import pairwise
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.ir.builder import Network
from search_spaces.ir.graph import Graph, Node
from search_spaces.ir.text.regions import Path, _Regions, placed_lines, regions
from search_spaces.ir.text.structure import MIN_REPEATS, dominators, post_dominators, runs

Edges = list[list[int]]
"""What each node reads: earlier nodes, or -1, the source."""


def _paths(graph: Graph) -> list[Path]:
    return regions(graph, placed_lines(graph))


@st.composite
def edges(draw: st.DrawFn) -> Edges:
    count = draw(st.integers(1, 12))
    return [
        draw(st.lists(st.integers(-1, i - 1), min_size=1, max_size=3, unique=True))
        for i in range(count)
    ]


def _reached(producers: Edges, without: int) -> set[int]:
    """Nodes on paths from the source that avoid one node."""
    found = {-1}
    for node, read in enumerate(producers):
        if node != without and not found.isdisjoint(read):
            found.add(node)
    return found


@given(edges())
def test_a_dominator_is_what_every_path_passes(producers: Edges) -> None:
    parent = dominators(producers, [-1], (), -2).parent
    for node in range(len(producers)):
        above, at = set(), node
        while at >= 0:
            above.add(at)
            at = parent[at]
        assert above == {
            other for other in range(node + 1) if node not in _reached(producers, without=other)
        }


@given(edges())
def test_post_dominators_are_the_dominators_of_the_reversed_graph(producers: Edges) -> None:
    count = len(producers)
    users: dict[int, list[int]] = {i: [] for i in reversed(range(count))}
    for node, read in enumerate(producers):
        for producer in read:
            if producer >= 0:
                users[producer].append(node)
    users = {i: readers or [count] for i, readers in users.items()}
    reversed_producers = [[count - 1 - user for user in users[i]] for i in users]
    mirrored = dominators(reversed_producers, [-1], (), -2).parent
    found = post_dominators(users, count).parent
    assert all(found[i] == count - 1 - mirrored[count - 1 - i] for i in range(count))


def test_ignored_inputs_make_no_paths() -> None:
    beside = [[-1], [-1], [0, 1], [2], [0, 3]]  # 0 is read beside something else: by 2 and by 4
    assert dominators(beside, [-1], (), -2).parent[4] == -1
    assert dominators(beside, [-1], {0}, -2).parent[4] == 3


@given(st.lists(st.integers(0, 2), max_size=40))
def test_runs_are_repetitions_that_do_not_overlap(labels: list[int]) -> None:
    found = sorted(runs(labels, [1] * len(labels)))
    for run in found:
        assert run.times >= MIN_REPEATS
        copies = [labels[i : i + run.length] for i in range(run.first, run.end, run.length)]
        assert copies == [copies[0]] * run.times
    assert all(a.end <= b.first for a, b in pairwise(found))


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=5, unique=True), st.integers(MIN_REPEATS, 6)
)
def test_a_repeated_word_is_a_run_between_other_things(word: list[int], times: int) -> None:
    labels = [7, 8, *word * times, 9]
    assert runs(labels, [1] * len(labels)) == [(2, len(word), times)]


@settings(max_examples=100)
@given(edges(), st.data())
def test_no_path_leaves_a_block_and_comes_back(producers: Edges, data: st.DataObject) -> None:
    ops = [data.draw(st.sampled_from(["Relu", "Tanh"])) for _ in producers]
    nodes = [
        Node("Sum" if len(read) > 1 else op, tuple(p + 1 for p in read), (i + 1,))
        for i, (read, op) in enumerate(zip(producers, ops, strict=True))
    ]
    outputs = tuple(data.draw(st.sets(st.integers(1, len(nodes)), min_size=1)))
    shapes = (("N", 4),) * (len(nodes) + 1)
    paths = _paths(Graph((0,), tuple(nodes), outputs, shapes))
    blocks = {path[:depth] for path in paths for depth in range(1, len(path) + 1)}
    for block in blocks:
        inside = {i for i, path in enumerate(paths) if path[: len(block)] == block}
        left: set[int] = set()
        for node, read in enumerate(producers):
            if node in inside:
                assert left.isdisjoint(read), (
                    "a call would have to run before and after another node"
                )
            elif not (inside | left).isdisjoint(read):
                left.add(node)


def _nested(paths: list[Path]) -> list[Path]:
    """The paths, with blocks numbered in order of appearance."""
    number: dict[Hashable, int] = {}
    return [tuple([number.setdefault(block, len(number)) for block in path]) for path in paths]


@settings(max_examples=200)
@given(st.lists(edges(), min_size=1, max_size=3), st.integers(1, 3), st.integers(0, 3))
def test_blocks_do_not_depend_on_where_the_graph_is_cut(
    cells: list[Edges], times: int, unread: int
) -> None:
    nodes: list[Node] = []
    for cell in [cell for cell in cells for _ in range(times)]:
        start = len(nodes)
        nodes += [
            Node("Sum", tuple(start + p + 1 for p in read), (start + i + 1,))
            for i, read in enumerate(cell)
        ]
    outputs = (max(1, len(nodes) - unread),)
    graph = Graph((0,), tuple(nodes), outputs, (("N", 4),) * (len(nodes) + 1))
    found = _Regions(graph, placed_lines(graph))
    cut = found.paths()
    with patch.object(_Regions, "_cuts", lambda self: [0, self.count]):
        assert _nested(cut) == _nested(found.paths())


def test_a_cell_of_two_inputs_is_a_block() -> None:
    net = Network((4, 8, 8), 10)
    before, last = net.relu(net.input), net.conv(net.input)
    for _ in range(4):
        left, right = net.conv_bn(net.relu(before), kernel=1), net.conv_bn(net.relu(last), kernel=1)
        before, last = last, net.add(net.max_pool(left), net.sigmoid(right))
    graph = net.graph(net.classifier(last))
    inner = [
        path for path, node in zip(_paths(graph), graph.nodes, strict=True) if node.op == "MaxPool"
    ]
    assert len(set(inner)) > 1
    assert all(path for path in inner[1:-1])
