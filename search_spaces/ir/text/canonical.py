"""The canonical order of the lines of a block, which does not depend on their given order.

Colour refinement (Weisfeiler and Leman) over the lines and their neighbours. Lines with equal
colours are then individualized one at a time; of all ways that are not symmetric, the smallest
result is taken (McKay, "Practical graph isomorphism", 1981).
"""

from __future__ import annotations

import hashlib
import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

from search_spaces.ir.operators import COMMUTATIVE
from search_spaces.ir.text.blocks import Block, Item, ItemAttrs, Ref, new_item
from search_spaces.ir.text.partition import Partition

_MAX_LEAVES = 64
_MAX_LEAF_VALUES = 30_000  # values produced and read in all leaves of a block; limits the time
_MAX_CACHED_LINES = 128  # larger blocks are not cached, to limit memory
_HOLE = Ref("0")


class NotConvexError(Exception):
    """A cycle: a call would have to run both before and after another line."""


class RawBlock(NamedTuple):
    """A block in its given order, from which the canonical form is computed.

    Attributes:
        items: items in which each number that may be a parameter is a `Ref` to its rank among the
            numbers of the block.
        ordered_inputs: True for a whole network, whose inputs and outputs keep their order.
    """

    inputs: int
    items: tuple[Item, ...]
    outputs: tuple[int, ...]
    ordered_inputs: bool


class CanonicalBlock(NamedTuple):
    """The canonical form of a block.

    Attributes:
        body: the block in canonical order, with holes for its numbers.
        holes: rank of the number of each hole.
        inputs, outputs, order: inputs, outputs and items of the raw block in canonical order.
        certificate: equal exactly for blocks that are calls of one function; empty for a whole
            network.
        ambiguous: True if inputs or outputs are symmetric, so that a call cannot tell them apart.
            Two inputs that may be swapped are not ambiguous.
        mirror: order of the items with the two inputs swapped; empty if they may not be swapped.
    """

    body: Block
    holes: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    order: tuple[int, ...]
    certificate: str
    ambiguous: bool
    mirror: tuple[int, ...]


def commutes(op: str) -> bool:
    """True if the inputs of an operator, or of a function given by its certificate, may be
    swapped.
    """
    return op in COMMUTATIVE or op.endswith(_SWAPPABLE)


_SWAPPABLE = "*"


def canonical(raw: RawBlock) -> CanonicalBlock:
    """The canonical form: equal for blocks that differ only in the order of items and of
    commutative operands.

    At most `_MAX_LEAVES` ways to break ties are tried, fewer for a block of hundreds of lines.
    Further ties that are not symmetries keep the given order.
    """
    cached = (
        not raw.ordered_inputs and len(raw.items) <= _MAX_CACHED_LINES
    )  # whole networks seldom recur
    return _cached(raw) if cached else _canonical(raw)


@lru_cache(maxsize=16384)
def _cached(raw: RawBlock) -> CanonicalBlock:
    return _canonical(raw)


def _canonical(raw: RawBlock) -> CanonicalBlock:
    operators = [_operator(item.op, item.attrs) for item in raw.items]
    search = None if _has_one_order(raw) else _Search(raw, operators)
    leaf = search.run() if search else _as_it_stands(raw, operators)
    ordered = [operators[i] for i in leaf.order]
    body = leaf.block([operator.hollow for operator in ordered])
    swaps, tied_inputs, tied_outputs = (
        (search.swaps, search.tied_inputs, search.tied_outputs) if search else ({}, False, False)
    )
    swappable = raw.inputs == 2 and bool(swaps) and not tied_outputs
    mirror = tuple([swaps[i] for i in leaf.order]) if swappable else ()
    certificate = ""
    if not raw.ordered_inputs:
        certificate = (
            _digest(body, [operator.hollow_text for operator in ordered]) + _SWAPPABLE * swappable
        )
    ambiguous = tied_outputs or (tied_inputs and not swappable)
    holes = tuple([rank for operator in ordered for rank in operator.holes])
    return CanonicalBlock(
        body, holes, leaf.inputs, leaf.outputs, leaf.order, certificate, ambiguous, mirror
    )


