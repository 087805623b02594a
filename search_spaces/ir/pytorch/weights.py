"""Weights that a module computes from its parameters: calls without data, repeated when the numbers
are needed.
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
        sources: dict[int, nn.Parameter] = {}
        for x in tensors_in((args, kwargs)):
            if self.is_weight(x):
                sources |= self.sources(x)
        made = call_without_data(func, args, kwargs)
        # 1. A function may return its argument: unchanged, such as `contiguous`, or changed.
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
        # 2. Each tensor that it returns is a weight that this call computes.
        call = func, args, kwargs
        if isinstance(made, Tensor):
            self.derived[id(made)] = Derived(made, call, None, sources)
        elif isinstance(made, tuple | list):
            for i, x in enumerate(made):
                self.derived[id(x)] = Derived(x, call, i, sources)
        return made
