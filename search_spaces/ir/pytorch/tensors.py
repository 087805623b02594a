"""Two kinds of tensors that a recording has to tell from all others, by their identity:

- values of the graph, among them views that a change in place concerns (`ValueTensors`),
- weights that a module computes from its parameters: calls without data, repeated when the numbers
  are needed (`DerivedWeights`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from search_spaces.common.errors import InputError
from search_spaces.ir.pytorch.calls import (
    DATA_DEPENDENT,
    call_without_data,
    function_name,
    is_in_place,
    mapped,
    tensors_in,
)

# --- values of the graph


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


# --- weights


class Derived(NamedTuple):
    """A tensor that was computed from weights alone.

    Attributes:
        tensor: tensor without data, kept so that its identity stays unique.
        call: function, positional and keyword arguments.
        part: index of the tensor among the outputs; None if it is the only one.
        sources: parameters that it depends on, by identity.
    """

    tensor: Tensor
    call: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
    part: int | None
    sources: dict[int, nn.Parameter]


class DerivedWeights:
    """The tensors that were computed from parameters alone, such as a normalized weight.

    Attributes:
        derived: these tensors by identity.
    """

    def __init__(self) -> None:
        self.derived: dict[int, Derived] = {}

    def is_weight(self, x: Any) -> bool:
        """True if `x` is a parameter or computed from parameters alone."""
        return isinstance(x, nn.Parameter) or id(x) in self.derived

    def sources(self, x: Tensor) -> dict[int, nn.Parameter]:
        """The parameters that a weight depends on, by identity."""
        if id(x) in self.derived:
            return self.derived[id(x)].sources
        return {id(x): x}  # type: ignore[dict-item]

    def computed(self, x: Tensor) -> Tensor:
        """The numbers of a weight or constant."""
        if id(x) not in self.derived:
            return x.detach()
        func, args, kwargs = self.derived[id(x)].call
        changes_first = function_name(func).endswith("_")

        def own(y: Tensor) -> Tensor:
            numbers = self.computed(y)
            return numbers.clone() if changes_first else numbers

        made = func(*mapped(own, args), **mapped(self.computed, kwargs))
        part = self.derived[id(x)].part
        return made if part is None else made[part]

    def derive(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Call a function of weights without data, and remember the call."""
        name = function_name(func).strip("_")
        if function_name(func) in DATA_DEPENDENT:
            raise InputError(f"{name} depends on weights, but the architecture must not")

        # 1. The call, and the parameters behind its arguments.
        sources: dict[int, nn.Parameter] = {}
        for x in tensors_in((args, kwargs)):
            if self.is_weight(x):
                sources |= self.sources(x)
        made = call_without_data(func, args, kwargs)

        # 2. A function may return its argument: unchanged, such as `contiguous`, or changed.
        if args and made is args[0]:
            if id(made) in self.derived:
                # The remembered call's argument is the tensor before the change.
                before = torch.empty_like(made, device="meta")
                self.derived[id(before)] = self.derived[id(made)]._replace(tensor=before)
                args = (before, *args[1:])
            elif is_in_place(function_name(func)):
                raise InputError(f"{name} changes a weight in place, but weights must not change")
            else:
                return made

        # 3. Each tensor that it returns is a weight that this call computes.
        call = func, args, kwargs
        if isinstance(made, Tensor):
            self.derived[id(made)] = Derived(made, call, None, sources)
        elif isinstance(made, tuple | list):
            for i, x in enumerate(made):
                self.derived[id(x)] = Derived(x, call, i, sources)
        return made
