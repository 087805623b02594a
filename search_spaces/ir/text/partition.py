"""Entities in ordered classes, which colour refinement splits (`search_spaces.ir.text.canonical`)."""

from __future__ import annotations

from collections.abc import Iterable


class Partition:
    """Numbered entities in ordered classes.

    Attributes:
        order: entities, class by class.
        at: position of each entity in `order`.
        cell: class of each entity.
        first, size: first position of each class in `order`, and number of its entities.
    """

    def __init__(
        self,
        order: list[int],
        at: list[int],
        cell: list[int],
        first: list[int],
        size: list[int],
    ) -> None:
        self.order = order
        self.at = at
        self.cell = cell
        self.first = first
        self.size = size

    @classmethod
    def by(cls, keys: list[tuple]) -> Partition:
        """Entities in classes of equal keys, in the order of the keys."""
        ranks = {key: rank for rank, key in enumerate(sorted(set(keys)))}
        cell = [ranks[key] for key in keys]
        order = sorted(range(len(keys)), key=cell.__getitem__)
        at = [0] * len(keys)
        size = [0] * len(ranks)
        for position, entity in enumerate(order):
            at[entity] = position
            size[cell[entity]] += 1
        first = [0] * len(ranks)
        for c in range(1, len(ranks)):
            first[c] = first[c - 1] + size[c - 1]
        return cls(order, at, cell, first, size)

    def copy(self) -> Partition:
        return Partition(self.order[:], self.at[:], self.cell[:], self.first[:], self.size[:])

    def members(self, c: int) -> list[int]:
        first = self.first[c]
        return self.order[first : first + self.size[c]]

    def tied(self, start: int) -> int | None:
        """The first class with several entities at or after a position; None if there is none."""
        while start < len(self.order):
            c = self.cell[self.order[start]]
            if self.size[c] > 1:
                return c
            start += 1
        return None

    def ties(self, entities: Iterable[int]) -> bool:
        """True if any of the entities shares its class."""
        return any(self.size[self.cell[entity]] > 1 for entity in entities)

    def colours(self) -> list[int]:
        """The first position of the class of each entity."""
        return [self.first[c] for c in self.cell]

    def split(self, c: int, below: list[list[int]], above: list[list[int]]) -> list[int]:
        """Move entities of class `c` into new classes before and after the rest of it; returns
        these entities.
        """
        for part in below:
            self._cut(c, part, self.first[c])
            self.first[c] += len(part)
        for part in reversed(above):
            end = self.first[c] + self.size[c]
            self._cut(c, part, end - len(part))
        return [entity for part in (*below, *above) for entity in part]

    def _cut(self, c: int, part: list[int], position: int) -> None:
        """Make a class of the entities of `part`, which move to this position and after it."""
        new = len(self.first)
        self.first.append(position)
        self.size.append(len(part))
        self.size[c] -= len(part)
        # 1. Others in these positions change places with entities that come from elsewhere.
        inside = set(part)
        end = position + len(part)
        displaced = iter([entity for entity in self.order[position:end] if entity not in inside])
        for entity in part:
            if not position <= self.at[entity] < end:
                other = next(displaced)
                self.order[self.at[entity]] = other
                self.at[other] = self.at[entity]
        # 2. The entities take the positions in order.
        for place, entity in enumerate(part, start=position):
            self.order[place] = entity
            self.at[entity] = place
            self.cell[entity] = new
