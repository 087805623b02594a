"""Grammar compression of graphs: the most frequent pair of neighbouring lines is replaced by one
line, repeatedly.

Re-Pair (Larsson and Moffat, "Offline dictionary-based compression", 1999) on edges of a graph
instead of neighbours in a sequence.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import count

from search_spaces.ir.text.blocks import Block
from search_spaces.ir.text.canonical import commutes

_MAX_BETWEEN = 64
_MAX_INPUTS = 128  # of a pair, with repetitions: the search takes quadratic time in them

Group = tuple[int, ...]
"""The functions around a line, outermost first, by numbers that are unique in the block."""

Pair = tuple[int, int]


class _Node:
    """A line, or two nodes contracted into one. Nodes of equal symbols have equal structure.

    Attributes:
        inputs, outputs: values that are read from outside, and values that are read outside.
        slots: number of each input; equal for inputs that may be swapped.
        slots_of: slots of each value, in ascending order.
        parts: the two nodes of a contracted one.
    """

    __slots__ = ("inputs", "outputs", "parts", "slots", "slots_of", "symbol")

    def __init__(
        self, symbol: int, inputs: list[int], slots: list[int], outputs: list[int], slots_of: dict[int, list[int]],
        parts: Pair | None = None,
    ) -> None:  # fmt: skip
        self.symbol, self.inputs, self.slots, self.outputs, self.parts = (
            symbol,
            inputs,
            slots,
            outputs,
            parts,
        )
        self.slots_of = slots_of


def _slots_of(inputs: list[int], slots: list[int]) -> dict[int, list[int]]:
    if len(inputs) == 1:
        return {inputs[0]: slots}
    found: dict[int, list[int]] = {}
    for value, slot in zip(inputs, slots, strict=True):
        if value in found:
            found[value].append(slot)
        else:
            found[value] = [slot]
    return found


_Key = tuple[int, int, tuple[Pair, ...], tuple[bool, ...], tuple[Pair, ...]]
"""The kind of a pair of neighbours; pairs of equal keys become nodes of one symbol.

