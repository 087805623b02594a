"""Two searches for structure on which `regions` stand: trees of dominators in an acyclic graph, and
runs in a sequence of labels.

A node dominates another one if all paths from the inputs to that one pass through it, and
post-dominates it if all paths to the outputs do. The nearest of these is the immediate one.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import accumulate
from operator import eq
from typing import NamedTuple

MIN_REPEATS = 3  # copies in a run
_MAX_RUN_LENGTH = 64  # labels per copy


class Tree:
    """A rooted tree that grows leaf by leaf, with lowest common ancestors in logarithmic time.

    Each node has a second link, a jump to a distant ancestor (Myers, "An applicative random-access
    stack", 1983).
    """

    def __init__(self, root: int) -> None:
        self.parent = {root: root}
        self._jump = {root: root}
        self._depth = {root: 0}

    def add(self, node: int, parent: int) -> None:
        depth, jump = self._depth, self._jump
        # Two jumps of equal length from the parent on are joined to one that is longer by one.
        near = jump[parent]
        far = jump[near]
        joins = depth[parent] - depth[near] == depth[near] - depth[far]
        jump[node] = far if joins else parent
        self.parent[node] = parent
        depth[node] = depth[parent] + 1

    def common(self, nodes: Iterable[int]) -> int:
        """The lowest common ancestor of one or more nodes."""
        return reduce(self._common, nodes)

    def _common(self, a: int, b: int) -> int:
        parent, jump, depth = self.parent, self._jump, self._depth
        # 1. From the deeper node up to the depth of the other one.
        if depth[a] < depth[b]:
            a, b = b, a
        while depth[a] > depth[b]:
            a = jump[a] if depth[jump[a]] >= depth[b] else parent[a]
        # 2. From both up until they meet; jumps from equal depths have equal lengths.
        while a != b:
            step = jump if jump[a] != jump[b] else parent
            a, b = step[a], step[b]
        return a


def dominators(
    producers: Sequence[Sequence[int]],
    entries: Iterable[int],
    side_inputs: Collection[int],
    root: int,
) -> Tree:
    """The tree of immediate dominators.

    Args:
        producers: for each node the nodes or entries that it reads; nodes are numbered in
            topological order.
        entries: where paths begin; children of the root. Nodes that do not depend on an entry are
            not in the tree.
        side_inputs: nodes and entries that do not count at a node which also reads others.
        root: number of the root.
    """
    tree = Tree(root)
    for entry in entries:
        tree.add(entry, root)
    for node, read in enumerate(producers):
        reached = [producer for producer in read if producer in tree.parent]
        if len(reached) > 1 and side_inputs:
            main_inputs = [producer for producer in reached if producer not in side_inputs]
            reached = main_inputs or reached
        if reached:
            tree.add(node, tree.common(reached))
    return tree


def post_dominators(users: Mapping[int, Sequence[int]], sink: int) -> Tree:
    """The tree of immediate post-dominators, with root `sink`.

    Args:
        users: for each node its readers, other nodes or `sink`, at least one; in reverse
            topological order.
        sink: number of the root.
    """
    tree = Tree(sink)
    for node, readers in users.items():
        tree.add(node, tree.common(readers))
    return tree


# --- runs: subsequences that are repeated three times or more without a gap


class Run(NamedTuple):
    """`times` copies of `length` labels, starting at position `first`."""

    first: int
    length: int
    times: int

    @property
    def end(self) -> int:
        return self.first + self.length * self.times


def runs(labels: Sequence[Hashable], weights: Sequence[int]) -> list[Run]:
    """Runs that do not overlap, chosen greedily.

    Runs with most copies come first, then those of the largest weight, then of the smallest length.
    """
    number = {label: i for i, label in enumerate(dict.fromkeys(labels))}
    repetitions = len(labels) - len(number)
    if repetitions < MIN_REPEATS - 1:
        return []
    labels = [number[label] for label in labels]

    # 1. All candidates.
    total = [0, *accumulate(weights)]
    queue: list[tuple[tuple[int, int, int, int], Run]] = []

    def push(first: int, length: int, end: int) -> None:
        times = (end - first) // length
        if times >= MIN_REPEATS:
            run = Run(first, length, times)
            weight = total[run.end] - total[first]
            priority = (-times, -weight, length, first)
            heapq.heappush(queue, (priority, run))

    longest = min(_MAX_RUN_LENGTH, len(labels) // MIN_REPEATS)
    for length in range(1, longest + 1):
        for first, end in _periodic(labels, length):
            push(first, length, end)

    # 2. The best first; of one that overlaps a chosen run, the free parts are candidates.
    taken = [False] * len(labels)
    chosen = []
    while queue:
        _, run = heapq.heappop(queue)
        free = list(_free(taken, run.first, run.end))
        if free == [(run.first, run.end)]:
            size = run.end - run.first
            taken[run.first : run.end] = [True] * size
            chosen.append(run)
        else:
            for first, end in free:
                push(first, run.length, end)
    return chosen


def _periodic(labels: Sequence[Hashable], length: int) -> Iterator[tuple[int, int]]:
    """The bounds of the longest sequences with period `length` that hold a run."""
    same = bytes(map(eq, labels, labels[length:])) + b"\0"  # 1 if a label recurs after the period
    shortest = b"\1" * length * (MIN_REPEATS - 1)
    first = same.find(shortest)
    while first >= 0:
        end = same.index(b"\0", first)
        yield first, end + length
        first = same.find(shortest, end)


def _free(taken: Sequence[bool], first: int, end: int) -> Iterator[tuple[int, int]]:
    """The bounds of the sequences between `first` and `end` that are not taken."""
    begin = first
    for i in range(first, end + 1):
        if i == end or taken[i]:
            if begin < i:
                yield begin, i
            begin = i + 1
