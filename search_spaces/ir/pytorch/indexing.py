"""Indexing, slicing and mutating ops: elements at places, read or replaced.

Places are numbers, slices, or index tensors. Constant places are part of the architecture; places that
are computed are values of the graph. Neither may say which sample is read: every sample of a batch
must be computed alike, so an index into the batch must be that of each sample in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from search_spaces.common.errors import InputError
from search_spaces.ir.pytorch.pointwise import Number, converted
from search_spaces.ir.pytorch.recorder import Recorder, handles
from search_spaces.ir.pytorch.views import (
    check_apart,
    expanded,
    reshaped,
    selected,
    sliced,
    unsqueezed,
)

Cut = tuple[int, range]
"""An axis, and places along it."""

_INTO_BATCH = "an index into the batch is not supported: all samples must be computed alike"
_BY_MASK = "indexing by a mask depends on the data"


# --- reading: x[index]


@handles("__getitem__")
def _getitem(r: Recorder, input: Tensor, index: Any) -> Tensor:
    items = _full_index(input, index)
    index_tensors = [item for item in items if isinstance(item, Tensor | list)]
    if len(index_tensors) > 1:
        return _picked(r, input, items)
    x = input
    axis = 0  # the one of `x` that the next item concerns
    for item in items:
        if item is None:
            x = unsqueezed(r, x, axis)
            axis += 1
        elif isinstance(item, bool):
            raise InputError("indexing by a boolean is not supported")
        elif isinstance(item, int):
            check_apart(r, x.shape[axis], "an index into")
            x = selected(r, x, axis, item)
        elif isinstance(item, slice):
            x = _range(r, x, axis, item)
            axis += 1
        else:
            x = gathered(r, x, axis, item)
            axis += item.dim() if isinstance(item, Tensor) else 1
    part = r.alias(x) if x is input else x
    r.parts[id(part)] = (input, items)
    return part


def _range(r: Recorder, x: Tensor, axis: int, item: slice) -> Tensor:
    """The elements of a slice along an axis; its numbers may be tensors of one element."""
    bounds = []
    for bound in (item.start, item.stop, item.step):
        bounds.append(None if bound is None else int(bound))
    size = x.shape[axis]
    start, end, step = slice(*bounds).indices(size)
    return sliced(r, x, axis, start, max(start, end), step)


def _full_index(x: Tensor, index: Any) -> list[Any]:
    """The index with `...` replaced by full slices."""
    items = list(index) if isinstance(index, tuple) else [index]
    # Compared by identity: a tensor is compared with `==` element by element.
    dots = [place for place, item in enumerate(items) if item is Ellipsis]
    if not dots:
        return items
    first = dots[0]
    axes = sum(item is not None and item is not Ellipsis for item in items)
    items[first : first + 1] = [slice(None)] * (x.dim() - axes)
    return items


def gathered(r: Recorder, x: Tensor, axis: int, index: Any) -> Tensor:
    """Elements at these indices along an axis.

    Args:
        r: the recorder.
        x: the tensor.
        axis: the axis.
        index: a list or tensor of integers.
    """
    places = torch.tensor(index) if isinstance(index, list) else index
    if places.dtype == torch.bool:
        raise InputError(_BY_MASK)
    if axis == 0 and is_every_sample(r, x, places):
        return r.alias(x)
    if r.is_constant(places):
        # Places that are computed, such as those of experts, may be of any samples.
        check_apart(r, x.shape[axis], "an index into")
        is_one_place = places.dim() and places.numel() == 1
        if is_one_place and not places.is_meta:
            # It is written as a number; the axis stays.
            alone = r.add_node("Gather", x, axis=axis, indices=(int(places),))
            shape = [*x.shape[:axis], *places.shape, *x.shape[axis + 1 :]]
            return reshaped(r, alone, shape)
    return r.add("Gather", x, places, axis=axis)


def is_every_sample(r: Recorder, x: Tensor, index: Tensor) -> bool:
    """True if a constant index is that of each sample in order."""
    if not r.is_constant(index) or index.is_meta:
        return False
    samples = len(x)
    if index.shape != x.shape[:1] or not r.is_batch(samples):
        return False
    in_order = torch.arange(samples)
    return bool((index == in_order).all())


# --- reading by several index tensors at once


def _picked(r: Recorder, x: Tensor, items: list[Any]) -> Tensor:
    """Elements at several index tensors at once.

    These are some of each sample, or constant places on neighbouring axes.
    """
    # 1. Torch selects numbers first.
    numbers = [axis for axis, item in enumerate(items) if type(item) is int]
    items = list(items)
    for axis in reversed(numbers):
        check_apart(r, x.shape[axis], "an index into")
        x = selected(r, x, axis, items.pop(axis))

    # 2. The index tensors stand side by side, between full slices.
    axes = [axis for axis, item in enumerate(items) if isinstance(item, Tensor | list)]
    first = axes[0]
    end = axes[-1] + 1
    others = [*items[:first], *items[end:]]
    are_neighbours = axes == list(range(first, end))
    if not are_neighbours or any(item != slice(None) for item in others):
        raise InputError("indexing by several tensors together with other indices is not supported")
    tensors = []
    for item in items[first:end]:
        tensors.append(torch.tensor(item) if isinstance(item, list) else item)
    if first == 0 and r.is_batch(x.shape[0]):
        return _of_each_sample(r, x, tensors)

    # 3. Their axes become one, whose places are those of all.
    for tensor in tensors:
        if not r.is_constant(tensor) or tensor.dtype != torch.int64:
            raise InputError(
                "indexing by several tensors at once is supported for constants, and for places in "
                "each sample"
            )
    sizes = x.shape[first:end]
    shape = [*x.shape[:first], prod(sizes), *x.shape[end:]]
    flat = reshaped(r, x, shape)
    return gathered(r, flat, first, _flat_places(r, tensors, sizes))


def _of_each_sample(r: Recorder, x: Tensor, tensors: list[Tensor]) -> Tensor:
    """`x[samples, places, ...]`, where `samples` counts all samples in order.

    Args:
        r: the recorder.
        x: a tensor (samples, sizes of the places, shape of an element).
        tensors: the indices, which broadcast together, samples first.

    Raises:
        InputError: if the first index does not count the samples along the first axis of the
            result.
    """
    samples, *places = tensors
    shape = torch.broadcast_shapes(*[t.shape for t in tensors])

    # 1. The first index counts the samples.
    column = (len(x), *[1] * (len(shape) - 1))
    is_first = shape[:1] == x.shape[:1] and samples.shape == column
    if not r.is_constant(samples) or not is_first:
        raise InputError(_INTO_BATCH)
    if not is_every_sample(r, x, samples.reshape(-1)):
        raise InputError(_INTO_BATCH)
    if any(t.dtype == torch.bool for t in places):
        raise InputError(_BY_MASK)

    # 2. The axes of the places become one: (samples, all places, shape of an element).
    end = 1 + len(places)
    sizes = x.shape[1:end]
    elements_shape = x.shape[end:]
    result_shape = [*shape, *elements_shape]
    flat = reshaped(r, x, [len(x), prod(sizes), *elements_shape])
    place = _flat_places(r, places, sizes)

    # 3. Constant places that are the same in all samples are gathered at once.
    varies = place.dim() == len(shape) and place.shape[0] != 1
    if r.is_constant(place) and not varies:
        same = place.expand(1, *shape[1:]).reshape(-1)
        all_places = torch.arange(flat.shape[1])
        if not torch.equal(same, all_places):
            flat = r.add("Gather", flat, same, axis=1)
        return reshaped(r, flat, result_shape)

    # 4. Others are gathered in each sample: (samples, places, shape of an element).
    ones = [1] * len(elements_shape)
    wide = r.call(Tensor.expand, place, shape)
    in_samples = r.call(Tensor.reshape, wide, (len(x), -1, *ones))
    if elements_shape:
        in_samples = r.call(Tensor.expand, in_samples, (-1, -1, *elements_shape))
    elements = r.call(torch.gather, flat, 1, in_samples)
    if len(shape) == 1:
        return r.call(torch.squeeze, elements, 1)
    return reshaped(r, elements, result_shape)


def _flat_places(r: Recorder, tensors: list[Tensor], sizes: Sequence[int]) -> Tensor:
    """The places along these axes joined into one; one axis keeps its places as they are."""
    if len(tensors) == 1 and not r.is_constant(tensors[0]):
        return tensors[0]
    place: Any = torch.zeros((), dtype=torch.int64)
    for t, size in zip(tensors, sizes, strict=True):
        before = r.call(torch.mul, place, size)
        from_start = r.call(torch.remainder, t, size)  # negative places count from the end
        place = r.call(torch.add, before, from_start)
    return place


# --- reading by functions


@handles("index_select")
def _index_select(r: Recorder, input: Tensor, dim: int, index: Tensor) -> Tensor:
    return gathered(r, input, dim % input.dim(), index)


@handles("gather")
def _gather(
    r: Recorder,
    input: Tensor,
    dim: int,
    index: Tensor,
    **_: Any,
) -> Tensor:
    return r.add_node("GatherElements", input, index, axis=dim % input.dim())


@handles("take_along_dim")
def _take_along_dim(
    r: Recorder,
    input: Tensor,
    indices: Tensor,
    dim: int | None = None,
) -> Tensor:
    if dim is None:
        flat = reshaped(r, input, [-1])
        return _gather(r, flat, 0, reshaped(r, indices, [-1]))
    # All axes but one are broadcast together.
    axis = dim % input.dim()
    others = []
    for x in (input, indices):
        others.append([*x.shape[:axis], *x.shape[axis + 1 :]])
    before, after = _cut(torch.broadcast_shapes(*others), axis)
    wide = expanded(r, input, [*before, input.shape[axis], *after])
    places = expanded(r, indices, [*before, indices.shape[axis], *after])
    return _gather(r, wide, axis, places)


def _cut(sizes: Sequence[int], place: int) -> tuple[list[int], list[int]]:
    return list(sizes[:place]), list(sizes[place:])


# --- setting: x[index] = value


@handles("__setitem__")
def _setitem(
    r: Recorder,
    input: Tensor,
    index: Any,
    value: Any,
) -> None:
    """Set elements in place: the tensor becomes a concatenation of kept and new parts."""
    items = _full_index(input, index)
    _allow_change_of_part(r, input, items, value)

    # 1. By a mask.
    first = items[0] if items else None
    if len(items) == 1 and isinstance(first, Tensor) and first.dtype == torch.bool:
        r.assign(input, _masked(r, input, first, value))
        return

    # 2. By one place in each sample.
    are_tensors = len(items) > 1 and all(isinstance(item, Tensor) for item in items[:2])
    if are_tensors and r.is_batch(input.shape[0]):
        r.assign(input, _set_in_each_sample(r, input, items, value))
        return

    # 3. By numbers and slices.
    cuts, shape = _cuts(input, items)
    new = _fitted(r, value, shape, items, input.dtype)
    r.assign(input, _patched(r, input, cuts, new))


def _cuts(x: Tensor, items: list[Any]) -> tuple[list[Cut], list[int]]:
    """The places of numbers and slices along the axes, and the shape of what they select.

    Slices of whole axes are left out of the places.
    """
    cuts: list[Cut] = []
    shape = list(x.shape)
    for axis, item in enumerate(items):
        if not isinstance(item, slice | int) or isinstance(item, bool):
            raise InputError(
                "setting elements by an index other than numbers and slices is not supported"
            )
        size = shape[axis]
        # -1 ends at the end, not at 0
        selected_slice = slice(item, item + 1 or None) if isinstance(item, int) else item
        places = range(*selected_slice.indices(size))
        if (places.start, places.stop, places.step) != (0, size, 1):
            cuts.append((axis, places))
            shape[axis] = len(places)
    return cuts, shape


def _allow_change_of_part(
    r: Recorder,
    x: Tensor,
    items: list[Any],
    value: Any,
) -> None:
    """Allow `x[part] += y`, which changes the part before it sets it.

    The part may be set although it is a view of what has changed.
    """
    if not r.is_value(value) or id(value) not in r.parts:
        return
    whole, part = r.parts[id(value)]
    has_no_tensors = all(isinstance(item, int | slice) for item in part)
    if whole is x and has_no_tensors and part == items:
        r.values.allow_change(x, value)


def _masked(r: Recorder, x: Tensor, mask: Tensor, value: Any) -> Tensor:
    """The tensor with new values where a mask of the first axes is true.

    value: one value, or one for each element of the last axes.
    """
    masked_axes = mask.dim()
    other_axes = x.dim() - masked_axes
    is_tensor = isinstance(value, Tensor)
    is_for_each = is_tensor and value.dim() > other_axes
    if mask.shape != x.shape[:masked_axes] or is_for_each:
        raise InputError("setting elements by a mask to values of each depends on the data")
    if other_axes:
        ones = [1] * other_axes
        mask = r.call(Tensor.reshape, mask, (*mask.shape, *ones))
    new = r.call(Tensor.to, value, x.dtype) if is_tensor else torch.tensor(value, dtype=x.dtype)
    return r.call(torch.where, mask, new, r.as_value(x))


def _set_in_each_sample(
    r: Recorder,
    x: Tensor,
    items: list[Any],
    value: Any,
) -> Tensor:
    """The tensor (samples, places) with a number at one place in each sample.

    This is `x[samples, places] = 1`.
    """
    samples, place = items[:2]
    is_matrix = x.dim() == 2 and len(items) == 2
    is_one_number = place.shape == x.shape[:1] and not isinstance(value, Tensor)
    if not is_matrix or not is_one_number or not is_every_sample(r, x, samples):
        raise InputError(
            "setting elements by several tensors is supported for one number at one place in each "
            "sample"
        )
    width = x.shape[1]
    from_start = r.call(torch.remainder, place, width)  # negative places count from the end
    column = r.call(Tensor.unsqueeze, from_start, 1)  # (samples, 1)
    is_place = r.call(torch.eq, column, torch.arange(width))  # (samples, places)
    new = torch.tensor(value, dtype=x.dtype)
    return r.call(torch.where, is_place, new, r.as_value(x))


def _fitted(
    r: Recorder,
    value: Any,
    shape: list[int],
    items: list[Any],
    dtype: torch.dtype,
) -> Tensor:
    """The value broadcast to the part that it replaces.

    As in torch, this is done from the right and without the axes of numbers.
    """
    if not isinstance(value, Tensor):
        return r.call(torch.full, shape, value, dtype=dtype)
    if value.dtype != dtype:
        value = r.call(Tensor.to, value, dtype)

    # 1. Broadcast to the axes of slices.
    numbers = [axis for axis, item in enumerate(items) if isinstance(item, int)]
    target = [size for axis, size in enumerate(shape) if axis not in numbers]
    while value.dim() > len(target) and value.shape[0] == 1:
        value = r.call(torch.squeeze, value, 0)
    if value.dim() < len(target):
        value = r.call(Tensor.expand, value, target)

    # 2. Insert the axes of numbers.
    for axis in numbers:
        value = r.call(Tensor.unsqueeze, value, axis)
    if list(value.shape) == shape:
        return value
    return r.call(Tensor.expand, value, shape)


def _patched(r: Recorder, x: Tensor, cuts: list[Cut], value: Tensor) -> Tensor:
    """The tensor with a value at the places of all cuts."""
    if not cuts:
        return r.tensor(r.value(value))
    (axis, places), *inner_cuts = cuts
    if places.step != 1:
        return _interleaved(r, x, axis, places, inner_cuts, value)
    start = places.start
    end = places.stop
    size = x.shape[axis]
    old = sliced(r, x, axis, start, end)
    parts = [_patched(r, old, inner_cuts, value)]
    if start:
        parts.insert(0, sliced(r, x, axis, 0, start))
    if end < size:
        parts.append(sliced(r, x, axis, end, size))
    return r.call(torch.cat, parts, axis)


def _interleaved(
    r: Recorder,
    x: Tensor,
    axis: int,
    places: range,
    inner_cuts: list[Cut],
    value: Tensor,
) -> Tensor:
    """As `_patched` for places with gaps.

    New elements are put behind the old ones, and gathered instead of those that they replace.
    """
    size = x.shape[axis]
    check_apart(r, size, "setting elements along")
    # 1. Old elements, then the new ones.
    old = sliced(r, x, axis, places.start, places.stop, places.step)
    new = _patched(r, old, inner_cuts, value)
    old_and_new = r.call(torch.cat, [r.as_value(x), new], axis)

    # 2. Gather the new ones at the places.
    order = torch.arange(size)
    order[torch.tensor(places)] = torch.arange(size, size + len(places))
    return gathered(r, old_and_new, axis, order)


# --- setting by functions

_REDUCTIONS = {
    "sum": "add",
    "add": "add",
    "prod": "mul",
    "multiply": "mul",
    "amax": "max",
    "amin": "min",
}


def _scattered(
    r: Recorder,
    input: Tensor,
    dim: int,
    index: Tensor,
    src: Number,
    reduction: str | None = None,
) -> Tensor:
    """`input` with the elements of `src` at the places `index` along a dimension.

    Args:
        r: the recorder.
        input: the tensor.
        dim: the dimension.
        index: places of the new elements.
        src: new elements, or one for all places.
        reduction: ONNX's name of the function of old and new elements; None if new elements replace
            old ones.
    """
    axis = dim % input.dim()
    check_apart(r, input.shape[axis], "scattering along")
    new = src if isinstance(src, Tensor) else torch.tensor(src)
    new = converted(r, new, input.dtype)
    if not new.dim():
        ones = [1] * index.dim()
        number = reshaped(r, r.as_value(new), ones)
        new = expanded(r, number, list(index.shape))
    # As in torch, new elements beyond the index are not used.
    for i, size in enumerate(index.shape):
        new = sliced(r, new, i, 0, size)
    attrs = {"reduction": reduction} if reduction else {}
    return r.add_node("ScatterElements", input, index, new, axis=axis, **attrs)


@handles("scatter")
def _scatter(
    r: Recorder,
    input: Tensor,
    dim: int,
    index: Tensor,
    src: Number | None = None,
    *,
    value: float | None = None,
    reduce: str | None = None,
) -> Tensor:
    new = value if src is None else src
    if new is None:
        raise InputError("scatter needs src or value")
    reduction = _REDUCTIONS[reduce] if reduce else None
    return _scattered(r, input, dim, index, new, reduction)


@handles("scatter_add")
def _scatter_add(
    r: Recorder,
    input: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor,
) -> Tensor:
    return _scattered(r, input, dim, index, src, "add")


@handles("scatter_reduce")
def _scatter_reduce(
    r: Recorder,
    input: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Tensor:
    if not include_self or reduce not in _REDUCTIONS:
        raise InputError(
            f"scatter_reduce by {reduce!r} with include_self={include_self} is not supported"
        )
    return _scattered(r, input, dim, index, src, _REDUCTIONS[reduce])


@handles("index_add")
def _index_add(
    r: Recorder,
    input: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    *,
    alpha: float = 1,
) -> Tensor:
    """Every element of the index concerns a whole slice."""
    axis = dim % input.dim()
    shape = [1] * source.dim()
    shape[axis] = -1
    places = reshaped(r, r.as_value(index), shape)
    wide = expanded(r, places, list(source.shape))
    new = r.call(torch.mul, source, alpha)
    return _scattered(r, input, dim, wide, new, "add")
