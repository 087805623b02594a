"""Reduction ops: sums, means, extremes, variances, norms and distances along axes; and the
comparison ops that order the elements along one.

The batch is no axis to reduce or to order: all samples must be computed alike.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor

from search_spaces.common.errors import InputError
from search_spaces.ir.graph import Value
from search_spaces.ir.pytorch.pointwise import cast
from search_spaces.ir.pytorch.recorder import HANDLERS, Handler, Recorder, handles
from search_spaces.ir.pytorch.views import check_apart, squeezed, unsqueezed

Axes = int | tuple[int, ...] | list[int] | None


def _axes(x: Tensor, dim: Axes) -> tuple[int, ...]:
    """The axes counted from the front, in order; all of them for None or none."""
    if isinstance(dim, int):
        return (dim % x.dim(),)
    if dim is None or not len(dim):
        return tuple(range(x.dim()))
    return tuple(sorted(d % x.dim() for d in dim))


def reduced(
    r: Recorder,
    op: str,
    x: Tensor,
    dim: Any,
    keepdim: bool,
) -> Tensor:
    """Reduce dimensions; the mean over all spatial ones is recorded as global average pooling.

    Args:
        r: the recorder.
        op: ONNX's reduction operator.
        x: the tensor.
        dim: one dimension, several, or None for all.
        keepdim: whether reduced dimensions stay as size 1.
    """
    axes = _axes(x, dim)
    is_spatial = x.dim() > 2 and axes == tuple(range(2, x.dim()))
    if op == "ReduceMean" and keepdim and is_spatial:
        return r.add_node("GlobalAveragePool", x)
    attrs: dict[str, Value] = {} if keepdim else {"keepdims": 0}
    if dim is not None or keepdim:
        attrs["axes"] = axes
    return r.add_node(op, x, **attrs)


# --- sums, means, extremes


def _reduction(op: str) -> Handler:
    def handler(
        r: Recorder,
        input: Tensor,
        dim: Any = None,
        keepdim: bool = False,
        *,
        dtype: Any = None,
        axis: Any = None,
    ) -> Tensor:
        x = cast(r, input, dtype)
        if op == "ReduceSum" and dtype is None and not input.is_floating_point():
            x = cast(r, input, torch.int64)  # torch counts with 64 bits
        return reduced(r, op, x, axis if dim is None else dim, keepdim)

    return handler


_REDUCTIONS = {
    "mean": "ReduceMean",
    "sum": "ReduceSum",
    "amax": "ReduceMax",
    "amin": "ReduceMin",
    "prod": "ReduceProd",
    "logsumexp": "ReduceLogSumExp",
}
for _name, _op in _REDUCTIONS.items():
    HANDLERS[_name] = _reduction(_op)


def _extreme(
    op: str,
    arg: str,
    pairwise: str,
    result: Any,
) -> Handler:
    """Handler of `max` or `min`: of two tensors, of all elements, or along an axis with places."""

    def handler(
        r: Recorder,
        input: Tensor,
        dim: Any = None,
        keepdim: bool = False,
        *,
        other: Any = None,
    ) -> Any:
        if isinstance(dim, Tensor) or other is not None:
            return HANDLERS[pairwise](r, input, dim if other is None else other)
        values = reduced(r, op, input, dim, keepdim)
        if dim is None:
            return values
        places = HANDLERS[arg](r, input, dim, keepdim)
        return result((values, places))

    return handler


def _arg_extreme(op: str) -> Handler:
    def handler(
        r: Recorder,
        input: Tensor,
        dim: int | None = None,
        keepdim: bool = False,
    ) -> Tensor:
        x = r.call(torch.flatten, input) if dim is None else input
        return r.add_node(op, x, axis=(dim or 0) % x.dim(), keepdims=int(keepdim))

    return handler


HANDLERS["argmax"] = _arg_extreme("ArgMax")
HANDLERS["argmin"] = _arg_extreme("ArgMin")
HANDLERS["max"] = _extreme("ReduceMax", "argmax", "maximum", torch.return_types.max)
HANDLERS["min"] = _extreme("ReduceMin", "argmin", "minimum", torch.return_types.min)


def _quantifier(op: str) -> Handler:
    """Handler of `all` or `any`: ONNX reduces numbers, not truth values."""

    def handler(
        r: Recorder,
        input: Tensor,
        dim: Any = None,
        keepdim: bool = False,
        *,
        axis: Any = None,
    ) -> Tensor:
        numbers = _zeros_and_ones(r, input)
        extreme = reduced(r, op, numbers, axis if dim is None else dim, keepdim)
        return cast(r, extreme, torch.bool)

    return handler


HANDLERS["all"] = _quantifier("ReduceMin")
HANDLERS["any"] = _quantifier("ReduceMax")


def _zeros_and_ones(r: Recorder, x: Tensor) -> Tensor:
    return cast(r, cast(r, x, torch.bool), torch.int64)


@handles("count_nonzero")
def _count_nonzero(r: Recorder, input: Tensor, dim: Any = None) -> Tensor:
    return reduced(r, "ReduceSum", _zeros_and_ones(r, input), dim, False)


@handles("cumsum")
def _cumsum(
    r: Recorder,
    input: Tensor,
    dim: int,
    *,
    dtype: Any = None,
) -> Tensor:
    if dtype is None and not input.is_floating_point():
        dtype = torch.int64
    return r.add_node("CumSum", cast(r, input, dtype), axis=dim % input.dim())


# --- variances


@handles("var")
def _var(
    r: Recorder,
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    correction: int | None = None,
) -> Tensor:
    if isinstance(dim, bool):  # var(unbiased)
        dim, unbiased = None, dim
    if correction is None:
        correction = 0 if unbiased is False else 1
    axes = _axes(input, dim)
    count = prod(input.shape[axis] for axis in axes)
    centred = r.add("Sub", input, reduced(r, "ReduceMean", input, axes, True))
    mean_square = reduced(r, "ReduceMean", r.add("Mul", centred, centred), axes, keepdim)
    if correction == 0:
        return mean_square
    square = r.add("Mul", mean_square, count)
    return r.add("Div", square, count - correction)


@handles("std")
def _std(
    r: Recorder,
    input: Tensor,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    return r.add("Sqrt", _var(r, input, *args, **kwargs))


def _with_mean(spread: Callable[..., Tensor]) -> Handler:
    """Handler of a variance or standard deviation together with the mean."""

    def handler(
        r: Recorder,
        input: Tensor,
        dim: Any = None,
        unbiased: Any = None,
        keepdim: bool = False,
        **correction: Any,
    ) -> tuple[Tensor, Tensor]:
        width = spread(r, input, dim, unbiased, keepdim, **correction)
        return width, reduced(r, "ReduceMean", input, dim, keepdim)

    return handler


HANDLERS["var_mean"] = _with_mean(_var)
HANDLERS["std_mean"] = _with_mean(_std)


# --- norms and distances

_NORMS = {
    2: "ReduceL2",
    1: "ReduceL1",
    "fro": "ReduceL2",
    None: "ReduceL2",
}


@handles("norm", "linalg_vector_norm", "vector_norm")
def _norm(
    r: Recorder,
    input: Tensor,
    p: Any = 2,
    dim: Any = None,
    keepdim: bool = False,
    dtype: Any = None,
    ord: Any = None,
    out: None = None,
) -> Tensor:
    p = p if ord is None else ord
    if p not in _NORMS:
        raise InputError(f"norm with p = {p} is not supported")
    return reduced(r, _NORMS[p], cast(r, input, dtype), dim, keepdim)


@handles("_weight_norm")
def _weight_norm(
    r: Recorder,
    v: Tensor,
    g: Tensor,
    dim: int = 0,
) -> Tensor:
    """A normalized weight that several layers read.

    dim: the axis with one norm per position; -1 for one norm of all numbers.
    """
    direction = r.as_value(v)
    length = r.as_value(g)
    if dim == -1:
        norm = reduced(r, "ReduceL2", direction, None, False)
    else:
        rest = [axis for axis in range(v.dim()) if axis != dim]
        norm = reduced(r, "ReduceL2", direction, rest, True)
    scale = r.add("Div", length, norm)
    return r.add("Mul", direction, scale)


@handles("cosine_similarity")
def _cosine_similarity(
    r: Recorder,
    x1: Tensor,
    x2: Tensor,
    dim: int = 1,
    eps: float = 1e-8,
) -> Tensor:
    lengths = [r.call(torch.clamp, _norm(r, x, 2, dim), min=eps) for x in (x1, x2)]
    product = r.call(torch.sum, r.call(torch.mul, x1, x2), dim)
    return r.call(torch.div, product, r.call(torch.mul, *lengths))


@handles("pairwise_distance")
def _pairwise_distance(
    r: Recorder,
    x1: Tensor,
    x2: Tensor,
    p: float = 2,
    eps: float = 1e-6,
    keepdim: bool = False,
) -> Tensor:
    difference = r.call(torch.sub, x1, x2)
    return _norm(r, r.call(torch.add, difference, eps), p, -1, keepdim)


@handles("cdist")
def _cdist(
    r: Recorder,
    x1: Tensor,
    x2: Tensor,
    p: float = 2.0,
    compute_mode: str | None = None,
) -> Tensor:
    """Distances between all rows of the two."""
    rows = r.call(torch.unsqueeze, x1, -2)
    columns = r.call(torch.unsqueeze, x2, -3)
    return _norm(r, r.call(torch.sub, rows, columns), p, -1)


# --- order


@handles("topk")
def _topk(
    r: Recorder,
    input: Tensor,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
) -> Any:
    attrs: dict[str, Value] = {
        "K": (k,),
        "axis": dim,
        "largest": int(largest),
        "sorted": int(sorted),
    }
    values = r.add_node("TopK", input, **attrs)
    places = r.add_node("TopK", input, output=1, **attrs)
    return torch.return_types.topk((values, places))


@handles("sort")
def _sort(
    r: Recorder,
    input: Tensor,
    dim: int = -1,
    descending: bool = False,
    stable: bool = False,
) -> Any:
    """The `topk` of all elements; the first of equal ones comes first, as in a stable sort."""
    size = input.shape[dim]
    check_apart(r, size, "an order along")
    return torch.return_types.sort(tuple(_topk(r, input, size, dim % input.dim(), descending)))


@handles("argsort")
def _argsort(
    r: Recorder,
    input: Tensor,
    dim: int = -1,
    descending: bool = False,
    stable: bool = False,
) -> Tensor:
    indices: Tensor = _sort(r, input, dim, descending).indices
    return indices


@handles("median")
def _median(
    r: Recorder,
    input: Tensor,
    dim: int | None = None,
    keepdim: bool = False,
) -> Any:
    """The lower one of two middle elements."""
    if dim is None:
        return _median(r, r.call(torch.flatten, input), 0).values
    middle = (input.shape[dim] + 1) // 2
    return torch.return_types.median(_kth_smallest(r, input, middle, dim, keepdim))


@handles("kthvalue")
def _kthvalue(
    r: Recorder,
    input: Tensor,
    k: int,
    dim: int = -1,
    keepdim: bool = False,
) -> Any:
    return torch.return_types.kthvalue(_kth_smallest(r, input, k, dim, keepdim))


def _kth_smallest(
    r: Recorder,
    x: Tensor,
    k: int,
    dim: int,
    keepdim: bool,
) -> tuple[Tensor, Tensor]:
    """The k-th smallest elements along a dimension, and their places."""
    check_apart(r, x.shape[dim], "an order along")
    axis = dim % x.dim()
    smallest = _topk(r, x, k, axis, largest=False)
    values, places = [r.call(torch.narrow, part, dim, k - 1, 1) for part in smallest]
    if keepdim:
        return values, places
    return squeezed(r, values, axis), squeezed(r, places, axis)


@handles("bucketize")
def _bucketize(
    r: Recorder,
    input: Tensor,
    boundaries: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
) -> Tensor:
    """The number of boundaries that are smaller; with `right`, or equal."""
    if boundaries.dim() != 1:
        raise InputError("boundaries of more than one dimension are not supported")
    compare = torch.ge if right else torch.gt
    below = r.call(compare, unsqueezed(r, input, input.dim()), boundaries)
    count = r.call(torch.sum, cast(r, below, torch.int64), -1)
    return cast(r, count, torch.int32 if out_int32 else None)


@handles("searchsorted")
def _searchsorted(
    r: Recorder,
    sorted_sequence: Tensor,
    input: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
) -> Tensor:
    return _bucketize(r, input, sorted_sequence, out_int32=out_int32, right=right)
