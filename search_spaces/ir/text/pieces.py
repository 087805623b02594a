"""The structure of one piece of a graph: regions, chains of regions, and the blocks that they form.

The region of a node is what the node post-dominates, back to its immediate dominator: for instance
a residual block, a cell with any number of inputs, or a branch. Regions nest (Johnson, Pearson and
Pingali, "The program structure tree", 1994). Regions that each read only the previous one form a
chain; repetitions in a chain are blocks, too.

Nodes that no output needs are dead. They belong to the text all the same, and hang on a node of a
chain: the nearest one that post-dominates what they read.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Generic, NamedTuple, TypeVar, cast

from search_spaces.ir.text.structure import MIN_REPEATS, dominators, post_dominators, runs

MAX_BLOCK_DEPTH = 32
ROOT = -1  # entries have the numbers below
_MIN_NODES = 3
_MIN_SIDE_READERS = 3

Structure = tuple[int, ...]
"""Equal for nodes of equal labels and connections, in any order."""

T = TypeVar("T")


class DeadEnd(NamedTuple, Generic[T]):
    """Connected nodes that no output needs.

    Attributes:
        structure, exact: their structure without and with widths and kernel sizes.
        link: the nodes.
    """

    structure: Structure
    exact: Structure
    link: T


class Link(NamedTuple):
    """A link of a chain: a region.

    Attributes:
        nodes: all its nodes.
        last: its last node.
        inner: last nodes of the chains that `last` joins.
        structure: structure of `nodes`.
    """

    nodes: list[int]
    last: int
    inner: list[int]
    structure: Structure


_link: Callable[[tuple[list[int], int, list[int], Structure]], Link] = partial(tuple.__new__, Link)
"""`Link` from a tuple of its fields, in a third of the time."""

Chain = list[tuple[Link, list[DeadEnd[Link]]]]
"""Links, each with the dead ends that hang on it."""


def interleaved(links: Iterable[tuple[T, list[DeadEnd[T]]]]) -> list[T]:
    """The links of a chain, each followed by its dead ends in the order of their structure.

    Dead ends of equal structure stand in the order in which the chain had equal ones before: the
    last ones of a cell and the first ones of the next hang on one node, and only earlier cells tell
    them apart.
    """
    first_occurrence: dict[Structure, int] = {}  # in the chain, by exact structure
    sequence: list[T] = []
    for link, dead_ends in links:
        sequence.append(link)
        if not dead_ends:
            continue
        ranked = []
        for i, end in enumerate(dead_ends):
            rank = first_occurrence.get(end.exact, len(first_occurrence))
            ranked.append((end.structure, rank, end.exact, i))
        for _, _, exact, i in sorted(ranked):
            sequence.append(dead_ends[i].link)
            first_occurrence.setdefault(exact, len(first_occurrence))
    return sequence


class Blocks:
    """Blocks by number; block 0 is around all others.

    Attributes:
        outer: the block around each block.
        depth: number of blocks around each block.
        structure: structure of each block.
        innermost: the innermost block around each node.
    """

    def __init__(self, depth: int) -> None:
        self.outer = [0]
        self.depth = [depth]
        self.structure = [cast(Hashable, None)]
        self.innermost: dict[int, int] = {}

    def add(self, outer: int, structure: Hashable) -> int:
        """Add a block; returns its number."""
        self.outer.append(outer)
        self.depth.append(self.depth[outer] + 1)
        self.structure.append(structure)
        return len(self.outer) - 1

    def place(self, link: Link, block: int, shift: int = 0) -> tuple[int, list[int]]:
        """Put a link into a block.

        Args:
            shift: offset of the numbers of its nodes.

        Returns:
            The innermost block around the link, and the last nodes of its inner chains, which are
            not placed yet.
        """
        nodes, last, inner, structure = link
        if len(nodes) >= _MIN_NODES:
            block = self.add(block, structure)
        if inner and self.depth[block] >= MAX_BLOCK_DEPTH:
            inner = []
        for node in [last] if inner else nodes:
            self.innermost[node + shift] = block
        return block, inner

    def insert(self, other: Blocks, block: int, shift: int) -> None:
        """Insert the blocks and nodes of `other`, whose block 0 is `block` here.

        shift: offset of the nodes.
        """
        start = len(self.outer) - 1
        for outer in other.outer[1:]:
            self.outer.append(outer + start if outer else block)
        self.depth += other.depth[1:]
        self.structure += other.structure[1:]
        for node, inner in other.innermost.items():
            self.innermost[node + shift] = inner + start if inner else block

    def repeated(self, links: Sequence[Link], outer: int) -> list[int]:
        """The block around each link of a chain: `outer`, a run, or a copy inside of a run.

        Copies of few nodes get no block, nor do those of a single link, which has its own.
        """
        around = [outer] * len(links)
        if len(links) < MIN_REPEATS:
            return around
        structures = [link.structure for link in links]
        sizes = [len(link.nodes) for link in links]
        for run in runs(structures, sizes):
            block_of_run = self.add(outer, tuple(structures[run.first : run.end]))
            for first in range(run.first, run.end, run.length):
                end = first + run.length
                block = block_of_run
                if run.length > 1 and sum(sizes[first:end]) >= _MIN_NODES:
                    block = self.add(block_of_run, tuple(structures[first:end]))
                around[first:end] = [block] * run.length
        return around

    def recurring(self) -> set[Hashable]:
        """The structures that occur at least twice; blocks of equal structure are searched once."""
        inside: list[list[int]] = [[] for _ in self.outer]  # blocks directly inside of each block
        for i, outer in enumerate(self.outer[1:], start=1):
            inside[outer].append(i)
        occurrences: dict[Hashable, int] = {}
        waiting = [0]
        while waiting:
            for i in inside[waiting.pop()]:
                structure = self.structure[i]
                if structure in occurrences:
                    occurrences[structure] += 1
                else:
                    occurrences[structure] = 1
                    waiting.append(i)
        return {structure for structure, times in occurrences.items() if times > 1}


class Piece:
    """Nodes of a graph between two cuts, numbered in topological order.

    Args:
        producers: for each node the nodes or entries that it reads.
        entries: numbers of the values that come from outside.
        outputs: nodes or entries that are read outside.
        labels, exact: label of each node without and with widths and kernel sizes.
        first, last: True for the first and the last piece of the graph. In others, node 0 is the
            last node of the previous piece, and the only output is read by the next one.

    Attributes:
        before: the immediate dominator of each node.
        after: the immediate post-dominator of each node.
        inner: for each node the nodes that it immediately post-dominates.
        dead_ends: connected nodes that no output needs, by the node that they hang on.
        chains: chains that no region is around.
        main: the chain from the previous piece to the next one.
        connected: False if there must be a main chain and there is none.
    """

    def __init__(
        self,
        producers: list[list[int]],
        entries: list[int],
        outputs: list[int],
        labels: list[int],
        exact: list[int],
        first: bool,
        last: bool,
    ) -> None:
        self.producers = producers
        self.labels = labels
        self.exact = exact
        self.sink = len(producers)
        self._nested: dict[tuple[int, int], Blocks] = {}

        # 1. Dominators and post-dominators, of the nodes that the outputs need.
        users = self._users(outputs)
        side_inputs = self._side_inputs(users, entries)
        self.before = dominators(producers, entries, side_inputs, ROOT).parent
        users = {i: readers for i, readers in users.items() if i >= 0}
        post_dominator_tree = post_dominators(users, self.sink)
        self.after = post_dominator_tree.parent

        # 2. Dead nodes hang on the nearest node that post-dominates what they read of the others.
        self.dead_ends: dict[int, list[list[int]]] = {}
        for nodes in self._dead_components(users):
            read = set(chain.from_iterable([producers[i] for i in nodes]))
            alive = read & users.keys()
            anchor = post_dominator_tree.common(alive) if alive else self.sink
            self.dead_ends.setdefault(anchor, []).append(nodes)

        # 3. Regions, which end at the nodes that post-dominate them. A value that several of them
        #    share is in none.
        self.inner: dict[int, list[int]] = {}
        for i in reversed(users):
            depends_on_entry = i in self.before
            is_shared = i in side_inputs or (not depends_on_entry and len(users[i]) > 1)
            region_end = self.sink if is_shared else self.after[i]
            self.inner.setdefault(region_end, []).append(i)

        # 4. Chains of regions.
        outermost = self.inner.get(self.sink, ())
        self.chains = [self._chain(node) for node in outermost]
        self.main = None
        if outputs:
            self.main = self._main_chain(first, last, outputs[0])
        is_whole_graph = first and last
        self.connected = self.main is not None or is_whole_graph

    def nested(self, link: Link, depth: int) -> Blocks:
        """The blocks of the inner chains of a link; `depth`: depth of the block around them."""
        key = (link.last, depth)
        if key not in self._nested:
            blocks = Blocks(depth)
            waiting = [(node, 0) for node in link.inner]  # chains, with the block around each
            while waiting:
                last, outer = waiting.pop()
                links = interleaved(self._chain(last))
                around = blocks.repeated(links, outer)
                for inner_link, block in zip(links, around, strict=True):
                    innermost, ends_of_chains = blocks.place(inner_link, block)
                    waiting += [(node, innermost) for node in ends_of_chains]
            self._nested[key] = blocks
        return self._nested[key]

    # Steps 1 to 3

    def _users(self, outputs: list[int]) -> dict[int, list[int]]:
        """Readers of each node and entry that the outputs need, in reverse topological order."""
        users: dict[int, list[int]] = {i: [self.sink] for i in outputs}
        for i in reversed(range(self.sink)):
            if i in users:
                for producer in self.producers[i]:
                    users.setdefault(producer, []).append(i)
        return {i: users[i] for i in sorted(users, reverse=True)}

    def _side_inputs(self, users: dict[int, list[int]], entries: list[int]) -> set[int]:
        """Nodes that many others read beside another input, such as a mask.

        They are left out of blocks.
        """
        # 1. Nodes and entries of many readers.
        candidates = {}
        for i, readers in users.items():
            if len(readers) >= _MIN_SIDE_READERS:
                candidates[i] = readers
        if not candidates:
            return set()

        # 2. What depends on an entry.
        dependent = set(entries)
        for i, producers in enumerate(self.producers):
            if not dependent.isdisjoint(producers):
                dependent.add(i)

        # 3. Readers of several such values; the sink reads no other one.
        joining = set()
        for i, producers in enumerate(self.producers):
            if sum([producer in dependent for producer in producers]) > 1:
                joining.add(i)

        # 4. Candidates that have only such readers.
        return {i for i, readers in candidates.items() if joining.issuperset(readers)}

    def _dead_components(self, users: dict[int, list[int]]) -> list[list[int]]:
        """The connected components of the nodes that no output needs."""
        component: dict[int, list[int]] = {}  # the component of each such node
        for i in range(self.sink):
            if i in users:
                continue
            # 1. The components that the node connects.
            dead_producers = [producer for producer in self.producers[i] if producer in component]
            connected = _distinct_lists([component[producer] for producer in dead_producers])

            # 2. The smaller ones move into the largest, so that each node moves seldom.
            largest = max(connected, key=len, default=[])
            for other in connected:
                if other is not largest:
                    largest += other
                    component.update(dict.fromkeys(other, largest))
            largest.append(i)
            component[i] = largest
        return [sorted(nodes) for nodes in _distinct_lists(component.values())]

    # Step 4

    def _chain(self, last: int) -> Chain:
        """The chain that ends at a node, from its last link to its first, then turned round."""
        links: Chain = []
        node: int | None = last
        while node is not None:
            # 1. The nodes between `node` and its dominator; inner chains end at those in `inner`.
            dominator = self.before.get(node, self.sink)
            is_region = self.after.get(dominator) == node
            inner = list(self.inner.get(node, ()))
            if is_region:
                inner = [i for i in inner if i != dominator]
            nodes = self._nodes(node, inner) if inner else [node]

            # 2. They are a link; what hangs on the node follows it.
            structure = self._structure(nodes, self.labels)
            link = _link((nodes, node, inner, structure))
            dead_ends = [self._dead_end(dead) for dead in self.dead_ends.get(node, ())]
            links.append((link, dead_ends))

            # 3. The region begins at the dominator, which is the last node of the link before.
            node = dominator if is_region else None
        return links[::-1]

    def _main_chain(self, first: bool, last: bool, output: int) -> Chain | None:
        """The chain from the previous piece, if there is one, to the next, if there is one."""
        if first and last:
            return None
        if not last and output not in self.before:
            return None
        for links in self.chains:
            first_link, _ = links[0]
            last_link, _ = links[-1]
            begins = first or first_link.last == 0
            ends = last or last_link.last == output
            if begins and ends:
                return links
        return None

    def _dead_end(self, nodes: list[int]) -> DeadEnd[Link]:
        structure = self._structure(nodes, self.labels)
        exact = self._structure(nodes, self.exact)
        return DeadEnd(structure, exact, Link(nodes, nodes[-1], [], structure))

    def _nodes(self, node: int, inner: list[int]) -> list[int]:
        """A node, what it post-dominates inside of its link, and their dead ends.

        They are in the order of the graph.
        """
        nodes = [node]
        waiting = list(inner)
        while waiting:
            other = waiting.pop()
            nodes.append(other)
            waiting += self.inner.get(other, ())
            nodes += chain.from_iterable(self.dead_ends.get(other, ()))
        return sorted(nodes)

    def _structure(self, nodes: list[int], labels: list[int]) -> Structure:
        """A hash of each node, its label and what it reads of the others, sorted."""
        producers = self.producers
        if len(nodes) == 1:
            return (labels[nodes[0]],)
        hashes: dict[int, int] = {}
        for node in nodes:
            read = [hashes.get(producer, 0) for producer in producers[node]]
            if len(read) > 1:  # few nodes do, and sorting would take most of the time
                read.sort()
            hashes[node] = hash((labels[node], *read))
        return tuple(sorted(hashes.values()))


def _distinct_lists(lists: Iterable[list[int]]) -> list[list[int]]:
    """The lists that are different objects, in the order of their first occurrence."""
    by_identity = {id(nodes): nodes for nodes in lists}
    return list(by_identity.values())
