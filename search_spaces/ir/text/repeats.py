"""Repeats in blocks of lines: groups of lines that are shorter as calls of a function. No names are
used.

Recurring neighbours are contracted (`contraction`); then contractions that save no lines as
functions are undone.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import count

from search_spaces.ir.text.blocks import Block, Item, ItemAttrs, Ref
from search_spaces.ir.text.contraction import Contraction, Group, Pair

_FRAME_LINES = 5  # cost of a function: three lines of its own, and effort of the reader
_MIN_LINES = 3

_Label = tuple[str, str, int, int]


def length(blocks: Iterable[Block]) -> int:
    """Number of lines in the text of the blocks, with the cost of a function for each."""
    return sum([len(block.items) + _FRAME_LINES for block in blocks])


def repeats(blocks: tuple[Block, ...]) -> tuple[tuple[Group, ...], ...] | None:
    """The new groups around each item, by block; None if there are none.

    Each structure of a group occurs at least twice in all blocks together. Numbers that are
    parameters may differ.
    """
    labels = [[_label(item) for item in block.items] for block in blocks]
    if not _promising(blocks, labels):
        return None
    contraction = Contraction(blocks, labels)
    contraction.run()
    kept = _worthwhile(contraction.rules, contraction.uses())
    return contraction.groups(kept) if kept else None


def _saved(times: int, lines: int) -> int:
    """Lines saved by a function of `lines` lines that is called `times` times."""
    return (times - 1) * lines - times - _FRAME_LINES


def _least_lines(times: int) -> int:
    """The smallest function that saves lines if it is called `times` times."""
    return next(lines for lines in count(_MIN_LINES) if _saved(times, lines) > 0)


_WORTH = [
    (times, _least_lines(times)) for times in range(2, 6)
]  # more calls do not lower the minimum


def _promising(blocks: tuple[Block, ...], labels: list[list[_Label]]) -> bool:
    """False if no function can save lines; a necessary condition that looks at the labels of
    neighbours alone.

    The lines of a function are connected, and each occurs at least as often as the function is
    called.
    """
    lines = Counter([label for own in labels for label in own])
    links = Counter(
        [link for block, own in zip(blocks, labels, strict=True) for link in _links(block, own)]
    )
    for times, least in _WORTH:
        for part in _connected([link for link, there in links.items() if there >= times]):
            if sum([lines[label] // times for label in part]) >= least:
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
    """The symbols that save lines as functions, after all others are expanded.

    Args:
        rules: the two parts of each symbol.
        uses: how often each symbol occurs outside of all others.
    """
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

    # Ties are expanded from the largest symbol on, so that a run of a block becomes a run of calls.
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
