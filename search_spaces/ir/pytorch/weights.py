"""Weights that a module computes from its parameters: calls without data, which are remembered, and
repeated when the numbers are needed.

The module's code may change a computed weight in place, also through a view, such as
`bias[8:16].zero_()`. Remembered calls must not see changes that come later. So nothing that is
remembered ever changes: each change makes a new *version* of the memory, and `current` has the tensor
that stands for the numbers of a tensor as they are now.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from search_spaces.common.errors import InputError
from search_spaces.ir.pytorch.calls import (
    DATA_DEPENDENT,
    call_without_data,
    function_name,
    mapped,
    tensors_in,
)

# Functions that change the shape of their first argument, but no numbers.
_RESHAPING = frozenset({"squeeze_", "swapaxes_", "swapdims_", "t_", "transpose_", "unsqueeze_"})

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""Function, positional and keyword arguments."""


class View(NamedTuple):
    """How a view is made of another tensor.

    Attributes:
        call: the call, with the other tensor among its arguments.
        part: index of the view among the outputs; None if it is the only one.
        source: the other tensor.
    """

    call: Call
    part: int | None
    source: Tensor

    def of(self, x: Tensor, others: Callable[[Tensor], Tensor]) -> Tensor:
        """The same view of the tensor `x`; `others` has the remaining tensors of the call."""
        func, args, kwargs = with_tensor(self.call, self.source, x, others)
        made = call_without_data(func, args, kwargs) if x.is_meta else func(*args, **kwargs)
        viewed: Tensor = made if self.part is None else made[self.part]
        return viewed


@dataclass
class _Memory:
    """Numbers that a tensor and its views share.

    Attributes:
        owner: the tensor of which the others are views.
        version: tensor that stands for all numbers as they are now, in the owner's first shape.
        changes: number of changes in place.
    """

    owner: Tensor
    version: Tensor
    changes: int = 0


class _Place(NamedTuple):
    """Where a tensor is in a memory.

    Attributes:
        tensor: the tensor, kept so that its identity stays unique.
        memory: the memory.
        path: views that lead to the tensor.
    """

    tensor: Tensor
    memory: _Memory
    path: tuple[View, ...]


class Change(NamedTuple):
    """What a call changes in place.

    Attributes:
        before: version of the memory before the call.
        path: views that lead to the part that is changed.
        target: stands for this part in the call's arguments.
    """

    before: Tensor
    path: tuple[View, ...]
    target: Tensor


class Derived(NamedTuple):
    """A tensor that was computed from weights alone.

    Attributes:
        tensor: tensor without data, kept so that its identity stays unique.
        call: the call that computes it.
        part: index of the tensor among the outputs; None if it is the only one.
        sources: parameters that it depends on, by identity.
        change: what the call changes in place; None if it returns the tensor.
    """

    tensor: Tensor
    call: Call
    part: int | None
    sources: dict[int, nn.Parameter]
    change: Change | None = None


def with_tensor(
    call: Call,
    replaced: Tensor,
    x: Tensor,
    others: Callable[[Tensor], Tensor],
) -> Call:
    """A call with `x` in place of one of its tensors, and `others` applied to the remaining ones."""

    def change(y: Tensor) -> Tensor:
        return x if y is replaced else others(y)

    func, args, kwargs = call
    return func, mapped(change, args), mapped(change, kwargs)


def _storage(x: Tensor) -> int:
    """Identity of the memory of a tensor without data; 0 if it has none, as in vmap."""
    try:
        return x.untyped_storage()._cdata
    except NotImplementedError:
        return 0


