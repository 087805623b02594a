"""Operators on whole samples as torch functions, for one replica."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

import torch
from torch import Tensor
from torch.nn import functional

from nas.evaluation.operation import (
    Function,
    Spec,
    known_size,
    needs_constants,
    plain,
    torch_pads,
    with_constants,
)
from search_spaces.common.errors import InputError


def keeps_channels(spec: Spec) -> bool:
    """True if an operator never mixes channels, so that it can run on the channels of all replicas
    at once.
    """
    if spec.op not in _BROADCASTING or len({shape[:2] for shape in spec.shapes}) != 1:
        return False
    return len(spec.shapes[0]) > 1 and not any(
        isinstance(value, tuple) for value in spec.attrs.values()
    )


def _fold(function: Function) -> Function:
    """Extend a function of two operands to any number, from left to right."""

    def apply(first: Tensor, *others: Tensor) -> Tensor:
        for other in others:
            first = function(first, other)
        return first

    return apply


def _mean_of(*xs: Tensor) -> Tensor:
    return _fold(torch.add)(*xs) / len(xs)


def _prelu(x: Tensor, slope: Tensor) -> Tensor:
    return torch.where(x > 0, x, slope * x)


def _divide(a: Tensor, b: Tensor) -> Tensor:
    return torch.div(a, b, rounding_mode=None if a.is_floating_point() else "trunc")


def _concat(spec: Spec) -> Function:
    return lambda *xs: torch.cat(xs, dim=spec.attrs["axis"])


def _einsum(spec: Spec) -> Function:
    return partial(torch.einsum, spec.attrs["equation"])


def _gather(spec: Spec) -> Function:
    axis = spec.attrs.get("axis", 0)

    def apply(data: Tensor, indices: Tensor) -> Tensor:
        at = indices.long() % data.shape[axis]
        return (
            data.index_select(axis, at.flatten()).unflatten(axis, at.shape)
            if at.dim()
            else data.select(axis, int(at))
        )

    return apply


_BROADCASTING: dict[str, Function] = {
    "Add": _fold(torch.add),
    "And": torch.logical_and,
    "Div": _divide,
    "Equal": torch.eq,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "Max": _fold(torch.maximum),
    "Mean": _mean_of,
    "Min": _fold(torch.minimum),
    "Mul": torch.mul,
    "Or": torch.logical_or,
    "Pow": torch.pow,
    "PRelu": _prelu,
    "Sub": torch.sub,
    "Sum": _fold(torch.add),
    "Where": torch.where,
}
_OF_TENSORS: dict[str, Callable[[Spec], Function]] = {
    **{op: plain(function) for op, function in _BROADCASTING.items()},
    "Concat": _concat,
    "Einsum": _einsum,
    "Gather": _gather,
    "MatMul": plain(torch.matmul),
}


def _slice(spec: Spec) -> Function:
    given, shape = spec.attrs, spec.shapes[0]
    steps = given.get("steps", (1,) * len(given["axes"]))
    ranges = list(zip(given["axes"], given["starts"], given["ends"], steps, strict=True))

    def apply(x: Tensor) -> Tensor:
        for axis, start, end, step in ranges:
            if step > 0:
                x = x[(slice(None),) * axis + (slice(start, end, step),)]
            else:
                rows = list(range(known_size(shape[axis], "Slice"))[start:end:step])
                x = x.index_select(axis, torch.tensor(rows, device=x.device))
        return x

    return apply


def _shuffle(spec: Spec) -> Function:
    return lambda x: x.unflatten(1, (spec.attrs["groups"], -1)).transpose(1, 2).flatten(1, 2)


def _reshape(spec: Spec) -> Function:
    return lambda x: x.reshape(
        [x.shape[i] if size == 0 else size for i, size in enumerate(spec.attrs["shape"])]
    )


def _flatten(spec: Spec) -> Function:
    axis = spec.attrs.get("axis", 1)
    return lambda x: x.reshape(prod(x.shape[:axis]), prod(x.shape[axis:]))


def _expand(spec: Spec) -> Function:
    """Expand; its last operand is the network's input if the batch size is needed."""
    fill, sizes = spec.attrs.get("input"), spec.attrs["shape"]

    def apply(*inputs: Tensor) -> Tensor:
        target = [inputs[-1].shape[0] if size == 0 else size for size in sizes]
        x = (
            inputs[0]
            if fill is None
            else torch.tensor(float(fill), device=inputs[-1].device if inputs else None)
        )
        return x.expand(torch.broadcast_shapes(x.shape, target))

    return apply


def _transpose(spec: Spec) -> Function:
    perm = spec.attrs.get("perm", tuple(range(len(spec.shapes[0])))[::-1])
    return lambda x: x.permute(perm)


def _on_axis(function: Function) -> Callable[[Spec], Function]:
    return lambda spec: partial(function, dim=spec.attrs.get("axis", -1))


def _reduce(function: Function) -> Callable[[Spec], Function]:
    def make(spec: Spec) -> Function:
        axes = spec.attrs.get(
            "axes",
            () if spec.attrs.get("noop_with_empty_axes") else tuple(range(len(spec.shapes[0]))),
        )
        axes = (axes,) if isinstance(axes, int) else axes
        return (
            partial(function, dim=axes, keepdim=bool(spec.attrs.get("keepdims", 1)))
            if axes
            else lambda x: x
        )

    return make


def _norm_of(x: Tensor, dim: tuple[int, ...], keepdim: bool) -> Tensor:
    return x.square().sum(dim, keepdim).sqrt()


