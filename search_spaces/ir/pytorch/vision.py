"""Vision functions: padding, interpolation, pixels as channels, sampling at places of a grid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from search_spaces.common.errors import InputError
from search_spaces.ir.pytorch.recorder import Recorder, handles
from search_spaces.ir.pytorch.views import permuted, reshaped

# --- padding

_PADDINGS = {
    "constant": "constant",
    "reflect": "reflect",
    "replicate": "edge",
    "circular": "wrap",
}


@handles("pad", "constant_pad_nd")
def _pad(
    r: Recorder,
    input: Tensor,
    pad: Sequence[int],
    mode: str = "constant",
    value: float | None = None,
) -> Tensor:
    """Pad with the numbers in ONNX's order.

    torch counts axes from the last one, two numbers each; ONNX lists all begins, then all ends.
    """
    if not any(pad):
        return input
    begins = [0] * input.dim()
    ends = [0] * input.dim()
    for i in range(len(pad) // 2):
        axis = -1 - i
        begins[axis] = pad[2 * i]
        ends[axis] = pad[2 * i + 1]
    attrs = {"constant_value": value} if value and mode == "constant" else {}
    pads = (*begins, *ends)
    return r.add_node("Pad", input, mode=_PADDINGS[mode], pads=pads, **attrs)


# --- pixels and channels


@handles("pixel_shuffle")
def _pixel_shuffle(r: Recorder, input: Tensor, upscale_factor: int) -> Tensor:
    return r.add_node("DepthToSpace", input, blocksize=upscale_factor, mode="CRD")


@handles("pixel_unshuffle")
def _pixel_unshuffle(r: Recorder, input: Tensor, downscale_factor: int) -> Tensor:
    n, channels, height, width = input.shape
    f = downscale_factor
    rows = height // f
    columns = width // f
    blocks = reshaped(r, input, [n, channels, rows, f, columns, f])
    pixels_first = permuted(r, blocks, 0, 1, 3, 5, 2, 4)  # (n, channels, f, f, rows, columns)
    return reshaped(r, pixels_first, [n, channels * f * f, rows, columns])


@handles("channel_shuffle")
def _channel_shuffle(r: Recorder, input: Tensor, groups: int) -> Tensor:
    return r.add_node("ChannelShuffle", input, groups=groups)


# --- interpolation

_INTERPOLATIONS = {
    "nearest": "nearest",
    "nearest-exact": "nearest",
    "linear": "linear",
    "bilinear": "linear",
    "trilinear": "linear",
    "bicubic": "cubic",
}
# torch's coefficients of cubic interpolation: those of other libraries if it is antialiased.
_CUBIC, _CUBIC_ANTIALIASED = -0.75, -0.5


@handles("interpolate", "upsample")
def _interpolate(
    r: Recorder,
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    rank = input.dim() - 2
    if mode == "area":
        return _area(r, input, size, scale_factor)
    if recompute_scale_factor and size is None:
        raise InputError("interpolate with recompute_scale_factor is not supported: give the size")
    if mode not in _INTERPOLATIONS:
        raise InputError(f"interpolate with mode {mode!r} is not supported")
    # 1. Which pixels a new one is made of.
    attrs: dict[str, Any] = {
        "mode": _INTERPOLATIONS[mode],
        "nearest_mode": "round_prefer_ceil" if mode == "nearest-exact" else "floor",
        "antialias": int(antialias),
    }
    if mode == "nearest":
        attrs["coordinate_transformation_mode"] = "asymmetric"
    elif align_corners:
        attrs["coordinate_transformation_mode"] = "align_corners"
    if mode == "bicubic":
        attrs["cubic_coeff_a"] = _CUBIC_ANTIALIASED if antialias else _CUBIC
    if antialias:
        attrs["exclude_outside"] = 1
    # 2. The new sizes, or factors, of the axes that change.
    if size is not None:
        name = "sizes"
        values: list[float] = [size] * rank if isinstance(size, int) else [int(v) for v in size]
        unchanged: list[float] = list(input.shape[2:])
    else:
        name = "scales"
        values = _for_all(scale_factor, rank)
        unchanged = [1] * rank
    changed = [i for i in range(rank) if values[i] != unchanged[i]]
    if not changed:
        return input
    attrs["axes"] = tuple([2 + i for i in changed])
    attrs[name] = tuple([values[i] for i in changed])
    return r.add_node("Resize", input, **attrs)


def _for_all(factor: Any, rank: int) -> list[float]:
    return [factor] * rank if isinstance(factor, int | float) else list(factor)


def _area(
    r: Recorder,
    x: Tensor,
    size: Any,
    scale_factor: Any,
) -> Tensor:
    """Means of areas: adaptive pooling."""
    before = x.shape[2:]
    rank = len(before)
    if size is None:
        scales = _for_all(scale_factor, rank)
        size = [int(n * scale) for n, scale in zip(before, scales, strict=True)]
    pools = {
        1: F.adaptive_avg_pool1d,
        2: F.adaptive_avg_pool2d,
        3: F.adaptive_avg_pool3d,
    }
    return r.call(pools[rank], x, size)


# --- grids of places

_SAMPLINGS = ("linear", "nearest", "cubic")  # in the order of torch's numbers
_BORDERS = ("zeros", "border", "reflection")


@handles("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def _grid_sample(
    r: Recorder,
    input: Tensor,
    grid: Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> Tensor:
    return r.add_node(
        "GridSample",
        input,
        grid,
        mode=_SAMPLINGS[interpolation_mode],
        padding_mode=_BORDERS[padding_mode],
        align_corners=int(align_corners),
    )


@handles("affine_grid")
def _affine_grid(
    r: Recorder,
    theta: Tensor,
    size: Sequence[int],
    align_corners: bool | None = None,
) -> Tensor:
    """The places of a plain grid, as products with the matrix of each sample."""
    batch = theta.shape[:1]
    pixels = size[2:]
    rank = len(pixels)
    # 1. The plain grid: places (1, pixels, rank), and a one for the matrix's shift.
    plain = torch.eye(rank, rank + 1)[None]
    grid = F.affine_grid(plain, [1, 1, *pixels], align_corners=bool(align_corners))
    places = grid.reshape(1, -1, rank)
    ones = torch.ones_like(places[..., :1])
    places = torch.cat([places, ones], -1)
    # 2. Products (N, pixels, rank).
    columns = r.call(torch.transpose, theta, 1, 2)
    moved = r.call(torch.matmul, places, columns)
    return reshaped(r, moved, [*batch, *pixels, rank])
