"""Repeats in blocks of lines, with no names to go by: which lines would be shorter as calls of a function.

Grammar compression on graphs: the commonest pair of neighbouring lines becomes one line, again and again (Re-Pair;
Larsson and Moffat, "Offline dictionary-based compression", 1999); then what saves no lines as a function is undone.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from search_spaces.text.blocks import Block, Item, Ref
from search_spaces.text.canonical import commutes

_FRAME_LINES = 5  # that a function costs: three lines of its own, and a reader's effort
_MIN_LINES = 3
_MAX_BETWEEN = 64
_MAX_INPUTS = 128  # of a function, repeated ones counted: looking for repeats takes time by their square

Group = tuple[int, ...]
"""The functions around a line, from the outermost, by numbers that are unique in the block."""


def length(blocks: Iterable[Block]) -> int:
    """Number of lines of the blocks' text."""
    return sum(len(block.items) + _FRAME_LINES for block in blocks)


def repeats(blocks: tuple[Block, ...]) -> tuple[tuple[Group, ...], ...] | None:
    """For every block the new groups of its items; None where there are none.

    Groups of one structure, up to the numbers that are parameters, occur at least twice in all blocks together.
    """
    labels = [[_label(item) for item in block.items] for block in blocks]
    if not _promising(Counter(pair for block, own in zip(blocks, labels, strict=True) for pair in _links(block, own))):
        return None
    contraction = _Contraction(blocks, labels)
    contraction.run()
    kept = _worthwhile(contraction.rules, contraction.uses())
    return contraction.groups(kept) if kept else None


def _saved(times: int, lines: int) -> int:
    """Lines that a function of so many lines saves where it is called so many times."""
    return (times - 1) * lines - times - _FRAME_LINES


