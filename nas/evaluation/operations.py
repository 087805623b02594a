"""Operators without weights as functions of torch tensors, for one network."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from search_spaces.common.errors import InputError
from search_spaces.graph import standard
from search_spaces.graph.ir import Attrs, Shape
from search_spaces.graph.operators import is_own

Function = Callable[..., Tensor]


class Spec(NamedTuple):
    """A node as a layer is made from it: operator and attributes (as dictionary and as given), shapes, replicas."""

    op: str
    attrs: dict[str, Any]
    given: Attrs
    shapes: tuple[Shape, ...]
    output: Shape
    replicas: int


def keeps_channels(spec: Spec) -> bool:
    """Whether a sample-wise operator never mixes channels, so that it can run on all replicas' channels as they are."""
    if spec.op not in _BROADCASTING or len({shape[:2] for shape in spec.shapes}) != 1:
        return False
    return len(spec.shapes[0]) > 1 and not any(isinstance(value, tuple) for value in spec.attrs.values())


def needs_batch_size(op: str, attrs: Attrs, inputs: int) -> bool:
    """Whether the operator reads the batch size from the network's input, which is then a further operand."""
    return op == "Expand" and is_own(op, inputs) and 0 in dict(attrs)["shape"]  # type: ignore[operator]


def torch_pads(pads: tuple[int, ...]) -> tuple[int, ...]:
    """ONNX's padding (all beginnings, all ends) in torch's order: last dimension first, its two sides together."""
    rank = len(pads) // 2
    return tuple(pad for axis in reversed(range(rank)) for pad in (pads[axis], pads[axis + rank]))


def _known(size: int | str, op: str) -> int:
    if isinstance(size, str):
        raise InputError(f"{op} on a size of {size!r} cannot be trained: fix the model's input size")
    return size


def _with_constants(spec: Spec, function: Function) -> Function:
    """The function of all operands of an ONNX operator, as one of those that are no constants."""
    operands = standard.call(spec.op, spec.given, spec.shapes).operands
    if all(isinstance(operand, int) for operand in operands):
        return function
    constants = [torch.from_numpy(o) if isinstance(o, np.ndarray) else o for o in operands]
    return lambda *inputs: function(
        *[inputs[o] if isinstance(o, int) else o if o is None else o.to(inputs[0].device) for o in constants]
    )


def _needs_constants(make: Callable[[Spec], Function]) -> Callable[[Spec], Function]:
    """For operators whose operands but the first are read as attributes."""

    def checked(spec: Spec) -> Function:
        if len(spec.shapes) != 1:
            raise InputError(f"{spec.op} with operands that are no constants cannot be trained")
        if spec.attrs.get("output", 0):
            raise InputError(f"output {spec.attrs['output']} of {spec.op} cannot be trained; only the first can")
        return make(spec)

    return checked


# --- operators on single elements and on single channels, to which replicas are further channels ----------------------


def _plain(function: Function) -> Callable[[Spec], Function]:
    return lambda spec: function


def _with(function: Function, **names: tuple[str, Any]) -> Callable[[Spec], Function]:
    """A function with arguments from attributes: argument=(attribute, its default)."""
    return lambda spec: partial(function, **{arg: spec.attrs.get(name, d) for arg, (name, d) in names.items()})


def _hard_sigmoid(x: Tensor, alpha: float, beta: float) -> Tensor:
    return torch.clamp(alpha * x + beta, 0, 1)


def _clip(spec: Spec) -> Function:
    return partial(torch.clamp, min=spec.attrs.get("min"), max=spec.attrs.get("max"))


def _over_space(function: Function) -> Callable[[Spec], Function]:
    return lambda spec: partial(function, dim=tuple(range(2, len(spec.shapes[0]))), keepdim=True)


_MAX_POOLS = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
_AVERAGE_POOLS: dict[int, Function] = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}


