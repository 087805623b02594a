"""Element types: names in ONNX text, and torch's dtypes."""

from __future__ import annotations

import torch

from search_spaces.common.errors import InputError

_ELEMENTS = {
    torch.float32: "float", torch.float64: "double", torch.float16: "float16", torch.bfloat16: "bfloat16",
    torch.int64: "int64", torch.int32: "int32", torch.int16: "int16", torch.int8: "int8", torch.uint8: "uint8",
    torch.bool: "bool",
}  # fmt: skip
DTYPES = {name: dtype for dtype, name in _ELEMENTS.items()}


def element(dtype: torch.dtype) -> str:
    """The name of an element type in ONNX text; InputError for a type that is not supported."""
    if dtype not in _ELEMENTS:
        raise InputError(f"elements of type {dtype} are not supported")
    return _ELEMENTS[dtype]
