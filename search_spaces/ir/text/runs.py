"""Runs in a sequence of labels: subsequences that are repeated three times or more without a
gap.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator, Sequence
from itertools import accumulate
from operator import eq
from typing import NamedTuple

MIN_REPEATS = 3
_MAX_LENGTH = 64


class Run(NamedTuple):
    """`times` copies of `length` labels, starting at position `first`."""

    first: int
    length: int
    times: int

    @property
    def end(self) -> int:
        return self.first + self.length * self.times


def runs(labels: Sequence[Hashable], weights: Sequence[int]) -> list[Run]:
    """Runs that do not overlap, chosen greedily by most copies, then largest weight, then smallest
    length.
    """
    number = {label: i for i, label in enumerate(dict.fromkeys(labels))}
    if len(labels) - len(number) < MIN_REPEATS - 1:
        return []
    labels = [number[label] for label in labels]
    total = [0, *accumulate(weights)]
    queue: list[tuple[tuple[int, int, int, int], Run]] = []

    def push(first: int, length: int, end: int) -> None:
        times = (end - first) // length
        if times >= MIN_REPEATS:
            run = Run(first, length, times)
            heapq.heappush(queue, ((-times, total[first] - total[run.end], length, first), run))

    for length in range(1, min(_MAX_LENGTH, len(labels) // MIN_REPEATS) + 1):
        for first, end in _periodic(labels, length):
            push(first, length, end)
    taken = [False] * len(labels)
    found = []
    while queue:
        run = heapq.heappop(queue)[1]
        free = list(_free(taken, run.first, run.end))
        if free == [(run.first, run.end)]:
            taken[run.first : run.end] = [True] * (run.end - run.first)
            found.append(run)
        else:
            for first, end in free:
                push(first, run.length, end)
    return found


def _periodic(labels: Sequence[Hashable], length: int) -> Iterator[tuple[int, int]]:
    """The bounds of the longest stretches with period `length` that hold a run."""
    same = bytes(map(eq, labels, labels[length:])) + b"\0"
    first = same.find(b"\1" * length * (MIN_REPEATS - 1))
    while first >= 0:
        end = same.index(b"\0", first)
        yield first, end + length
        first = same.find(b"\1" * length * (MIN_REPEATS - 1), end)


def _free(taken: Sequence[bool], first: int, end: int) -> Iterator[tuple[int, int]]:
    """The bounds of the stretches between `first` and `end` that are not taken."""
    begin = first
    for i in range(first, end + 1):
        if i == end or taken[i]:
            if begin < i:
                yield begin, i
            begin = i + 1
