"""Pooling: windows of an image reduced to one number each."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import onnx

from search_spaces.common.errors import InputError
from search_spaces.ir.graph import Attrs, Dim, Shape
from search_spaces.ir.ops.convolution import explicit_pads, window_count
from search_spaces.ir.ops.operator import (
    Function,
    Importer,
    MakeFunction,
    Operator,
    TrainedNode,
    each,
    named,
    node_attrs,
)
from search_spaces.ir.ops.training import of_first, torch_function, torch_pads, trained_size

if TYPE_CHECKING:
    from torch import Tensor


def _infer_pool_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    values: dict[str, Any] = dict(attrs)
    shape = shapes[0]
    rank = len(shape) - 2
    kernel = each(values.get("kernel_shape", 1), rank)
    strides = each(values.get("strides", 1), rank)
    dilations = each(values.get("dilations", 1), rank)
    pads = values.get("pads", (0,) * 2 * rank)
    ceil = bool(values.get("ceil_mode", 0))
    are_positive = min(*kernel, *strides, *dilations) >= 1
    if "kernel_shape" not in values or not are_positive or "auto_pad" in values:
        raise InputError(f"a pooling operator needs positive sizes and explicit pads, not {values}")
    dims: list[Dim] = list(shape[:2])
    for i, size in enumerate(shape[2:]):
        windows = window_count(
            size,
            kernel=kernel[i],
            stride=strides[i],
            pads=(pads[i], pads[i + rank]),
            dilation=dilations[i],
            ceil=ceil,
        )
        dims.append(windows)
    return tuple(dims)


def _infer_global_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    """One number per channel."""
    batch, channels, *positions = shapes[0]
    ones = [1] * len(positions)
    return (batch, channels, *ones)


def _read_pool(reader: Importer, node: onnx.NodeProto) -> int | None:
    """Make the padding explicit; without padding, whether it counts has no meaning."""
    attrs = node_attrs(node)
    x = reader.value(node.input[0])
    attrs["pads"] = explicit_pads(attrs, attrs["kernel_shape"], reader.shapes[x])
    attrs.pop("auto_pad", None)
    if not any(attrs["pads"]):
        attrs.pop("count_include_pad", None)
    return reader.emit(node.op_type, (x,), tuple(attrs.items()))


# --- to torch

_POOLS = {"MaxPool": "torch.nn.functional.max_pool", "AveragePool": "torch.nn.functional.avg_pool"}


def _pool(node: TrainedNode) -> Function:
    """Pool with torch's padding where it is possible, else after explicit padding.

    Torch cannot pad where the sides differ or a window ends beyond the padding.
    """
    attributes = node.attributes
    rank = len(node.shapes[0]) - 2
    is_automatic = attributes.get("auto_pad", "NOTSET") != "NOTSET"
    if is_automatic or attributes.get("storage_order") or not 1 <= rank <= 3:
        raise InputError(
            f"{node.op} can be trained only on up to three dimensions, with explicit pads"
        )

    # 1. The windows.
    ones = (1,) * rank
    kernel = attributes["kernel_shape"]
    strides = attributes.get("strides", ones)
    dilations = attributes.get("dilations", ones)
    pads = attributes.get("pads", (0,) * 2 * rank)
    starts = pads[:rank]
    function = torch_function(f"{_POOLS[node.op]}{rank}d")
    pool = partial(function, kernel_size=kernel, stride=strides)

    # 2. Whether torch can pad: evenly, and by half a window at most.
    fits = all(2 * pad <= size for pad, size in zip(starts, kernel, strict=True))
    is_even = starts == pads[rank:] and fits
    is_simple = is_even and dilations == ones and not attributes.get("ceil_mode", 0)

    # 3. The maximum of windows is that of padded ones.
    if node.op == "MaxPool":
        pool = partial(pool, dilation=dilations)
        if is_simple:
            return partial(pool, padding=starts)
        return _max_of_padded(pool, _around(node, kernel, strides, dilations, pads))

    # 4. The average covers the input and, with count_include_pad, its padding, but nothing beyond.
    counts_padding = bool(attributes.get("count_include_pad", 0))
    if is_simple:
        return partial(pool, padding=starts, count_include_pad=counts_padding)
    if dilations != ones:
        raise InputError("AveragePool with dilations cannot be trained; use dilations of 1")
    around = _around(node, kernel, strides, dilations, pads)
    padding = torch_pads(pads if counts_padding else (0,) * 2 * rank)
    return _mean_of_padded(node, pool, around, padding)


def _max_of_padded(pool: Function, around: tuple[int, ...]) -> Function:
    import torch
    from torch.nn import functional

    def maximum(x: Tensor) -> Tensor:
        padded = functional.pad(x, around, value=-torch.inf)
        return pool(padded)

    return maximum


def _mean_of_padded(
    node: TrainedNode,
    pool: Function,
    around: tuple[int, ...],
    padding: tuple[int, ...],
) -> Function:
    """The mean over those pixels of each window that count.

    Args:
        node: the node.
        pool: the mean over whole windows.
        around: what is padded, see `_around`.
        padding: what of it counts.
    """
    import torch
    from torch.nn import functional

    beyond = tuple([total - counted for total, counted in zip(around, padding, strict=True)])
    sizes = [trained_size(size, node.op) for size in node.shapes[0][2:]]
    pixels = torch.ones(1, 1, *sizes)
    pixels = functional.pad(pixels, padding, value=1.0)
    share = pool(functional.pad(pixels, beyond))  # of each window

    def mean(x: Tensor) -> Tensor:
        padded = functional.pad(x, around)
        return pool(padded) / share.to(x)

    return mean


def _around(
    node: TrainedNode,
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    pads: tuple[int, ...],
) -> tuple[int, ...]:
    """Padding, in torch's order, that yields the known output shape.

    It is negative where windows skip the last elements.
    """
    ends = []
    for axis, dim in enumerate(node.shapes[0][2:]):
        size = trained_size(dim, node.op)
        windows = trained_size(node.output[2 + axis], node.op)
        last_window = (windows - 1) * strides[axis]
        width = dilations[axis] * (kernel[axis] - 1) + 1
        ends.append(last_window + width - size - pads[axis])
    rank = len(ends)
    return torch_pads((*pads[:rank], *ends))


def _over_space(name: str) -> MakeFunction:
    """Makes a reduction of all spatial dimensions by a function of torch."""

    def make(node: TrainedNode) -> Function:
        axes = tuple(range(2, len(node.shapes[0])))
        return partial(torch_function(name), dim=axes, keepdim=True)

    return of_first(make)


# --- the operators

OPERATORS = (
    *[
        Operator(
            name=name,
            infer_shape=_infer_pool_shape,
            read=_read_pool,
            function=of_first(_pool),
            side_by_side="channels",
        )
        for name in ("MaxPool", "AveragePool")
    ],
    Operator(
        name="GlobalAveragePool",
        infer_shape=_infer_global_shape,
        function=_over_space("torch.mean"),
        side_by_side="channels",
    ),
    Operator(
        name="GlobalMaxPool",
        function=_over_space("torch.amax"),
        side_by_side="channels",
    ),
    *named(
        "GlobalLpPool",
        "LpPool",
        "MaxRoiPool",
        "MaxUnpool",
        "RoiAlign",
    ),
)
