"""Tensor views: the same elements in another shape or order, or a part of them.

In-place changes of a view concern the tensor, and the other way round; the recorder follows them
(`Recorder.view_of`). A view that changes nothing is another tensor for the same value, since
exporters leave it out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import prod
from typing import Any

import torch
from torch import Tensor

from search_spaces.common.errors import InputError
from search_spaces.ir.graph import Value
from search_spaces.ir.pytorch.recorder import Recorder, handles

Sizes = int | Sequence[int]


def check_apart(r: Recorder, size: int, what: str) -> None:
    """Refuse an operation on a dimension that is the batch, such as "a slice along" it."""
    if r.is_batch(size):
        raise InputError(f"{what} the batch is not supported: all samples must be computed alike")


def per_dimension(value: Sizes | None, rank: int, default: int = 1) -> tuple[int, ...]:
    """A size per spatial dimension; one number stands for all."""
    if isinstance(value, int):
        return (value,) * rank
    if value is None or not len(value):
        return (default,) * rank
    sizes = tuple(map(int, value))
    return sizes * rank if len(sizes) == 1 else sizes


def sizes_of(args: tuple[Any, ...]) -> list[int]:
    """Sizes that are separate arguments or one list."""
    is_list = len(args) == 1 and isinstance(args[0], list | tuple)
    sizes = args[0] if is_list else args
    return [int(size) for size in sizes]


# --- shapes


@handles("reshape", "view", "_unsafe_view")
def _reshape(
    r: Recorder,
    input: Tensor,
    *shape: Any,
    size: Any = None,
) -> Tensor:
    if shape and isinstance(shape[0], torch.dtype):
        return r.call(Tensor.to, input, shape[0])
    sizes = shape if size is None else (size,)
    return reshaped(r, input, sizes_of(sizes))


def reshaped(r: Recorder, x: Tensor, sizes: Sequence[int]) -> Tensor:
    """Reshape to these sizes, of which one may be -1."""
    before = list(x.shape)
    after = list(sizes)
    if -1 in after:
        rest = prod(size for size in after if size != -1)
        after[after.index(-1)] = x.numel() // rest if rest else 0
    if prod(after) != x.numel():
        raise InputError(f"shape {before} cannot be viewed as {after}")
    if after == before:
        return r.alias(x)
    joins_all_but_first = len(after) == 2 and len(before) > 2
    if joins_all_but_first and after[0] == before[0]:
        return r.view_of(x, r.add_node("Flatten", x))

    # ONNX writes 0 for a size that stays at its place, and -1 for the one that follows.
    target = []
    for axis, size in enumerate(after):
        if axis < len(before) and size == before[axis]:
            target.append(0)
        elif r.is_batch(size):
            target.append(-1)
        else:
            target.append(size)
    return r.view_of(x, r.add_node("Reshape", x, shape=tuple(target)))


@handles("reshape_as", "view_as")
def _reshape_as(r: Recorder, input: Tensor, other: Tensor) -> Tensor:
    return reshaped(r, input, other.shape)


@handles("flatten", "ravel")
def _flatten(
    r: Recorder,
    input: Tensor,
    start_dim: int = 0,
    end_dim: int = -1,
) -> Tensor:
    if not input.dim():
        return reshaped(r, input, [1])
    start = start_dim % input.dim()
    end = end_dim % input.dim() + 1
    before = input.shape[:start]
    joined = input.shape[start:end]
    after = input.shape[end:]
    return reshaped(r, input, [*before, prod(joined), *after])


@handles("unflatten")
def _unflatten(
    r: Recorder,
    input: Tensor,
    dim: int,
    sizes: Sequence[int],
) -> Tensor:
    axis = dim % input.dim()
    parts = list(sizes)
    if -1 in parts:
        rest = -prod(parts)
        parts[parts.index(-1)] = input.shape[axis] // rest
    before = input.shape[:axis]
    after = input.shape[axis + 1 :]
    return reshaped(r, input, [*before, *parts, *after])


@handles("squeeze")
def squeezed(r: Recorder, input: Tensor, dim: Any = None) -> Tensor:
    """Remove these dimensions, or all, of size 1."""
    dims: Sequence[int] = range(input.dim())
    if dim is not None:
        dims = (dim,) if isinstance(dim, int) else dim
    axes = tuple([d % input.dim() for d in dims if input.shape[d] == 1])
    if not axes:
        return r.alias(input)
    return r.view_of(input, r.add_node("Squeeze", input, axes=axes))


@handles("unsqueeze")
def unsqueezed(r: Recorder, input: Tensor, dim: int) -> Tensor:
    """Insert a dimension of size 1."""
    axis = dim % (input.dim() + 1)
    return r.view_of(input, r.add_node("Unsqueeze", input, axes=(axis,)))


# --- orders of dimensions


@handles("permute")
def permuted(r: Recorder, input: Tensor, *dims: Any) -> Tensor:
    """Reorder the dimensions."""
    rank = input.dim()
    perm = tuple([d % rank for d in sizes_of(dims)])
    if perm == tuple(range(rank)):
        return r.alias(input)
    return r.view_of(input, r.add_node("Transpose", input, perm=perm))


@handles("transpose", "swapaxes", "swapdims")
def _transpose(
    r: Recorder,
    input: Tensor,
    dim0: int,
    dim1: int,
) -> Tensor:
    order = list(range(input.dim()))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return permuted(r, input, order)


@handles("T")
def _reversed(r: Recorder, input: Tensor) -> Tensor:
    return permuted(r, input, *reversed(range(input.dim())))


@handles("t", "mT", "adjoint")
def _t(r: Recorder, input: Tensor) -> Tensor:
    if input.dim() < 2:
        return input
    return _transpose(r, input, -2, -1)


@handles("movedim", "moveaxis")
def _movedim(
    r: Recorder,
    input: Tensor,
    source: Any,
    destination: Any,
) -> Tensor:
    def axes(dims: Any) -> list[int]:
        numbers = [dims] if isinstance(dims, int) else dims
        return [d % input.dim() for d in numbers]

    sources = axes(source)
    order = [d for d in range(input.dim()) if d not in sources]
    moves = sorted(zip(axes(destination), sources, strict=True))
    for target, d in moves:
        order.insert(target, d)
    return permuted(r, input, order)


# --- repeated elements


@handles("expand", "broadcast_to")
def expanded(
    r: Recorder,
    input: Tensor,
    *sizes: Any,
    size: Any = None,
) -> Tensor:
    """Expand dimensions of size 1; -1 keeps a size."""
    after = sizes_of(sizes if size is None else (size,))
    inserted = len(after) - input.dim()
    before = [1] * inserted + list(input.shape)
    stays = all(new in (-1, old) for old, new in zip(before, after, strict=True))
    if stays and not inserted:
        return r.alias(input)
    multiples = []
    for axis, new in enumerate(after):
        if r.is_batch(new) and new not in (r.batch, before[axis]):
            multiples.append(axis)
    if multiples:
        return _expanded_to_multiples(r, input, before, after, multiples)

    # 1 keeps a size in ONNX, also one that is a multiple of the batch; 0 stands for the batch.
    target = []
    for new in after:
        if new == -1 or r.multiple(new) > 1:
            target.append(1)
        else:
            target.append(0 if r.is_batch(new) else new)
    return r.view_of(input, r.add_node("Expand", input, shape=tuple(target)))


def _expanded_to_multiples(
    r: Recorder,
    x: Tensor,
    before: list[int],
    after: list[int],
    multiples: list[int],
) -> Tensor:
    """Expand axes to several times the batch size: 3 N equal elements are N times 3, then joined.

    Args:
        r: the recorder.
        x: the tensor.
        before: its sizes, with ones for axes that are inserted.
        after: the new sizes.
        multiples: the axes that become a multiple of the batch size.
    """
    assert r.batch is not None
    with_ones: list[int] = []
    wide: list[int] = []
    joined: list[int] = []
    for axis, (old, new) in enumerate(zip(before, after, strict=True)):
        if axis in multiples:
            with_ones += [1, 1]
            wide += [r.batch, new // r.batch]
        else:
            with_ones.append(old)
            wide.append(new)
        joined.append(old if new == -1 else new)
    x = reshaped(r, x, with_ones)
    x = expanded(r, x, wide)
    return reshaped(r, x, joined)


@handles("expand_as")
def _expand_as(r: Recorder, input: Tensor, other: Tensor) -> Tensor:
    if input.shape == other.shape:
        return r.alias(input)
    inserted = other.dim() - input.dim()
    before = [1] * inserted + list(input.shape)
    sizes = []
    for old, new in zip(before, other.shape, strict=True):
        keeps_multiple = old == new != r.batch and r.is_batch(new)
        sizes.append(-1 if keeps_multiple else new)
    return expanded(r, input, sizes)


# --- parts


def sliced(
    r: Recorder,
    x: Tensor,
    axis: int,
    start: int,
    end: int,
    step: int = 1,
) -> Tensor:
    """Elements start to end - 1 along an axis; InputError along the batch."""
    size = x.shape[axis]
    if r.is_constant(x):
        whole = [slice(None)] * axis
        return x[(*whole, slice(start, end, step))]
    if (start, end, step) == (0, size, 1):
        return r.alias(x)
    if start >= end and step > 0:  # such as the prefix tokens of a network that has none
        sizes = list(x.shape)
        sizes[axis] = 0
        return torch.empty(sizes, dtype=x.dtype)
    attrs: dict[str, Value] = {
        "axes": (axis,),
        "ends": (end,),
        "starts": (start,),
    }
    if step != 1:
        attrs["steps"] = (step,)
    check_apart(r, size, "a slice along")
    return r.view_of(x, r.add_node("Slice", x, **attrs))


def selected(
    r: Recorder,
    x: Tensor,
    axis: int,
    index: int,
) -> Tensor:
    """The elements at one place along an axis, which is removed."""
    return r.view_of(x, r.add_node("Gather", x, axis=axis, indices=index))


@handles("select")
def _select(
    r: Recorder,
    input: Tensor,
    dim: int,
    index: int,
) -> Tensor:
    return selected(r, input, dim % input.dim(), index)


@handles("narrow")
def _narrow(
    r: Recorder,
    input: Tensor,
    dim: int,
    start: int,
    length: int,
) -> Tensor:
    return sliced(r, input, dim % input.dim(), start, start + length)


def _between(
    r: Recorder,
    x: Tensor,
    axis: int,
    ends: Sequence[int],
) -> tuple[Tensor, ...]:
    """The parts of a tensor that end at these places along an axis."""
    parts = []
    start = 0
    for end in ends:
        parts.append(sliced(r, x, axis, start, end))
        start = end
    return tuple(parts)


@handles("split", "split_with_sizes")
def _split(
    r: Recorder,
    tensor: Tensor,
    split_size_or_sections: Any = None,
    dim: int = 0,
    *,
    split_size: Any = None,
    split_sizes: Any = None,
) -> tuple[Tensor, ...]:
    axis = dim % tensor.dim()
    size = tensor.shape[dim]
    parts: Any = split_size_or_sections or split_size or split_sizes
    if isinstance(parts, int):
        whole, rest = divmod(size, parts)
        parts = [parts] * whole
        if rest:
            parts.append(rest)
    return _between(r, tensor, axis, list(accumulate(parts)))


@handles("chunk")
def _chunk(
    r: Recorder,
    input: Tensor,
    chunks: int,
    dim: int = 0,
) -> tuple[Tensor, ...]:
    size = -(-input.shape[dim] // chunks)  # rounded up
    return _split(r, input, size, dim)


@handles("tensor_split")
def _tensor_split(
    r: Recorder,
    input: Tensor,
    indices_or_sections: Any = None,
    dim: int = 0,
    *,
    indices: Any = None,
    sections: int | None = None,
) -> tuple[Tensor, ...]:
    """Parts that end at these indices, or that many parts.

    In the latter case, the first ones may have one element more.
    """
    arguments = (indices_or_sections, indices, sections)
    borders = next(argument for argument in arguments if argument is not None)
    axis = dim % input.dim()
    size = input.shape[dim]
    if isinstance(borders, int):
        each, rest = divmod(size, borders)
        borders = [i * each + min(i, rest) for i in range(1, borders)]
    ends = []
    for border in borders:
        _, end, _ = slice(0, int(border)).indices(size)  # counted from the start
        ends.append(end)
    return _between(r, input, axis, [*ends, size])


@handles("unbind")
def _unbind(r: Recorder, input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    axis = dim % input.dim()
    parts = []
    for place in range(input.shape[axis]):
        part = sliced(r, input, axis, place, place + 1)
        parts.append(squeezed(r, part, axis))
    return tuple(parts)


@handles("__iter__")
def _iterated(r: Recorder, input: Tensor) -> Iterator[Tensor]:
    return iter(_unbind(r, input))


@handles("diagonal")
def _diagonal(
    r: Recorder,
    input: Tensor,
    offset: int = 0,
    dim1: int = 0,
    dim2: int = 1,
) -> Tensor:
    """Elements at equal places of two dimensions, which become the last one."""
    # 1. Both dimensions are joined to the last one.
    axes = [dim1 % input.dim(), dim2 % input.dim()]
    rows, columns = [input.shape[axis] for axis in axes]
    check_apart(r, rows, "a diagonal along")
    check_apart(r, columns, "a diagonal along")
    rest = [axis for axis in range(input.dim()) if axis not in axes]
    last = permuted(r, input, *rest, *axes)
    shape = last.shape[: len(rest)]
    flat = reshaped(r, last, [*shape, rows * columns])

    # 2. The places of the diagonal along it.
    numbered = torch.arange(rows * columns).reshape(rows, columns)
    places = numbered.diagonal(offset)
    return r.call(torch.index_select, flat, len(rest), places)
