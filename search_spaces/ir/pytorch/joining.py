"""Joining ops, creation ops and others that arrange whole tensors: concatenation, repetition,
rotation, grids, triangles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from search_spaces.common.errors import InputError
from search_spaces.ir.pytorch.pointwise import multiply, subtract
from search_spaces.ir.pytorch.recorder import Recorder, handles
from search_spaces.ir.pytorch.views import (
    check_apart,
    expanded,
    reshaped,
    sizes_of,
    sliced,
    unsqueezed,
)

_END = (1 << 63) - 1  # ONNX: up to the end of an axis, whatever its size


# --- joining


@handles("cat", "concat", "concatenate")
def _cat(
    r: Recorder,
    tensors: Sequence[Tensor],
    dim: int = 0,
    *,
    axis: int | None = None,
    out: None = None,
) -> Tensor:
    parts = [x for x in tensors if x.numel()] or [tensors[0]]
    dtype = parts[0].dtype
    for x in parts:
        dtype = torch.promote_types(dtype, x.dtype)
    parts = [x if x.dtype == dtype else r.call(Tensor.to, x, dtype) for x in parts]
    if len(parts) == 1:  # exporters may omit a concatenation of one tensor
        return r.tensor(r.value(parts[0]))
    place = dim if axis is None else axis
    rank = parts[0].dim()
    return r.add_node("Concat", *parts, axis=place % rank)


@handles("stack")
def _stack(r: Recorder, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    axis = dim % (tensors[0].dim() + 1)
    rows = [r.add_node("Unsqueeze", x, axes=(axis,)) for x in tensors]
    return _cat(r, rows, axis)


# --- repetition


@handles("repeat", "tile")
def _repeat(
    r: Recorder,
    input: Tensor,
    *repeats: Any,
    dims: Any = None,
) -> Tensor:
    times = sizes_of(repeats if dims is None else (dims,))
    # 1. Shorter shapes and numbers of repeats are filled up with ones.
    missing_times = input.dim() - len(times)
    missing_axes = -missing_times
    times = [1] * missing_times + times
    x = input
    if missing_axes > 0:
        x = reshaped(r, x, [1] * missing_axes + list(x.shape))

    # 2. `Tile` has numbers, and one of the batch size depends on the batch.
    for axis, number in enumerate(times):
        if r.is_batch(number):
            x = _repeated(r, x, axis, number)
            times[axis] = 1
    if set(times) == {1}:
        return r.tensor(r.value(x))
    return r.add_node("Tile", x, repeats=tuple(times))


def _repeated(
    r: Recorder,
    x: Tensor,
    axis: int,
    times: int,
) -> Tensor:
    """The tensor this many times in a row along an axis.

    times: the batch size or a multiple.
    """
    sizes = [-1] * x.dim()
    if x.shape[axis] == 1:
        sizes[axis] = times
        return expanded(r, x, sizes)
    # (…, size, …) → (…, times, size, …) → (…, times · size, …)
    sizes.insert(axis, times)
    wide = expanded(r, unsqueezed(r, x, axis), sizes)
    joined = list(x.shape)
    joined[axis] *= times
    return reshaped(r, wide, joined)


@handles("repeat_interleave")
def _repeat_interleave(
    r: Recorder,
    input: Tensor,
    repeats: int,
    dim: int | None = None,
    **_: Any,
) -> Tensor:
    if not isinstance(repeats, int) or dim is None:
        raise InputError("repeat_interleave needs a number and a dimension")
    axis = dim % input.dim()
    # (…, size, …) → (…, size, repeats, …) → (…, size · repeats, …)
    sizes = [-1] * input.dim()
    sizes.insert(axis + 1, repeats)
    wide = expanded(r, unsqueezed(r, input, axis + 1), sizes)
    joined = list(input.shape)
    joined[axis] *= repeats
    return reshaped(r, wide, joined)


# --- rotation and reflection


@handles("roll")
def _roll(
    r: Recorder,
    input: Tensor,
    shifts: Any,
    dims: Any = None,
) -> Tensor:
    if dims is None:
        flat = reshaped(r, input, [-1])
        return reshaped(r, _roll(r, flat, shifts, 0), list(input.shape))
    steps = (shifts,) if isinstance(shifts, int) else shifts
    axes = (dims,) if isinstance(dims, int) else dims
    x = input
    for shift, dim in zip(steps, axes, strict=True):
        size = x.shape[dim]
        axis = dim % x.dim()
        shift = shift % size
        if shift:
            last = sliced(r, x, axis, size - shift, size)
            first = sliced(r, x, axis, 0, size - shift)
            x = _cat(r, [last, first], dim)
    return x


@handles("flip")
def _flip(r: Recorder, input: Tensor, *dims: Any) -> Tensor:
    axes = tuple([d % input.dim() for d in sizes_of(dims)])
    for axis in axes:
        check_apart(r, input.shape[axis], "a flip of")
    # A slice from the last element backwards to the first.
    count = len(axes)
    return r.add_node(
        "Slice",
        input,
        axes=axes,
        starts=(-1,) * count,
        ends=(-_END,) * count,
        steps=(-1,) * count,
    )


# --- creation: tensors as another one


@handles("zeros_like", "full_like", "empty_like")
def _full_like(
    r: Recorder,
    input: Tensor,
    fill_value: float = 0,
    *,
    dtype: Any = None,
    **_: Any,
) -> Tensor:
    one_sample = [1 if r.is_batch(size) else size for size in input.shape]
    return torch.full(one_sample, fill_value, dtype=dtype or input.dtype).expand(input.shape)


@handles("fill", "zero")
def _filled(r: Recorder, input: Tensor, value: Tensor | float = 0) -> Tensor:
    """Fill a tensor in place; nothing of it stays."""
    if isinstance(value, Tensor):
        return r.call(Tensor.expand, value, tuple(input.shape))
    return _full_like(r, input, value)


@handles("ones_like")
def _ones_like(r: Recorder, input: Tensor, **options: Any) -> Tensor:
    return _full_like(r, input, 1, **options)


@handles("new_zeros", "new_empty")
def _new_zeros(
    r: Recorder,
    input: Tensor,
    *size: Any,
    dtype: Any = None,
    **_: Any,
) -> Tensor:
    return r.call(torch.zeros, sizes_of(size), dtype=dtype or input.dtype)


@handles("new_ones")
def _new_ones(
    r: Recorder,
    input: Tensor,
    *size: Any,
    dtype: Any = None,
    **_: Any,
) -> Tensor:
    return r.call(torch.ones, sizes_of(size), dtype=dtype or input.dtype)


@handles("new_full")
def _new_full(
    r: Recorder,
    input: Tensor,
    size: Sequence[int],
    fill_value: float,
    dtype: Any = None,
    **_: Any,
) -> Tensor:
    return r.call(torch.full, list(size), fill_value, dtype=dtype or input.dtype)


@handles("new_tensor")
def _new_tensor(
    r: Recorder,
    input: Tensor,
    data: Any,
    dtype: Any = None,
    **_: Any,
) -> Tensor:
    return torch.tensor(data, dtype=dtype or input.dtype)


# --- other operations


@handles("tril")
def _tril(r: Recorder, input: Tensor, diagonal: int = 0) -> Tensor:
    return r.add_node("Trilu", input, k=diagonal, upper=0)


@handles("triu")
def _triu(r: Recorder, input: Tensor, diagonal: int = 0) -> Tensor:
    return r.add_node("Trilu", input, k=diagonal)


@handles("meshgrid")
def _meshgrid(r: Recorder, *tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """For each vector, a tensor of the grid with its elements along its own axis.

    indexing: `xy` swaps the first two axes.
    """
    is_list = len(tensors) == 1 and isinstance(tensors[0], list | tuple)
    vectors = tensors[0] if is_list else tensors
    sizes = [x.numel() for x in vectors]
    axes = list(range(len(vectors)))
    if indexing == "xy" and len(vectors) > 1:
        axes[:2] = [1, 0]
        sizes[:2] = sizes[1::-1]
    grids = []
    for axis, x in zip(axes, vectors, strict=True):
        shape = [1] * len(sizes)
        shape[axis] = -1
        line = r.call(torch.reshape, x, shape)
        grids.append(r.call(Tensor.expand, line, sizes))
    return tuple(grids)


@handles("outer", "ger")
def _outer(r: Recorder, input: Tensor, vec2: Tensor) -> Tensor:
    column = r.call(torch.unsqueeze, input, -1)
    return multiply(r, column, vec2)


@handles("cross", "linalg_cross")
def _cross(
    r: Recorder,
    input: Tensor,
    other: Tensor,
    dim: int = -1,
) -> Tensor:
    """a₂ b₃ - a₃ b₂ and so on: rotations by one and two places line the factors up."""
    a1, a2 = (r.call(torch.roll, input, -steps, dim) for steps in (1, 2))
    b1, b2 = (r.call(torch.roll, other, -steps, dim) for steps in (1, 2))
    return subtract(r, multiply(r, a1, b2), multiply(r, a2, b1))


@handles("diff")
def _diff(
    r: Recorder,
    input: Tensor,
    n: int = 1,
    dim: int = -1,
    prepend: Tensor | None = None,
    append: Tensor | None = None,
) -> Tensor:
    parts = [x for x in (prepend, input, append) if x is not None]
    x = input if len(parts) == 1 else r.call(torch.cat, parts, dim)
    last = x.shape[dim] - 1
    for size in range(last, last - n, -1):
        later = r.call(torch.narrow, x, dim, 1, size)
        earlier = r.call(torch.narrow, x, dim, 0, size)
        x = subtract(r, later, earlier)
    return x
