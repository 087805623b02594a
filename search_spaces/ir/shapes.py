"""Output shapes of the `net` domain's operators and of the most frequent ONNX operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from search_spaces.common.errors import InputError
from search_spaces.ir import standard
from search_spaces.ir.convolutions import CONVOLUTIONS, convolution, each
from search_spaces.ir.dimensions import known_size, monomial, positive, size_product, size_quotient
from search_spaces.ir.graph import BATCH, UNKNOWN, Attrs, Dim, Shape, element_type, typed


def _window(
    size: Dim,
    kernel: int,
    stride: int,
    pads: tuple[int, int],
    dilation: int = 1,
    ceil: bool = False,
) -> Dim:
    """Number of windows along one dimension; with `ceil` the last may end beyond the padding, but
    not begin in it.
    """
    if isinstance(size, str):
        keeps = stride == 1 and sum(pads) == dilation * (kernel - 1)
        return size if keeps else UNKNOWN
    room = size + sum(pads) - dilation * (kernel - 1) - 1
    if room < 0:
        raise InputError(f"a window of {kernel} does not fit into {size} with padding {pads}")
    count = (-(-room // stride) if ceil else room // stride) + 1
    return count - 1 if ceil and (count - 1) * stride >= size + pads[0] else count


def _conv_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    c = convolution(attrs, shapes[0])
    rank = len(c.kernel)
    spatial = (
        _window(size, c.kernel[i], c.strides[i], (c.pads[i], c.pads[i + rank]), c.dilations[i])
        for i, size in enumerate(shapes[0][2:])
    )
    return (shapes[0][0], c.channels, *spatial)


def _pool_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    given: dict[str, Any] = dict(attrs)
    rank = len(shapes[0]) - 2
    kernel, strides, dilations = (
        each(given.get(n, 1), rank) for n in ("kernel_shape", "strides", "dilations")
    )
    pads, ceil = given.get("pads", (0,) * 2 * rank), bool(given.get("ceil_mode", 0))
    if "kernel_shape" not in given or min(*kernel, *strides, *dilations) < 1 or "auto_pad" in given:
        raise InputError(f"a pooling operator needs positive sizes and explicit pads, not {given}")
    spatial = (
        _window(size, kernel[i], strides[i], (pads[i], pads[i + rank]), dilations[i], ceil)
        for i, size in enumerate(shapes[0][2:])
    )
    return (*shapes[0][:2], *spatial)


def broadcast_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    """The shape to which inputs broadcast; InputError if they do not."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    return tuple([_broadcast_dim(dims, shapes) for dims in zip(*padded, strict=True)])


def _broadcast_dim(dims: tuple[Dim, ...], shapes: tuple[Shape, ...]) -> Dim:
    sizes = {d for d in dims if d != 1}
    if len(sizes) > 1 and UNKNOWN in sizes:
        sizes.discard(UNKNOWN)
    if len(sizes) > 1:
        raise InputError(f"shapes {', '.join(map(str, shapes))} do not broadcast together")
    return sizes.pop() if sizes else 1


def _same_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    return shapes[0]


def _concat_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    axis = int(dict(attrs)["axis"])  # type: ignore[arg-type]
    dims = [set(sizes) - {UNKNOWN} or {UNKNOWN} for sizes in zip(*shapes, strict=True)]
    parts: list[Dim] = [s[axis] for s in shapes]
    total: Dim = sum(d for d in parts if isinstance(d, int))
    if any(isinstance(d, str) for d in parts):
        total = parts[0] if len(parts) == 1 else UNKNOWN
    dims[axis] = {total}
    if any(len(sizes) > 1 for sizes in dims):
        raise InputError(f"shapes {', '.join(map(str, shapes))} cannot be joined along axis {axis}")
    return tuple([sizes.pop() for sizes in dims])


def _flatten_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    axis = int(dict(attrs).get("axis", 1))  # type: ignore[arg-type]
    return (size_product(shapes[0][:axis]), size_product(shapes[0][axis:]))


def _linear_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    return (*shapes[0][:-1], positive(attrs, "features"))


def _pooled_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    return (*shapes[0][:2], *[1 for _ in shapes[0][2:]])


def _param_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    given: dict[str, Any] = dict(attrs)
    if not all(isinstance(d, int) and d >= 0 for d in given["shape"]):
        raise InputError(
            f"Param and Buffer: shape must be whole numbers from 0, not {given['shape']}"
        )
    return typed(given["shape"], given.get("element", "float"))


def _shuffle_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    groups = positive(attrs, "groups")
    if known_size(shapes[0][1]) % groups:
        raise InputError(f"ChannelShuffle: {groups} groups must divide {shapes[0][1]} channels")
    return shapes[0]


def _slices(attrs: Attrs, shape: Shape) -> dict[int, tuple[int, int, int]]:
    """Start, end and step per axis, in order of the axes; counted from the front if the axis has a
    known size.
    """
    given: dict[str, Any] = dict(attrs)
    starts, ends = given["starts"], given["ends"]
    axes, steps = given.get("axes", range(len(starts))), given.get("steps", (1,) * len(starts))
    ranges = {}
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        size = shape[axis]
        if not -len(shape) <= axis < len(shape) or step == 0:
            raise InputError(f"Slice along axis {axis} with step {step} does not fit shape {shape}")
        if isinstance(size, int):
            start, end, _ = slice(start, end, step).indices(size)
            if not range(start, end, step):
                raise InputError(
                    f"Slice from {start} to {end} is empty: dimension {size} (axis {axis})"
                )
            end = end if end >= 0 else -size - 1
        ranges[axis % len(shape)] = (start, end, step)
    return dict(sorted(ranges.items()))


