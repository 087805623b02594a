"""An ordered partition, which colour refinement splits (`search_spaces.ir.text.canonical`).

Entities are numbered from 0. All classes lie behind each other in one list, so that a split moves
only the entities that leave their class:

    order       4 1 | 0 2 5 | 3
    first       0     2       5         of the three classes
    size        2     3       1
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class Partition:
    """Numbered entities in ordered classes.

    Attributes:
        order: entities, class by class.
        position: position of each entity in `order`.
        class_of: number of the class of each entity. Numbers are in the order of creation, not that
            of the classes.
        first, size: first position of each class in `order`, and number of its entities.
    """

    def __init__(
        self,
        order: list[int],
        position: list[int],
        class_of: list[int],
        first: list[int],
        size: list[int],
    ) -> None:
        self.order = order
        self.position = position
        self.class_of = class_of
        self.first = first
        self.size = size

    @classmethod
    def by_key(cls, keys: list[tuple[Any, ...]]) -> Partition:
        """Entities in classes of equal keys, in the order of the keys."""
        # 1. Class and position of each entity; sorting is stable.
        ranks = {key: rank for rank, key in enumerate(sorted(set(keys)))}
        class_of = [ranks[key] for key in keys]
        order = sorted(range(len(keys)), key=class_of.__getitem__)
        position = [0] * len(keys)
        for place, entity in enumerate(order):
            position[entity] = place

        # 2. Where each class begins, and its size.
        size = [0] * len(ranks)
        for number in class_of:
            size[number] += 1
        first = [0] * len(ranks)
        for number in range(1, len(ranks)):
            first[number] = first[number - 1] + size[number - 1]
        return cls(order, position, class_of, first, size)

    def copy(self) -> Partition:
        return Partition(
            self.order[:],
            self.position[:],
            self.class_of[:],
            self.first[:],
            self.size[:],
        )

    def members(self, number: int) -> list[int]:
        """The entities of a class, in order."""
        first = self.first[number]
        end = first + self.size[number]
        return self.order[first:end]

    def next_tie(self, start: int) -> int | None:
        """The first class with several entities at or after a position; None if there is none."""
        for place in range(start, len(self.order)):
            number = self.class_of[self.order[place]]
            if self.size[number] > 1:
                return number
        return None

    def has_tie(self, entities: Iterable[int]) -> bool:
        """True if any of the entities shares its class."""
        return any(self.size[self.class_of[entity]] > 1 for entity in entities)

    def colours(self) -> list[int]:
        """The first position of the class of each entity."""
        return [self.first[number] for number in self.class_of]

    def split(self, number: int, below: list[list[int]], above: list[list[int]]) -> list[int]:
        """Move entities of a class into new classes.

        Args:
            number: the class.
            below, above: entities of each new class before and after the rest of the old one.

        Returns:
            The entities that left the old class.
        """
        for entities in below:
            self._move_out(number, entities, self.first[number])
            self.first[number] += len(entities)
        for entities in reversed(above):
            end = self.first[number] + self.size[number]
            self._move_out(number, entities, end - len(entities))
        return [entity for entities in (*below, *above) for entity in entities]

    def _move_out(self, number: int, entities: list[int], start: int) -> None:
        """Make a class of some entities of a class, which move to the positions from `start` on."""
        new = len(self.first)
        self.first.append(start)
        self.size.append(len(entities))
        self.size[number] -= len(entities)

        # 1. Others in these positions change places with entities that come from elsewhere.
        moving = set(entities)
        end = start + len(entities)
        displaced = iter([entity for entity in self.order[start:end] if entity not in moving])
        for entity in entities:
            if not start <= self.position[entity] < end:
                other = next(displaced)
                self.order[self.position[entity]] = other
                self.position[other] = self.position[entity]

        # 2. The entities take the positions in order.
        for place, entity in enumerate(entities, start=start):
            self.order[place] = entity
            self.position[entity] = place
            self.class_of[entity] = new
