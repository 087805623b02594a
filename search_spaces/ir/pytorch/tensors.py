"""The tensors that are values of a graph, by their identity, among them views that a change in place
concerns.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor


class ValueTensor(NamedTuple):
    """A tensor that is a value of the graph.

    Attributes:
        tensor: tensor without data, kept so that its identity stays unique.
        number: number of the value.
        changes: number of in-place changes, one list that all views of the same memory share.
        seen: number of in-place changes when this view was made, or changed itself.
    """

    tensor: Tensor
    number: int
    changes: list[int]
    seen: int

    @property
    def is_outdated(self) -> bool:
        """True if another view of the memory was changed after this one."""
        return self.seen != self.changes[0]


class ValueTensors:
    """The tensors that are values of the graph.

    A graph has no memory: a tensor that is changed in place becomes another value. Its views do
    not, and must not be read any more.
    """

    def __init__(self) -> None:
        self._by_identity: dict[int, ValueTensor] = {}

    def __contains__(self, x: Any) -> bool:
        return id(x) in self._by_identity

    def get(self, x: Any) -> ValueTensor | None:
        """The value of a tensor; None if it is none of the graph."""
        return self._by_identity.get(id(x))

    def add(self, x: Tensor, number: int) -> None:
        """Let a tensor, in memory of its own, be the value of this number."""
        self._by_identity[id(x)] = ValueTensor(x, number, [0], 0)

    def mark_view(self, x: Tensor, y: Tensor) -> None:
        """Let `y` be a view of `x`, so that in-place changes of one concern the other."""
        if x is y or x not in self or y not in self:
            return
        changes = self._by_identity[id(x)].changes
        view = self._by_identity[id(y)]
        self._by_identity[id(y)] = view._replace(changes=changes, seen=changes[0])

    def allow_change(self, x: Tensor, part: Tensor) -> None:
        """Let `x` be read after a view of it was changed in place.

        That part of `x` is replaced next.
        """
        whole = self._by_identity[id(x)]
        changed = self._by_identity[id(part)]
        is_view = changed.changes is whole.changes
        if not is_view:
            return
        changes = whole.changes[0]
        is_last_change = changed.seen == changes
        is_only_change = changes == whole.seen + 1
        if is_last_change and is_only_change:
            self._by_identity[id(x)] = whole._replace(seen=changes)

    def change(self, x: Tensor, number: int) -> None:
        """Let `x` be another value, because it was changed in place; its views are outdated."""
        before = self._by_identity.get(id(x))
        if before is None:  # a constant, such as zeros into which values are written
            self.add(x, number)
            return
        before.changes[0] += 1
        self._by_identity[id(x)] = before._replace(number=number, seen=before.changes[0])
