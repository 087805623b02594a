"""Element types of torch tensors: conversions between them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from search_spaces.ir import standard
from search_spaces.ir.pytorch.calls import one_of_each
from search_spaces.ir.pytorch.dtypes import element
from search_spaces.ir.pytorch.recorder import HANDLERS, Recorder, handles


def cast(r: Recorder, x: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Convert a tensor to another element type; None keeps its own."""
    return (
        x
        if dtype is None or x.dtype == dtype
        else r.add("Cast", x, to=standard.enum(element(dtype)))
    )


def converted(r: Recorder, x: Tensor, dtype: torch.dtype) -> Tensor:
    """As `cast`; constants stay constants."""
    if x.dtype == dtype:
        return x
    if r.is_constant(x) and not x.is_meta:
        return one_of_each(x).to(dtype).expand(x.shape)  # a constant for all samples may be huge
    return cast(r, x, dtype)


def widened(r: Recorder, x: Tensor, *bounds: object) -> Tensor:
    """The tensor; if it has integers and a bound is a float, converted to floating point."""
    if x.is_floating_point() or not any(isinstance(bound, float) for bound in bounds):
        return x
    return cast(r, x, torch.get_default_dtype())


@handles("to", "type", "type_as")
def _to(
    r: Recorder, input: Tensor, *args: Any, dtype: torch.dtype | None = None, **_: Any
) -> Tensor:
    like = [argument for argument in args if isinstance(argument, Tensor)]
    for argument in (*args, *[x.dtype for x in like]):
        if isinstance(argument, torch.dtype):
            dtype = argument
    if dtype is not None and any(r.is_value(x) for x in like):
        return converted(r, input, dtype)  # a constant as another tensor stays one
    return cast(r, input, dtype)


_TYPES = {
    "float": torch.float32, "half": torch.float16, "double": torch.float64, "bfloat16": torch.bfloat16,
    "long": torch.int64, "int": torch.int32, "bool": torch.bool, "short": torch.int16, "byte": torch.uint8,
}  # fmt: skip
HANDLERS.update(
    {name: lambda r, x, *_, d=dtype, **__: cast(r, x, d) for name, dtype in _TYPES.items()}
)
