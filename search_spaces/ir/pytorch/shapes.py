"""torch functions that change shapes without moving elements between samples: reshape, permute,
expand.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from search_spaces.common.errors import InputError
from search_spaces.ir.pytorch.recorder import Recorder, handles

Sizes = int | Sequence[int]


def per_dimension(value: Sizes | None, rank: int, default: int = 1) -> tuple[int, ...]:
    """A size per spatial dimension; one number stands for all."""
    if value is None or (not isinstance(value, int) and not len(value)):
        return (default,) * rank
    return (
        (value,) * rank
        if isinstance(value, int)
        else tuple(map(int, value)) * (rank if len(value) == 1 else 1)
    )


def sizes_of(args: tuple[Any, ...]) -> list[int]:
    """Sizes given as separate arguments or as one list."""
    found = args[0] if len(args) == 1 and isinstance(args[0], list | tuple) else args
    return [int(size) for size in found]


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
    target = []
    for i, size in enumerate(sizes):
        stays = i < len(before) and size == before[i]
        target.append(0 if stays else -1 if r.is_batch(size) else size)
    return r.view_of(x, r.add_node("Reshape", x, shape=tuple(target)))


@handles("reshape_as", "view_as")
def _reshape_as(r: Recorder, input: Tensor, other: Tensor) -> Tensor:
    return reshaped(r, input, other.shape)


@handles("flatten", "ravel")
def _flatten(r: Recorder, input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    if not input.dim():
        return reshaped(r, input, [1])
    start, end = start_dim % input.dim(), end_dim % input.dim()
    shape = input.shape
    return reshaped(r, input, [*shape[:start], prod(shape[start : end + 1]), *shape[end + 1 :]])


@handles("unflatten")
def _unflatten(r: Recorder, input: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    at, sizes = dim % input.dim(), list(sizes)
    if -1 in sizes:
        sizes[sizes.index(-1)] = input.shape[at] // -prod(sizes)
    return reshaped(r, input, [*input.shape[:at], *sizes, *input.shape[at + 1 :]])


@handles("squeeze")
def squeezed(r: Recorder, input: Tensor, dim: Any = None) -> Tensor:
    """Remove these dimensions, or all, of size 1."""
    asked = range(input.dim()) if dim is None else (dim,) if isinstance(dim, int) else dim
    axes = tuple([d % input.dim() for d in asked if input.shape[d] == 1])
    return r.view_of(input, r.add_node("Squeeze", input, axes=axes)) if axes else r.alias(input)


@handles("unsqueeze")
def unsqueezed(r: Recorder, input: Tensor, dim: int) -> Tensor:
    """Insert a dimension of size 1."""
    return r.view_of(input, r.add_node("Unsqueeze", input, axes=(dim % (input.dim() + 1),)))


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
    sources, targets = (
        [d % input.dim() for d in ([x] if isinstance(x, int) else x)] for x in (source, destination)
    )
    order = [d for d in range(input.dim()) if d not in sources]
    for target, d in sorted(zip(targets, sources, strict=True)):
        order.insert(target, d)
    return permuted(r, input, order)


@handles("expand", "broadcast_to")
def expanded(r: Recorder, input: Tensor, *sizes: Any, size: Any = None) -> Tensor:
    """Expand dimensions of size 1."""
    wanted = sizes_of(sizes if size is None else (size,))
    before = [1] * (len(wanted) - input.dim()) + list(input.shape)
    if (
        all(new in (-1, old) for old, new in zip(before, wanted, strict=True))
        and len(before) == input.dim()
    ):
        return r.alias(input)
    multiples = [
        i for i, new in enumerate(wanted) if r.is_batch(new) and new not in (r.batch, before[i])
    ]
    if multiples:  # 3 N equal elements are N times 3, then joined
        assert r.batch is not None
        split = [
            (r.batch, new // r.batch) if i in multiples else (new,) for i, new in enumerate(wanted)
        ]
        ones = [(1, 1) if i in multiples else (old,) for i, old in enumerate(before)]
        wide = expanded(
            r,
            reshaped(r, input, [size for part in ones for size in part]),
            [n for part in split for n in part],
        )
        return reshaped(
            r, wide, [old if new == -1 else new for old, new in zip(before, wanted, strict=True)]
        )
    kept = [new == -1 or r.multiple(new) > 1 for new in wanted]
    target = tuple(
        [
            1 if keeps else 0 if r.is_batch(new) else new
            for keeps, new in zip(kept, wanted, strict=True)
        ]
    )
    return r.view_of(input, r.add_node("Expand", input, shape=target))


@handles("expand_as")
def _expand_as(r: Recorder, input: Tensor, other: Tensor) -> Tensor:
    if input.shape == other.shape:
        return r.alias(input)
    return expanded(
        r,
        input,
        [
            -1 if old == new != r.batch and r.is_batch(new) else new
            for old, new in zip(
                (1,) * (other.dim() - input.dim()) + tuple(input.shape), other.shape, strict=True
            )
        ],
    )
