"""Convolution functions: convolutions, their transposes, and windows as columns (unfold, fold)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from search_spaces.common.errors import InputError
from search_spaces.ir.graph import Value
from search_spaces.ir.ops.convolution import Convolution
from search_spaces.ir.pytorch.indexing import gathered
from search_spaces.ir.pytorch.linear import owned, plus_bias
from search_spaces.ir.pytorch.recorder import Recorder, handles
from search_spaces.ir.pytorch.views import Sizes, per_dimension, permuted, reshaped

# --- convolutions


@handles("conv1d", "conv2d", "conv3d", "convolution")
def _conv(
    r: Recorder,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    rank = weight.dim() - 2
    channels, inputs, *kernel = weight.shape
    _check_convolution(r, input, weight, groups)
    strides = per_dimension(stride, rank)
    dilations = per_dimension(dilation, rank)
    pads = _pads(padding, kernel, dilations, rank)
    if r.owned_shape(weight) is None:  # the weight is a value of the graph
        attrs: dict[str, Value] = {
            "group": groups,
            "strides": strides,
            "pads": pads,
            "dilations": dilations,
        }
        y = r.add_node("Conv", input, r.as_value(weight), **attrs)
        return plus_bias(r, y, bias, rank)
    owns_bias = owned(r, weight, bias) is not None
    if not owns_bias:
        r.take(weight)
    conv = Convolution(
        in_channels=inputs * groups,
        channels=channels,
        kernel=tuple(kernel),
        strides=strides,
        pads=pads,
        dilations=dilations,
        group=groups,
        bias=bias is not None and owns_bias,
    )
    y = r.add_node("Conv", input, **dict(conv.attrs), **r.precision(weight))
    return y if owns_bias else plus_bias(r, y, bias, rank)


def _check_convolution(
    r: Recorder,
    x: Tensor,
    weight: Tensor,
    groups: int,
) -> None:
    """InputError if the weights of a convolution do not fit its input.

    Shapes: weights (channels, inputs of a group, kernel), input (N, inputs, …).
    """
    if x.dim() != weight.dim():
        raise InputError(
            f"a convolution with weights {list(weight.shape)} has an input of shape {list(x.shape)}"
        )
    if r.is_batch(groups):
        raise InputError("a convolution has one group per sample")
    if weight.shape[1] * groups != x.shape[1]:
        raise InputError(
            f"weights {list(weight.shape)} in {groups} groups do not fit an input {list(x.shape)}"
        )


def _pads(
    padding: Sizes | str,
    kernel: Sequence[int],
    dilations: tuple[int, ...],
    rank: int,
) -> tuple[int, ...]:
    """Padding before all axes, then behind them; "same" pads one more behind where it is odd."""
    if padding == "same":
        before, behind = [], []
        for size, dilation in zip(kernel, dilations, strict=True):
            total = dilation * (size - 1)
            half = total // 2
            before.append(half)
            behind.append(total - half)
        return (*before, *behind)
    sides = (0,) * rank if isinstance(padding, str) else per_dimension(padding, rank, 0)
    return (*sides, *sides)


@handles("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _conv_transpose(
    r: Recorder,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    rank = weight.dim() - 2
    if owned(r, weight, bias) is None:
        raise InputError(
            "a transposed convolution whose weights are computed or shared is not supported"
        )
    sides = per_dimension(padding, rank, 0)
    return r.add_node(
        "ConvTranspose",
        input,
        bias=int(bias is not None),
        channels=int(weight.shape[1]) * groups,
        group=groups,
        kernel_shape=tuple(weight.shape[2:]),
        strides=per_dimension(stride, rank),
        pads=(*sides, *sides),
        output_padding=per_dimension(output_padding, rank, 0),
        dilations=per_dimension(dilation, rank),
    )


# --- windows as columns


@handles("unfold")
def _unfold(
    r: Recorder,
    input: Tensor,
    dimension: Any,
    size: int = 1,
    step: int = 1,
    **image: Any,
) -> Tensor:
    """`Tensor.unfold` or, with `image`, `torch.nn.functional.unfold`.

    The former has windows along the dimension, and their elements along a new last one.
    """
    if image:
        return _im2col(r, input, dimension, **image)
    axis = dimension % input.dim()
    windows = gathered(r, input, axis, _window_places(input.shape[axis], size, step))
    others = [d for d in range(windows.dim()) if d != axis + 1]
    return permuted(r, windows, *others, axis + 1)


def _window_places(
    length: int,
    size: int,
    step: int,
    dilation: int = 1,
) -> Tensor:
    """Positions (windows, size) of the elements of every window."""
    starts = torch.arange(0, length - dilation * (size - 1), step)
    return starts[:, None] + torch.arange(0, dilation * size, dilation)


@handles("im2col")
def _im2col(
    r: Recorder,
    input: Tensor,
    kernel_size: Any,
    dilation: Any,
    padding: Any,
    stride: Any,
) -> Tensor:
    """Windows of an image (N, C, H, W) as columns (N, C · elements, windows)."""
    kernel_height, kernel_width = _pair(kernel_size)
    dilation_y, dilation_x = _pair(dilation)
    pad_y, pad_x = _pair(padding)
    step_y, step_x = _pair(stride)
    x = r.call(torch.nn.functional.pad, input, (pad_x, pad_x, pad_y, pad_y))
    # 1. Rows of windows: (N, C, elements down, windows down, W).
    rows = _window_places(x.shape[2], kernel_height, step_y, dilation_y).T
    columns = _window_places(x.shape[3], kernel_width, step_x, dilation_x).T
    x = gathered(r, x, 2, rows)
    # 2. Columns of them: (N, C, elements down, windows down, elements across, windows across).
    x = gathered(r, x, 4, columns)
    # 3. Elements before windows.
    n, c, *_ = x.shape
    x = permuted(r, x, 0, 1, 2, 4, 3, 5)
    elements = c * kernel_height * kernel_width
    return reshaped(r, x, [n, elements, rows.shape[1] * columns.shape[1]])


def _pair(value: Any) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    down, across = value
    return down, across


@handles("col2im")
def _col2im(
    r: Recorder,
    input: Tensor,
    output_size: Any,
    kernel_size: Any,
    dilation: Any,
    padding: Any,
    stride: Any,
) -> Tensor:
    pads = _pair(padding)
    return r.add_node(
        "Col2Im",
        input,
        image_shape=_pair(output_size),
        block_shape=_pair(kernel_size),
        dilations=_pair(dilation),
        pads=(*pads, *pads),
        strides=_pair(stride),
    )