def _pool(spec: Spec) -> Function:
    """Pooling by torch where it can, by explicit padding where sides differ or windows end beyond the padding."""
    given, rank = spec.attrs, len(spec.shapes[0]) - 2
    kernel, ones = given["kernel_shape"], (1,) * rank
    strides, dilations, pads = (
        given.get("strides", ones),
        given.get("dilations", ones),
        given.get("pads", (0,) * 2 * rank),
    )
    counted = bool(given.get("count_include_pad", 0))
    if given.get("auto_pad", "NOTSET") != "NOTSET" or given.get("storage_order") or rank not in _MAX_POOLS:
        raise InputError(f"{spec.op} can be trained only on up to three dimensions, with explicit pads")
    even = pads[:rank] == pads[rank:] and all(2 * pad <= size for pad, size in zip(pads, kernel, strict=False))
    even = even and dilations == ones and not given.get("ceil_mode", 0)
    if spec.op == "MaxPool":
        pool = partial(_MAX_POOLS[rank], kernel_size=kernel, stride=strides, dilation=dilations)
        if even:
            return partial(pool, padding=pads[:rank])
        around = _around(spec, kernel, strides, dilations, pads)
        return lambda x: pool(functional.pad(x, around, value=-torch.inf))
    mean = partial(_AVERAGE_POOLS[rank], kernel_size=kernel, stride=strides)
    if even:
        return partial(mean, padding=pads[:rank], count_include_pad=counted)
    if dilations != ones:
        raise InputError("AveragePool with dilations cannot be trained; use dilations of 1")
    around = _around(spec, kernel, strides, dilations, pads)
    # The mean is over what counts: the input and, with count_include_pad, its padding, but nothing beyond.
    padding = torch_pads(pads if counted else (0,) * 2 * rank)
    beyond = tuple(total - padded for total, padded in zip(around, padding, strict=True))
    pixels = torch.ones(1, 1, *[_known(d, spec.op) for d in spec.shapes[0][2:]])
    share = mean(functional.pad(functional.pad(pixels, padding, value=1.0), beyond))
    return lambda x: mean(functional.pad(x, around)) / share.to(x)


def _around(
    spec: Spec, kernel: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...], pads: tuple[int, ...]
) -> tuple[int, ...]:
    """Padding that the windows of the known output need; negative at the end where the last elements go unused."""
    ends = []
    for axis, size in enumerate(spec.shapes[0][2:]):
        reach = (_known(spec.output[2 + axis], spec.op) - 1) * strides[axis] + dilations[axis] * (kernel[axis] - 1) + 1
        ends.append(reach - _known(size, spec.op) - pads[axis])
    return torch_pads((*pads[: len(ends)], *ends))


CHANNELWISE: dict[str, Callable[[Spec], Function]] = {
    op: _needs_constants(make)
    for op, make in {
        "Abs": _plain(torch.abs),
        "AveragePool": _pool,
        "Celu": _with(functional.celu, alpha=("alpha", 1.0)),
        "Clip": _clip,
        "Cos": _plain(torch.cos),
        "Elu": _with(functional.elu, alpha=("alpha", 1.0)),
        "Erf": _plain(torch.erf),
        "Exp": _plain(torch.exp),
        "Gelu": _with(functional.gelu, approximate=("approximate", "none")),
        "GlobalAveragePool": _over_space(torch.mean),
        "GlobalMaxPool": _over_space(torch.amax),
        "HardSigmoid": _with(_hard_sigmoid, alpha=("alpha", 0.2), beta=("beta", 0.5)),
        "HardSwish": _plain(functional.hardswish),
        "Identity": _plain(lambda x: x),
        "LeakyRelu": _with(functional.leaky_relu, negative_slope=("alpha", 0.01)),
        "Log": _plain(torch.log),
        "MaxPool": _pool,
        "Mish": _plain(functional.mish),
        "Neg": _plain(torch.neg),
        "Reciprocal": _plain(torch.reciprocal),
        "Relu": _plain(functional.relu),
        "Selu": _with(functional.selu),
        "Sigmoid": _plain(torch.sigmoid),
        "Sin": _plain(torch.sin),
        "Softplus": _plain(functional.softplus),
        "Softsign": _plain(functional.softsign),
        "Sqrt": _plain(torch.sqrt),
        "Tanh": _plain(torch.tanh),
        "Zero": _plain(torch.zeros_like),
    }.items()
}


# --- operators on whole samples --------------------------------------------------------------------------------------


def _fold(function: Function) -> Function:
    """A function of two operands as one of any number, from left to right."""

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
            data.index_select(axis, at.flatten()).unflatten(axis, at.shape) if at.dim() else data.select(axis, int(at))
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
    **{op: _plain(function) for op, function in _BROADCASTING.items()},
    "Concat": _concat,
    "Einsum": _einsum,
    "Gather": _gather,
    "MatMul": _plain(torch.matmul),
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
                rows = list(range(_known(shape[axis], "Slice"))[start:end:step])
                x = x.index_select(axis, torch.tensor(rows, device=x.device))
        return x

    return apply


def _shuffle(spec: Spec) -> Function:
    return lambda x: x.unflatten(1, (spec.attrs["groups"], -1)).transpose(1, 2).flatten(1, 2)