def _promising(links: Counter[tuple]) -> bool:
    """Could any function save lines, if the neighbours of these labels stood where it needs them?

    The lines of a function hang together: there is at most one more of them than of links.
    """
    most = max(links.values(), default=0)
    return any(_saved(n, 1 + sum(each // n for each in links.values())) > 0 for n in range(2, most + 1))


def _links(block: Block, labels: list[tuple]) -> Iterator[tuple]:
    """The labels of all neighbours, producer and consumer."""
    owner: list[int | None] = [None] * block.inputs
    for i, item in enumerate(block.items):
        for producer in {owner[value] for value in item.inputs}:
            if producer is not None:
                yield labels[producer], labels[i]
        owner += [i] * item.outputs


def _label(item: Item) -> tuple[str, str, int, int]:
    attrs = [(name, None if isinstance(value, Ref) else value) for name, value in item.attrs]
    return (item.op, repr(attrs), len(item.inputs), item.outputs)


# --- contraction -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Node:
    """One line, or two nodes contracted into one; nodes of one symbol have one structure.

    `inputs`, `outputs`: values that come from outside, and that are used there. `slots`: for every input its number,
    the same for inputs that may be swapped; `slots_of`: those of each value.
    """

    symbol: int
    inputs: list[int]
    slots: list[int]
    outputs: list[int]
    parts: tuple[int, int] | None = None
    slots_of: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for value, slot in zip(self.inputs, self.slots, strict=True):
            self.slots_of.setdefault(value, []).append(slot)


class _Kind(NamedTuple):
    """What a pair of neighbours is: pairs of one kind become nodes of one symbol.

    `links`: (output of the first, slot of the second); `inner`: which outputs of the first only the second uses;
    `shared`: (slot of the first, slot of the second) that read one value.
    """

    first: int
    second: int
    links: tuple[tuple[int, int], ...]
    inner: tuple[bool, ...]
    shared: tuple[tuple[int, int], ...]


Pair = tuple[int, int]


class _Contraction:
    """The lines of all blocks, and what they are contracted to.

    `order` is a topological order throughout, with None in its gaps; `at`: a node's place in it. `rules`: the symbols
    of the two parts, by symbol.
    """

    def __init__(self, blocks: tuple[Block, ...], labels: list[list[tuple]]) -> None:
        self.blocks = blocks
        self.nodes: list[_Node] = []
        self.owner: list[int | None] = []
        self.users: list[dict[int, None]] = []
        self.outside: set[int] = set()
        for block in blocks:
            self._add(block)
        keys = [
            (*label, tuple([bool(self.users[v] or v in self.outside) for v in node.outputs]))
            for label, node in zip((label for block in labels for label in block), self.nodes, strict=True)
        ]
        ranks = {key: rank for rank, key in enumerate(sorted(set(keys)))}
        for key, node in zip(keys, self.nodes, strict=True):
            node.symbol = ranks[key]
        self.order: list[int | None] = list(range(len(self.nodes)))
        self.at = dict(enumerate(range(len(self.nodes))))
        self.symbols = count(len(ranks))
        self.symbol_of: dict[_Kind, int] = {}
        self.rules: dict[int, Pair] = {}
        self.kinds: dict[Pair, _Kind] = {}
        self.pairs: dict[_Kind, dict[Pair, None]] = {}
        self.queue: list[tuple[int, int, _Kind]] = []

    def _add(self, block: Block) -> None:
        first = len(self.owner)
        self.owner += [None] * block.inputs
        self.users += [{} for _ in range(block.inputs)]
        for item in block.items:
            node, inputs = len(self.nodes), [first + v for v in item.inputs]
            slots = [0] * len(inputs) if commutes(item.op) else list(range(len(inputs)))
            self.nodes.append(_Node(-1, inputs, slots, list(range(len(self.owner), len(self.owner) + item.outputs))))
            for value in inputs:
                self.users[value][node] = None
            self.owner += [node] * item.outputs
            self.users += [{} for _ in range(item.outputs)]
        self.outside |= {first + v for v in block.outputs}

    def run(self) -> None:
        """Contract the commonest kind of pair until none is there twice."""
        for node in range(len(self.nodes)):
            for producer in self._producers(node):
                self._notice((producer, node))
        while self.queue:
            _, number, kind = heapq.heappop(self.queue)
            pairs = self.pairs.get(kind, {})
            if len(pairs) == -number:
                del self.pairs[kind]
                self._contract_all(kind, sorted(pairs, key=lambda pair: self.at[pair[0]]))

    def _contract_all(self, kind: _Kind, pairs: list[Pair]) -> None:
        free: set[int] = set()
        chosen = []
        for pair in pairs:
            if free.isdisjoint(pair) and self._between(pair) is not None:
                free.update(pair)
                chosen.append(pair)
        if len(chosen) < 2 and kind not in self.symbol_of:
            return
        if kind not in self.symbol_of:
            self.symbol_of[kind] = next(self.symbols)
            self.rules[self.symbol_of[kind]] = (kind.first, kind.second)
        for pair in chosen:
            between = self._between(pair)
            if between is not None:
                self._contract(pair, kind, between)

    # --- kinds

    def _producers(self, node: int) -> list[int]:
        owners = dict.fromkeys(self.owner[v] for v in self.nodes[node].inputs)
        return [owner for owner in owners if owner is not None]

    def _consumers(self, node: int) -> list[int]:
        return list(dict.fromkeys(user for v in self.nodes[node].outputs for user in self.users[v]))

    def _kind(self, pair: Pair) -> _Kind:
        first, second = self.nodes[pair[0]], self.nodes[pair[1]]
        reads, also = second.slots_of, first.slots_of
        links = [(i, slot) for i, value in enumerate(first.outputs) for slot in reads.get(value, ())]
        common = min(reads, also, key=len)  # a node of thousands of inputs is looked at from each of its producers
        shared = [
            (other, slot) for value in common if value in reads and value in also
            for other in also[value] for slot in reads[value]
        ]  # fmt: skip
        inner = tuple([self._inner(value, pair[1]) for value in first.outputs])
        return _Kind(first.symbol, second.symbol, tuple(sorted(links)), inner, tuple(sorted(shared)))

    def _inner(self, value: int, user: int) -> bool:
        return value not in self.outside and self.users[value].keys() == {user}

    def _notice(self, pair: Pair) -> None:
        if sum(len(self.nodes[part].inputs) for part in pair) > _MAX_INPUTS:
            return
        kind = self.kinds[pair] = self._kind(pair)
        pairs = self.pairs.setdefault(kind, {})
        pairs[pair] = None
        self._enqueue(kind, len(pairs))

    def _forget(self, pair: Pair) -> None:
        kind = self.kinds.pop(pair, None)
        if kind is not None and pair in (pairs := self.pairs.get(kind, {})):
            del pairs[pair]
            self._enqueue(kind, len(pairs))

    def _enqueue(self, kind: _Kind, times: int) -> None:
        """Pairs that nobody else looks into come first: they make blocks of few inputs and outputs."""
        if times > 1 or (times and kind in self.symbol_of):
            heapq.heappush(self.queue, (kind.inner.count(False), -times, kind))

    # --- one contraction

    def _between(self, pair: Pair) -> dict[int, None] | None:
        """The nodes before the pair's second that need its first; None where the second needs one of them, too.

        Then no call can hold the pair alone. None also where there are many.
        """
        first, second = pair
        end = self.at[second]
        found: dict[int, None] = {}
        waiting = [first]
        while waiting:
            node = waiting.pop()
            for user in self._consumers(node):
                if user == second and node != first:
                    return None
                if self.at[user] < end and user not in found:
                    found[user] = None
                    waiting.append(user)
            if len(found) > _MAX_BETWEEN:
                return None
        return found

    def _contract(self, pair: Pair, kind: _Kind, between: dict[int, None]) -> None:
        node = len(self.nodes)
        first, second = (self.nodes[part] for part in pair)
        for part in pair:
            for producer in self._producers(part):
                self._forget((producer, part))
        for part in pair:
            for consumer in self._consumers(part):
                self._forget((part, consumer))
        offset = max(first.slots, default=-1) + 1
        outer = [(v, offset + slot) for v, slot in zip(second.inputs, second.slots, strict=True)]
        outer = [(v, slot) for v, slot in outer if self.owner[v] != pair[0]]
        merged = _Node(
            self.symbol_of[kind],
            [*first.inputs, *(v for v, _ in outer)],
            [*first.slots, *(slot for _, slot in outer)],
            [v for v in first.outputs if not self._inner(v, pair[1])] + second.outputs,
            pair,
        )
        self.nodes.append(merged)
        for value in merged.outputs:
            self.owner[value] = node
            self.users[value].pop(pair[1], None)
        for value in merged.inputs:
            for part in pair:
                self.users[value].pop(part, None)
            self.users[value][node] = None
        self._place(node, pair, between)
        for producer in self._producers(node):
            self._notice((producer, node))
        for consumer in self._consumers(node):
            self._notice((node, consumer))

    def _place(self, node: int, pair: Pair, between: dict[int, None]) -> None:
        """Put the new node into the order, behind it what was in between and needs it."""
        begin, end = (self.at.pop(part) for part in pair)
        self.order[begin] = None
        start = min((self.at[n] for n in between), default=end)
        window = [n for n in self.order[start:end] if n is not None]
        moved = [*(n for n in window if n not in between), node, *(n for n in window if n in between)]
        self.order[start : end + 1] = [*moved, *[None] * (end + 1 - start - len(moved))]
        for place, other in enumerate(moved, start=start):
            self.at[other] = place

    # --- the result

    def uses(self) -> Counter[int]:
        """How often each symbol is there in the end, outside of others."""
        return Counter(self.nodes[node].symbol for node in self.at)

    def groups(self, kept: set[int]) -> tuple[tuple[Group, ...], ...]:
        """The nodes of the kept symbols around every line, by block."""
        around: dict[int, Group] = {}
        waiting: list[tuple[int, Group]] = [(node, ()) for node in self.at]
        while waiting:
            node, group = waiting.pop()
            parts = self.nodes[node].parts
            if parts is None:
                around[node] = group
                continue
            inner = (*group, node) if self.nodes[node].symbol in kept else group
            waiting += [(part, inner) for part in parts]
        lines = iter([around[line] for line in sorted(around)])
        return tuple(tuple(next(lines) for _ in block.items) for block in self.blocks)


def _worthwhile(rules: dict[int, Pair], uses: Counter[int]) -> set[int]:
    """The symbols that save lines as functions when the others are written out."""
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

    # Of what saves equally little, the larger is undone first: runs of a block are runs of its calls.
    queue = [(gain(symbol), -symbol) for symbol in rules]
    heapq.heapify(queue)
    while queue and queue[0][0] <= 0:
        old, symbol = heapq.heappop(queue)
        symbol = -symbol
        if gain(symbol) != old:  # it can only have grown
            heapq.heappush(queue, (gain(symbol), -symbol))
            continue
        body = bodies.pop(symbol)
        for part, times in body.items():
            uses[part] += (uses[symbol] - 1) * times
            holders[part].discard(symbol)
        for holder in holders.get(symbol, ()):
            times = bodies[holder].pop(symbol)
            lines[holder] += times * (lines[symbol] - 1)
            for part, inner in body.items():
                bodies[holder][part] += times * inner
                holders[part].add(holder)
    return set(bodies)
