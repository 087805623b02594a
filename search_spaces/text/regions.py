"""Blocks of a graph, found from its edges alone: what lies between a value and where all that it feeds comes together.

A node's region is what it post-dominates, back to its immediate dominator: a residual block, a cell of any number of
inputs, a branch of one. Regions nest (Johnson, Pearson and Pingali, "The program structure tree", 1994), and form
chains where each reads the one before it alone; in a chain, what is repeated one right after another is a block, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from functools import cached_property, lru_cache
from itertools import chain
from typing import NamedTuple

from search_spaces.graph.ir import Attrs, Graph
from search_spaces.text.blocks import PARAMETRIC
from search_spaces.text.dominators import dominators, post_dominators
from search_spaces.text.runs import MIN_REPEATS, runs

Path = tuple[Hashable, ...]
"""The blocks around a node, from the outermost."""

MAX_DEPTH = 32
_MIN_NODES = 3
_MANY = 3


def regions(graph: Graph) -> list[Path]:
    """For every node the blocks around it; independent of the order in which the nodes stand."""
    return _Regions(graph).paths()


class _Link(NamedTuple):
    """A link of a chain: all its nodes, the last of them, and the ends of the chains that come together in that.

    `structure`: the same for links whose nodes are connected in the same way.
    """

    nodes: list[int]
    last: int
    inner: list[int]
    structure: tuple[int, ...]


class _Block(NamedTuple):
    """The block around this one, how many there are around it, and what blocks of one structure have in common."""

    outer: int
    depth: int
    structure: Hashable


class _Regions:
    """`inner`: by node, what it immediately post-dominates; `ends`: what nobody needs, behind the node it hangs on.

    `blocks`: by number; the first is the whole.
    """

    def __init__(self, graph: Graph) -> None:
        self.sink, root = len(graph.nodes), -1
        self.graph, self.labels = graph, _labels(graph, _label)
        entries = [root - 1 - i for i in range(len(graph.inputs))]
        owner = [*entries, *[i for i, node in enumerate(graph.nodes) for _ in node.outputs]]
        self.producers = [
            [owner[node.inputs[0]]] if len(node.inputs) == 1 else [*dict.fromkeys([owner[v] for v in node.inputs])]
            for node in graph.nodes
        ]
        users = self._users([owner[v] for v in graph.outputs])
        aside = self._aside(users, entries)
        self.before = dominators(self.producers, entries, aside, root).parent
        users = {i: readers for i, readers in users.items() if i >= 0}
        after = post_dominators(users, self.sink)
        self.after = after.parent
        self.ends: dict[int, list[list[int]]] = {}
        for nodes in self._dead(users):
            read = {p for i in nodes for p in self.producers[i] if p in users}
            self.ends.setdefault(after.common(read) if read else self.sink, []).append(nodes)
        self.inner: dict[int, list[int]] = {}
        for i in reversed(users):
            shared = i in aside or (i not in self.before and len(users[i]) > 1)
            end = self.sink if shared else self.after[i]
            if end in self.inner:
                self.inner[end].append(i)
            else:
                self.inner[end] = [i]
        self.blocks = [_Block(0, 0, None)]

    @cached_property
    def exact(self) -> list[int]:
        """Labels with widths and kernel sizes; only networks with values that nobody reads need them."""
        return _labels(self.graph, _exact_label)

    def _users(self, outputs: list[int]) -> dict[int, list[int]]:
        """Who reads each node that the outputs need, from the last node on, and each entry."""
        users: dict[int, list[int]] = {i: [self.sink] for i in outputs}
        for i in reversed(range(self.sink)):
            if i in users:
                for producer in self.producers[i]:
                    if producer in users:
                        users[producer].append(i)
                    else:
                        users[producer] = [i]
        return {i: users[i] for i in sorted(users, reverse=True)}

    def _aside(self, users: dict[int, list[int]], entries: list[int]) -> set[int]:
        """What many nodes read beside something else, such as a mask: it belongs to no block, nor makes one."""
        many = {i: readers for i, readers in users.items() if len(readers) >= _MANY}
        if not many:
            return set()
        fed = set(entries)
        for i, producers in enumerate(self.producers):
            if not fed.isdisjoint(producers):
                fed.add(i)

        def joins(i: int) -> bool:
            producers = self.producers[i] if i < self.sink else []
            return sum([p in fed for p in producers]) > 1

        return {i for i, readers in many.items() if all(map(joins, readers))}

    def _dead(self, users: dict[int, list[int]]) -> list[list[int]]:
        """The connected parts of what the outputs do not need."""
        part: dict[int, list[int]] = {}
        for i in range(self.sink):
            if i not in users:
                parts = {id(part[p]): part[p] for p in self.producers[i] if p in part}
                joined = max(parts.values(), key=len, default=[])  # the others move, so that each moves seldom
                for other in parts.values():
                    if other is not joined:
                        joined += other
                        part.update(dict.fromkeys(other, joined))
                joined.append(i)
                part[i] = joined
        return [sorted(nodes) for nodes in {id(nodes): nodes for nodes in part.values()}.values()]

    def paths(self) -> list[Path]:
        """For every node the blocks around it, without those that are there just once."""
        home = [0] * self.sink
        waiting = [(i, 0) for i in self.inner.get(self.sink, ())]
        while waiting:
            last, outer = waiting.pop()
            links = self._chain(last)
            for (nodes, end, inner, structure), block in zip(links, self._repeated(links, outer), strict=True):
                if len(nodes) == 1:
                    home[end] = block
                    continue
                block = self._block(block, structure) if len(nodes) >= _MIN_NODES else block
                deep = self.blocks[block].depth >= MAX_DEPTH
                for i in nodes if deep or not inner else [end]:
                    home[i] = block
                waiting += [] if deep else [(i, block) for i in inner]
        kept = self._recurring()
        path: list[Path] = [()]
        for i, inner_block in enumerate(self.blocks[1:], start=1):
            around = path[inner_block.outer]
            path.append((*around, i) if inner_block.structure in kept else around)
        return [path[block] for block in home]

    def _block(self, outer: int, structure: Hashable) -> int:
        """The number of a new block."""
        self.blocks.append(_Block(outer, self.blocks[outer].depth + 1, structure))
        return len(self.blocks) - 1

    def _recurring(self) -> set[Hashable]:
        """The structures that are there twice: in blocks of different structures, or in one."""
        inside: list[list[int]] = [[] for _ in self.blocks]
        for i, block in enumerate(self.blocks[1:], start=1):
            inside[block.outer].append(i)
        times: Counter[Hashable] = Counter()
        waiting = [0]
        while waiting:
            for i in inside[waiting.pop()]:
                structure = self.blocks[i].structure
                times[structure] += 1
                if times[structure] == 1:
                    waiting.append(i)
        return {structure for structure, count in times.items() if count > 1}

    def _chain(self, last: int) -> list[_Link]:
        """What follows one right after another up to a node."""
        found: list[_Link] = []
        hanging: list[list[list[int]]] = []
        node: int | None = last
        while node is not None:
            hanging.append(self.ends.get(node, []))
            first = self.before.get(node, self.sink)
            linked = self.after.get(first) == node
            inner = [i for i in self.inner.get(node, ()) if not linked or i != first]
            nodes = self._nodes(node, inner) if inner else [node]
            found.append(_Link(nodes, node, inner, self._structure(nodes, self.labels)))
            node = first if linked else None
        links: list[_Link] = []
        order = self._order(hanging[::-1])
        for link, ends in zip(found[::-1], order, strict=True):
            links += [link, *ends]
        return links

    def _order(self, hanging: list[list[list[int]]]) -> list[list[_Link]]:
        """What hangs on each link of a chain, by structure; of one structure, what the chain had earlier comes first.

        A cell's last ends and the next cell's first ones hang on one node, and only the cells before tell them apart.
        """
        seen: dict[tuple[int, ...], int] = {}
        found: list[list[_Link]] = []
        for ends in hanging:
            links = [_Link(nodes, nodes[-1], [], self._structure(nodes, self.labels)) for nodes in ends]
            if ends:
                exact = [self._structure(nodes, self.exact) for nodes in ends]
                keys = [(link.structure, seen.get(e, len(seen)), e) for link, e in zip(links, exact, strict=True)]
                ranked = sorted(range(len(ends)), key=keys.__getitem__)
                links = [links[i] for i in ranked]
                for i in ranked:
                    seen.setdefault(exact[i], len(seen))
            found.append(links)
        return found

    def _repeated(self, links: list[_Link], outer: int) -> list[int]:
        """For every link of a chain the block around it: the chain's, a run, or one of the copies that a run is of.

        Small copies are no blocks, nor are those of a single link, which is one already.
        """
        found = [outer] * len(links)
        if len(links) < MIN_REPEATS:
            return found
        structures = [link.structure for link in links]
        sizes = [len(link.nodes) for link in links]
        for run in runs(structures, sizes):
            whole = self._block(outer, tuple(structures[run.first : run.end]))
            for first in range(run.first, run.end, run.length):
                end, block = first + run.length, whole
                if run.length > 1 and sum(sizes[first:end]) >= _MIN_NODES:
                    block = self._block(whole, tuple(structures[first:end]))
                found[first:end] = [block] * run.length
        return found

    def _nodes(self, node: int, inner: list[int]) -> list[int]:
        """A node and all that comes together in it, in the graph's order."""
        found = [node]
        waiting = list(inner)
        while waiting:
            other = waiting.pop()
            found.append(other)
            if other in self.inner:
                waiting += self.inner[other]
            if other in self.ends:
                found += chain.from_iterable(self.ends[other])
        return sorted(found)

    def _structure(self, nodes: list[int], labels: list[int]) -> tuple[int, ...]:
        """The same for nodes of the same labels that are connected in the same way, whatever order they stand in."""
        producers = self.producers
        if len(nodes) == 1:
            return (labels[nodes[0]],)
        known: dict[int, int] = {}
        for node in nodes:
            read = producers[node]
            if len(read) == 1:
                known[node] = hash((labels[node], known.get(read[0], 0)))
            else:
                known[node] = hash((labels[node], *sorted([known.get(p, 0) for p in read])))
        return tuple(sorted(known.values()))


def _labels(graph: Graph, label: Callable[[str, Attrs, int], tuple[str, str, int]]) -> list[int]:
    """Labels of the nodes as numbers that do not depend on the nodes' order."""
    found = [label(node.op, node.attrs, len(node.inputs)) for node in graph.nodes]
    ranks = {each: rank for rank, each in enumerate(sorted(set(found)))}
    return [ranks[each] for each in found]


@lru_cache(maxsize=4096)
def _label(op: str, attrs: Attrs, inputs: int) -> tuple[str, str, int]:
    """What the nodes of repeated blocks have in common."""
    return (op, repr([(name, None if name in PARAMETRIC else value) for name, value in attrs]), inputs)


def _exact_label(op: str, attrs: Attrs, inputs: int) -> tuple[str, str, int]:
    return (op, repr(attrs), inputs)