def _has_one_order(raw: RawBlock) -> bool:
    """True if every item reads the one before it, so that no other order is possible."""
    if raw.inputs > 1 and not raw.ordered_inputs:
        return False
    first = end = raw.inputs
    for i, item in enumerate(raw.items):
        if i and not any(first <= value < end for value in item.inputs):
            return False
        first, end = end, end + item.outputs
    return True


def _as_it_stands(raw: RawBlock, operators: list[_Operator]) -> _Leaf:
    lines = [
        (0, tuple(sorted(item.inputs)) if operator.commutes else item.inputs)
        for item, operator in zip(raw.items, operators, strict=True)
    ]
    order = tuple(range(len(raw.items)))
    return _Leaf(raw, operators, tuple(range(raw.inputs)), order, lines, list(raw.outputs), ())


@dataclass(eq=False, slots=True)
class _Operator:
    """An operator or a call, with its attributes.

    Attributes:
        commutes: True if its inputs may be swapped.
        text: `repr` of the attributes.
        hollow, hollow_text: attributes with holes for their numbers, and their `repr`.
        holes: ranks of these numbers.
    """

    commutes: bool
    text: str
    hollow: ItemAttrs
    hollow_text: str
    holes: tuple[int, ...]


@lru_cache(maxsize=16384)
def _operator(op: str, attrs: ItemAttrs) -> _Operator:
    hollow = tuple([(name, _HOLE if isinstance(value, Ref) else value) for name, value in attrs])
    holes = tuple([int(value.name) for _, value in attrs if isinstance(value, Ref)])
    return _Operator(commutes(op), repr(attrs), hollow, repr(hollow), holes)


def _digest(body: Block, attrs: list[str]) -> str:
    """A hash of the `repr` of a body; `attrs`: the `repr` of the attributes of each item."""
    items = ", ".join([
        f"Item(op={op!r}, inputs={inputs}, attrs={text}, outputs={outputs})"
        for (op, inputs, _, outputs), text in zip(body.items, attrs, strict=True)
    ])  # fmt: skip
    items += "," * (len(attrs) == 1)
    text = (
        f"Block(inputs={body.inputs}, items=({items}), outputs={body.outputs}, "
        f"params={body.params})"
    )
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class _Leaf:
    """A block in one of the orders that are tried.

    Attributes:
        operators: operators of the raw block's items.
        inputs, order, outputs: inputs, items and outputs of the raw block in this order.
        lines: label and read values of each item.
        results: values of the outputs.
        colours: colour of each item.
    """

    def __init__(
        self,
        raw: RawBlock,
        operators: list[_Operator],
        inputs: tuple[int, ...],
        order: tuple[int, ...],
        lines: list[tuple[int, tuple[int, ...]]],
        results: list[int],
        colours: tuple[int, ...],
    ) -> None:
        self.raw, self.operators = raw, operators
        self.inputs, self.order, self.lines, self.colours = inputs, order, lines, colours
        outputs = tuple(range(len(results)))
        self.outputs = (
            outputs if raw.ordered_inputs else tuple(sorted(outputs, key=results.__getitem__))
        )
        self.results = tuple([results[o] for o in self.outputs])

    def block(self, attrs: Sequence[ItemAttrs]) -> Block:
        """The block in this order; `attrs`: attributes of its items."""
        items = [
            new_item((self.raw.items[i].op, read, own, self.raw.items[i].outputs))
            for i, (_, read), own in zip(self.order, self.lines, attrs, strict=True)
        ]
        return Block(self.raw.inputs, tuple(items), self.results)

    @cached_property
    def digest(self) -> str:
        block = self.block([self.raw.items[i].attrs for i in self.order])
        return _digest(block, [self.operators[i].text for i in self.order])

    def looks_like(self, other: _Leaf) -> bool:
        """True if both orders give the same block."""
        return self.lines == other.lines and self.results == other.results

    def is_symmetric(self, other: _Leaf) -> bool:
        """True if a symmetry of the block maps one order to the other."""
        return self.colours == other.colours and self.looks_like(other)

    def precedes(self, other: _Leaf) -> bool:
        if self.looks_like(other):
            return self.colours < other.colours
        return (self.digest, self.colours) < (other.digest, other.colours)


