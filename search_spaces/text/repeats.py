"""Repeats in blocks of lines, with no names to go by: which lines would be shorter as calls of a function.

Neighbouring lines that recur are contracted (`contraction`); then what saves no lines as a function is undone.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import count

from search_spaces.text.blocks import Block, Item, ItemAttrs, Ref
from search_spaces.text.contraction import Contraction, Group, Pair

_FRAME_LINES = 5  # that a function costs: three lines of its own, and a reader's effort
_MIN_LINES = 3

_Label = tuple[str, str, int, int]


def length(blocks: Iterable[Block]) -> int:
    """Number of lines of the blocks' text."""
    return sum([len(block.items) + _FRAME_LINES for block in blocks])


def repeats(blocks: tuple[Block, ...]) -> tuple[tuple[Group, ...], ...] | None:
    """For every block the new groups of its items; None where there are none.

    Groups of one structure, up to the numbers that are parameters, occur at least twice in all blocks together.
    """
    labels = [[_label(item) for item in block.items] for block in blocks]
    if not _promising(blocks, labels):
        return None
    contraction = Contraction(blocks, labels)
    contraction.run()
    kept = _worthwhile(contraction.rules, contraction.uses())
    return contraction.groups(kept) if kept else None


def _saved(times: int, lines: int) -> int:
    """Lines that a function of so many lines saves where it is called so many times."""
    return (times - 1) * lines - times - _FRAME_LINES


def _least_lines(times: int) -> int:
    """How many lines a function needs that saves some where it is called so many times."""
    return next(lines for lines in count(_MIN_LINES) if _saved(times, lines) > 0)


_WORTH = [(times, _least_lines(times)) for times in range(2, 6)]  # what is called more often needs no fewer lines


def _promising(blocks: tuple[Block, ...], labels: list[list[_Label]]) -> bool:
    """Could any function save lines, if the neighbours of these labels stood where it needs them?

    What a function holds n times occurs at least n times as often as the function, and its lines hang together.
    """
    lines = Counter([label for own in labels for label in own])
    links = Counter([link for block, own in zip(blocks, labels, strict=True) for link in _links(block, own)])
    for times, least in _WORTH:
        for part in _connected([link for link, there in links.items() if there >= times]):
            if sum([lines[label] // times for label in part]) >= least:
                return True
    return False


def _links(block: Block, labels: list[_Label]) -> Iterator[tuple[_Label, _Label]]:
    """The labels of all neighbours, producer and consumer."""
    owner: list[int | None] = [None] * block.inputs
    for i, item in enumerate(block.items):
        for producer in {owner[value] for value in item.inputs}:
            if producer is not None:
                yield labels[producer], labels[i]
        owner += [i] * item.outputs


def _connected(links: list[tuple[_Label, _Label]]) -> list[set[_Label]]:
    """The labels in sets that no link leaves."""
    part = {label: {label} for link in links for label in link}
    for first, second in links:
        small, large = sorted((part[first], part[second]), key=len)
        if small is not large:
            large |= small
            part.update(dict.fromkeys(small, large))
    return list({id(found): found for found in part.values()}.values())


def _label(item: Item) -> _Label:
    return (item.op, _shape(item.op, item.attrs), len(item.inputs), item.outputs)


@lru_cache(maxsize=4096)
def _shape(op: str, attrs: ItemAttrs) -> str:
    return repr([(name, None if isinstance(value, Ref) else value) for name, value in attrs])


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