def _reshape(spec: Spec) -> Function:
    return lambda x: x.reshape([x.shape[i] if size == 0 else size for i, size in enumerate(spec.attrs["shape"])])


def _flatten(spec: Spec) -> Function:
    axis = spec.attrs.get("axis", 1)
    return lambda x: x.reshape(prod(x.shape[:axis]), prod(x.shape[axis:]))


def _expand(spec: Spec) -> Function:
    """The last operand is the network's input where the batch size is needed."""
    fill, sizes = spec.attrs.get("input"), spec.attrs["shape"]

    def apply(*inputs: Tensor) -> Tensor:
        target = [inputs[-1].shape[0] if size == 0 else size for size in sizes]
        x = inputs[0] if fill is None else torch.tensor(float(fill), device=inputs[-1].device if inputs else None)
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
            "axes", () if spec.attrs.get("noop_with_empty_axes") else tuple(range(len(spec.shapes[0])))
        )
        axes = (axes,) if isinstance(axes, int) else axes
        return partial(function, dim=axes, keepdim=bool(spec.attrs.get("keepdims", 1))) if axes else lambda x: x

    return make


def _norm_of(x: Tensor, dim: tuple[int, ...], keepdim: bool) -> Tensor:
    return x.square().sum(dim, keepdim).sqrt()


def _to_output(spec: Spec) -> Function:
    """Sizes of 1 added or taken away: only the batch may be unknown."""
    unknown = [axis for axis, size in enumerate(spec.output) if isinstance(size, str)]
    if len(unknown) > 1:
        raise InputError(f"{spec.op} to shape {spec.output} cannot be trained: fix the model's input size")
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
    # Torch reflects and repeats along the last dimensions only.
    spatial = whole if mode == "constant" else [*whole[2:rank], *whole[rank + 2 :]]
    if mode != "constant" and any((*whole[:2], *whole[rank : rank + 2])):
        raise InputError(f"Pad of batch or channels in mode {mode} cannot be trained")
    value = float(spec.attrs.get("constant_value", 0)) if mode == "constant" else None
    return partial(functional.pad, pad=torch_pads(tuple(spatial)), mode=_PAD_MODES[mode], value=value)


def _resize(spec: Spec) -> Function:
    mode, where = spec.attrs.get("mode", "nearest"), spec.attrs.get("coordinate_transformation_mode", "half_pixel")
    size = [_known(d, "Resize") for d in spec.output[2:]]
    if mode == "nearest" and (where, spec.attrs.get("nearest_mode", "round_prefer_floor")) == ("asymmetric", "floor"):
        return partial(functional.interpolate, size=size, mode="nearest")
    smooth = {1: "linear", 2: "bilinear", 3: "trilinear"}.get(len(size))
    plain = not spec.attrs.get("antialias") and spec.output[1] == spec.shapes[0][1]
    if mode == "linear" and smooth and plain and where in ("half_pixel", "pytorch_half_pixel", "align_corners"):
        return partial(functional.interpolate, size=size, mode=smooth, align_corners=where == "align_corners")
    raise InputError(f"Resize by {mode} at {where} cannot be trained; nearest at asymmetric, floor, and linear can")


def _depth_to_space(spec: Spec) -> Function:
    if spec.attrs.get("mode", "DCR") == "CRD":
        return partial(functional.pixel_shuffle, upscale_factor=spec.attrs["blocksize"])
    size = spec.attrs["blocksize"]

    def apply(x: Tensor) -> Tensor:
        channels = x.shape[1] // size**2
        return functional.pixel_shuffle(x.unflatten(1, (size**2, channels)).transpose(1, 2).flatten(1, 2), size)

    return apply


def _space_to_depth(spec: Spec) -> Function:
    size = spec.attrs["blocksize"]

    def apply(x: Tensor) -> Tensor:
        return functional.pixel_unshuffle(x, size).unflatten(1, (-1, size**2)).transpose(1, 2).flatten(1, 2)

    return apply


def _tile(spec: Spec) -> Function:
    return lambda x: x.repeat(spec.attrs["repeats"])


def _triangle(spec: Spec) -> Function:
    return partial(torch.triu if spec.attrs.get("upper", 1) else torch.tril, diagonal=spec.attrs.get("k", 0))


SAMPLEWISE: dict[str, Callable[[Spec], Function]] = {
    op: _needs_constants(make)
    for op, make in {
        "ChannelShuffle": _shuffle,
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
    op: lambda spec, make=make: _with_constants(spec, make(spec))  # type: ignore[misc]
    for op, make in _OF_TENSORS.items()
}