class _Search:
    """Refinement and individualization of one block. Its entities are its inputs, then its items.

    Attributes:
        sources: for each entity the values that it reads, as (entity, output).
        users: for each entity its readers, as (entity, place); the place encodes output and input,
            below `width`.
        neighbours: all sources and users of each entity, once.
        swaps: a symmetry that swaps inputs, item by item; empty if there is none.
        tied_inputs, tied_outputs: True if refinement leaves inputs or outputs with equal colours.
    """

    def __init__(self, raw: RawBlock, operators: list[_Operator]) -> None:
        self.raw, self.operators = raw, operators
        labels: dict[tuple, int] = {}
        self.labels = [
            labels.setdefault((item.op, operator.text, item.outputs), len(labels))
            for item, operator in zip(raw.items, operators, strict=True)
        ]
        self.commutes = [False] * raw.inputs + [operator.commutes for operator in operators]
        self.first_value = list(range(raw.inputs))
        self.values = [(i, 0) for i in range(raw.inputs)]
        for i, item in enumerate(raw.items, start=raw.inputs):
            self.first_value.append(len(self.values))
            self.values += [(i, k) for k in range(item.outputs)]
        outputs = max([item.outputs for item in raw.items], default=1)
        self.width = outputs * (1 + max([len(item.inputs) for item in raw.items], default=0))
        self.sources: list[list[tuple[int, int]]] = [[] for _ in range(raw.inputs)]
        self.users: list[list[tuple[int, int]]] = [[] for _ in self.first_value]
        for i, item in enumerate(raw.items, start=raw.inputs):
            sources = [self.values[v] for v in item.inputs]
            self.sources.append(sources)
            step = 0 if self.commutes[i] else outputs
            for position, (entity, k) in enumerate(sources, start=1):
                self.users[entity].append((i, step * position + k))
        self.neighbours = [
            [*{e: None for e, _ in sources}, *{e: None for e, _ in users}]
            for sources, users in zip(self.sources, self.users, strict=True)
        ]
        self.leaves = 0
        size = len(raw.items) + sum([len(item.inputs) for item in raw.items])
        self.max_leaves = min(_MAX_LEAVES, max(1, _MAX_LEAF_VALUES // max(1, size)))
        self.swaps: dict[int, int] = {}
        self.tied_inputs = self.tied_outputs = False

    def run(self) -> _Leaf:
        """The smallest leaf; sets `tied_inputs`, `tied_outputs` and `swaps`."""
        partition = self._start()
        self._refine(partition, range(len(self.sources)))
        self.tied_inputs = partition.ties(range(self.raw.inputs))
        self.tied_outputs = partition.ties({self.values[v][0] for v in self.raw.outputs})
        return self._best(partition, None)

    def _start(self) -> Partition:
        raw = self.raw
        outside = set(raw.outputs)
        keys: list[tuple] = [
            ("", "", e if raw.ordered_inputs else 0, ()) for e in range(raw.inputs)
        ]
        value = raw.inputs
        for item, operator in zip(raw.items, self.operators, strict=True):
            escapes = tuple([v in outside for v in range(value, value + item.outputs)])
            keys.append((item.op, operator.text, len(item.inputs), escapes))
            value += item.outputs
        return Partition.by(keys)

    def _refine(self, partition: Partition, moved: Iterable[int]) -> None:
        """Split classes by the neighbours of their entities until nothing changes.

        Args:
            moved: entities whose class is new. The rest of a split class counts as unchanged, so
                that only neighbours of the entities that left it are looked at.
        """
        while moved:
            touched: dict[int, dict[int, None]] = {}
            cell, size = partition.cell, partition.size
            for entity in moved:
                for neighbour in self.neighbours[entity]:
                    c = cell[neighbour]
                    if size[c] > 1:
                        touched.setdefault(c, {})[neighbour] = None
            splits = [(c, *self._parts(partition, c, entities)) for c, entities in touched.items()]
            moved = [entity for split in splits for entity in partition.split(*split)]

    def _parts(
        self, partition: Partition, c: int, touched: dict[int, None]
    ) -> tuple[list[list[int]], list[list[int]]]:
        """The touched entities of a class in groups of equal neighbours, before and after the group
        that stays.
        """
        parts: dict[tuple, list[int]] = {}
        for entity in touched:
            parts.setdefault(self._neighbours(partition, entity), []).append(entity)
        if len(touched) < partition.size[c]:
            first = partition.first[c]
            resting = next(
                e for e in partition.order[first : first + len(touched) + 1] if e not in touched
            )
            stays = self._neighbours(partition, resting)
        else:
            stays = max(parts, key=lambda key: len(parts[key]))
        keys = sorted(parts)
        return [parts[key] for key in keys if key < stays], [
            parts[key] for key in keys if key > stays
        ]

    def _neighbours(self, partition: Partition, entity: int) -> tuple[int, ...]:
        """The classes that an entity reads and those that read it, with their places."""
        cell, first, width = partition.cell, partition.first, self.width
        before = [first[cell[e]] * width + k for e, k in self.sources[entity]]
        if self.commutes[entity]:
            before.sort()
        after = [first[cell[e]] * width + place for e, place in self.users[entity]]
        after.sort()
        return (*before, -1, *after)

    def _best(self, partition: Partition, known: _Leaf | None) -> _Leaf:
        """The smallest leaf below a partition, which is modified; the first leaf if it is symmetric
        to `known`.
        """
        trail: deque[tuple[Partition, int]] = deque(maxlen=self.max_leaves)
        tied = partition.tied(0)
        while tied is not None:
            trail.append((partition.copy(), tied))
            start = partition.first[tied]
            self._individualize(partition, tied, partition.order[start])
            tied = partition.tied(start)
        best = first = self._leaf(partition)
        if known is not None and first.is_symmetric(known):
            if first.inputs != known.inputs:
                self.swaps = dict(zip(known.order, first.order, strict=True))
            return best
        for before, c in reversed(trail):
            for entity in before.members(c)[1:]:
                if self.leaves >= self.max_leaves:
                    return best
                other = before.copy()
                self._individualize(other, c, entity)
                leaf = self._best(other, first)
                best = leaf if leaf.precedes(best) else best
        return best

    def _individualize(self, partition: Partition, c: int, entity: int) -> None:
        self._refine(partition, partition.split(c, [[entity]], []))

    def _leaf(self, partition: Partition) -> _Leaf:
        """The leaf of a partition: of the items whose inputs are there, the one of the smallest
        colour comes next.
        """
        self.leaves += 1
        raw, colours = self.raw, partition.colours()
        inputs = tuple(sorted(range(raw.inputs), key=lambda e: colours[e]))
        number = [0] * len(self.values)
        for i, entity in enumerate(inputs):
            number[entity] = i
        made = raw.inputs
        waiting = [len([e for e, _ in sources if e >= raw.inputs]) for sources in self.sources]
        ready = [(colours[e], e) for e in range(raw.inputs, len(colours)) if waiting[e] == 0]
        heapq.heapify(ready)
        lines: list[tuple[int, tuple[int, ...]]] = []
        order: list[int] = []
        while ready:
            entity = heapq.heappop(ready)[1]
            item = entity - raw.inputs
            _, inputs_read, _, outputs = raw.items[item]
            sources = [number[v] for v in inputs_read]
            if self.commutes[entity]:
                sources.sort()
            lines.append((self.labels[item], tuple(sources)))
            order.append(item)
            for value in range(self.first_value[entity], self.first_value[entity] + outputs):
                number[value] = made
                made += 1
            for user, _ in self.users[entity]:
                waiting[user] -= 1
                if waiting[user] == 0:
                    heapq.heappush(ready, (colours[user], user))
        if len(lines) < len(raw.items):
            raise NotConvexError
        results = [number[v] for v in raw.outputs]
        ordered = tuple([colours[raw.inputs + i] for i in order])
        return _Leaf(raw, self.operators, inputs, tuple(order), lines, results, ordered)
