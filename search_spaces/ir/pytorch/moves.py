"""torch functions that arrange elements anew: joins, padding, repetition, interpolation,
windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from search_spaces.common.errors import InputError
from search_spaces.ir.pytorch.parts import check_apart, gathered, sliced
from search_spaces.ir.pytorch.recorder import HANDLERS, Recorder, handles
from search_spaces.ir.pytorch.shapes import expanded, permuted, reshaped, sizes_of, unsqueezed

_END = (1 << 63) - 1


# --- joins
# -----------------------------------------------------------------------------------------------------------


@handles("cat", "concat", "concatenate")
def _cat(
    r: Recorder,
    tensors: Sequence[Tensor],
    dim: int = 0,
    *,
    axis: int | None = None,
    out: None = None,
) -> Tensor:
    parts = [x for x in tensors if x.numel()] or [tensors[0]]
    dtype = parts[0].dtype
    for x in parts:
        dtype = torch.promote_types(dtype, x.dtype)
    parts = [x if x.dtype == dtype else r.call(Tensor.to, x, dtype) for x in parts]
    if len(parts) == 1:  # exporters may omit a concatenation of one tensor
        return r.tensor(r.value(parts[0]))
    return r.add_node("Concat", *parts, axis=(dim if axis is None else axis) % parts[0].dim())


@handles("stack")
def _stack(r: Recorder, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    at = dim % (tensors[0].dim() + 1)
    return _cat(r, [r.add_node("Unsqueeze", x, axes=(at,)) for x in tensors], at)


@handles("pad", "constant_pad_nd")
def _pad(
    r: Recorder,
    input: Tensor,
    pad: Sequence[int],
    mode: str = "constant",
    value: float | None = None,
) -> Tensor:
    count = len(pad) // 2
    if not any(pad):
        return input
    begin, end = [0] * input.dim(), [0] * input.dim()
    for i in range(count):
        begin[-1 - i], end[-1 - i] = pad[2 * i], pad[2 * i + 1]
    kinds = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    attrs = {"constant_value": value} if value and mode == "constant" else {}
    return r.add_node("Pad", input, mode=kinds[mode], pads=(*begin, *end), **attrs)


@handles("meshgrid")
def _meshgrid(r: Recorder, *tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """For each vector, a tensor of the grid with its elements along its own axis; `xy` swaps the
    first two axes.
    """
    vectors = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], list | tuple) else tensors
    sizes, axes = [x.numel() for x in vectors], list(range(len(vectors)))
    if indexing == "xy" and len(vectors) > 1:
        axes[:2], sizes[:2] = [1, 0], [sizes[1], sizes[0]]
    grids = []
    for axis, x in zip(axes, vectors, strict=True):
        line = r.call(torch.reshape, x, [-1 if i == axis else 1 for i in range(len(sizes))])
        grids.append(r.call(Tensor.expand, line, sizes))
    return tuple(grids)


@handles("roll")
def _roll(r: Recorder, input: Tensor, shifts: Any, dims: Any = None) -> Tensor:
    if dims is None:
        return reshaped(r, _roll(r, reshaped(r, input, [-1]), shifts, 0), list(input.shape))
    x = input
    pairs = zip(*[(v,) if isinstance(v, int) else v for v in (shifts, dims)], strict=True)
    for shift, dim in pairs:
        size = x.shape[dim]
        if shift % size:
            cut = size - shift % size
            x = _cat(
                r,
                [sliced(r, x, dim % x.dim(), cut, size), sliced(r, x, dim % x.dim(), 0, cut)],
                dim,
            )
    return x


@handles("flip")
def _flip(r: Recorder, input: Tensor, *dims: Any) -> Tensor:
    axes = tuple([d % input.dim() for d in sizes_of(dims)])
    for axis in axes:
        check_apart(r, input.shape[axis], "a flip of")
    backwards = {
        "starts": (-1,) * len(axes),
        "ends": (-_END,) * len(axes),
        "steps": (-1,) * len(axes),
    }
    return r.add_node("Slice", input, axes=axes, **backwards)


@handles("repeat", "tile")
def _repeat(r: Recorder, input: Tensor, *repeats: Any, dims: Any = None) -> Tensor:
    times = sizes_of(repeats if dims is None else (dims,))
    times = [1] * (input.dim() - len(times)) + times
    x = input
    if len(times) > x.dim():
        x = reshaped(r, x, [1] * (len(times) - x.dim()) + list(x.shape))
    for axis in [i for i, n in enumerate(times) if r.is_batch(n)]:
        x, times[axis] = _repeated(r, x, axis, times[axis]), 1
    return (
        r.tensor(r.value(x)) if set(times) == {1} else r.add_node("Tile", x, repeats=tuple(times))
    )


def _repeated(r: Recorder, x: Tensor, axis: int, times: int) -> Tensor:
    """The tensor this many times in a row along an axis; `times` is the batch size or a
    multiple.
    """
    if x.shape[axis] == 1:
        return expanded(r, x, [times if i == axis else -1 for i in range(x.dim())])
    wide = expanded(
        r, unsqueezed(r, x, axis), [times if i == axis else -1 for i in range(x.dim() + 1)]
    )
    return reshaped(
        r, wide, [times * size if i == axis else size for i, size in enumerate(x.shape)]
    )


@handles("repeat_interleave")
def _repeat_interleave(
    r: Recorder, input: Tensor, repeats: int, dim: int | None = None, **_: Any
) -> Tensor:
    if not isinstance(repeats, int) or dim is None:
        raise InputError("repeat_interleave needs a number and a dimension")
    at, shape = dim % input.dim(), list(input.shape)
    wide = expanded(
        r,
        unsqueezed(r, input, at + 1),
        [repeats if i == at + 1 else -1 for i in range(len(shape) + 1)],
    )
    return reshaped(r, wide, [*shape[:at], shape[at] * repeats, *shape[at + 1 :]])


@handles("zeros_like", "ones_like", "full_like", "empty_like")
def _like(
    r: Recorder, input: Tensor, fill_value: float = 0, *, dtype: Any = None, **_: Any
) -> Tensor:
    small = [1 if r.is_batch(size) else size for size in input.shape]
    return torch.full(small, fill_value, dtype=dtype or input.dtype).expand(input.shape)


HANDLERS["ones_like"] = lambda r, input, **k: _like(r, input, 1, **k)


@handles("new_zeros", "new_empty", "new_ones", "new_full", "new_tensor")
def _new(r: Recorder, input: Tensor, *size: Any, dtype: Any = None, **_: Any) -> Tensor:
    return r.call(torch.zeros, sizes_of(size), dtype=dtype or input.dtype)


HANDLERS["new_ones"] = lambda r, input, *size, dtype=None, **_: r.call(
    torch.ones, sizes_of(size), dtype=dtype or input.dtype
)
HANDLERS["new_full"] = lambda r, input, size, fill_value, dtype=None, **_: r.call(
    torch.full, list(size), fill_value, dtype=dtype or input.dtype
)
HANDLERS["new_tensor"] = lambda r, input, data, dtype=None, **_: torch.tensor(
    data, dtype=dtype or input.dtype
)


@handles("tril", "triu")
def _tril(r: Recorder, input: Tensor, diagonal: int = 0) -> Tensor:
    return r.add_node("Trilu", input, k=diagonal, upper=0)


HANDLERS["triu"] = lambda r, input, diagonal=0: r.add_node("Trilu", input, k=diagonal)


@handles("pixel_shuffle")
def _pixel_shuffle(r: Recorder, input: Tensor, upscale_factor: int) -> Tensor:
    return r.add_node("DepthToSpace", input, blocksize=upscale_factor, mode="CRD")


@handles("pixel_unshuffle")
def _pixel_unshuffle(r: Recorder, input: Tensor, downscale_factor: int) -> Tensor:
    n, c, h, w = input.shape
    f = downscale_factor
    split = reshaped(r, input, [n, c, h // f, f, w // f, f])
    return reshaped(r, permuted(r, split, 0, 1, 3, 5, 2, 4), [n, c * f * f, h // f, w // f])


@handles("channel_shuffle")
def _channel_shuffle(r: Recorder, input: Tensor, groups: int) -> Tensor:
    return r.add_node("ChannelShuffle", input, groups=groups)


@handles("interpolate", "upsample")
def _interpolate(
    r: Recorder, input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
    align_corners: bool | None = None, recompute_scale_factor: bool | None = None, antialias: bool = False,
) -> Tensor:  # fmt: skip
    rank = input.dim() - 2
    kinds = {
        "nearest": "nearest", "nearest-exact": "nearest", "linear": "linear", "bilinear": "linear",
        "trilinear": "linear", "bicubic": "cubic",
    }  # fmt: skip
    if mode == "area":
        scales = (
            [scale_factor] * rank if isinstance(scale_factor, int | float | None) else scale_factor
        )
        target = (
            [int(n * s) for n, s in zip(input.shape[2:], scales, strict=True)]
            if size is None
            else size
        )
        return r.call(
            (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[rank - 1],
            input,
            target,
        )
    if recompute_scale_factor and size is None:
        raise InputError("interpolate with recompute_scale_factor is not supported: give the size")
    if mode not in kinds:
        raise InputError(f"interpolate with mode {mode!r} is not supported")
    rounding = "round_prefer_ceil" if mode == "nearest-exact" else "floor"
    attrs: dict[str, Any] = {
        "mode": kinds[mode],
        "nearest_mode": rounding,
        "antialias": int(antialias),
    }
    if mode == "nearest":
        attrs["coordinate_transformation_mode"] = "asymmetric"
    elif align_corners:
        attrs["coordinate_transformation_mode"] = "align_corners"
    if mode == "bicubic":
        attrs["cubic_coeff_a"] = -0.5 if antialias else -0.75
    if antialias:
        attrs["exclude_outside"] = 1
    if size is not None:
        values: list[float] = [size] * rank if isinstance(size, int) else [int(v) for v in size]
        kept = [i for i in range(rank) if values[i] != input.shape[2 + i]]
        name = "sizes"
    else:
        values = (
            [scale_factor] * rank if isinstance(scale_factor, int | float) else list(scale_factor)
        )
        kept = [i for i in range(rank) if values[i] != 1]
        name = "scales"
    if not kept:
        return input
    attrs |= {"axes": tuple([2 + i for i in kept]), name: tuple([values[i] for i in kept])}
    return r.add_node("Resize", input, **attrs)


# --- windows
# ---------------------------------------------------------------------------------------------------------


@handles("unfold")
def _unfold(
    r: Recorder, input: Tensor, dimension: Any, size: int = 1, step: int = 1, **image: Any
) -> Tensor:
    """`Tensor.unfold`: windows along a dimension, elements along a new last one; or
    `torch.nn.functional.unfold`.
    """
    if image:
        return _im2col(r, input, dimension, **image)
    axis = dimension % input.dim()
    windows = gathered(r, input, axis, _window_places(input.shape[axis], size, step))
    order = [d for d in range(windows.dim()) if d != axis + 1]
    return permuted(r, windows, *order, axis + 1)


def _window_places(length: int, size: int, step: int, dilation: int = 1) -> Tensor:
    """Positions (windows, size) of the elements of every window."""
    starts = torch.arange(0, length - dilation * (size - 1), step)
    return starts[:, None] + torch.arange(0, dilation * size, dilation)


@handles("im2col")
def _im2col(
    r: Recorder, input: Tensor, kernel_size: Any, dilation: Any, padding: Any, stride: Any
) -> Tensor:
    (kh, kw), (dh, dw), (ph, pw), (sh, sw) = (
        (v, v) if isinstance(v, int) else tuple(v) for v in (kernel_size, dilation, padding, stride)
    )
    x = _pad(r, input, (pw, pw, ph, ph))
    rows, columns = (
        _window_places(x.shape[2], kh, sh, dh).T,
        _window_places(x.shape[3], kw, sw, dw).T,
    )
    x = gathered(r, gathered(r, x, 2, rows), 4, columns)
    n, c, *_ = x.shape
    return reshaped(
        r, permuted(r, x, 0, 1, 2, 4, 3, 5), [n, c * kh * kw, rows.shape[1] * columns.shape[1]]
    )


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
    image, kernel, dilations, pads, strides = (
        (v, v) if isinstance(v, int) else tuple(v)
        for v in (output_size, kernel_size, dilation, padding, stride)
    )
    attrs = {"dilations": dilations, "pads": (*pads, *pads), "strides": strides}
    return r.add_node("Col2Im", input, image_shape=image, block_shape=kernel, **attrs)


@handles("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def _grid_sample(
    r: Recorder,
    input: Tensor,
    grid: Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> Tensor:
    mode, padding = (
        ("linear", "nearest", "cubic")[interpolation_mode],
        ("zeros", "border", "reflection")[padding_mode],
    )
    return r.add_node(
        "GridSample", input, grid, mode=mode, padding_mode=padding, align_corners=int(align_corners)
    )


@handles("affine_grid")
def _affine_grid(
    r: Recorder, theta: Tensor, size: Sequence[int], align_corners: bool | None = None
) -> Tensor:
    """The places of a plain grid, as products with the matrix of each sample."""
    rank = len(size) - 2
    plain = torch.eye(rank, rank + 1)[None]
    places = F.affine_grid(plain, [1, 1, *size[2:]], align_corners=bool(align_corners)).reshape(
        1, -1, rank
    )
    places = torch.cat([places, torch.ones_like(places[..., :1])], -1)
    turned = r.call(torch.matmul, places, r.call(torch.transpose, theta, 1, 2))
    return reshaped(r, turned, [*theta.shape[:1], *size[2:], rank])
