"""Pooling functions: maxima and means of windows, windows of a fixed number, and the inverse of
maxima.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from search_spaces.common.errors import InputError
from search_spaces.ir.graph import Value
from search_spaces.ir.pytorch.recorder import Recorder, handles
from search_spaces.ir.pytorch.reductions import reduced
from search_spaces.ir.pytorch.views import Sizes, per_dimension, reshaped, sliced


def _windows(
    x: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None,
    padding: Sizes,
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Kernel, strides and padding for each spatial dimension.

    Without strides, windows do not overlap.
    """
    rank = x.dim() - 2
    kernel = per_dimension(kernel_size, rank)
    has_stride = stride is not None and stride != []
    strides = per_dimension(stride, rank) if has_stride else kernel
    return kernel, strides, per_dimension(padding, rank, 0)


# --- maxima


@handles("max_pool1d", "max_pool2d", "max_pool3d", "_max_pool2d")
def _max_pool(
    r: Recorder,
    input: Tensor,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    attrs = _max_windows(input, *args, **kwargs)
    return r.add_node("MaxPool", input, **attrs)


@handles("max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices")
def _max_pool_with_indices(
    r: Recorder,
    input: Tensor,
    *args: Any,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """The maxima, and their places within the channel.

    ONNX counts places within the whole tensor.
    """
    attrs = _max_windows(input, *args, **kwargs)
    in_tensor = r.add_node("MaxPool", input, output=1, **attrs)
    in_channel = r.call(torch.remainder, in_tensor, prod(input.shape[2:]))
    return r.add_node("MaxPool", input, **attrs), in_channel


def _max_windows(
    x: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> dict[str, Value]:
    """Attributes of MaxPool for the arguments of torch's function."""
    kernel, strides, sides = _windows(x, kernel_size, stride, padding)
    return {
        "kernel_shape": kernel,
        "strides": strides,
        "pads": (*sides, *sides),
        "dilations": per_dimension(dilation, len(kernel)),
        "ceil_mode": int(ceil_mode),
    }


@handles("max_unpool1d", "max_unpool2d", "max_unpool3d")
def _max_unpool(
    r: Recorder,
    input: Tensor,
    indices: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """Zeros of a larger image with the elements of `input` at these places within the channel."""
    # 1. The size of the larger image.
    kernel, strides, sides = _windows(input, kernel_size, stride, padding)
    sizes = []
    for n, width, step, side in zip(input.shape[2:], kernel, strides, sides, strict=True):
        whole = (n - 1) * step + width
        sizes.append(whole - 2 * side)
    if output_size is not None:
        sizes = list(output_size)[-len(sizes) :]

    # 2. Its elements in a row.                                       (N, channels, product of sizes)
    channels = list(input.shape[:2])
    zeros = r.call(torch.zeros, [*channels, prod(sizes)], dtype=input.dtype)
    places = r.call(torch.flatten, indices, 2)
    elements = r.call(torch.flatten, input, 2)
    flat = r.call(torch.scatter, zeros, 2, places, elements)
    return reshaped(r, flat, [*channels, *sizes])


# --- means


@handles("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _avg_pool(
    r: Recorder,
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    if divisor_override is not None:
        raise InputError("average pooling with divisor_override is not supported")
    kernel, strides, sides = _windows(input, kernel_size, stride, padding)
    attrs: dict[str, Value] = {
        "kernel_shape": kernel,
        "strides": strides,
        "pads": (*sides, *sides),
        "ceil_mode": int(ceil_mode),
    }
    if any(sides):
        attrs["count_include_pad"] = int(count_include_pad)
    return r.add_node("AveragePool", input, **attrs)


# --- windows of a fixed number


@handles("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def _adaptive_avg_pool(r: Recorder, input: Tensor, output_size: Any) -> Tensor:
    return _adaptive(r, input, output_size, "AveragePool", "ReduceMean")


@handles("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def _adaptive_max_pool(
    r: Recorder,
    input: Tensor,
    output_size: Any,
    return_indices: bool = False,
) -> Tensor:
    if return_indices:
        raise InputError("max pooling that returns indices is not supported")
    return _adaptive(r, input, output_size, "MaxPool", "ReduceMax")


def _adaptive(
    r: Recorder,
    x: Tensor,
    output_size: Any,
    pool: str,
    reduction: str,
) -> Tensor:
    """Pooling to a fixed size.

    This is one pooling operator if all windows are equal, otherwise window by window.

    Args:
        r: the recorder.
        x: the tensor.
        output_size: one size, or one for each spatial axis; None for one that stays.
        pool: operator of equal windows.
        reduction: operator of one window.
    """
    before = list(x.shape[2:])
    sizes = _adaptive_sizes(before, output_size)
    pairs = list(zip(before, sizes, strict=True))

    # 1. Nothing to pool, or everything.
    if sizes == before:
        return x
    if set(sizes) == {1}:
        axes = tuple(range(2, x.dim()))
        return reduced(r, reduction, x, axes, True)

    # 2. Equal windows.
    if all(n % size == 0 for n, size in pairs):
        kernel = tuple([n // size for n, size in pairs])
        return r.add_node(pool, x, kernel_shape=kernel, strides=kernel)

    # 3. Windows of several sizes, axis by axis.
    for axis, (n, size) in enumerate(pairs, start=2):
        if n == size:
            continue
        windows = []
        for i in range(size):
            start = i * n // size
            end = -(-(i + 1) * n // size)  # rounded up
            windows.append(sliced(r, x, axis, start, end))
        parts = [reduced(r, reduction, window, axis, True) for window in windows]
        x = r.add_node("Concat", *parts, axis=axis)
    return x


def _adaptive_sizes(before: Sequence[int], output_size: Any) -> list[int]:
    rank = len(before)
    if output_size is None or isinstance(output_size, int):
        output_size = [output_size]
    requested = list(output_size) * (rank // len(output_size))
    return [n if size is None else int(size) for n, size in zip(before, requested, strict=True)]
