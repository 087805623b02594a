"""Torch functions that reduce axes: sums, means, extremes, variances and norms."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

from search_spaces.common.errors import InputError
from search_spaces.ir.graph import Value
from search_spaces.ir.pytorch.casts import cast
from search_spaces.ir.pytorch.recorder import HANDLERS, Recorder, handles


def _axes(x: Tensor, dim: int | tuple[int, ...] | list[int] | None) -> tuple[int, ...]:
    if dim is None or (not isinstance(dim, int) and not len(dim)):
        return tuple(range(x.dim()))
    return tuple(sorted(d % x.dim() for d in ((dim,) if isinstance(dim, int) else dim)))


def reduced(r: Recorder, op: str, x: Tensor, dim: Any, keepdim: bool) -> Tensor:
    """Reduce dimensions; the mean over all spatial ones is recorded as global average pooling.

    Args:
        r: the recorder.
        op: ONNX's reduction operator.
        x: the tensor.
        dim: one dimension, several, or None for all.
        keepdim: whether reduced dimensions stay as size 1.
    """
    axes = _axes(x, dim)
    if op == "ReduceMean" and keepdim and x.dim() > 2 and axes == tuple(range(2, x.dim())):
        return r.add_node("GlobalAveragePool", x)
    attrs: dict[str, Value] = {} if keepdim else {"keepdims": 0}
    return (
        r.add_node(op, x, **attrs)
        if dim is None and not keepdim
        else r.add_node(op, x, axes=axes, **attrs)
    )


def _reduction(op: str) -> Any:
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
            x = cast(r, input, torch.int64)
        return reduced(r, op, x, axis if dim is None else dim, keepdim)

    return handler


_REDUCTIONS = {
    "mean": "ReduceMean", "sum": "ReduceSum", "amax": "ReduceMax", "amin": "ReduceMin", "prod": "ReduceProd",
    "logsumexp": "ReduceLogSumExp",
}  # fmt: skip
HANDLERS.update({name: _reduction(op) for name, op in _REDUCTIONS.items()})


def _extreme(op: str, arg: str, pairwise: str, result: Any) -> Any:
    def handler(
        r: Recorder, input: Tensor, dim: Any = None, keepdim: bool = False, *, other: Any = None
    ) -> Any:
        if isinstance(dim, Tensor) or other is not None:
            return HANDLERS[pairwise](r, input, dim if other is None else other)
        values = reduced(r, op, input, dim, keepdim)
        return values if dim is None else result((values, HANDLERS[arg](r, input, dim, keepdim)))

    return handler


def _arg_extreme(op: str) -> Any:
    def handler(
        r: Recorder, input: Tensor, dim: int | None = None, keepdim: bool = False
    ) -> Tensor:
        x = r.call(torch.flatten, input) if dim is None else input
        return r.add_node(op, x, axis=(dim or 0) % x.dim(), keepdims=int(keepdim))

    return handler


HANDLERS.update(argmax=_arg_extreme("ArgMax"), argmin=_arg_extreme("ArgMin"))
HANDLERS.update(
    max=_extreme("ReduceMax", "argmax", "maximum", torch.return_types.max),
    min=_extreme("ReduceMin", "argmin", "minimum", torch.return_types.min),
)


def _quantifier(op: str) -> Any:
    """Handler of `all` or `any`: ONNX reduces numbers, not truth values."""

    def handler(
        r: Recorder, input: Tensor, dim: Any = None, keepdim: bool = False, *, axis: Any = None
    ) -> Tensor:
        numbers = cast(r, cast(r, input, torch.bool), torch.int64)
        return cast(r, reduced(r, op, numbers, axis if dim is None else dim, keepdim), torch.bool)

    return handler


HANDLERS.update(all=_quantifier("ReduceMin"), any=_quantifier("ReduceMax"))


@handles("count_nonzero")
def _count_nonzero(r: Recorder, input: Tensor, dim: Any = None) -> Tensor:
    return reduced(r, "ReduceSum", cast(r, cast(r, input, torch.bool), torch.int64), dim, False)


@handles("var")
def _var(
    r: Recorder, input: Tensor, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False,
    correction: int | None = None,
) -> Tensor:  # fmt: skip
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    given = correction if correction is not None else int(unbiased is not False)
    axes = _axes(input, dim)
    count = prod(input.shape[a] for a in axes)
    centred = r.add("Sub", input, reduced(r, "ReduceMean", input, axes, True))
    found = reduced(r, "ReduceMean", r.add("Mul", centred, centred), axes, keepdim)
    return found if given == 0 else r.add("Div", r.add("Mul", found, count), count - given)


@handles("std")
def _std(r: Recorder, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return r.add("Sqrt", _var(r, input, *args, **kwargs))


@handles("var_mean")
def _var_mean(
    r: Recorder,
    input: Tensor,
    dim: Any = None,
    unbiased: Any = None,
    keepdim: bool = False,
    **k: Any,
) -> Any:
    return _var(r, input, dim, unbiased, keepdim, **k), reduced(
        r, "ReduceMean", input, dim, keepdim
    )


@handles("std_mean")
def _std_mean(
    r: Recorder,
    input: Tensor,
    dim: Any = None,
    unbiased: Any = None,
    keepdim: bool = False,
    **k: Any,
) -> Any:
    return _std(r, input, dim, unbiased, keepdim, **k), reduced(
        r, "ReduceMean", input, dim, keepdim
    )


@handles("norm", "linalg_vector_norm", "vector_norm")
def _norm(
    r: Recorder,
    input: Tensor,
    p: Any = 2,
    dim: Any = None,
    keepdim: bool = False,
    dtype: Any = None,
    ord: Any = None,
) -> Tensor:
    p = p if ord is None else ord
    kinds = {2: "ReduceL2", 1: "ReduceL1", "fro": "ReduceL2", None: "ReduceL2"}
    if p not in kinds:
        raise InputError(f"norm with p = {p} is not supported")
    return reduced(r, kinds[p], cast(r, input, dtype), dim, keepdim)


@handles("_weight_norm")
def _weight_norm(r: Recorder, v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """A normalized weight that several layers read; dimension -1 stands for one norm of all
    numbers.
    """
    direction, length = r.as_value(v), r.as_value(g)
    axes = None if dim == -1 else [axis for axis in range(v.dim()) if axis != dim]
    return r.add(
        "Mul", direction, r.add("Div", length, reduced(r, "ReduceL2", direction, axes, dim != -1))
    )


@handles("cosine_similarity")
def _cosine_similarity(
    r: Recorder, x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8
) -> Tensor:
    a, b = (r.call(torch.clamp, _norm(r, x, 2, dim), min=eps) for x in (x1, x2))
    return r.call(
        torch.div, r.call(torch.sum, r.call(torch.mul, x1, x2), dim), r.call(torch.mul, a, b)
    )


@handles("pairwise_distance")
def _pairwise_distance(
    r: Recorder, x1: Tensor, x2: Tensor, p: float = 2, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    return _norm(r, r.call(torch.add, r.call(torch.sub, x1, x2), eps), p, -1, keepdim)


@handles("cdist")
def _cdist(
    r: Recorder, x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str | None = None
) -> Tensor:
    """Distances between all rows of the two."""
    return _norm(
        r,
        r.call(torch.sub, r.call(torch.unsqueeze, x1, -2), r.call(torch.unsqueeze, x2, -3)),
        p,
        -1,
    )
