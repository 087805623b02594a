"""torch functions that rearrange elements: shapes, slices, joins, padding, windows."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from search_spaces.common.errors import InputError
from search_spaces.pytorch.recorder import HANDLERS, Recorder, handles

_END = (1 << 63) - 1


def _sizes(args: tuple[Any, ...]) -> list[int]:
    """Sizes given as separate arguments or as one list."""
    found = args[0] if len(args) == 1 and isinstance(args[0], list | tuple) else args
    return [int(size) for size in found]


# --- shapes ----------------------------------------------------------------------------------------------------------


@handles("reshape", "view", "_unsafe_view")
def _reshape(r: Recorder, input: Tensor, *shape: Any, size: Any = None) -> Tensor:
    if shape and isinstance(shape[0], torch.dtype):
        return r.call(Tensor.to, input, shape[0])
    return reshaped(r, input, _sizes(shape if size is None else (size,)))


def reshaped(r: Recorder, x: Tensor, sizes: Sequence[int]) -> Tensor:
    """Reshape to these sizes, of which one may be -1."""
    sizes, before = list(sizes), list(x.shape)
    if -1 in sizes:
        rest = prod(size for size in sizes if size != -1)
        sizes[sizes.index(-1)] = x.numel() // rest if rest else 0
    if prod(sizes) != x.numel():
        raise InputError(f"shape {before} cannot be viewed as {sizes}")
    if sizes == before:
        return r.alias(x)
    if len(sizes) == 2 and len(before) > 2 and sizes[0] == before[0]:
        return r.view_of(x, r.add_node("Flatten", x))
    target = []
    for i, size in enumerate(sizes):
        stays = i < len(before) and size == before[i]
        target.append(0 if stays else -1 if r.is_batch(size) else size)
    return r.view_of(x, r.add_node("Reshape", x, shape=tuple(target)))


@handles("reshape_as", "view_as")
def _reshape_as(r: Recorder, input: Tensor, other: Tensor) -> Tensor:
    return reshaped(r, input, other.shape)


@handles("flatten", "ravel")
def _flatten(r: Recorder, input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    if not input.dim():
        return reshaped(r, input, [1])
    start, end = start_dim % input.dim(), end_dim % input.dim()
    shape = input.shape
    return reshaped(r, input, [*shape[:start], prod(shape[start : end + 1]), *shape[end + 1 :]])


@handles("unflatten")
def _unflatten(r: Recorder, input: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    at, sizes = dim % input.dim(), list(sizes)
    if -1 in sizes:
        sizes[sizes.index(-1)] = input.shape[at] // -prod(sizes)
    return reshaped(r, input, [*input.shape[:at], *sizes, *input.shape[at + 1 :]])


@handles("squeeze")
def _squeeze(r: Recorder, input: Tensor, dim: Any = None) -> Tensor:
    asked = range(input.dim()) if dim is None else (dim,) if isinstance(dim, int) else dim
    axes = tuple([d % input.dim() for d in asked if input.shape[d] == 1])
    return r.view_of(input, r.add_node("Squeeze", input, axes=axes)) if axes else r.alias(input)


@handles("unsqueeze")
def _unsqueeze(r: Recorder, input: Tensor, dim: int) -> Tensor:
    return r.view_of(input, r.add_node("Unsqueeze", input, axes=(dim % (input.dim() + 1),)))


@handles("permute")
def _permute(r: Recorder, input: Tensor, *dims: Any) -> Tensor:
    perm = tuple([d % input.dim() for d in _sizes(dims)])
    if perm == tuple(range(input.dim())):
        return r.alias(input)
    return r.view_of(input, r.add_node("Transpose", input, perm=perm))


@handles("transpose", "swapaxes", "swapdims")
def _transpose(r: Recorder, input: Tensor, dim0: int, dim1: int) -> Tensor:
    order = list(range(input.dim()))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return _permute(r, input, order)


@handles("t", "T", "mT", "adjoint")
def _t(r: Recorder, input: Tensor) -> Tensor:
    return input if input.dim() < 2 else _transpose(r, input, -2, -1)


@handles("movedim", "moveaxis")
def _movedim(r: Recorder, input: Tensor, source: Any, destination: Any) -> Tensor:
    sources, targets = ([d % input.dim() for d in ([x] if isinstance(x, int) else x)] for x in (source, destination))
    order = [d for d in range(input.dim()) if d not in sources]
    for target, d in sorted(zip(targets, sources, strict=True)):
        order.insert(target, d)
    return _permute(r, input, order)


@handles("expand", "broadcast_to")
def _expand(r: Recorder, input: Tensor, *sizes: Any, size: Any = None) -> Tensor:
    wanted = _sizes(sizes if size is None else (size,))
    before = [1] * (len(wanted) - input.dim()) + list(input.shape)
    if all(new in (-1, old) for old, new in zip(before, wanted, strict=True)) and len(before) == input.dim():
        return r.alias(input)
    if any(r.is_batch(new) and new != r.batch for new in wanted):
        raise InputError("expand to a multiple of the batch size is not supported")
    target = tuple([1 if new == -1 else 0 if r.is_batch(new) else new for new in wanted])
    return r.view_of(input, r.add_node("Expand", input, shape=target))


@handles("expand_as")
def _expand_as(r: Recorder, input: Tensor, other: Tensor) -> Tensor:
    if input.shape == other.shape:
        return r.alias(input)
    return _expand(
        r,
        input,
        [
            -1 if old == new != r.batch and r.is_batch(new) else new
            for old, new in zip((1,) * (other.dim() - input.dim()) + tuple(input.shape), other.shape, strict=True)
        ],
    )


# --- parts -----------------------------------------------------------------------------------------------------------


def sliced(r: Recorder, x: Tensor, axis: int, start: int, end: int, step: int = 1) -> Tensor:
    """Elements start to end - 1 along an axis; InputError along the batch."""
    if r.is_constant(x):
        return x[(*[slice(None)] * axis, slice(start, end, step))]
    if (start, end, step) == (0, x.shape[axis], 1):
        return r.alias(x)
    if start >= end and step > 0:  # such as the prefix tokens of a network that has none
        return torch.empty([0 if i == axis else size for i, size in enumerate(x.shape)], dtype=x.dtype)
    given = {"axes": (axis,), "ends": (end,), "starts": (start,)}
    if r.is_batch(x.shape[axis]):
        raise InputError("a slice along the batch is not supported: all samples must be computed alike")
    return r.view_of(
        x, r.add_node("Slice", x, **given) if step == 1 else r.add_node("Slice", x, **given, steps=(step,))
    )


@handles("split", "split_with_sizes")
def _split(
    r: Recorder, tensor: Tensor, split_size_or_sections: Any = None, dim: int = 0, **k: Any
) -> tuple[Tensor, ...]:
    axis, size = dim % tensor.dim(), tensor.shape[dim]
    parts: Any = split_size_or_sections or k.get("split_size") or k.get("split_sizes")
    if isinstance(parts, int):
        parts = [parts] * (size // parts) + ([size % parts] if size % parts else [])
    ends = [sum(parts[: i + 1]) for i in range(len(parts))]
    return tuple(sliced(r, tensor, axis, end - n, end) for n, end in zip(parts, ends, strict=True))


@handles("tensor_split")
def _tensor_split(
    r: Recorder, input: Tensor, indices_or_sections: Any = None, dim: int = 0, *, indices: Any = None,
    sections: int | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Parts that end at these indices, or that many parts, of which the first ones may have one element more."""
    asked = next(v for v in (indices_or_sections, indices, sections) if v is not None)
    axis, size = dim % input.dim(), input.shape[dim]
    if isinstance(asked, int):
        asked = [i * (size // asked) + min(i, size % asked) for i in range(1, asked)]
    ends = [*(slice(0, int(end)).indices(size)[1] for end in asked), size]
    return tuple(sliced(r, input, axis, begin, end) for begin, end in zip([0, *ends[:-1]], ends, strict=True))


@handles("chunk")
def _chunk(r: Recorder, input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    return _split(r, input, -(-input.shape[dim] // chunks), dim)


@handles("unbind", "__iter__")
def _unbind(r: Recorder, input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    axis = dim % input.dim()
    return tuple(_squeeze(r, sliced(r, input, axis, i, i + 1), axis) for i in range(input.shape[axis]))


HANDLERS["__iter__"] = lambda r, input: iter(_unbind(r, input))


@handles("narrow")
def _narrow(r: Recorder, input: Tensor, dim: int, start: int, length: int) -> Tensor:
    return sliced(r, input, dim % input.dim(), start, start + length)


@handles("select")
def _select(r: Recorder, input: Tensor, dim: int, index: int) -> Tensor:
    return r.view_of(input, r.add_node("Gather", input, axis=dim % input.dim(), indices=index))


@handles("__getitem__")
def _getitem(r: Recorder, input: Tensor, index: Any) -> Tensor:
    items = _full_index(input, index)
    x, axis = input, 0
    if sum(isinstance(item, Tensor | list) for item in items) > 1:
        return _picked(r, input, items)
    for item in items:
        if item is None:
            x = _unsqueeze(r, x, axis)
        elif isinstance(item, bool):
            raise InputError("indexing by a boolean is not supported")
        elif isinstance(item, int):
            if r.is_batch(x.shape[axis]):
                raise InputError("an index into the batch is not supported: all samples must be computed alike")
            x = _select(r, x, axis, item)
            continue
        elif isinstance(item, slice):
            size = x.shape[axis]
            start, end, step = (_number(v) for v in (item.start, item.stop, item.step))
            begin, stop, by = slice(start, end, step).indices(size)
            x = sliced(r, x, axis, begin, max(stop, begin), by)
        else:
            x = _gathered(r, x, axis, item)
            axis += (item.dim() if isinstance(item, Tensor) else 1) - 1
        axis += 1
    part = r.alias(x) if x is input else x
    r.parts[id(part)] = (input, items)
    return part


def _number(x: Any) -> int | None:
    return None if x is None else int(x)


def _full_index(x: Tensor, index: Any) -> list[Any]:
    """The index with `...` replaced by full slices."""
    items = list(index) if isinstance(index, tuple) else [index]
    taken = sum(item is not None and item is not Ellipsis for item in items)
    at = next((i for i, item in enumerate(items) if item is Ellipsis), None)
    if at is not None:
        items[at : at + 1] = [slice(None)] * (x.dim() - taken)
    return items


def _gathered(r: Recorder, x: Tensor, axis: int, index: Any) -> Tensor:
    at = torch.tensor(index) if isinstance(index, list) else index
    if at.dtype == torch.bool:
        raise InputError("indexing by a mask depends on the data")
    if r.is_constant(at) and not at.is_meta and at.dim() and at.numel() == 1:  # the axis stays
        alone = r.add_node("Gather", x, axis=axis, indices=(int(at),))
        return reshaped(r, alone, [*x.shape[:axis], *at.shape, *x.shape[axis + 1 :]])
    return r.add("Gather", x, at, axis=axis)


def _picked(r: Recorder, x: Tensor, items: list[Any]) -> Tensor:
    """Elements at several index tensors at once: one per sample, or constant ones on neighbouring axes."""
    whole = slice(None)
    first = next(i for i, item in enumerate(items) if isinstance(item, Tensor | list))
    last = max(i for i, item in enumerate(items) if isinstance(item, Tensor | list))
    if any(item != whole for item in (*items[:first], *items[last + 1 :]) if isinstance(item, slice)) or not all(
        isinstance(item, Tensor) for item in items[first : last + 1]
    ):
        raise InputError("indexing by several tensors together with other indices is not supported")
    tensors = items[first : last + 1]
    if first == 0 and len(tensors) == 2 and _is_every_sample(r, x, tensors[0]) and tensors[1].dim() == 1:
        at = r.call(torch.reshape, tensors[1], (-1, *[1] * (x.dim() - 1)))
        at = r.call(Tensor.expand, at, (-1, -1, *x.shape[2:])) if x.dim() > 2 else at
        return r.call(torch.squeeze, r.call(torch.gather, x, 1, at), 1)
    if (first == 0 and r.is_batch(x.shape[0])) or not all(r.is_constant(t) and t.dtype == torch.int64 for t in tensors):
        raise InputError("indexing by several tensors at once is supported for constants, and for one index per sample")
    sizes, place = x.shape[first : last + 1], torch.zeros((), dtype=torch.int64)
    for t, size in zip(tensors, sizes, strict=True):
        place = place * size + t % size
    flat = reshaped(r, x, [*x.shape[:first], prod(sizes), *x.shape[last + 1 :]])
    return _gathered(r, flat, first, place)


def _is_every_sample(r: Recorder, x: Tensor, index: Tensor) -> bool:
    """True if an index is that of each sample in order."""
    return r.is_constant(index) and index.shape == x.shape[:1] and bool((index == torch.arange(len(x))).all())


@handles("index_select")
def _index_select(r: Recorder, input: Tensor, dim: int, index: Tensor) -> Tensor:
    return _gathered(r, input, dim % input.dim(), index)


@handles("gather", "take_along_dim")
def _gather(r: Recorder, input: Tensor, dim: int, index: Tensor, **_: Any) -> Tensor:
    return r.add_node("GatherElements", input, index, axis=dim % input.dim())


@handles("__setitem__")
def _setitem(r: Recorder, input: Tensor, index: Any, value: Any) -> None:
    """Set elements in place: the tensor becomes a concatenation of kept and new parts."""
    items = _full_index(input, index)
    if r.is_value(value) and id(value) in r.parts:  # x[part] += y changes the part before it sets it
        whole, part = r.parts[id(value)]
        if whole is input and all(isinstance(item, int | slice) for item in part) and part == items:
            r.allow_change(input, value)
    cuts = []
    for axis, item in enumerate(items):
        if not isinstance(item, slice | int) or isinstance(item, bool):
            raise InputError("setting elements by an index other than numbers and slices is not supported")
        begin, end, step = (
            slice(item, item + 1 or None).indices(input.shape[axis])
            if isinstance(item, int)
            else item.indices(input.shape[axis])
        )
        if step != 1:
            raise InputError("setting elements by a slice with a step is not supported")
        if (begin, end) != (0, input.shape[axis]):
            cuts.append((axis, begin, end))
    shape = list(input.shape)
    for axis, begin, end in cuts:
        shape[axis] = end - begin
    given = value if isinstance(value, Tensor) else r.call(torch.full, shape, float(value))
    for axis, item in enumerate(items):
        if isinstance(item, int) and isinstance(value, Tensor) and given.dim() < len(shape):
            given = r.call(Tensor.unsqueeze, given, axis)
    if list(given.shape) != shape:
        given = r.call(Tensor.expand, given, shape)
    r.assign(input, _patched(r, input, cuts, given))


def _patched(r: Recorder, x: Tensor, cuts: list[tuple[int, int, int]], value: Tensor) -> Tensor:
    if not cuts:
        return r.tensor(r.value(value))
    (axis, begin, end), *rest = cuts
    middle = _patched(r, sliced(r, x, axis, begin, end), rest, value)
    parts = [sliced(r, x, axis, 0, begin)] if begin else []
    parts += [middle, *([sliced(r, x, axis, end, x.shape[axis])] if end < x.shape[axis] else [])]
    return _cat(r, parts, axis)


# --- joins -----------------------------------------------------------------------------------------------------------


@handles("cat", "concat", "concatenate")
def _cat(r: Recorder, tensors: Sequence[Tensor], dim: int = 0, *, axis: int | None = None, out: None = None) -> Tensor:
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
def _pad(r: Recorder, input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    count = len(pad) // 2
    if not any(pad):
        return input
    begin, end = [0] * input.dim(), [0] * input.dim()
    for i in range(count):
        begin[-1 - i], end[-1 - i] = pad[2 * i], pad[2 * i + 1]
    kinds = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    attrs = {"constant_value": value} if value and mode == "constant" else {}
    return r.add_node("Pad", input, mode=kinds[mode], pads=(*begin, *end), **attrs)


@handles("roll")
def _roll(r: Recorder, input: Tensor, shifts: Any, dims: Any = None) -> Tensor:
    x = input
    pairs = zip(*[(v,) if isinstance(v, int) else v for v in (shifts, dims)], strict=True)
    for shift, dim in pairs:
        size = x.shape[dim]
        if shift % size:
            cut = size - shift % size
            x = _cat(r, [sliced(r, x, dim % x.dim(), cut, size), sliced(r, x, dim % x.dim(), 0, cut)], dim)
    return x


@handles("flip")
def _flip(r: Recorder, input: Tensor, *dims: Any) -> Tensor:
    axes = tuple([d % input.dim() for d in _sizes(dims)])
    backwards = {"starts": (-1,) * len(axes), "ends": (-_END,) * len(axes), "steps": (-1,) * len(axes)}
    return r.add_node("Slice", input, axes=axes, **backwards)


@handles("repeat", "tile")
def _repeat(r: Recorder, input: Tensor, *repeats: Any, dims: Any = None) -> Tensor:
    times = _sizes(repeats if dims is None else (dims,))
    times = [1] * (input.dim() - len(times)) + times
    x = input
    if len(times) > x.dim():
        x = reshaped(r, x, [1] * (len(times) - x.dim()) + list(x.shape))
    if any(r.is_batch(n) for n in times):
        alone = all(x.shape[i] == 1 and n == r.batch for i, n in enumerate(times) if r.is_batch(n))
        if not alone:
            raise InputError("repeating by the batch size is not supported")
        x = _expand(r, x, [n if r.is_batch(n) else -1 for n in times])
        times = [1 if r.is_batch(n) else n for n in times]
    return r.tensor(r.value(x)) if set(times) == {1} else r.add_node("Tile", x, repeats=tuple(times))


@handles("repeat_interleave")
def _repeat_interleave(r: Recorder, input: Tensor, repeats: int, dim: int | None = None, **_: Any) -> Tensor:
    if not isinstance(repeats, int) or dim is None:
        raise InputError("repeat_interleave needs a number and a dimension")
    at, shape = dim % input.dim(), list(input.shape)
    wide = _expand(r, _unsqueeze(r, input, at + 1), [repeats if i == at + 1 else -1 for i in range(len(shape) + 1)])
    return reshaped(r, wide, [*shape[:at], shape[at] * repeats, *shape[at + 1 :]])


@handles("zeros_like", "ones_like", "full_like", "empty_like")
def _like(r: Recorder, input: Tensor, fill: float = 0, *, dtype: Any = None, name: str = "", **_: Any) -> Tensor:
    small = [1 if r.is_batch(size) else size for size in input.shape]
    return torch.full(small, fill, dtype=dtype or input.dtype).expand(input.shape)


HANDLERS["ones_like"] = lambda r, input, **k: _like(r, input, 1, **k)


@handles("new_zeros", "new_empty", "new_ones", "new_full", "new_tensor")
def _new(r: Recorder, input: Tensor, *size: Any, dtype: Any = None, **_: Any) -> Tensor:
    return r.call(torch.zeros, _sizes(size), dtype=dtype or input.dtype)


HANDLERS["new_ones"] = lambda r, input, *size, dtype=None, **_: r.call(
    torch.ones, _sizes(size), dtype=dtype or input.dtype
)
HANDLERS["new_full"] = lambda r, input, size, fill_value, dtype=None, **_: r.call(
    torch.full, list(size), fill_value, dtype=dtype or input.dtype
)
HANDLERS["new_tensor"] = lambda r, input, data, dtype=None, **_: torch.tensor(data, dtype=dtype or input.dtype)


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
    return reshaped(r, _permute(r, split, 0, 1, 3, 5, 2, 4), [n, c * f * f, h // f, w // f])


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
        scales = [scale_factor] * rank if isinstance(scale_factor, int | float | None) else scale_factor
        target = [int(n * s) for n, s in zip(input.shape[2:], scales, strict=True)] if size is None else size
        return r.call((F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[rank - 1], input, target)
    if mode not in kinds:
        raise InputError(f"interpolate with mode {mode!r} is not supported")
    rounding = "round_prefer_ceil" if mode == "nearest-exact" else "floor"
    attrs: dict[str, Any] = {"mode": kinds[mode], "nearest_mode": rounding, "antialias": int(antialias)}
    if mode == "nearest":
        attrs["coordinate_transformation_mode"] = "asymmetric"
    elif align_corners:
        attrs["coordinate_transformation_mode"] = "align_corners"
    if mode == "bicubic":
        attrs["cubic_coeff_a"] = -0.75
    if size is not None:
        values: list[float] = [size] * rank if isinstance(size, int) else [int(v) for v in size]
        kept = [i for i in range(rank) if values[i] != input.shape[2 + i]]
        name = "sizes"
    else:
        values = [scale_factor] * rank if isinstance(scale_factor, int | float) else list(scale_factor)
        kept = [i for i in range(rank) if values[i] != 1]
        name = "scales"
    if not kept:
        return input
    attrs |= {"axes": tuple([2 + i for i in kept]), name: tuple([values[i] for i in kept])}
    return r.add_node("Resize", input, **attrs)


# --- windows ---------------------------------------------------------------------------------------------------------


@handles("unfold")
def _unfold(r: Recorder, input: Tensor, dimension: Any, size: int = 1, step: int = 1, **image: Any) -> Tensor:
    """`Tensor.unfold`: windows along a dimension, elements along a new last one; or `torch.nn.functional.unfold`."""
    if image:
        return _im2col(r, input, dimension, **image)
    axis = dimension % input.dim()
    windows = _gathered(r, input, axis, _window_places(input.shape[axis], size, step))
    order = [d for d in range(windows.dim()) if d != axis + 1]
    return _permute(r, windows, *order, axis + 1)


def _window_places(length: int, size: int, step: int, dilation: int = 1) -> Tensor:
    """Positions (windows, size) of the elements of every window."""
    starts = torch.arange(0, length - dilation * (size - 1), step)
    return starts[:, None] + torch.arange(0, dilation * size, dilation)


@handles("im2col")
def _im2col(r: Recorder, input: Tensor, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Tensor:
    (kh, kw), (dh, dw), (ph, pw), (sh, sw) = (
        (v, v) if isinstance(v, int) else tuple(v) for v in (kernel_size, dilation, padding, stride)
    )
    x = _pad(r, input, (pw, pw, ph, ph))
    rows, columns = _window_places(x.shape[2], kh, sh, dh).T, _window_places(x.shape[3], kw, sw, dw).T
    x = _gathered(r, _gathered(r, x, 2, rows), 4, columns)
    n, c, *_ = x.shape
    return reshaped(r, _permute(r, x, 0, 1, 2, 4, 3, 5), [n, c * kh * kw, rows.shape[1] * columns.shape[1]])


@handles("col2im")
def _col2im(
    r: Recorder, input: Tensor, output_size: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any
) -> Tensor:
    image, kernel, dilations, pads, strides = (
        (v, v) if isinstance(v, int) else tuple(v) for v in (output_size, kernel_size, dilation, padding, stride)
    )
    attrs = {"dilations": dilations, "pads": (*pads, *pads), "strides": strides}
    return r.add_node("Col2Im", input, image_shape=image, block_shape=kernel, **attrs)


@handles("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def _grid_sample(
    r: Recorder, input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    mode, padding = ("linear", "nearest", "cubic")[interpolation_mode], ("zeros", "border", "reflection")[padding_mode]
    return r.add_node("GridSample", input, grid, mode=mode, padding_mode=padding, align_corners=int(align_corners))
