"""Tensor views: the same elements in another shape or order, or a part of them.

In-place changes of a view concern the tensor, and the other way round; the recorder follows them
(`Recorder.view_of`). A view that changes nothing is another tensor for the same value, since
exporters leave it out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    return [int(size) for size in (args[0] if is_list else args)]


# --- shapes


@handles("reshape", "view", "_unsafe_view")
def _reshape(r: Recorder, input: Tensor, *shape: Any, size: Any = None) -> Tensor:
    if shape and isinstance(shape[0], torch.dtype):
        return r.call(Tensor.to, input, shape[0])
    return reshaped(r, input, sizes_of(shape if size is None else (size,)))


def reshaped(r: Recorder, x: Tensor, sizes: Sequence[int]) -> Tensor:
    """Reshape to these sizes, of which one may be -1."""
    sizes, before = list(sizes), list(x.shape)
    if -1 in sizes:
        rest = prod(size for size in sizes if size != -1)
        sizes[sizes.index(-1)] = x.numel() // rest if rest else 0
    if prod(sizes) != x.numel():
        raise InputError(f"shape {before} cannot be viewed as {sizes}")
    if sizes == before:
        return r.alias(x)
    if len(sizes) == 2 and len(before) > 2 and sizes[0] == before[0]:
        return r.view_of(x, r.add_node("Flatten", x))
    # ONNX writes 0 for a size that stays at its place, and -1 for the one that follows.
    target = []
    for axis, size in enumerate(sizes):
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
def _flatten(r: Recorder, input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    if not input.dim():
        return reshaped(r, input, [1])
    start, end = start_dim % input.dim(), end_dim % input.dim()
    before, joined, after = (
        input.shape[:start],
        input.shape[start : end + 1],
        input.shape[end + 1 :],
    )
    return reshaped(r, input, [*before, prod(joined), *after])


@handles("unflatten")
def _unflatten(r: Recorder, input: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    axis, parts = dim % input.dim(), list(sizes)
    if -1 in parts:
        parts[parts.index(-1)] = input.shape[axis] // -prod(parts)
    return reshaped(r, input, [*input.shape[:axis], *parts, *input.shape[axis + 1 :]])


@handles("squeeze")
def squeezed(r: Recorder, input: Tensor, dim: Any = None) -> Tensor:
    """Remove these dimensions, or all, of size 1."""
    if dim is None:
        dims: Sequence[int] = range(input.dim())
    else:
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
    perm = tuple([d % input.dim() for d in sizes_of(dims)])
    if perm == tuple(range(input.dim())):
        return r.alias(input)
    return r.view_of(input, r.add_node("Transpose", input, perm=perm))


@handles("transpose", "swapaxes", "swapdims")
def _transpose(r: Recorder, input: Tensor, dim0: int, dim1: int) -> Tensor:
    order = list(range(input.dim()))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return permuted(r, input, order)


@handles("T")
def _reversed(r: Recorder, input: Tensor) -> Tensor:
    return permuted(r, input, *reversed(range(input.dim())))


@handles("t", "mT", "adjoint")
def _t(r: Recorder, input: Tensor) -> Tensor:
    return input if input.dim() < 2 else _transpose(r, input, -2, -1)


@handles("movedim", "moveaxis")
def _movedim(r: Recorder, input: Tensor, source: Any, destination: Any) -> Tensor:
    def axes(dims: Any) -> list[int]:
        return [d % input.dim() for d in ([dims] if isinstance(dims, int) else dims)]

    sources, targets = axes(source), axes(destination)
    order = [d for d in range(input.dim()) if d not in sources]
    for target, d in sorted(zip(targets, sources, strict=True)):
        order.insert(target, d)
    return permuted(r, input, order)


# --- repeated elements


@handles("expand", "broadcast_to")
def expanded(r: Recorder, input: Tensor, *sizes: Any, size: Any = None) -> Tensor:
    """Expand dimensions of size 1; -1 keeps a size."""
    after = sizes_of(sizes if size is None else (size,))
    before = [1] * (len(after) - input.dim()) + list(input.shape)
    stays = all(new in (-1, old) for old, new in zip(before, after, strict=True))
    if stays and len(before) == input.dim():
        return r.alias(input)
    multiples = [
        axis
        for axis, new in enumerate(after)
        if r.is_batch(new) and new not in (r.batch, before[axis])
    ]
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
    ones: list[int] = []
    wide: list[int] = []
    whole: list[int] = []
    for axis, (old, new) in enumerate(zip(before, after, strict=True)):
        is_multiple = axis in multiples
        ones += [1, 1] if is_multiple else [old]
        wide += [r.batch, new // r.batch] if is_multiple else [new]
        whole.append(old if new == -1 else new)
    return reshaped(r, expanded(r, reshaped(r, x, ones), wide), whole)


@handles("expand_as")
def _expand_as(r: Recorder, input: Tensor, other: Tensor) -> Tensor:
    if input.shape == other.shape:
        return r.alias(input)
    before = (1,) * (other.dim() - input.dim()) + tuple(input.shape)
    sizes = []
    for old, new in zip(before, other.shape, strict=True):
        keeps_multiple = old == new != r.batch and r.is_batch(new)
        sizes.append(-1 if keeps_multiple else new)
    return expanded(r, input, sizes)


# --- parts


def sliced(r: Recorder, x: Tensor, axis: int, start: int, end: int, step: int = 1) -> Tensor:
    """Elements start to end - 1 along an axis; InputError along the batch."""
    if r.is_constant(x):
        return x[(*[slice(None)] * axis, slice(start, end, step))]
    if (start, end, step) == (0, x.shape[axis], 1):
        return r.alias(x)
    if start >= end and step > 0:  # such as the prefix tokens of a network that has none
        sizes = [0 if i == axis else size for i, size in enumerate(x.shape)]
        return torch.empty(sizes, dtype=x.dtype)
    attrs: dict[str, Value] = {"axes": (axis,), "ends": (end,), "starts": (start,)}
    if step != 1:
        attrs["steps"] = (step,)
    check_apart(r, x.shape[axis], "a slice along")
    return r.view_of(x, r.add_node("Slice", x, **attrs))


def selected(r: Recorder, x: Tensor, axis: int, index: int) -> Tensor:
    """The elements at one place along an axis, which is removed."""
    return r.view_of(x, r.add_node("Gather", x, axis=axis, indices=index))


@handles("select")
def _select(r: Recorder, input: Tensor, dim: int, index: int) -> Tensor:
    return selected(r, input, dim % input.dim(), index)


@handles("narrow")
def _narrow(r: Recorder, input: Tensor, dim: int, start: int, length: int) -> Tensor:
    return sliced(r, input, dim % input.dim(), start, start + length)


def _between(r: Recorder, x: Tensor, axis: int, ends: Sequence[int]) -> tuple[Tensor, ...]:
    """The parts of a tensor that end at these places along an axis."""
    starts = [0, *ends[:-1]]
    return tuple(sliced(r, x, axis, start, end) for start, end in zip(starts, ends, strict=True))


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
    axis, size = dim % tensor.dim(), tensor.shape[dim]
    parts: Any = split_size_or_sections or split_size or split_sizes
    if isinstance(parts, int):
        rest = size % parts
        parts = [parts] * (size // parts) + ([rest] if rest else [])
    ends = [sum(parts[: i + 1]) for i in range(len(parts))]
    return _between(r, tensor, axis, ends)


@handles("chunk")
def _chunk(r: Recorder, input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
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
    """Parts that end at these indices, or that many parts, of which the first ones may have one
    element more.
    """
    borders = next(v for v in (indices_or_sections, indices, sections) if v is not None)
    axis, size = dim % input.dim(), input.shape[dim]
    if isinstance(borders, int):
        each, rest = divmod(size, borders)
        borders = [i * each + min(i, rest) for i in range(1, borders)]
    ends = [slice(0, int(border)).indices(size)[1] for border in borders]
    return _between(r, input, axis, [*ends, size])


@handles("unbind")
def _unbind(r: Recorder, input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    axis, parts = dim % input.dim(), []
    for place in range(input.shape[axis]):
        part = sliced(r, input, axis, place, place + 1)
        parts.append(squeezed(r, part, axis))
    return tuple(parts)


@handles("__iter__")
def _iterated(r: Recorder, input: Tensor) -> Iterator[Tensor]:
    return iter(_unbind(r, input))


@handles("diagonal")
def _diagonal(r: Recorder, input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Elements at equal places of two dimensions, which become the last one."""
    axes = [dim1 % input.dim(), dim2 % input.dim()]
    rows, columns = (input.shape[axis] for axis in axes)
    for size in (rows, columns):
        check_apart(r, size, "a diagonal along")
    rest = [axis for axis in range(input.dim()) if axis not in axes]
    last = permuted(r, input, *rest, *axes)
    flat = reshaped(r, last, [*last.shape[: len(rest)], rows * columns])
    places = torch.arange(rows * columns).reshape(rows, columns).diagonal(offset)
    return r.call(torch.index_select, flat, len(rest), places)
