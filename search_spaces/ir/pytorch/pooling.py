"""torch functions that pool windows: maxima, means, windows of a fixed number, and the inverse of
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
from search_spaces.ir.pytorch.parts import sliced
from search_spaces.ir.pytorch.recorder import Recorder, handles
from search_spaces.ir.pytorch.reductions import reduced
from search_spaces.ir.pytorch.shapes import Sizes, per_dimension, reshaped


@handles("max_pool1d", "max_pool2d", "max_pool3d", "_max_pool2d")
def _max_pool(r: Recorder, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    attrs = _max_windows(input, *args, **kwargs)
    return r.add_node("MaxPool", input, **attrs)


@handles("max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices")
def _max_pool_with_indices(
    r: Recorder, input: Tensor, *args: Any, **kwargs: Any
) -> tuple[Tensor, Tensor]:
    """The maxima, and their places within the channel. ONNX counts places within the whole
    tensor.
    """
    attrs = _max_windows(input, *args, **kwargs)
    places = r.call(
        torch.remainder, r.add_node("MaxPool", input, output=1, **attrs), prod(input.shape[2:])
    )
    return r.add_node("MaxPool", input, **attrs), places


def _max_windows(
    x: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> dict[str, Value]:  # fmt: skip
    """Attributes of MaxPool for the arguments of torch's function."""
    kernel, strides, sides = _windows(x, kernel_size, stride, padding)
    attrs = {"kernel_shape": kernel, "strides": strides, "pads": (*sides, *sides)}
    return {**attrs, "dilations": per_dimension(dilation, len(kernel)), "ceil_mode": int(ceil_mode)}


def _windows(
    x: Tensor, kernel_size: Sizes, stride: Sizes | None, padding: Sizes
) -> tuple[tuple[int, ...], ...]:
    """Kernel, strides and padding for each spatial dimension; without strides, windows do not
    overlap.
    """
    rank = x.dim() - 2
    kernel = per_dimension(kernel_size, rank)
    return (
        kernel,
        kernel if stride is None or stride == [] else per_dimension(stride, rank),
        per_dimension(padding, rank, 0),
    )


@handles("max_unpool1d", "max_unpool2d", "max_unpool3d")
def _max_unpool(
    r: Recorder, input: Tensor, indices: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    """Zeros of a larger image with the elements of `input` at these places within the channel."""
    windows = zip(input.shape[2:], *_windows(input, kernel_size, stride, padding), strict=True)
    sizes = [(n - 1) * step - 2 * side + width for n, width, step, side in windows]
    if output_size is not None:
        sizes = list(output_size)[-len(sizes) :]
    channels = list(input.shape[:2])
    zeros = r.call(torch.zeros, [*channels, prod(sizes)], dtype=input.dtype)
    flat = [r.call(torch.flatten, x, 2) for x in (indices, input)]
    return reshaped(r, r.call(torch.scatter, zeros, 2, *flat), [*channels, *sizes])


@handles("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _avg_pool(
    r: Recorder, input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    if divisor_override is not None:
        raise InputError("average pooling with divisor_override is not supported")
    kernel, strides, sides = _windows(input, kernel_size, stride, padding)
    attrs: dict[str, Value] = {"pads": (*sides, *sides), "strides": strides}
    if any(sides):
        attrs["count_include_pad"] = int(count_include_pad)
    return r.add_node("AveragePool", input, ceil_mode=int(ceil_mode), kernel_shape=kernel, **attrs)


def _adaptive_sizes(input: Tensor, output_size: Any) -> list[int]:
    rank = input.dim() - 2
    asked = (
        [output_size] * rank
        if output_size is None or isinstance(output_size, int)
        else list(output_size)
    )
    return [
        n if size is None else int(size)
        for n, size in zip(input.shape[2:], asked * (rank // len(asked)), strict=True)
    ]


@handles("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def _adaptive_avg_pool(r: Recorder, input: Tensor, output_size: Any) -> Tensor:
    return _adaptive(r, input, _adaptive_sizes(input, output_size), "AveragePool", "ReduceMean")


@handles("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def _adaptive_max_pool(
    r: Recorder, input: Tensor, output_size: Any, return_indices: bool = False
) -> Tensor:
    if return_indices:
        raise InputError("max pooling that returns indices is not supported")
    return _adaptive(r, input, _adaptive_sizes(input, output_size), "MaxPool", "ReduceMax")


def _adaptive(r: Recorder, x: Tensor, sizes: list[int], pool: str, reduction: str) -> Tensor:
    """Pooling to a fixed size: one pooling operator if all windows are equal, otherwise window by
    window.
    """
    before = list(x.shape[2:])
    if sizes == before:
        return x
    if set(sizes) == {1}:
        return reduced(r, reduction, x, tuple(range(2, x.dim())), True)
    if all(n % size == 0 for n, size in zip(before, sizes, strict=True)):
        kernel = tuple([n // size for n, size in zip(before, sizes, strict=True)])
        return r.add_node(pool, x, kernel_shape=kernel, strides=kernel)
    for axis, (n, size) in enumerate(zip(before, sizes, strict=True), start=2):
        if n == size:
            continue
        windows = [sliced(r, x, axis, i * n // size, -(-(i + 1) * n // size)) for i in range(size)]
        x = r.add_node(
            "Concat", *[reduced(r, reduction, w, axis, True) for w in windows], axis=axis
        )
    return x
