"""torch functions that read or replace a part of a tensor: slices, splits, indices."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from search_spaces.common.errors import InputError
from search_spaces.ir.pytorch.recorder import HANDLERS, Recorder, handles
from search_spaces.ir.pytorch.shapes import expanded, permuted, reshaped, squeezed, unsqueezed


def check_apart(r: Recorder, size: int, what: str) -> None:
    """Refuse an operation on a dimension that is the batch, such as "a slice along" it."""
    if r.is_batch(size):
        raise InputError(f"{what} the batch is not supported: all samples must be computed alike")


def sliced(r: Recorder, x: Tensor, axis: int, start: int, end: int, step: int = 1) -> Tensor:
    """Elements start to end - 1 along an axis; InputError along the batch."""
    if r.is_constant(x):
        return x[(*[slice(None)] * axis, slice(start, end, step))]
    if (start, end, step) == (0, x.shape[axis], 1):
        return r.alias(x)
    if start >= end and step > 0:  # such as the prefix tokens of a network that has none
        return torch.empty(
            [0 if i == axis else size for i, size in enumerate(x.shape)], dtype=x.dtype
        )
    given = {"axes": (axis,), "ends": (end,), "starts": (start,)}
    check_apart(r, x.shape[axis], "a slice along")
    return r.view_of(
        x,
        r.add_node("Slice", x, **given)
        if step == 1
        else r.add_node("Slice", x, **given, steps=(step,)),
    )


@handles("split", "split_with_sizes")
def _split(
    r: Recorder, tensor: Tensor, split_size_or_sections: Any = None, dim: int = 0, **k: Any
) -> tuple[Tensor, ...]:
    axis, size = dim % tensor.dim(), tensor.shape[dim]
    parts: Any = split_size_or_sections or k.get("split_size") or k.get("split_sizes")
    if isinstance(parts, int):
        parts = [parts] * (size // parts) + ([size % parts] if size % parts else [])
    ends = [sum(parts[: i + 1]) for i in range(len(parts))]
    return tuple(sliced(r, tensor, axis, end - n, end) for n, end in zip(parts, ends, strict=True))


@handles("tensor_split")
def _tensor_split(
    r: Recorder, input: Tensor, indices_or_sections: Any = None, dim: int = 0, *, indices: Any = None,
    sections: int | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Parts that end at these indices, or that many parts, of which the first ones may have one
    element more.
    """
    asked = next(v for v in (indices_or_sections, indices, sections) if v is not None)
    axis, size = dim % input.dim(), input.shape[dim]
    if isinstance(asked, int):
        asked = [i * (size // asked) + min(i, size % asked) for i in range(1, asked)]
    ends = [*(slice(0, int(end)).indices(size)[1] for end in asked), size]
    return tuple(
        sliced(r, input, axis, begin, end) for begin, end in zip([0, *ends[:-1]], ends, strict=True)
    )


@handles("chunk")
def _chunk(r: Recorder, input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    return _split(r, input, -(-input.shape[dim] // chunks), dim)


@handles("unbind", "__iter__")
def _unbind(r: Recorder, input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    axis = dim % input.dim()
    return tuple(
        squeezed(r, sliced(r, input, axis, i, i + 1), axis) for i in range(input.shape[axis])
    )


HANDLERS["__iter__"] = lambda r, input: iter(_unbind(r, input))


@handles("narrow")
def _narrow(r: Recorder, input: Tensor, dim: int, start: int, length: int) -> Tensor:
    return sliced(r, input, dim % input.dim(), start, start + length)


@handles("select")
def _select(r: Recorder, input: Tensor, dim: int, index: int) -> Tensor:
    return r.view_of(input, r.add_node("Gather", input, axis=dim % input.dim(), indices=index))


@handles("__getitem__")
def _getitem(r: Recorder, input: Tensor, index: Any) -> Tensor:
    items = _full_index(input, index)
    x, axis = input, 0
    if sum(isinstance(item, Tensor | list) for item in items) > 1:
        return _picked(r, input, items)
    for item in items:
        if item is None:
            x = unsqueezed(r, x, axis)
        elif isinstance(item, bool):
            raise InputError("indexing by a boolean is not supported")
        elif isinstance(item, int):
            check_apart(r, x.shape[axis], "an index into")
            x = _select(r, x, axis, item)
            continue
        elif isinstance(item, slice):
            size = x.shape[axis]
            start, end, step = (_number(v) for v in (item.start, item.stop, item.step))
            begin, stop, by = slice(start, end, step).indices(size)
            x = sliced(r, x, axis, begin, max(stop, begin), by)
        else:
            x = gathered(r, x, axis, item)
            axis += (item.dim() if isinstance(item, Tensor) else 1) - 1
        axis += 1
    part = r.alias(x) if x is input else x
    r.parts[id(part)] = (input, items)
    return part


def _number(x: Any) -> int | None:
    return None if x is None else int(x)


def _full_index(x: Tensor, index: Any) -> list[Any]:
    """The index with `...` replaced by full slices."""
    items = list(index) if isinstance(index, tuple) else [index]
    taken = sum(item is not None and item is not Ellipsis for item in items)
    at = next((i for i, item in enumerate(items) if item is Ellipsis), None)
    if at is not None:
        items[at : at + 1] = [slice(None)] * (x.dim() - taken)
    return items


def gathered(r: Recorder, x: Tensor, axis: int, index: Any) -> Tensor:
    """Elements at these indices along an axis; `index` is a list or tensor of integers or
    booleans.
    """
    at = torch.tensor(index) if isinstance(index, list) else index
    if at.dtype == torch.bool:
        raise InputError("indexing by a mask depends on the data")
    if axis == 0 and is_every_sample(r, x, at):
        return r.alias(x)
    if r.is_constant(
        at
    ):  # places that are computed, such as those of experts, may be of any samples
        check_apart(r, x.shape[axis], "an index into")
    if r.is_constant(at) and not at.is_meta and at.dim() and at.numel() == 1:  # the axis stays
        alone = r.add_node("Gather", x, axis=axis, indices=(int(at),))
        return reshaped(r, alone, [*x.shape[:axis], *at.shape, *x.shape[axis + 1 :]])
    return r.add("Gather", x, at, axis=axis)


def _picked(r: Recorder, x: Tensor, items: list[Any]) -> Tensor:
    """Elements at several index tensors at once: some of each sample, or constant places on
    neighbouring axes.
    """
    for axis in reversed(
        [i for i, item in enumerate(items) if type(item) is int]
    ):  # torch selects numbers first
        check_apart(r, x.shape[axis], "an index into")
        x = _select(r, x, axis, items[axis])
        items = [*items[:axis], *items[axis + 1 :]]
    whole = slice(None)
    at = [i for i, item in enumerate(items) if isinstance(item, Tensor | list)]
    first, last = at[0], at[-1]
    if at != list(range(first, last + 1)) or any(
        item != whole for item in (*items[:first], *items[last + 1 :])
    ):
        raise InputError("indexing by several tensors together with other indices is not supported")
    tensors = [
        torch.tensor(item) if isinstance(item, list) else item for item in items[first : last + 1]
    ]
    if first == 0 and r.is_batch(x.shape[0]):
        return _of_each_sample(r, x, tensors)
    if not all(r.is_constant(t) and t.dtype == torch.int64 for t in tensors):
        raise InputError(
            "indexing by several tensors at once is supported for constants, and for places in "
            "each sample"
        )
    sizes = x.shape[first : last + 1]
    flat = reshaped(r, x, [*x.shape[:first], prod(sizes), *x.shape[last + 1 :]])
    return gathered(r, flat, first, _flat_places(r, tensors, sizes))


def _of_each_sample(r: Recorder, x: Tensor, tensors: list[Tensor]) -> Tensor:
    """`x[samples, places, ...]`, where `samples` counts all samples in order.

    Args:
        r: the recorder.
        x: a tensor (samples, sizes of the places, rest).
        tensors: the indices, which broadcast together, samples first.

    Raises:
        InputError: if the first index does not count the samples along the first axis of the
            result.
    """
    samples, *places = tensors
    shape = torch.broadcast_shapes(*[t.shape for t in tensors])
    if (
        not r.is_constant(samples)
        or shape[:1] != x.shape[:1]
        or samples.shape != (len(x), *[1] * (len(shape) - 1))
    ):
        raise InputError(
            "an index into the batch is not supported: all samples must be computed alike"
        )
    if not is_every_sample(r, x, samples.reshape(-1)):
        raise InputError(
            "an index into the batch is not supported: all samples must be computed alike"
        )
    if any(t.dtype == torch.bool for t in places):
        raise InputError("indexing by a mask depends on the data")
    count, rest = len(places), x.shape[1 + len(places) :]
    flat = reshaped(r, x, [len(x), prod(x.shape[1 : 1 + count]), *rest])
    place = _flat_places(r, places, x.shape[1 : 1 + count])
    if r.is_constant(place) and (
        place.dim() < len(shape) or place.shape[0] == 1
    ):  # the same places in all samples
        same = place.expand(1, *shape[1:]).reshape(-1)
        found = (
            flat
            if torch.equal(same, torch.arange(flat.shape[1]))
            else r.add("Gather", flat, same, axis=1)
        )
        return reshaped(r, found, [*shape, *rest])
    at = r.call(Tensor.reshape, r.call(Tensor.expand, place, shape), (len(x), -1, *[1] * len(rest)))
    at = r.call(Tensor.expand, at, (-1, -1, *rest)) if rest else at
    found = r.call(torch.gather, flat, 1, at)
    return (
        r.call(torch.squeeze, found, 1) if len(shape) == 1 else reshaped(r, found, [*shape, *rest])
    )


def _flat_places(r: Recorder, tensors: list[Tensor], sizes: Sequence[int]) -> Tensor:
    """The places along these axes joined into one; one axis keeps its places as they are."""
    if len(tensors) == 1 and not r.is_constant(tensors[0]):
        return tensors[0]
    place: Any = torch.zeros((), dtype=torch.int64)
    for t, size in zip(tensors, sizes, strict=True):
        place = r.call(torch.add, r.call(torch.mul, place, size), r.call(torch.remainder, t, size))
    return place


def is_every_sample(r: Recorder, x: Tensor, index: Tensor) -> bool:
    """True if a constant index is that of each sample in order."""
    return (
        r.is_constant(index)
        and not index.is_meta
        and index.shape == x.shape[:1]
        and r.is_batch(len(x))
        and bool((index == torch.arange(len(x))).all())
    )


@handles("index_select")
def _index_select(r: Recorder, input: Tensor, dim: int, index: Tensor) -> Tensor:
    return gathered(r, input, dim % input.dim(), index)


@handles("diagonal")
def _diagonal(r: Recorder, input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Elements at equal places of two dimensions, which become the last one."""
    axes = [dim1 % input.dim(), dim2 % input.dim()]
    rows, columns = (input.shape[axis] for axis in axes)
    for size in (rows, columns):
        check_apart(r, size, "a diagonal along")
    rest = [axis for axis in range(input.dim()) if axis not in axes]
    flat = reshaped(
        r, permuted(r, input, *rest, *axes), [*(input.shape[axis] for axis in rest), rows * columns]
    )
    places = torch.arange(rows * columns).reshape(rows, columns).diagonal(offset)
    return gathered(r, flat, len(rest), places)


@handles("gather")
def _gather(r: Recorder, input: Tensor, dim: int, index: Tensor, **_: Any) -> Tensor:
    return r.add_node("GatherElements", input, index, axis=dim % input.dim())


@handles("take_along_dim")
def _take_along_dim(r: Recorder, input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    if dim is None:
        return _gather(r, reshaped(r, input, [-1]), 0, reshaped(r, indices, [-1]))
    axis = dim % input.dim()
    shape = list(torch.broadcast_shapes(_without(input, axis), _without(indices, axis)))
    whole = [
        expanded(r, x, [*shape[:axis], x.shape[axis], *shape[axis:]]) for x in (input, indices)
    ]
    return _gather(r, whole[0], axis, whole[1])


def _without(x: Tensor, axis: int) -> list[int]:
    """The shape without one axis."""
    return [size for i, size in enumerate(x.shape) if i != axis]


@handles("__setitem__")
def _setitem(r: Recorder, input: Tensor, index: Any, value: Any) -> None:
    """Set elements in place: the tensor becomes a concatenation of kept and new parts."""
    items = _full_index(input, index)
    if (
        r.is_value(value) and id(value) in r.parts
    ):  # x[part] += y changes the part before it sets it
        whole, part = r.parts[id(value)]
        if whole is input and all(isinstance(item, int | slice) for item in part) and part == items:
            r.allow_change(input, value)
    if len(items) == 1 and isinstance(items[0], Tensor) and items[0].dtype == torch.bool:
        r.assign(input, _masked(r, input, items[0], value))
        return
    if (
        len(items) > 1
        and r.is_batch(input.shape[0])
        and all(isinstance(item, Tensor) for item in items[:2])
    ):
        r.assign(input, _set_in_each_sample(r, input, items, value))
        return
    cuts = []
    for axis, item in enumerate(items):
        if not isinstance(item, slice | int) or isinstance(item, bool):
            raise InputError(
                "setting elements by an index other than numbers and slices is not supported"
            )
        begin, end, step = (
            slice(item, item + 1 or None).indices(input.shape[axis])
            if isinstance(item, int)
            else item.indices(input.shape[axis])
        )
        if (begin, end, step) != (0, input.shape[axis], 1):
            cuts.append((axis, range(begin, end, step)))
    shape = list(input.shape)
    for axis, places in cuts:
        shape[axis] = len(places)
    r.assign(input, _patched(r, input, cuts, _fitted(r, value, shape, items, input.dtype)))


def _masked(r: Recorder, x: Tensor, mask: Tensor, value: Any) -> Tensor:
    """The tensor with one value, or one for each element of the last axes, where a mask of the
    first axes is true.
    """
    rest = x.dim() - mask.dim()
    if mask.shape != x.shape[: mask.dim()] or (isinstance(value, Tensor) and value.dim() > rest):
        raise InputError("setting elements by a mask to values of each depends on the data")
    wide = r.call(Tensor.reshape, mask, (*mask.shape, *[1] * rest)) if rest else mask
    new = (
        r.call(Tensor.to, value, x.dtype)
        if isinstance(value, Tensor)
        else torch.tensor(value, dtype=x.dtype)
    )
    return r.call(torch.where, wide, new, r.as_value(x))


def _set_in_each_sample(r: Recorder, x: Tensor, items: list[Any], value: Any) -> Tensor:
    """The tensor (samples, places) with a number at one place in each sample: `x[samples, places] =
    1`.
    """
    samples, place = items[:2]
    alone = (
        x.dim() == 2
        and len(items) == 2
        and place.shape == x.shape[:1]
        and not isinstance(value, Tensor)
    )
    if not alone or not is_every_sample(r, x, samples):
        raise InputError(
            "setting elements by several tensors is supported for one number at one place in each "
            "sample"
        )
    at = r.call(
        torch.eq,
        r.call(Tensor.unsqueeze, r.call(torch.remainder, place, x.shape[1]), 1),
        torch.arange(x.shape[1]),
    )
    return r.call(torch.where, at, torch.tensor(value, dtype=x.dtype), r.as_value(x))


def _fitted(
    r: Recorder, value: Any, shape: list[int], items: list[Any], dtype: torch.dtype
) -> Tensor:
    """The value broadcast to the part that it replaces; as in torch, from the right and without the
    axes of numbers.
    """
    if not isinstance(value, Tensor):
        return r.call(torch.full, shape, value, dtype=dtype)
    value = value if value.dtype == dtype else r.call(Tensor.to, value, dtype)
    numbers = [axis for axis, item in enumerate(items) if isinstance(item, int)]
    target = [size for axis, size in enumerate(shape) if axis not in numbers]
    while value.dim() > len(target) and value.shape[0] == 1:
        value = r.call(torch.squeeze, value, 0)
    if value.dim() < len(target):
        value = r.call(Tensor.expand, value, target)
    for axis in numbers:
        value = r.call(Tensor.unsqueeze, value, axis)
    return value if list(value.shape) == shape else r.call(Tensor.expand, value, shape)


def _patched(r: Recorder, x: Tensor, cuts: list[tuple[int, range]], value: Tensor) -> Tensor:
    """The tensor with a value at the places of all cuts, which are axes and places along them."""
    if not cuts:
        return r.tensor(r.value(value))
    (axis, places), *rest = cuts
    begin, end, size = places.start, places.stop, x.shape[axis]
    if places.step != 1:
        return _interleaved(r, x, axis, places, rest, value)
    middle = _patched(r, sliced(r, x, axis, begin, end), rest, value)
    parts = [sliced(r, x, axis, 0, begin)] if begin else []
    parts += [middle, *([sliced(r, x, axis, end, size)] if end < size else [])]
    return r.call(torch.cat, parts, axis)


def _interleaved(
    r: Recorder, x: Tensor, axis: int, places: range, rest: list[tuple[int, range]], value: Tensor
) -> Tensor:
    """As `_patched` for places with gaps: new elements are put behind the old ones, and chosen
    instead of some.
    """
    size = x.shape[axis]
    check_apart(r, size, "setting elements along")
    new = _patched(r, sliced(r, x, axis, places.start, places.stop, places.step), rest, value)
    order = torch.arange(size)
    order[torch.tensor(places)] = torch.arange(size, size + len(places))
    return gathered(r, r.call(torch.cat, [r.as_value(x), new], axis), axis, order)
