"""The canonical order of the items of a block, which does not depend on their given order.

1. Items and inputs get colours: classes of equal operators, attributes and numbers of inputs.
2. Colour refinement (Weisfeiler and Leman): a class is split if its members read, or are read by,
   members of different classes, until nothing changes.
3. Where several members share a class, one of them is individualized: it gets a class of its own,
   and colours are refined again. This is a search tree, with a branch per member. Its leaves have
   one member per class. Of all leaves that are not symmetric, the smallest is taken (McKay,
   "Practical graph isomorphism", 1981).
4. A leaf gives the order: of the items whose inputs are computed, the one of the smallest colour
   comes next.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from search_spaces.ir.graph import Value
from search_spaces.ir.ops import COMMUTATIVE
from search_spaces.ir.text.partition import Partition
from search_spaces.ir.text.program import Block, Item, ItemAttrs, Ref, new_item

_MAX_LEAVES = 64
_MAX_LEAF_VALUES = 30_000  # values produced and read in all leaves of a block; limits the time
_MAX_CACHED_LINES = 128  # larger blocks are not cached, to limit memory
_HOLE = Ref("0")
_SWAPPABLE = "*"  # ends the certificate of a function whose two inputs may be swapped


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
    """True if the inputs of an operator may be swapped.

    op: the operator, or the certificate of a function.
    """
    return op in COMMUTATIVE or op.endswith(_SWAPPABLE)


def canonical(raw: RawBlock) -> CanonicalBlock:
    """The canonical form of a block.

    It is equal for blocks that differ only in the order of items and of commutative operands. At
    most `_MAX_LEAVES` ways to break ties are tried, fewer for a block of hundreds of lines. Further
    ties that are not symmetries keep the given order.
    """
    # Whole networks seldom recur.
    if raw.ordered_inputs or len(raw.items) > _MAX_CACHED_LINES:
        return _canonical(raw)
    return _cached(raw)


@lru_cache(maxsize=16384)
def _cached(raw: RawBlock) -> CanonicalBlock:
    return _canonical(raw)


def _canonical(raw: RawBlock) -> CanonicalBlock:
    operators = [_operator(item.op, item.attrs) for item in raw.items]

    # 1. The order, and the symmetries of the block.
    swaps: dict[int, int] = {}
    tied_inputs = tied_outputs = False
    if _has_one_order(raw):
        leaf = _given_order(raw, operators)
    else:
        search = _Search(raw, operators)
        leaf = search.run()
        swaps = search.swaps
        tied_inputs, tied_outputs = search.tied_inputs, search.tied_outputs

    # 2. The block in this order.
    ordered = [operators[i] for i in leaf.order]
    body = leaf.block([operator.with_holes for operator in ordered])
    holes = tuple([rank for operator in ordered for rank in operator.holes])

    # 3. What a caller must know about it.
    swappable = raw.inputs == 2 and bool(swaps) and not tied_outputs
    certificate = ""
    if not raw.ordered_inputs:
        certificate = _digest(body, [operator.text_with_holes for operator in ordered])
        if swappable:
            certificate += _SWAPPABLE
    mirror: tuple[int, ...] = ()
    if swappable:
        mirror = tuple([swaps[i] for i in leaf.order])
    return CanonicalBlock(
        body=body,
        holes=holes,
        inputs=leaf.inputs,
        outputs=leaf.outputs,
        order=leaf.order,
        certificate=certificate,
        ambiguous=tied_outputs or (tied_inputs and not swappable),
        mirror=mirror,
    )


def _has_one_order(raw: RawBlock) -> bool:
    """True if every item reads the one before it, so that no other order is possible."""
    if raw.inputs > 1 and not raw.ordered_inputs:
        return False
    first = end = raw.inputs  # bounds of the values of the item before
    for i, item in enumerate(raw.items):
        reads_item_before = any(first <= value < end for value in item.inputs)
        if i > 0 and not reads_item_before:
            return False
        first = end
        end += item.outputs
    return True


def _given_order(raw: RawBlock, operators: list[_Operator]) -> _Leaf:
    """The leaf that keeps the order of the raw block."""
    lines: list[_Line] = []
    for item, operator in zip(raw.items, operators, strict=True):
        read = tuple(sorted(item.inputs)) if operator.commutes else item.inputs
        lines.append((0, read))
    return _Leaf(
        raw,
        operators,
        inputs=tuple(range(raw.inputs)),
        order=tuple(range(len(raw.items))),
        lines=lines,
        results=list(raw.outputs),
        colours=(),
    )


@dataclass(eq=False, slots=True)
class _Operator:
    """An operator or a call, with its attributes.

    Attributes:
        commutes: True if its inputs may be swapped.
        text: `repr` of the attributes.
        with_holes, text_with_holes: attributes with holes for their numbers, and their `repr`.
        holes: ranks of these numbers.
    """

    commutes: bool
    text: str
    with_holes: ItemAttrs
    text_with_holes: str
    holes: tuple[int, ...]


@lru_cache(maxsize=16384)
def _operator(op: str, attrs: ItemAttrs) -> _Operator:
    with_holes: list[tuple[str, Value | Ref]] = []
    holes = []
    for name, value in attrs:
        if isinstance(value, Ref):
            holes.append(int(value.name))
            with_holes.append((name, _HOLE))
        else:
            with_holes.append((name, value))
    attrs_with_holes = tuple(with_holes)
    return _Operator(
        commutes=commutes(op),
        text=repr(attrs),
        with_holes=attrs_with_holes,
        text_with_holes=repr(attrs_with_holes),
        holes=tuple(holes),
    )


def _digest(body: Block, attrs: list[str]) -> str:
    """A hash of the `repr` of a body, which is put together here.

    Args:
        body: the body.
        attrs: the `repr` of the attributes of each item, which is cached and would take most of the
            time otherwise.
    """
    items = []
    for (op, inputs, _, outputs), text in zip(body.items, attrs, strict=True):
        items.append(f"Item(op={op!r}, inputs={inputs}, attrs={text}, outputs={outputs})")
    shown = ", ".join(items)
    if len(items) == 1:
        shown += ","  # as `repr` writes a tuple of one
    block = (
        f"Block(inputs={body.inputs}, items=({shown}), outputs={body.outputs}, "
        f"params={body.params})"
    )
    return hashlib.blake2b(block.encode(), digest_size=16).hexdigest()


# --- leaves

_Line = tuple[int, tuple[int, ...]]
"""Label and read values of an item."""


class _Leaf:
    """A block in one of the orders that are tried.

    Attributes:
        operators: operators of the raw block's items.
        inputs, order, outputs: inputs, items and outputs of the raw block in this order.
        lines: the items in this order.
        results: values of the outputs.
        colours: colour of each item.
    """

    def __init__(
        self,
        raw: RawBlock,
        operators: list[_Operator],
        inputs: tuple[int, ...],
        order: tuple[int, ...],
        lines: list[_Line],
        results: list[int],
        colours: tuple[int, ...],
    ) -> None:
        self.raw = raw
        self.operators = operators
        self.inputs = inputs
        self.order = order
        self.lines = lines
        self.colours = colours
        outputs = list(range(len(results)))
        if not raw.ordered_inputs:
            outputs.sort(key=results.__getitem__)
        self.outputs = tuple(outputs)
        self.results = tuple([results[o] for o in outputs])

    def block(self, attrs: Sequence[ItemAttrs]) -> Block:
        """The block in this order; `attrs`: attributes of its items."""
        items = []
        for i, (_, read), own in zip(self.order, self.lines, attrs, strict=True):
            op, _, _, outputs = self.raw.items[i]
            items.append(new_item((op, read, own, outputs)))
        return Block(self.raw.inputs, tuple(items), self.results)

    @cached_property
    def digest(self) -> str:
        """A hash of the block in this order, with the ranks of its numbers."""
        block = self.block([self.raw.items[i].attrs for i in self.order])
        return _digest(block, [self.operators[i].text for i in self.order])

    def looks_like(self, other: _Leaf) -> bool:
        """True if both orders give the same block."""
        return self.lines == other.lines and self.results == other.results

    def is_symmetric_to(self, other: _Leaf) -> bool:
        """True if a symmetry of the block maps one order to the other."""
        return self.colours == other.colours and self.looks_like(other)

    def precedes(self, other: _Leaf) -> bool:
        """True if this leaf is the smaller one: by the digest of the block, then by the colours."""
        if self.looks_like(other):
            return self.colours < other.colours
        return (self.digest, self.colours) < (other.digest, other.colours)


# --- the search for the smallest leaf

_Neighbours = tuple[int, ...]
"""Classes that an entity reads, then -1, then classes that read it. Each is one number: the class's
first position, and which output of it is read by which input."""


class _Search:
    """Refinement and individualization of one block. Its entities are its inputs, then its items.

    Attributes:
        labels: number of each item's operator and attributes.
        first_value: the first value that each entity produces.
        values: entity and output of each value.
        sources: for each entity the values that it reads, as (entity, output).
        users: for each entity its readers, as (entity, place); the place encodes output and input,
            below `width`.
        neighbours: all sources and users of each entity, once.
        swaps: a symmetry that swaps inputs, item by item; empty if there is none.
        tied_inputs, tied_outputs: True if refinement leaves inputs or outputs with equal colours.
    """

    def __init__(self, raw: RawBlock, operators: list[_Operator]) -> None:
        self.raw = raw
        self.operators = operators
        self.swaps: dict[int, int] = {}
        self.tied_inputs = False
        self.tied_outputs = False
        self.leaves = 0

        # 1. The entities: their labels, values, and whether their inputs commute.
        numbers: dict[tuple[Any, ...], int] = {}
        self.labels = []
        self.commutes = [False] * raw.inputs
        self.first_value = list(range(raw.inputs))
        self.values = [(i, 0) for i in range(raw.inputs)]
        for i, (item, operator) in enumerate(zip(raw.items, operators, strict=True)):
            label = (item.op, operator.text, item.outputs)
            number = numbers.setdefault(label, len(numbers))
            self.labels.append(number)
            self.commutes.append(operator.commutes)
            self.first_value.append(len(self.values))
            entity = raw.inputs + i
            self.values += [(entity, k) for k in range(item.outputs)]

        # 2. What each entity reads, and who reads it. A place is a number for the output and the
        #    input of an edge.
        most_outputs = max([item.outputs for item in raw.items], default=1)
        most_inputs = max([len(item.inputs) for item in raw.items], default=0)
        self.width = most_outputs * (1 + most_inputs)
        self.sources: list[list[tuple[int, int]]] = [[] for _ in range(raw.inputs)]
        self.users: list[list[tuple[int, int]]] = [[] for _ in self.first_value]
        for i, item in enumerate(raw.items, start=raw.inputs):
            sources = [self.values[v] for v in item.inputs]
            self.sources.append(sources)
            step = 0 if self.commutes[i] else most_outputs  # equal places for inputs that commute
            for position, (entity, k) in enumerate(sources, start=1):
                place = step * position + k
                self.users[entity].append((i, place))
        self.neighbours = []
        for read, readers in zip(self.sources, self.users, strict=True):
            before = dict.fromkeys([entity for entity, _ in read])
            after = dict.fromkeys([entity for entity, _ in readers])
            self.neighbours.append([*before, *after])

        # 3. How many leaves may be tried.
        reads = sum([len(item.inputs) for item in raw.items])
        size = len(raw.items) + reads
        affordable = _MAX_LEAF_VALUES // max(1, size)
        self.max_leaves = min(_MAX_LEAVES, max(1, affordable))

    def run(self) -> _Leaf:
        """The smallest leaf; sets `tied_inputs`, `tied_outputs` and `swaps`."""
        partition = self._initial_partition()
        every_entity = range(len(self.sources))
        self._refine(partition, every_entity)

        # Ties that refinement leaves
        makers_of_outputs = {self.values[v][0] for v in self.raw.outputs}
        self.tied_inputs = partition.has_tie(range(self.raw.inputs))
        self.tied_outputs = partition.has_tie(makers_of_outputs)
        return self._smallest_leaf(partition, reference=None)

    # Step 1

    def _initial_partition(self) -> Partition:
        """Classes of equal operators, attributes and numbers of inputs.

        In a class, the same outputs leave the block.
        """
        raw = self.raw
        keys: list[tuple[Any, ...]] = []
        for i in range(raw.inputs):
            keys.append(("", "", i if raw.ordered_inputs else 0, ()))
        returned = set(raw.outputs)
        first = raw.inputs  # the first value of the next item
        for item, operator in zip(raw.items, self.operators, strict=True):
            end = first + item.outputs
            is_returned = tuple([v in returned for v in range(first, end)])
            keys.append((item.op, operator.text, len(item.inputs), is_returned))
            first = end
        return Partition.by_key(keys)

    # Step 2

    def _refine(self, partition: Partition, moved: Iterable[int]) -> None:
        """Split classes by the neighbours of their entities until nothing changes.

        Args:
            moved: entities whose class is new. The rest of a split class counts as unchanged, so
                that only neighbours of the entities that left it are looked at.
        """
        while moved:
            # 1. Neighbours of moved entities, by class; a class of one entity cannot be split.
            class_of, size = partition.class_of, partition.size
            touched: dict[int, dict[int, None]] = {}
            for entity in moved:
                for neighbour in self.neighbours[entity]:
                    number = class_of[neighbour]
                    if size[number] > 1:
                        touched.setdefault(number, {})[neighbour] = None

            # 2. All splits are determined before the first one is made, since it changes what the
            #    neighbours are.
            splits = []
            for number, entities in touched.items():
                below, above = self._split_of(partition, number, entities)
                splits.append((number, below, above))
            moved = []
            for number, below, above in splits:
                moved += partition.split(number, below, above)

    def _split_of(
        self,
        partition: Partition,
        number: int,
        touched: dict[int, None],
    ) -> tuple[list[list[int]], list[list[int]]]:
        """The touched entities of a class in groups of equal neighbours: the groups before and those
        after the entities that stay in the class.
        """
        groups: dict[_Neighbours, list[int]] = {}
        for entity in touched:
            neighbours = self._neighbours(partition, entity)
            groups.setdefault(neighbours, []).append(entity)

        if len(touched) < partition.size[number]:
            # The entities that were not touched stay. All of them have the neighbours of any of
            # them, and at least one is among as many entities as were touched, and one more.
            first = partition.first[number]
            candidates = partition.order[first : first + len(touched) + 1]
            untouched = next(entity for entity in candidates if entity not in touched)
            staying = self._neighbours(partition, untouched)
        else:
            staying = max(groups, key=lambda neighbours: len(groups[neighbours]))

        ordered = sorted(groups)
        below = [groups[neighbours] for neighbours in ordered if neighbours < staying]
        above = [groups[neighbours] for neighbours in ordered if neighbours > staying]
        return below, above

    def _neighbours(self, partition: Partition, entity: int) -> _Neighbours:
        class_of, first, width = partition.class_of, partition.first, self.width
        before = [first[class_of[e]] * width + k for e, k in self.sources[entity]]
        if self.commutes[entity]:
            before.sort()
        after = [first[class_of[e]] * width + place for e, place in self.users[entity]]
        after.sort()
        return (*before, -1, *after)

    # Step 3

    def _smallest_leaf(self, partition: Partition, reference: _Leaf | None) -> _Leaf:
        """The smallest leaf below a partition, which is modified.

        If the first leaf is symmetric to the `reference`, it is the result.
        """
        # 1. Go down to a first leaf, always with the first entity of the first tie.
        trail: deque[tuple[Partition, int]] = deque(maxlen=self.max_leaves)
        tied = partition.next_tie(0)
        while tied is not None:
            trail.append((partition.copy(), tied))
            start = partition.first[tied]
            self._individualize(partition, tied, partition.order[start])
            tied = partition.next_tie(start)
        first_leaf = self._leaf(partition)
        if reference is not None and first_leaf.is_symmetric_to(reference):
            if first_leaf.inputs != reference.inputs:
                self.swaps = dict(zip(reference.order, first_leaf.order, strict=True))
            return first_leaf

        # 2. Go back, and at each tie down again with every other entity.
        smallest = first_leaf
        for before, tied in reversed(trail):
            _, *others = before.members(tied)
            for entity in others:
                if self.leaves >= self.max_leaves:
                    return smallest
                branch = before.copy()
                self._individualize(branch, tied, entity)
                leaf = self._smallest_leaf(branch, first_leaf)
                if leaf.precedes(smallest):
                    smallest = leaf
        return smallest

    def _individualize(self, partition: Partition, number: int, entity: int) -> None:
        """Put an entity into a class of its own, before the rest of its class, and refine."""
        moved = partition.split(number, [[entity]], [])
        self._refine(partition, moved)

    # Step 4

    def _leaf(self, partition: Partition) -> _Leaf:
        """The leaf of a partition without ties."""
        self.leaves += 1
        raw = self.raw
        colours = partition.colours()

        # 1. The inputs, by colour.
        inputs = sorted(range(raw.inputs), key=colours.__getitem__)
        number = [0] * len(self.values)  # of each value in the new order
        for i, entity in enumerate(inputs):
            number[entity] = i
        next_number = raw.inputs

        # 2. Inputs of each item that no item has produced yet, and items that miss none.
        missing = []
        for sources in self.sources:
            missing.append(len([entity for entity, _ in sources if entity >= raw.inputs]))
        items = range(raw.inputs, len(colours))
        ready = [(colours[entity], entity) for entity in items if missing[entity] == 0]
        heapq.heapify(ready)

        # 3. Of these, the one of the smallest colour comes next.
        lines: list[_Line] = []
        order: list[int] = []
        while ready:
            _, entity = heapq.heappop(ready)
            item = entity - raw.inputs
            _, inputs_read, _, outputs = raw.items[item]
            numbers = [number[v] for v in inputs_read]
            if self.commutes[entity]:
                numbers.sort()
            lines.append((self.labels[item], tuple(numbers)))
            order.append(item)
            first = self.first_value[entity]
            for value in range(first, first + outputs):
                number[value] = next_number
                next_number += 1
            for user, _ in self.users[entity]:
                missing[user] -= 1
                if missing[user] == 0:
                    heapq.heappush(ready, (colours[user], user))
        if len(lines) < len(raw.items):
            raise NotConvexError
        return _Leaf(
            raw,
            self.operators,
            inputs=tuple(inputs),
            order=tuple(order),
            lines=lines,
            results=[number[v] for v in raw.outputs],
            colours=tuple([colours[raw.inputs + i] for i in order]),
        )