Its fields: symbols of both; links as (output of the first, slot of the second); for each output of the first, True if
only the second reads it; common inputs as (slot of the first, slot of the second).
"""


@dataclass(slots=True, eq=False)
class _Kind:
    """All pairs of one key; `shown`: number of outputs of the first node that others read, too."""

    key: _Key
    shown: int
    symbol: int | None = None
    pairs: dict[Pair, None] = field(default_factory=dict)


class Contraction:
    """The lines of all blocks, and their contractions.

    Args:
        labels: by block, the label of each line; only lines of equal labels may correspond.

    Attributes:
        order: nodes in topological order, with None in gaps.
        at: position of each node in `order`; contracted nodes have none.
        rules: symbols of the two parts, by symbol.
        waiting: first pair of each two symbols until there is a second pair, then None.
    """

    def __init__(self, blocks: tuple[Block, ...], labels: list[list[tuple]]) -> None:
        self.blocks = blocks
        self.nodes: list[_Node] = []
        self.owner: list[int | None] = []
        self.users: list[dict[int, None]] = []
        self.outside: set[int] = set()
        for block in blocks:
            self._add(block)
        flat = [label for own in labels for label in own]
        keys = [
            (*label, self._is_read(node.outputs))
            for label, node in zip(flat, self.nodes, strict=True)
        ]
        ranks: dict[Hashable, int] = {key: rank for rank, key in enumerate(sorted(set(keys)))}
        for key, node in zip(keys, self.nodes, strict=True):
            node.symbol = ranks[key]
        self.order: list[int | None] = list(range(len(self.nodes)))
        self.at = dict(enumerate(range(len(self.nodes))))
        self.symbols = count(len(ranks))
        self.rules: dict[int, Pair] = {}
        self.kinds: dict[_Key, _Kind] = {}
        self.kind_of: dict[Pair, _Kind] = {}
        self.waiting: dict[Pair, Pair | None] = {}
        self.changed: dict[_Kind, None] = {}
        self.queue: list[tuple[int, int, _Key]] = []

    def _add(self, block: Block) -> None:
        nodes, owner, users, first = self.nodes, self.owner, self.users, len(self.owner)
        owner += [None] * block.inputs
        users += [{} for _ in range(block.inputs)]
        for op, read, _, outputs in block.items:
            node, made = len(nodes), len(owner)
            inputs = [first + v for v in read]
            slots = (
                [0] * len(inputs) if len(inputs) < 2 or commutes(op) else list(range(len(inputs)))
            )
            nodes.append(
                _Node(
                    -1, inputs, slots, list(range(made, made + outputs)), _slots_of(inputs, slots)
                )
            )
            for value in inputs:
                users[value][node] = None
            owner += [node] * outputs
            users += [{} for _ in range(outputs)]
        self.outside.update([first + v for v in block.outputs])

    def _is_read(self, values: list[int]) -> tuple[bool, ...]:
        return tuple([bool(self.users[v]) or v in self.outside for v in values])

    def run(self) -> None:
        """Contract the most frequent kind of pair until none occurs twice."""
        for node in range(len(self.nodes)):
            for producer in self._producers(node):
                self._notice((producer, node))
        self._enqueue()
        while self.queue:
            _, number, key = heapq.heappop(self.queue)
            kind = self.kinds[key]
            if len(kind.pairs) == -number:
                pairs, kind.pairs = kind.pairs, {}
                self._contract_all(kind, sorted(pairs, key=lambda pair: self.at[pair[0]]))
                self._enqueue()

    def _enqueue(self) -> None:
        """Queue kinds that changed. Kinds without other readers come first: they give blocks of few
        outputs.
        """
        for kind in self.changed:
            times = len(kind.pairs)
            if times > 1 or (times and kind.symbol is not None):
                heapq.heappush(self.queue, (kind.shown, -times, kind.key))
        self.changed.clear()

    def _contract_all(self, kind: _Kind, pairs: list[Pair]) -> None:
        free: set[int] = set()
        chosen = []
        for pair in pairs:
            if (
                pair[0] not in free
                and pair[1] not in free
                and self._between(pair, kind) is not None
            ):
                free.update(pair)
                chosen.append(pair)
        if kind.symbol is None:
            if len(chosen) < 2:
                return
            kind.symbol = next(self.symbols)
            self.rules[kind.symbol] = kind.key[:2]
        for pair in chosen:
            between = self._between(pair, kind)
            if between is not None:
                self._contract(pair, kind, between)

    # --- kinds

    def _producers(self, node: int) -> list[int]:
        inputs = self.nodes[node].inputs
        if len(inputs) == 1:
            owner = self.owner[inputs[0]]
            return [] if owner is None else [owner]
        owners = dict.fromkeys([self.owner[v] for v in inputs])
        return [owner for owner in owners if owner is not None]

    def _consumers(self, node: int) -> list[int]:
        outputs = self.nodes[node].outputs
        if len(outputs) == 1:
            return list(self.users[outputs[0]])
        return list(dict.fromkeys([user for v in outputs for user in self.users[v]]))

    def _key(self, pair: Pair) -> _Key:
        first, second = self.nodes[pair[0]], self.nodes[pair[1]]
        made, reads, also = first.outputs, second.slots_of, first.slots_of
        if len(made) == len(second.inputs) == 1:
            return (
                first.symbol,
                second.symbol,
                ((0, second.slots[0]),),
                (self._inner(made[0], pair[1]),),
                (),
            )
        links = [
            (i, slot) for i, value in enumerate(made) if value in reads for slot in reads[value]
        ]
        inner = tuple([self._inner(value, pair[1]) for value in made])
        shared: list[Pair] = []
        if not reads.keys().isdisjoint(also):
            common = min(
                reads, also, key=len
            )  # a node of thousands of inputs is looked at from each of its producers
            shared = sorted([
                (other, slot) for value in common if value in reads and value in also
                for other in also[value] for slot in reads[value]
            ])  # fmt: skip
        return first.symbol, second.symbol, tuple(links), inner, tuple(shared)

    def _inner(self, value: int, user: int) -> bool:
        users = self.users[value]
        return len(users) == 1 and user in users and value not in self.outside

    def _notice(self, pair: Pair) -> None:
        """Register a pair. The first one of two symbols waits for a second, without which its key
        is not needed.
        """
        first, second = self.nodes[pair[0]], self.nodes[pair[1]]
        if len(first.inputs) + len(second.inputs) > _MAX_INPUTS:
            return
        symbols = (first.symbol, second.symbol)
        if symbols not in self.waiting:
            self.waiting[symbols] = pair
            return
        other = self.waiting[symbols]
        if other is not None:
            self.waiting[symbols] = None
            if other[0] in self.at and other[1] in self.at:
                self._register(other)
        self._register(pair)

    def _register(self, pair: Pair) -> None:
        key = self._key(pair)
        kind = self.kinds.get(key)
        if kind is None:
            kind = self.kinds[key] = _Kind(key, key[3].count(False))
        self.kind_of[pair] = kind
        kind.pairs[pair] = None
        self.changed[kind] = None

    def _forget(self, pair: Pair) -> None:
        kind = self.kind_of.pop(pair)
        if pair in kind.pairs:
            del kind.pairs[pair]
            self.changed[kind] = None

    # --- one contraction

    def _between(self, pair: Pair, kind: _Kind) -> dict[int, None] | None:
        """The nodes between the two of a pair that depend on the first.

        None if the second depends on one of these, since then no call can hold the pair alone, or
        if there are many.
        """
        found: dict[int, None] = {}
        if not kind.shown:
            return found
        first, second = pair
        end = self.at[second]
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
        node, (begin, end) = len(self.nodes), pair
        producers = [
            p for p in dict.fromkeys(self._producers(begin) + self._producers(end)) if p != begin
        ]
        consumers = [
            c for c in dict.fromkeys(self._consumers(begin) + self._consumers(end)) if c != end
        ]
        self._forget(pair)
        for neighbours in [
            *[(p, part) for part in pair for p in producers], *[(part, c) for part in pair for c in consumers],
        ]:  # fmt: skip
            if neighbours in self.kind_of:
                self._forget(neighbours)
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
        self._place(node, pair, between)
        for producer in producers:
            self._notice((producer, node))
        for consumer in consumers:
            self._notice((node, consumer))

    def _merged(self, pair: Pair, kind: _Kind) -> _Node:
        assert kind.symbol is not None
        first, second = self.nodes[pair[0]], self.nodes[pair[1]]
        shown = (
            [v for v, inner in zip(first.outputs, kind.key[3], strict=True) if not inner]
            if kind.shown
            else []
        )
        symbol, outputs = kind.symbol, shown + second.outputs
        outer = [
            (v, slot)
            for v, slot in zip(second.inputs, second.slots, strict=True)
            if self.owner[v] != pair[0]
        ]
        if not outer:
            return _Node(symbol, first.inputs, first.slots, outputs, first.slots_of, pair)
        offset = max(first.slots, default=-1) + 1
        inputs = first.inputs + [v for v, _ in outer]
        slots = first.slots + [offset + slot for _, slot in outer]
        return _Node(symbol, inputs, slots, outputs, _slots_of(inputs, slots), pair)

    def _place(self, node: int, pair: Pair, between: dict[int, None]) -> None:
        """Put the new node into the order, before the nodes in between that depend on it."""
        begin, end = self.at.pop(pair[0]), self.at.pop(pair[1])
        self.order[begin] = None
        if not between:
            self.order[end] = node
            self.at[node] = end
            return
        start = min([self.at[n] for n in between])
        window = [n for n in self.order[start:end] if n is not None]
        moved = [
            *[n for n in window if n not in between],
            node,
            *[n for n in window if n in between],
        ]
        self.order[start : end + 1] = [*moved, *[None] * (end + 1 - start - len(moved))]
        for place, other in enumerate(moved, start=start):
            self.at[other] = place

    # --- the result

    def uses(self) -> Counter[int]:
        """How often each symbol occurs outside of all others."""
        return Counter([self.nodes[node].symbol for node in self.at])

    def groups(self, kept: set[int]) -> tuple[tuple[Group, ...], ...]:
        """The nodes of the kept symbols around each line, by block."""
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
        return tuple([tuple([next(lines) for _ in block.items]) for block in self.blocks])