class DerivedWeights:
    """The tensors that were computed from parameters alone, such as a normalized weight.

    Attributes:
        derived: these tensors by identity.
    """

    def __init__(self) -> None:
        self.derived: dict[int, Derived] = {}
        # All by the identity of a tensor.
        self._places: dict[int, _Place] = {}
        self._versions: dict[int, tuple[int, Tensor]] = {}  # number of changes, what stands for it
        self._owners: dict[int, Tensor] = {}  # of a version: the tensor of the module's code
        self._without_data: dict[int, Tensor] = {}  # of a parameter

    def is_weight(self, x: Any) -> bool:
        """True if `x` is a parameter or computed from parameters alone."""
        return isinstance(x, nn.Parameter) or id(x) in self.derived

    def sources(self, x: Tensor) -> dict[int, nn.Parameter]:
        """The parameters that a weight depends on, by identity."""
        if id(x) in self.derived:
            return self.derived[id(x)].sources
        return {id(x): x}  # type: ignore[dict-item]

    # --- numbers

    def computed(self, x: Tensor) -> Tensor:
        """The numbers of a weight or constant."""
        if id(x) not in self.derived:
            return x.detach()
        derived = self.derived[id(x)]
        if derived.change is not None:
            return self._changed(derived)
        func, args, kwargs = derived.call
        made = func(*mapped(self.computed, args), **mapped(self.computed, kwargs))
        return made if derived.part is None else made[derived.part]

    def _changed(self, derived: Derived) -> Tensor:
        """The numbers of a memory after changes in place, which are repeated on a copy."""
        changes: list[tuple[Call, Change]] = []
        latest: Derived | None = derived
        while latest is not None and latest.change is not None:
            changes.append((latest.call, latest.change))
            latest = self.derived.get(id(latest.change.before))
        _, first = changes[-1]
        numbers = self.computed(first.before)
        # Views are those of the recorded call only if the strides are.
        memory = torch.empty_like(first.before, device=numbers.device).copy_(numbers)
        for call, change in reversed(changes):
            part = memory.detach()
            for view in change.path:
                part = view.of(part, self.computed)
            func, args, kwargs = with_tensor(call, change.target, part, self.computed)
            func(*args, **kwargs)
        return memory

    # --- calls

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
        if func.__name__ == "__set__" and func.__self__.__name__ == "data":  # type: ignore[attr-defined]
            raise InputError(_CHANGES.format("an assignment to `data`"))

        # 1. The call, and the parameters behind its arguments.
        args, kwargs = mapped(self._owner, args), mapped(self._owner, kwargs)
        tensors = {id(x): x for x in tensors_in((args, kwargs))}
        current = {i: self.current(x) for i, x in tensors.items()}
        sources: dict[int, nn.Parameter] = {}
        for x in current.values():
            if self.is_weight(x):
                sources |= self.sources(x)
        if function_name(func) in _RESHAPING and id(args[0]) in self.derived:
            self._keep_shape(args[0])
        without_data = {i: self._meta(x) for i, x in tensors.items()}
        counts = {i: x._version for i, x in without_data.items()}
        made = call_without_data(
            func,
            mapped(lambda x: without_data[id(x)], args),
            mapped(lambda x: without_data[id(x)], kwargs),
        )
        own = {id(without_data[i]): x for i, x in tensors.items()}

        # 2. It may have changed an argument in place.
        changed = [x for i, x in tensors.items() if without_data[i]._version != counts[i]]
        if changed:
            out = kwargs.get("out")
            target = out if out is not None else next(iter(args), None)
            if not isinstance(target, Tensor) or any(
                self._place(x).memory is not self._place(target).memory for x in changed
            ):
                raise InputError(f"{name} changes several tensors in place, which is not supported")
            self._change(target, (func, args, kwargs), current, sources)
            return own.get(id(made), made)

        # 3. A function may return its argument, such as `contiguous`.
        if id(made) in own:
            return own[id(made)]

        # 4. Each tensor that it returns is a weight that this call computes.
        call = (
            func,
            mapped(lambda x: current[id(x)], args),
            mapped(lambda x: current[id(x)], kwargs),
        )
        is_one = isinstance(made, Tensor)
        for i, x in enumerate([made] if is_one else tensors_in(made)):
            part = None if is_one else i
            self.derived[id(x)] = Derived(x, call, part, sources)
            for source in tensors.values():
                if _storage(without_data[id(source)]) == _storage(x) != 0:
                    self.note_view(x, source, (func, args, kwargs), part)
                    break
        return made

    def _meta(self, x: Tensor) -> Tensor:
        """A tensor without data for an argument: for a parameter, always the same."""
        if x.is_meta:
            return x
        if not isinstance(x, nn.Parameter):
            return torch.empty_like(x, device="meta")
        known = self._without_data.get(id(x))
        if known is None or known.shape != x.shape or known.dtype != x.dtype:
            known = torch.empty_like(x, device="meta", requires_grad=False)
            self._without_data[id(x)] = known
        return known

    # --- changes in place

    def current(self, x: Tensor) -> Tensor:
        """The tensor that stands for the numbers of `x` as they are now; `x` if they are its own."""
        x = self._owner(x)
        place = self._places.get(id(x))
        if place is None:
            return x
        memory = place.memory
        changes, version = self._versions[id(x)]
        if changes != memory.changes:
            version = memory.version
            for view in place.path:
                version = self._viewed(version, view)
            self._versions[id(x)] = memory.changes, version
            if version is not x:
                self._owners[id(version)] = x
        return version

    def note_view(
        self,
        x: Tensor,
        source: Tensor,
        call: Call,
        part: int | None,
    ) -> None:
        """Let `x` be a view of `source`, so that changes of one concern the other."""
        memory, path = self._place(source)[1:]
        view = View(with_tensor(call, source, source, self.current), part, source)
        self._places[id(x)] = _Place(x, memory, (*path, view))
        self._versions[id(x)] = memory.changes, x

    def _owner(self, x: Tensor) -> Tensor:
        """The tensor of the module's code for one that stands for its numbers."""
        return self._owners.get(id(x), x)

    def _place(self, x: Tensor) -> _Place:
        """The place of a tensor; memory of its own if it is no view."""
        if id(x) not in self._places:
            self._places[id(x)] = _Place(x, _Memory(x, x), ())
            self._versions[id(x)] = 0, x
        return self._places[id(x)]

    def _keep_shape(self, x: Tensor) -> None:
        """Let another tensor stand for the memory of `x`, which is about to get another shape."""
        memory = self._place(x).memory
        if memory.version is x:
            version = torch.empty_like(x)
            self.derived[id(version)] = self.derived[id(x)]._replace(tensor=version)
            memory.version = version

    def _viewed(self, x: Tensor, view: View) -> Tensor:
        """A new tensor that stands for a view of `x`."""
        call = with_tensor(view.call, view.source, x, lambda y: y)
        base = torch.empty_like(x, device="meta", requires_grad=False)
        made = torch.empty_like(view.of(base, lambda y: y), device="meta")
        sources = self.sources(x) if self.is_weight(x) else {}
        self.derived[id(made)] = Derived(made, call, view.part, sources)
        return made

    def _change(
        self,
        target: Tensor,
        call: Call,
        current: dict[int, Tensor],
        sources: dict[int, nn.Parameter],
    ) -> None:
        """Make a new version of the memory of a tensor that a call has changed in place.

        Args:
            target: the tensor.
            call: function and arguments as in the module's code.
            current: what stood for the numbers of the arguments, by identity.
            sources: parameters behind the arguments.
        """
        name = function_name(call[0])
        _, memory, path = self._place(target)
        if isinstance(memory.owner, nn.Parameter):
            raise InputError(_CHANGES.format(name.strip("_")))
        call = with_tensor(call, target, target, lambda x: current[id(x)])
        if name in _RESHAPING:
            reshaped = getattr(Tensor, name.removesuffix("_")), *call[1:]
            view = View(reshaped, None, target)
            self._places[id(target)] = _Place(target, memory, (*path, view))
            self._versions[id(target)] = -1, target
            return
        before = memory.version
        if self.is_weight(before):
            sources = self.sources(before) | sources
        after = torch.empty_like(before, device="meta")
        self.derived[id(after)] = Derived(after, call, None, sources, Change(before, path, target))
        self._owners[id(after)] = memory.owner
        memory.version = after
        memory.changes += 1