def _to_output(spec: Spec) -> Function:
    """Reshape to the known output shape, in which only the batch may be symbolic."""
    unknown = [axis for axis, size in enumerate(spec.output) if isinstance(size, str)]
    if len(unknown) > 1:
        raise InputError(
            f"{spec.op} to shape {spec.output} cannot be trained: fix the model's input size"
        )
    sizes = [-1 if isinstance(size, str) else size for size in spec.output]
    return lambda x: x.reshape(sizes)


_PAD_MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}


def _pad(spec: Spec) -> Function:
    rank, mode = len(spec.shapes[0]), spec.attrs.get("mode", "constant")
    pads, axes = spec.attrs["pads"], spec.attrs.get("axes", tuple(range(rank)))
    axes = (axes,) if isinstance(axes, int) else axes
    whole = [0] * 2 * rank
    for i, axis in enumerate(axes):
        whole[axis], whole[axis + rank] = pads[i], pads[i + len(axes)]
    # Torch supports the other modes along the last dimensions only.
    spatial = whole if mode == "constant" else [*whole[2:rank], *whole[rank + 2 :]]
    if mode != "constant" and any((*whole[:2], *whole[rank : rank + 2])):
        raise InputError(f"Pad of batch or channels in mode {mode} cannot be trained")
    value = float(spec.attrs.get("constant_value", 0)) if mode == "constant" else None
    return partial(
        functional.pad, pad=torch_pads(tuple(spatial)), mode=_PAD_MODES[mode], value=value
    )


def _resize(spec: Spec) -> Function:
    mode, where = (
        spec.attrs.get("mode", "nearest"),
        spec.attrs.get("coordinate_transformation_mode", "half_pixel"),
    )
    size = [known_size(d, "Resize") for d in spec.output[2:]]
    if mode == "nearest" and (where, spec.attrs.get("nearest_mode", "round_prefer_floor")) == (
        "asymmetric",
        "floor",
    ):
        return partial(functional.interpolate, size=size, mode="nearest")
    smooth = {1: "linear", 2: "bilinear", 3: "trilinear"}.get(len(size))
    smoothable = not spec.attrs.get("antialias") and spec.output[1] == spec.shapes[0][1]
    if (
        mode == "linear"
        and smooth
        and smoothable
        and where in ("half_pixel", "pytorch_half_pixel", "align_corners")
    ):
        return partial(
            functional.interpolate, size=size, mode=smooth, align_corners=where == "align_corners"
        )
    raise InputError(
        f"Resize with mode {mode} and coordinates {where} cannot be trained; use linear, or "
        "nearest with asymmetric "
        "coordinates and nearest_mode floor"
    )


def _windows_to_image(spec: Spec) -> Function:
    """Col2Im: sums of overlapping windows."""
    pads = spec.attrs.get("pads", (0, 0, 0, 0))
    if len(pads) != 4 or pads[:2] != pads[2:]:
        raise InputError(
            f"Col2Im with pads {list(pads)} cannot be trained; use images, and equal pads on both "
            "sides"
        )
    return partial(
        functional.fold,
        output_size=spec.attrs["image_shape"],
        kernel_size=spec.attrs["block_shape"],
        dilation=spec.attrs.get("dilations", (1, 1)),
        padding=pads[:2],
        stride=spec.attrs.get("strides", (1, 1)),
    )


def _depth_to_space(spec: Spec) -> Function:
    if spec.attrs.get("mode", "DCR") == "CRD":
        return partial(functional.pixel_shuffle, upscale_factor=spec.attrs["blocksize"])
    size = spec.attrs["blocksize"]

    def apply(x: Tensor) -> Tensor:
        channels = x.shape[1] // size**2
        return functional.pixel_shuffle(
            x.unflatten(1, (size**2, channels)).transpose(1, 2).flatten(1, 2), size
        )

    return apply


def _space_to_depth(spec: Spec) -> Function:
    size = spec.attrs["blocksize"]

    def apply(x: Tensor) -> Tensor:
        return (
            functional.pixel_unshuffle(x, size)
            .unflatten(1, (-1, size**2))
            .transpose(1, 2)
            .flatten(1, 2)
        )

    return apply


def _tile(spec: Spec) -> Function:
    return lambda x: x.repeat(spec.attrs["repeats"])


def _triangle(spec: Spec) -> Function:
    return partial(
        torch.triu if spec.attrs.get("upper", 1) else torch.tril, diagonal=spec.attrs.get("k", 0)
    )


SAMPLEWISE: dict[str, Callable[[Spec], Function]] = {
    op: needs_constants(make)
    for op, make in {
        "ChannelShuffle": _shuffle,
        "Col2Im": _windows_to_image,
        "DepthToSpace": _depth_to_space,
        "Flatten": _flatten,
        "LogSoftmax": _on_axis(functional.log_softmax),
        "Pad": _pad,
        "ReduceL2": _reduce(_norm_of),
        "ReduceMax": _reduce(torch.amax),
        "ReduceMean": _reduce(torch.mean),
        "ReduceMin": _reduce(torch.amin),
        "ReduceSum": _reduce(torch.sum),
        "Reshape": _reshape,
        "Resize": _resize,
        "Slice": _slice,
        "Softmax": _on_axis(functional.softmax),
        "SpaceToDepth": _space_to_depth,
        "Squeeze": _to_output,
        "Tile": _tile,
        "Transpose": _transpose,
        "Trilu": _triangle,
        "Unsqueeze": _to_output,
    }.items()
}
SAMPLEWISE["Expand"] = _expand
SAMPLEWISE |= {
    op: lambda spec, make=make: with_constants(spec, make(spec))  # type: ignore[misc]
    for op, make in _OF_TENSORS.items()
}
