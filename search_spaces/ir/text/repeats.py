"""Repeats in blocks of lines: groups of lines that are shorter as calls of a function. No names are
used.

1. Re-Pair (Larsson and Moffat, "Offline dictionary-based compression", 1999) on the edges of a graph
   instead of neighbours in a sequence: the most frequent pair of neighbouring nodes is contracted
   to one node with a new symbol wherever it occurs, until no pair occurs twice (`Contraction`).
2. A symbol is a rule of a grammar: its two parts may be symbols, too. Symbols that save no lines as
   functions are undone (`_worthwhile`).
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, count
from typing import NamedTuple

from search_spaces.ir.text.canonical import commutes
from search_spaces.ir.text.program import Block, Item, ItemAttrs, Ref

_FRAME_LINES = 5  # cost of a function: three lines of its own, and effort of the reader
_MIN_LINES = 3
_MAX_BETWEEN = 64
_MAX_INPUTS = 128  # of a pair, with repetitions: the search takes quadratic time in them

Group = tuple[int, ...]
"""The functions around a line, outermost first, by numbers that are unique in the block."""

_Label = tuple[str, str, int, int]
"""Operator, attributes without parameters, number of inputs, number of outputs."""


def length(blocks: Iterable[Block]) -> int:
    """Number of lines in the text of the blocks, with the cost of a function for each."""
    return sum([len(block.items) + _FRAME_LINES for block in blocks])


def repeats(blocks: tuple[Block, ...]) -> tuple[tuple[Group, ...], ...] | None:
    """The new groups around each item, by block; None if there are none.

    Each structure of a group occurs at least twice in all blocks together. Numbers that are
    parameters may differ.
    """
    labels = []
    for block in blocks:
        labels.append([_label(item) for item in block.items])
    if not _promising(blocks, labels):
        return None
    contraction = Contraction(blocks, labels)
    contraction.run()
    kept = _worthwhile(contraction.rules, contraction.uses())
    return contraction.groups(kept) if kept else None


def _label(item: Item) -> _Label:
    return item.op, _fixed_attrs(item.op, item.attrs), len(item.inputs), item.outputs


@lru_cache(maxsize=4096)
def _fixed_attrs(op: str, attrs: ItemAttrs) -> str:
    """The attributes, without the values of those that may be parameters."""
    without_parameters = []
    for name, value in attrs:
        without_parameters.append((name, None if isinstance(value, Ref) else value))
    return repr(without_parameters)


# --- a quick check


def _saved(times: int, lines: int) -> int:
    """Lines saved by a function of `lines` lines that is called `times` times."""
    return (times - 1) * lines - times - _FRAME_LINES


def _least_lines(times: int) -> int:
    """The smallest function that saves lines if it is called `times` times."""
    return next(lines for lines in count(_MIN_LINES) if _saved(times, lines) > 0)


_WORTH = [(times, _least_lines(times)) for times in range(2, 6)]
"""Numbers of calls and the smallest function; more calls do not lower the minimum."""


def _promising(blocks: tuple[Block, ...], labels: list[list[_Label]]) -> bool:
    """False if no function can save lines.

    This is a necessary condition that looks at the labels of neighbours alone. The lines of a
    function are connected, and each occurs at least as often as the function is called.
    """
    lines: Counter[_Label] = Counter()
    links: Counter[tuple[_Label, _Label]] = Counter()
    for block, own in zip(blocks, labels, strict=True):
        lines.update(own)
        links.update(_links(block, own))
    for calls, least_lines in _WORTH:
        frequent = [link for link, occurrences in links.items() if occurrences >= calls]
        for component in _connected(frequent):
            lines_of_function = sum([lines[label] // calls for label in component])
            if lines_of_function >= least_lines:
                return True
    return False


def _links(block: Block, labels: list[_Label]) -> Iterator[tuple[_Label, _Label]]:
    """The labels of each pair of neighbours, producer first."""
    owner: list[int | None] = [None] * block.inputs
    for i, item in enumerate(block.items):
        for producer in {owner[value] for value in item.inputs}:
            if producer is not None:
                yield labels[producer], labels[i]
        owner += [i] * item.outputs


def _connected(links: list[tuple[_Label, _Label]]) -> list[set[_Label]]:
    """The connected components of the labels."""
    # 1. Each label is a component of its own.
    component: dict[_Label, set[_Label]] = {}
    for label in chain.from_iterable(links):
        component[label] = {label}

    # 2. Each link joins the smaller of two components to the larger one.
    for first, second in links:
        small, large = sorted((component[first], component[second]), key=len)
        if small is not large:
            large |= small
            component.update(dict.fromkeys(small, large))
    by_identity = {id(labels): labels for labels in component.values()}
    return list(by_identity.values())


# --- 1. Re-Pair on a graph

Pair = tuple[int, int]


@dataclass(slots=True, eq=False)
class _Node:
    """A line, or two nodes contracted into one. Nodes of equal symbols have equal structure.

    Attributes:
        inputs, outputs: values that are read from outside, and values that are read outside.
        slots: number of each input; equal for inputs that may be swapped.
        slots_of: slots of each value, in ascending order.
        parts: the two nodes of a contracted one.
    """

    symbol: int
    inputs: list[int]
    slots: list[int]
    outputs: list[int]
    slots_of: dict[int, list[int]]
    parts: Pair | None = None


def _slots_of(inputs: list[int], slots: list[int]) -> dict[int, list[int]]:
    slots_of: dict[int, list[int]] = {}
    for value, slot in zip(inputs, slots, strict=True):
        slots_of.setdefault(value, []).append(slot)
    return slots_of


class _Key(NamedTuple):
    """The kind of a pair of neighbours; pairs of equal keys become nodes of one symbol.

    Attributes:
        first, second: symbols of both.
        links: as (output of the first, slot of the second).
        is_private: for each output of the first, True if only the second reads it.
        shared: common inputs as (slot of the first, slot of the second).
    """

    first: int
    second: int
    links: tuple[Pair, ...]
    is_private: tuple[bool, ...]
    shared: tuple[Pair, ...]


@dataclass(slots=True, eq=False)
class _Kind:
    """All pairs of one key.

    Attributes:
        key: the key.
        public: number of outputs of the first node that others than the second read, too.
        symbol: symbol of the contracted nodes; None before the first contraction.
        pairs: the pairs, in the order in which they were registered.
    """

    key: _Key
    public: int
    symbol: int | None = None
    pairs: dict[Pair, None] = field(default_factory=dict)


class Contraction:
    """The lines of all blocks, and their contractions.

    Args:
        labels: by block, the label of each line; only lines of equal labels may correspond.

    Attributes:
        nodes: lines, then contracted nodes.
        owner: the node that produces each value; None for inputs of blocks.
        users: the nodes that read each value.
        returned: values that a block returns.
        order: nodes in topological order, with None in gaps.
        position: position of each node in `order`; the parts of contracted nodes have none.
        rules: symbols of the two parts, by symbol.
        kinds, kind_of: kinds by key, and the kind of each pair.
        waiting: first pair of each two symbols until there is a second pair, then None.
        changed: kinds whose number of pairs is not that in the queue.
        queue: kinds as (public, -number of pairs, key).
    """

    def __init__(self, blocks: tuple[Block, ...], labels: list[list[_Label]]) -> None:
        # 1. The lines and their values.
        self.blocks = blocks
        self.nodes: list[_Node] = []
        self.owner: list[int | None] = []
        self.users: list[dict[int, None]] = []
        self.returned: set[int] = set()
        for block in blocks:
            self._add(block)
        count_of_lines = len(self.nodes)
        self.order: list[int | None] = list(range(count_of_lines))
        self.position = {node: node for node in range(count_of_lines)}

        # 2. Lines of one symbol have equal labels, and equal outputs that are read.
        keys = []
        labels_of_lines = [label for own in labels for label in own]
        for label, node in zip(labels_of_lines, self.nodes, strict=True):
            is_read = self._is_read(node.outputs)
            keys.append((*label, is_read))
        distinct = sorted(set(keys))
        ranks: dict[Hashable, int] = {key: rank for rank, key in enumerate(distinct)}
        for key, node in zip(keys, self.nodes, strict=True):
            node.symbol = ranks[key]
        self.symbols = count(len(ranks))

        # 3. Pairs of neighbours and their kinds.
        self.rules: dict[int, Pair] = {}
        self.kinds: dict[_Key, _Kind] = {}
        self.kind_of: dict[Pair, _Kind] = {}
        self.waiting: dict[Pair, Pair | None] = {}
        self.changed: dict[_Kind, None] = {}
        self.queue: list[tuple[int, int, _Key]] = []

    def _add(self, block: Block) -> None:
        """Add the lines of a block."""
        first = len(self.owner)  # the block's first value among those of all blocks
        self.owner += [None] * block.inputs
        self.users += [{} for _ in range(block.inputs)]
        for op, read, _, outputs in block.items:
            node = len(self.nodes)
            inputs = [first + v for v in read]
            slots = [0] * len(inputs)
            if len(inputs) > 1 and not commutes(op):
                slots = list(range(len(inputs)))
            first_output = len(self.owner)
            output_values = list(range(first_output, first_output + outputs))
            slots_of = _slots_of(inputs, slots)
            self.nodes.append(_Node(-1, inputs, slots, output_values, slots_of))
            for value in inputs:
                self.users[value][node] = None
            self.owner += [node] * outputs
            self.users += [{} for _ in range(outputs)]
        self.returned.update([first + v for v in block.outputs])

    def _is_read(self, values: list[int]) -> tuple[bool, ...]:
        return tuple([bool(self.users[v]) or v in self.returned for v in values])

    def run(self) -> None:
        """Contract the most frequent kind of pair until none occurs twice."""
        # 1. All pairs of neighbours.
        for node in range(len(self.nodes)):
            for producer in self._producers(node):
                self._notice((producer, node))
        self._enqueue()

        # 2. The pairs of the most frequent kind, in the order of the graph. A kind is queued again
        #    whenever its number of pairs changes; older entries are skipped.
        while self.queue:
            _, negative_times, key = heapq.heappop(self.queue)
            kind = self.kinds[key]
            is_outdated = len(kind.pairs) != -negative_times
            if is_outdated:
                continue
            pairs = sorted(kind.pairs, key=lambda pair: self.position[pair[0]])
            kind.pairs = {}
            self._contract_all(kind, pairs)
            self._enqueue()

    def _enqueue(self) -> None:
        """Queue kinds that changed.

        Kinds without other readers come first: they give blocks of few outputs.
        """
        for kind in self.changed:
            times = len(kind.pairs)
            if times > 1 or (times and kind.symbol is not None):
                heapq.heappush(self.queue, (kind.public, -times, kind.key))
        self.changed.clear()

    def _contract_all(self, kind: _Kind, pairs: list[Pair]) -> None:
        # 1. Pairs that share no node, from the first on.
        taken: set[int] = set()
        chosen = []
        for pair in pairs:
            overlaps = pair[0] in taken or pair[1] in taken
            if not overlaps and self._between(pair, kind) is not None:
                taken.update(pair)
                chosen.append(pair)

        # 2. A new symbol must occur twice.
        if kind.symbol is None:
            if len(chosen) < 2:
                return
            kind.symbol = next(self.symbols)
            self.rules[kind.symbol] = (kind.key.first, kind.key.second)

        # 3. The contractions; each may change what is between the nodes of the next pair.
        for pair in chosen:
            between = self._between(pair, kind)
            if between is not None:
                self._contract(pair, kind, between)

    # Kinds

    def _producers(self, node: int) -> list[int]:
        owners = dict.fromkeys([self.owner[value] for value in self.nodes[node].inputs])
        return [owner for owner in owners if owner is not None]

    def _consumers(self, node: int) -> list[int]:
        consumers: dict[int, None] = {}
        for value in self.nodes[node].outputs:
            consumers.update(self.users[value])
        return list(consumers)

    def _key(self, pair: Pair) -> _Key:
        first, second = self.nodes[pair[0]], self.nodes[pair[1]]
        # 1. Which outputs of the first the second reads, and whether others read them, too.
        links: list[Pair] = []
        is_private: list[bool] = []
        for i, value in enumerate(first.outputs):
            links += [(i, slot) for slot in second.slots_of.get(value, ())]
            is_private.append(self._is_private(value, pair[1]))

        # 2. Inputs of both. Of a node with thousands of inputs, which is looked at from each of its
        #    producers, those of the other node are looked up.
        shared: list[Pair] = []
        if not second.slots_of.keys().isdisjoint(first.slots_of):
            fewer = min(second.slots_of, first.slots_of, key=len)
            for value in fewer:
                slots_of_second = second.slots_of.get(value, ())
                for own in first.slots_of.get(value, ()):
                    shared += [(own, slot) for slot in slots_of_second]
            shared.sort()
        return _Key(first.symbol, second.symbol, tuple(links), tuple(is_private), tuple(shared))

    def _is_private(self, value: int, user: int) -> bool:
        """True if nobody but one user reads a value."""
        users = self.users[value]
        return len(users) == 1 and user in users and value not in self.returned

    def _notice(self, pair: Pair) -> None:
        """Register a pair.

        The first pair of two symbols waits for a second, without which its key is not needed.
        """
        first, second = self.nodes[pair[0]], self.nodes[pair[1]]
        if len(first.inputs) + len(second.inputs) > _MAX_INPUTS:
            return
        symbols = (first.symbol, second.symbol)
        if symbols not in self.waiting:
            self.waiting[symbols] = pair
            return
        waiting = self.waiting[symbols]
        if waiting is not None:
            self.waiting[symbols] = None
            still_exists = waiting[0] in self.position and waiting[1] in self.position
            if still_exists:
                self._register(waiting)
        self._register(pair)

    def _register(self, pair: Pair) -> None:
        key = self._key(pair)
        kind = self.kinds.get(key)
        if kind is None:
            kind = self.kinds[key] = _Kind(key, public=key.is_private.count(False))
        self.kind_of[pair] = kind
        kind.pairs[pair] = None
        self.changed[kind] = None

    def _forget(self, pair: Pair) -> None:
        kind = self.kind_of.pop(pair)
        if pair in kind.pairs:
            del kind.pairs[pair]
            self.changed[kind] = None

    # One contraction

    def _between(self, pair: Pair, kind: _Kind) -> dict[int, None] | None:
        """The nodes between the two of a pair that depend on the first.

        None if the second depends on one of these, since then no call can hold the pair alone, or
        if there are many.
        """
        between: dict[int, None] = {}
        if not kind.public:  # only the second reads the first
            return between
        first, second = pair
        end = self.position[second]
        waiting = [first]
        while waiting:
            node = waiting.pop()
            for user in self._consumers(node):
                is_detour = user == second and node != first
                if is_detour:
                    return None
                if self.position[user] < end and user not in between:
                    between[user] = None
                    waiting.append(user)
            if len(between) > _MAX_BETWEEN:
                return None
        return between

    def _contract(self, pair: Pair, kind: _Kind, between: dict[int, None]) -> None:
        # 1. The pair and its neighbours are no pairs any more.
        begin, end = pair
        producers = dict.fromkeys(self._producers(begin) + self._producers(end))
        consumers = dict.fromkeys(self._consumers(begin) + self._consumers(end))
        producers.pop(begin, None)
        consumers.pop(end, None)
        self._forget(pair)
        for part in pair:
            before = [(producer, part) for producer in producers]
            after = [(part, consumer) for consumer in consumers]
            for other in (*before, *after):
                if other in self.kind_of:
                    self._forget(other)

        # 2. The new node takes their place.
        node = len(self.nodes)
        merged = self._merged(pair, kind)
        self.nodes.append(merged)
        for value in merged.outputs:
            self.owner[value] = node
            self.users[value].pop(end, None)
        for value in merged.slots_of:
            users = self.users[value]
            users.pop(begin, None)
            users.pop(end, None)
            users[node] = None
        self._replace_in_order(node, pair, between)

        # 3. It has pairs with the neighbours.
        for producer in producers:
            self._notice((producer, node))
        for consumer in consumers:
            self._notice((node, consumer))

    def _merged(self, pair: Pair, kind: _Kind) -> _Node:
        """The node that replaces a pair.

        Its inputs are those of the first node, then those of the
        second that the first does not produce.
        """
        assert kind.symbol is not None
        begin, end = pair
        first = self.nodes[begin]
        second = self.nodes[end]

        # 1. Outputs of the first that others read, and those of the second.
        outputs = []
        if kind.public:
            for value, is_private in zip(first.outputs, kind.key.is_private, strict=True):
                if not is_private:
                    outputs.append(value)
        outputs += second.outputs

        # 2. Inputs of both, with slots numbered on.
        inputs = list(first.inputs)
        slots = list(first.slots)
        offset = max(slots, default=-1) + 1
        for value, slot in zip(second.inputs, second.slots, strict=True):
            if self.owner[value] != begin:
                inputs.append(value)
                slots.append(offset + slot)
        return _Node(kind.symbol, inputs, slots, outputs, _slots_of(inputs, slots), pair)

    def _replace_in_order(self, node: int, pair: Pair, between: dict[int, None]) -> None:
        """Put the new node into the order, before the nodes in between that depend on it."""
        first, second = pair
        begin = self.position.pop(first)
        end = self.position.pop(second)
        self.order[begin] = None
        if not between:
            self.order[end] = node
            self.position[node] = end
            return

        # 1. From the first dependent node to the end: what does not depend on the new node, the
        #    new node, and what does.
        start = min([self.position[other] for other in between])
        window = [other for other in self.order[start:end] if other is not None]
        independent = [other for other in window if other not in between]
        dependent = [other for other in window if other in between]
        reordered = [*independent, node, *dependent]

        # 2. They move together; gaps remain behind them.
        gaps = end + 1 - start - len(reordered)
        self.order[start : end + 1] = [*reordered, *[None] * gaps]
        for place, other in enumerate(reordered, start=start):
            self.position[other] = place

    # The result

    def uses(self) -> Counter[int]:
        """How often each symbol occurs outside of all others."""
        return Counter([self.nodes[node].symbol for node in self.position])

    def groups(self, kept: set[int]) -> tuple[tuple[Group, ...], ...]:
        """The nodes of the kept symbols around each line, by block."""
        around: dict[int, Group] = {}
        waiting: list[tuple[int, Group]] = [(node, ()) for node in self.position]
        while waiting:
            node, group = waiting.pop()
            parts = self.nodes[node].parts
            if parts is None:
                around[node] = group
                continue
            is_kept = self.nodes[node].symbol in kept
            inner_group = (*group, node) if is_kept else group
            waiting += [(part, inner_group) for part in parts]

        # Lines are numbered block by block.
        by_block = []
        first = 0
        for block in self.blocks:
            end = first + len(block.items)
            by_block.append(tuple([around[line] for line in range(first, end)]))
            first = end
        return tuple(by_block)


# --- 2. symbols that are worth a function


def _worthwhile(rules: dict[int, Pair], uses: Counter[int]) -> set[int]:
    """The symbols that save lines as functions, after all others are expanded.

    Args:
        rules: the two parts of each symbol.
        uses: how often each symbol occurs outside of all others.
    """
    # 1. The body of each symbol, and the symbols whose bodies hold it.
    bodies = {symbol: Counter(parts) for symbol, parts in rules.items()}
    holders: dict[int, set[int]] = {}
    for symbol, body in bodies.items():
        uses.update(body)
        for part in body:
            holders.setdefault(part, set()).add(symbol)
    lines = dict.fromkeys(rules, 2)

    def gain(symbol: int) -> int:
        saved = _saved(uses[symbol], lines[symbol])
        return saved if lines[symbol] >= _MIN_LINES else min(saved, 0)

    # 2. The worst first. Ties are expanded from the largest symbol on, so that a run of a block
    #    becomes a run of calls.
    queue = [(gain(symbol), -symbol) for symbol in rules]
    heapq.heapify(queue)
    while queue:
        old, negative = queue[0]
        if old > 0:
            break
        heapq.heappop(queue)
        symbol = -negative
        new = gain(symbol)
        if new != old:  # it can only have grown
            heapq.heappush(queue, (new, negative))
            continue

        # 3. Its body replaces it wherever it is used; one copy was counted before.
        body = bodies.pop(symbol)
        new_copies = uses[symbol] - 1
        for part, times in body.items():
            uses[part] += new_copies * times
            holders[part].discard(symbol)
        for holder in holders.get(symbol, ()):
            copies = bodies[holder].pop(symbol)
            lines[holder] += copies * (lines[symbol] - 1)
            for part, times in body.items():
                bodies[holder][part] += copies * times
                holders[part].add(holder)
    return set(bodies)
