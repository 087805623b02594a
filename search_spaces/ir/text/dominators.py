"""Immediate dominators and post-dominators of an acyclic graph."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import reduce


class Tree:
    """A rooted tree that grows leaf by leaf, with lowest common ancestors in logarithmic time.

    Each node has a second link to a distant ancestor (Myers, "An applicative random-access stack",
    1983).
    """

    def __init__(self, root: int) -> None:
        self.parent, self._jump, self._depth = {root: root}, {root: root}, {root: 0}

    def add(self, node: int, parent: int) -> None:
        depth, jump = self._depth, self._jump
        near, above = jump[parent], depth[parent]
        far, middle = jump[near], depth[near]
        jump[node] = far if above - middle == middle - depth[far] else parent
        self.parent[node], depth[node] = parent, above + 1

    def common(self, nodes: Iterable[int]) -> int:
        """The lowest common ancestor of one or more nodes."""
        return reduce(self._common, nodes)

    def _common(self, a: int, b: int) -> int:
        parent, jump, depth = self.parent, self._jump, self._depth
        if depth[a] < depth[b]:
            a, b = b, a
        while depth[a] > depth[b]:
            a = jump[a] if depth[jump[a]] >= depth[b] else parent[a]
        while a != b:
            a, b = (jump[a], jump[b]) if jump[a] != jump[b] else (parent[a], parent[b])
        return a


def dominators(
    producers: Sequence[Sequence[int]], entries: Iterable[int], aside: Collection[int], root: int
) -> Tree:
    """The tree of immediate dominators.

    Args:
        producers: for each node the nodes or entries that it reads; nodes are numbered in
            topological order.
        entries: where paths begin; children of the root. Nodes that do not depend on an entry are
            not in the tree.
        aside: nodes and entries that do not count at a node which also reads others.
        root: number of the root.
    """
    tree = Tree(root)
    for entry in entries:
        tree.add(entry, root)
    for node, read in enumerate(producers):
        known = (
            read if len(read) == 1 else [producer for producer in read if producer in tree.parent]
        )
        if len(known) > 1:
            near = [producer for producer in known if producer not in aside] if aside else known
            tree.add(node, tree.common(near or known))
        elif known and known[0] in tree.parent:
            tree.add(node, known[0])
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
        tree.add(node, readers[0] if len(readers) == 1 else tree.common(readers))
    return tree
