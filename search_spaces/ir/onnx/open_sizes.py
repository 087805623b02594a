"""Sizes of a model's inputs that the file leaves open: which is the batch size, and how to fix the
others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import onnx

from search_spaces.common.errors import InputError
from search_spaces.ir.graph import BATCH, Dim

_WITH_SIZES = re.compile(r"(.+\.onnx)@(\d+(?:x\d+)*)")
_UNNAMED = re.compile(r"(.*) (\d+)")  # name that `dimensions` gives to an open size without one
_TOOL = "python -m onnxruntime.tools.make_dynamic_shape_fixed"
_IMAGE_RANK = 4
_SHOWN = 4  # open sizes named in a message


def split_sizes(source: str) -> tuple[str, tuple[int, ...]]:
    """FILE.onnx@SIZES as the file and its sizes: `net.onnx@320`, `net.onnx@3x320x320`; other names
    have none.

    Raises:
        InputError: if a size is 0.
    """
    matched = _WITH_SIZES.fullmatch(source)
    if matched is None:
        return source, ()
    sizes = tuple(map(int, matched[2].split("x")))
    if 0 in sizes:
        raise InputError(f"{source}: sizes must be at least 1")
    return matched[1], sizes


def dimensions(info: onnx.ValueInfoProto) -> list[Dim]:
    """The dimensions of an input: numbers, or names of open sizes; -1 and "?" are open, as in ONNX
    Runtime.

    Raises:
        InputError: if the input has no shape, or a size that no value can have.
    """
    tensor = info.type.tensor_type
    if info.type.WhichOneof("value") not in (None, "tensor_type"):
        raise InputError(
            f"input {info.name!r} is not a tensor with a shape, but a sequence or an optional value"
        )
    if not tensor.HasField("shape"):
        raise InputError(
            f"input {info.name!r} is not a tensor with a shape: give it one with python -m "
            f"onnxruntime.tools.make_dynamic_shape_fixed --input_name {info.name} --input_shape "
            "1,3,224,224"
        )
    dims: list[Dim] = []
    for i, dim in enumerate(tensor.shape.dim):
        named = dim.dim_param if dim.dim_param not in ("", "?") else f"{info.name} {i}"
        size: Dim = dim.dim_value if dim.HasField("dim_value") and dim.dim_value != -1 else named
        if isinstance(size, int) and size < 1:
            raise InputError(
                f"input {info.name!r} has a dimension of size {size}: it must be positive, or -1 "
                "if open"
            )
        dims.append(size)
    return dims


def batch_size(inputs: Iterable[Sequence[Dim]]) -> Dim | None:
    """The dimension that is the batch size: N, one named so, or the first open one in front; None
    if there is none.
    """
    shapes = list(inputs)
    names = [dim for dims in shapes for dim in dims if isinstance(dim, str)]
    if BATCH in names:
        return BATCH
    first = [dims[0] for dims in shapes if dims and isinstance(dims[0], str)]
    return next((name for name in names if "batch" in name.lower()), next(iter(first), None))


def with_sizes(model: onnx.ModelProto, sizes: Sequence[int]) -> onnx.ModelProto:
    """Fix open sizes of a model in place, except the batch size.

    Args:
        model: the model.
        sizes: one number for all open sizes, one for each in order, or the shape of the first input
            without the batch.

    Raises:
        InputError: if there is no open size, or the numbers do not fit.
    """
    inputs = _inputs(model)
    shapes = [dimensions(info) for info in inputs]
    names, batch = open_names(model), batch_size(shapes)
    first = shapes[0][1:] if shapes else []
    written = "x".join(map(str, sizes))
    if not names:
        raise InputError(f"@{written}: all sizes but the batch's are fixed already: leave it out")
    fixed: dict[str, int] = {}
    if len(sizes) == 1:
        fixed = dict.fromkeys(names, sizes[0])
    elif len(sizes) == len(first):
        if any(
            isinstance(dim, int) and dim != size for dim, size in zip(first, sizes, strict=True)
        ):
            raise InputError(
                f"@{written} does not fit the input, which has the sizes {_listed(first)}"
            )
        fixed = {dim: size for dim, size in zip(first, sizes, strict=True) if isinstance(dim, str)}
    elif len(sizes) == len(names):
        fixed = dict(zip(names, sizes, strict=True))
    else:
        raise InputError(
            f"@{written} does not fit: the input has the sizes {_listed(first)}, open are "
            f"{_named(names)}"
        )
    for info, dims in zip(inputs, shapes, strict=True):
        for dim, name in zip(info.type.tensor_type.shape.dim, dims, strict=True):
            if isinstance(name, str) and name in fixed and name != batch:
                dim.dim_value = fixed[name]
    return model


def open_names(model: onnx.ModelProto) -> list[str]:
    """Names of the open sizes of a model's inputs other than the batch size, in order."""
    shapes = [dimensions(info) for info in _inputs(model)]
    batch = batch_size(shapes)
    return list(
        dict.fromkeys(d for dims in shapes for d in dims if isinstance(d, str) and d != batch)
    )


def remedy(model: onnx.ModelProto, message: str = "") -> str:
    """What somebody who has only the file can do about open sizes; "" if there are none.

    Args:
        model: the model.
        message: the error; the batch size is a remedy only if it says that a size "is open".
    """
    inputs = _inputs(model)
    try:
        names = open_names(model)
        batch = batch_size([dimensions(info) for info in inputs])
    except InputError:
        return ""
    if not names and isinstance(batch, str) and "is open" in message:
        return (
            f"fix the size {batch!r} by {_TOOL} --dim_param {batch} --dim_value 128 FILE.onnx "
            "FIXED.onnx"
        )
    if not names:
        return ""
    info = next(i for i in inputs if names[0] in dimensions(i))
    dims = dimensions(info)
    example = 320 if len(dims) >= _IMAGE_RANK else 128
    if any(name == f"{info.name} {i}" for i, name in enumerate(dims)):
        shape = ",".join(
            str(dim if isinstance(dim, int) else 1 if i == 0 else example)
            for i, dim in enumerate(dims)
        )
        options = f"--input_name {info.name} --input_shape {shape}"
    else:
        options = f"--dim_param {names[0]} --dim_value {example}"
    several = "s" if len(names) > 1 else ""
    return (
        f"the file leaves the size{several} {_named(names)} open: fix "
        f"{'them' if several else 'it'} with "
        f"FILE.onnx@{example}, or by {_TOOL} {options} FILE.onnx FIXED.onnx"
    )


def _inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    stored = {tensor.name for tensor in model.graph.initializer}
    return [info for info in model.graph.input if info.name not in stored]


def _named(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    shown = [
        _UNNAMED.sub(r"dimension \2 of '\1'", name) if _UNNAMED.fullmatch(name) else repr(name)
        for name in names
    ]
    return ", ".join(shown[:_SHOWN]) + rest


def _listed(dims: Sequence[Dim]) -> str:
    return "x".join(map(str, dims)) or "(none)"