_CHANGES = (
    "{} changes a weight in place, but weights must not change: let the code change a copy, "
    "`weight.clone()`"
)


# --- adding to a graph


class Recorder(Protocol):
    """The methods of `search_spaces.ir.pytorch.recorder.Recorder` that add weights to a graph."""

    weights: DerivedWeights

    def handled(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any: ...

    def value(self, x: Tensor) -> int: ...

    def tensor(self, number: int, sizes: tuple[int, ...] | None = None) -> Tensor: ...


def add_derived(
    recorder: Recorder,
    derived: Derived,
    operand: Callable[[Tensor], Tensor],
) -> Tensor:
    """Add the operators that compute a weight to a graph; return its tensor of the graph.

    Args:
        recorder: the recorder.
        derived: the weight.
        operand: the graph's tensor for another weight.

    Raises:
        InputError: if the weight is changed in place, and the part that changes is no range along
            each axis.
    """
    if derived.change is None:
        func, args, kwargs = derived.call
        made: Any = recorder.handled(func, mapped(operand, args), mapped(operand, kwargs))
        return made if derived.part is None else made[derived.part]
    before, path, target = derived.change

    def copied(x: Tensor, shape: torch.Size) -> Tensor:
        return recorder.tensor(recorder.value(x), tuple(shape))  # memory of its own

    def apply(x: Tensor) -> None:
        func, args, kwargs = with_tensor(derived.call, target, x, operand)
        if "out" not in kwargs:
            recorder.handled(func, args, kwargs)
            return
        # The graph has no `out`: compute the result, then write it there.
        others = {name: value for name, value in kwargs.items() if name != "out"}
        result = recorder.handled(func, args, others)
        recorder.handled(Tensor.copy_, (x, result), {})

    # 1. All of it.
    whole = copied(before, before.shape)
    if not path:
        apply(whole)
        return whole

    # 2. A part: it is read, changed, and set.
    index = _range_of(recorder.weights, before, path)
    selected = recorder.handled(Tensor.__getitem__, (whole, index), {})
    size = selected.shape
    shape = torch.Size(_positions(recorder.weights, before, path).shape)
    part = copied(recorder.handled(Tensor.reshape, (selected, shape), {}), shape)
    apply(part)
    part = recorder.handled(Tensor.reshape, (part, size), {})
    recorder.handled(Tensor.__setitem__, (whole, index, copied(part, size)), {})
    return whole


def _positions(weights: DerivedWeights, before: Tensor, path: tuple[View, ...]) -> Tensor:
    """The elements of a memory that a view has, by their places in the memory."""
    places = torch.arange(before.numel()).reshape(before.shape)
    part = torch.empty_like(before, device="cpu", dtype=torch.int64).copy_(places).detach()
    for view in path:
        part = view.of(part, weights.computed)
    return part


def _range_of(
    weights: DerivedWeights,
    before: Tensor,
    path: tuple[View, ...],
) -> tuple[slice, ...]:
    """The index of the elements that a view has, in their order."""
    places = torch.arange(before.numel()).reshape(before.shape)
    selected = _positions(weights, before, path).flatten()
    axes = torch.unravel_index(selected, before.shape)
    index = tuple([slice(int(axis.min()), int(axis.max()) + 1) for axis in axes])
    if not torch.equal(places[index].flatten(), selected):
        raise InputError(
            "a weight is changed in place through a view that is no range of its elements"
        )
    return index
