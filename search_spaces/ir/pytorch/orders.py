"""torch functions that order elements: sorting, the largest ones, medians, places among
boundaries.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from search_spaces.common.errors import InputError
from search_spaces.ir.graph import Value
from search_spaces.ir.pytorch.casts import cast
from search_spaces.ir.pytorch.parts import check_apart
from search_spaces.ir.pytorch.recorder import Recorder, handles
from search_spaces.ir.pytorch.shapes import squeezed, unsqueezed


@handles("topk")
def _topk(
    r: Recorder, input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> Any:
    given: dict[str, Value] = {
        "K": (k,),
        "axis": dim,
        "largest": int(largest),
        "sorted": int(sorted),
    }
    return torch.return_types.topk(
        (r.add_node("TopK", input, **given), r.add_node("TopK", input, output=1, **given))
    )


@handles("sort")
def _sort(
    r: Recorder, input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False
) -> Any:
    """The `topk` of all elements, in which the first of equal ones comes first, as if the sort were
    stable.
    """
    check_apart(r, input.shape[dim], "an order along")
    return torch.return_types.sort(
        tuple(_topk(r, input, input.shape[dim], dim % input.dim(), descending))
    )


@handles("argsort")
def _argsort(
    r: Recorder, input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False
) -> Tensor:
    indices: Tensor = _sort(r, input, dim, descending).indices
    return indices


@handles("median")
def _median(r: Recorder, input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    if dim is None:
        return _median(r, r.call(torch.flatten, input), 0).values
    return _of_order(r, torch.return_types.median, input, (input.shape[dim] + 1) // 2, dim, keepdim)


@handles("kthvalue")
def _kthvalue(r: Recorder, input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    return _of_order(r, torch.return_types.kthvalue, input, k, dim, keepdim)


def _of_order(r: Recorder, result: Any, x: Tensor, k: int, dim: int, keepdim: bool) -> Any:
    """The k-th smallest elements along a dimension, and their places."""
    check_apart(r, x.shape[dim], "an order along")
    found = [
        r.call(torch.narrow, part, dim, k - 1, 1)
        for part in _topk(r, x, k, dim % x.dim(), largest=False)
    ]
    return result(tuple(found if keepdim else [squeezed(r, part, dim % x.dim()) for part in found]))


@handles("bucketize")
def _bucketize(
    r: Recorder, input: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    """The number of boundaries that are smaller; with `right`, or equal."""
    if boundaries.dim() != 1:
        raise InputError("boundaries of more than one dimension are not supported")
    below = r.call(torch.ge if right else torch.gt, unsqueezed(r, input, input.dim()), boundaries)
    return cast(
        r, r.call(torch.sum, cast(r, below, torch.int64), -1), torch.int32 if out_int32 else None
    )


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
