"""torch functions that write or add elements at places that are computed."""

from __future__ import annotations

import torch
from torch import Tensor

from search_spaces.common.errors import InputError
from search_spaces.ir.pytorch.arithmetic import Number
from search_spaces.ir.pytorch.casts import converted
from search_spaces.ir.pytorch.parts import check_apart, sliced
from search_spaces.ir.pytorch.recorder import Recorder, handles
from search_spaces.ir.pytorch.shapes import expanded, reshaped

_REDUCTIONS = {
    "sum": "add",
    "add": "add",
    "prod": "mul",
    "multiply": "mul",
    "amax": "max",
    "amin": "min",
}


def _scattered(
    r: Recorder, input: Tensor, dim: int, index: Tensor, src: Number, reduction: str | None = None
) -> Tensor:
    """`input` with the elements of `src` at the places `index` along a dimension.

    Args:
        reduction: ONNX's name of the function of old and new elements; None if new elements replace
            old ones.
    """
    axis = dim % input.dim()
    check_apart(r, input.shape[axis], "scattering along")
    new = src if isinstance(src, Tensor) else torch.tensor(src)
    new = converted(r, new, input.dtype)
    if not new.dim():
        new = expanded(r, reshaped(r, r.as_value(new), [1] * index.dim()), list(index.shape))
    for i, size in enumerate(index.shape):  # as in torch, the rest is not used
        new = sliced(r, new, i, 0, size)
    attrs = {"reduction": reduction} if reduction else {}
    return r.add_node("ScatterElements", input, index, new, axis=axis, **attrs)


@handles("scatter")
def _scatter(
    r: Recorder, input: Tensor, dim: int, index: Tensor, src: Number | None = None, *, value: float | None = None,
    reduce: str | None = None,
) -> Tensor:  # fmt: skip
    new = value if src is None else src
    if new is None:
        raise InputError("scatter needs src or value")
    return _scattered(r, input, dim, index, new, _REDUCTIONS[reduce] if reduce else None)


@handles("scatter_add")
def _scatter_add(r: Recorder, input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
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
    r: Recorder, input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1
) -> Tensor:
    """Every element of the index concerns a whole slice."""
    axis = dim % input.dim()
    places = reshaped(r, r.as_value(index), [-1 if i == axis else 1 for i in range(source.dim())])
    return _scattered(
        r,
        input,
        dim,
        expanded(r, places, list(source.shape)),
        r.call(torch.mul, source, alpha),
        "add",
    )