def _slice_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    dims = list(shapes[0])
    for axis, (start, end, step) in _slices(attrs, shapes[0]).items():
        size = dims[axis]
        if isinstance(size, int):
            dims[axis] = len(range(size)[start:end:step])
        elif (start, step) != (0, 1) or end < 1 << 31:
            dims[axis] = UNKNOWN
    return tuple(dims)


def slice_attrs(attrs: Attrs, shape: Shape) -> Attrs:
    """Canonical attributes of a Slice of an input of this shape."""
    ranges = _slices(attrs, shape)
    starts, ends, steps = (tuple(r[i] for r in ranges.values()) for i in range(3))
    kept: Attrs = (("axes", tuple(ranges)), ("ends", ends), ("starts", starts))
    return kept if set(steps) <= {1} else (*kept, ("steps", steps))


def _reshape_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    given: dict[str, Any] = dict(attrs)
    (shape,) = shapes
    if given.get("allowzero"):
        raise InputError(
            "Reshape with allowzero = 1 is not supported: a dimension of 0 holds no values"
        )
    dims = [shape[i] if size == 0 else size for i, size in enumerate(given["shape"])]
    if dims.count(-1) > 1 or any(isinstance(d, int) and d < -1 for d in dims):
        raise InputError(f"Reshape to {given['shape']}: sizes are positive, 0 or at most one -1")
    if -1 in dims:
        dims[dims.index(-1)] = size_quotient(shape, tuple(d for d in dims if d != -1))
    if UNKNOWN not in (*dims, *shape) and monomial(tuple(dims)) != monomial(shape):
        raise InputError(f"Reshape from {shape} to {tuple(dims)} changes the number of values")
    return tuple(dims)


def reshape_attrs(attrs: Attrs, shape: Shape) -> Attrs:
    """Canonical attributes of a Reshape of an input of this shape: 0 keeps a dimension, -1 is an
    unknown one.
    """
    given: dict[str, Any] = dict(attrs)
    sizes: list[int] = []
    for i, (size, dim) in enumerate(
        zip(given["shape"], _reshape_shape(attrs, (shape,)), strict=True)
    ):
        stays = i < len(shape) and dim == shape[i] and (dim != UNKNOWN or size == 0)
        sizes.append(0 if stays else dim if isinstance(dim, int) else -1)
    return (("shape", tuple(sizes)),)


def _expand_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    given: dict[str, Any] = dict(attrs)
    target = tuple([BATCH if size == 0 else size for size in given["shape"]])
    if any(isinstance(d, int) and d < 1 for d in target) or len(shapes) + ("input" in given) != 1:
        raise InputError(
            f"Expand takes one input and a shape of positive sizes (0: the batch), not {given}"
        )
    return broadcast_shape((), (*shapes, target))


def _transpose_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    given: dict[str, Any] = dict(attrs)
    perm = given.get("perm", range(len(shapes[0]))[::-1])
    if sorted(perm) != list(range(len(shapes[0]))):
        raise InputError(f"Transpose by {list(perm)} does not fit shape {shapes[0]}")
    return tuple([shapes[0][axis] for axis in perm])


def _embedding_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    if element_type(shapes[0]) not in ("int32", "int64") or not positive(attrs, "rows"):
        raise InputError(f"Embedding needs integers as input, not {element_type(shapes[0])}")
    return (*shapes[0], positive(attrs, "features"))


def _resize_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    given: dict[str, Any] = dict(attrs)
    if (
        len(shapes) != 1
        or given.get("keep_aspect_ratio_policy", "stretch") != "stretch"
        or "axes" not in given
    ):
        return standard.infer("Resize", attrs, shapes)
    dims = list(shapes[0])
    for i, axis in enumerate(given["axes"]):
        dims[axis] = (
            given["sizes"][i]
            if "sizes" in given
            else int(known_size(dims[axis]) * given["scales"][i])
        )
    return tuple(dims)


def _col2im_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    found = standard.infer("Col2Im", attrs, shapes)
    return (shapes[0][0], *found[1:])  # ONNX does not infer the batch size


def _tile_shape(attrs: Attrs, shapes: tuple[Shape, ...]) -> Shape:
    given: dict[str, Any] = dict(attrs)
    if "repeats" not in given:
        return standard.infer("Tile", attrs, shapes)
    return tuple(
        [
            size_product((size, times))
            for size, times in zip(shapes[0], given["repeats"], strict=True)
        ]
    )


SHAPES: dict[str, Callable[[Attrs, tuple[Shape, ...]], Shape]] = {
    **dict.fromkeys(CONVOLUTIONS, _conv_shape),
    "Linear": _linear_shape,
    "Embedding": _embedding_shape,
    "Param": _param_shape,
    "Buffer": _param_shape,
    "MaxPool": _pool_shape,
    "AveragePool": _pool_shape,
    "GlobalAveragePool": _pooled_shape,
    "Concat": _concat_shape,
    "Flatten": _flatten_shape,
    "ChannelShuffle": _shuffle_shape,
    "Slice": _slice_shape,
    "Reshape": _reshape_shape,
    "Expand": _expand_shape,
    "Transpose": _transpose_shape,
    "Resize": _resize_shape,
    "Tile": _tile_shape,
    "Col2Im": _col2im_shape,
    **dict.fromkeys(["Add", "Sum", "Mul", "Sub", "Div", "Max", "Min"], broadcast_shape),
    **dict.fromkeys(
        [
            "BatchNorm",
            "Zero",
            "Relu",
            "Identity",
            "Sigmoid",
            "HardSigmoid",
            "HardSwish",
            "Clip",
            "Tanh",
            "Softmax",
        ],
        _same_shape,
    ),
    "GroupNormalization": _same_shape,  # ONNX does not infer its shape
}
