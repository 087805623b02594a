"""What recorders need to know of torch: element types, names of functions, tensors in arguments,
calls without data. Nothing here depends on a recording.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from search_spaces.common.errors import InputError

# --- element types

_ELEMENTS = {
    torch.float32: "float",
    torch.float64: "double",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.int64: "int64",
    torch.int32: "int32",
    torch.int16: "int16",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.bool: "bool",
}
DTYPES = {name: dtype for dtype, name in _ELEMENTS.items()}
"""torch's type by its name in ONNX text."""


def element(dtype: torch.dtype) -> str:
    """The name of an element type in ONNX text; InputError for a type that is not supported."""
    if dtype not in _ELEMENTS:
        raise InputError(f"elements of type {dtype} are not supported")
    return _ELEMENTS[dtype]


# --- functions

# Functions whose results are plain values or shapes that depend on the numbers of a tensor.
DATA_DEPENDENT = frozenset(
    {
        "__array__",
        "__bool__",
        "__contains__",
        "__float__",
        "__index__",
        "__int__",
        "allclose",
        "bincount",
        "equal",
        "is_nonzero",
        "item",
        "masked_select",
        "nonzero",
        "numpy",
        "tolist",
        "unique",
    }
)

# Functions whose results do not depend on the numbers of a tensor.
DATA_FREE = frozenset(
    {
        "__format__",
        "__hash__",
        "__len__",
        "__repr__",
        "can_cast",
        "data_ptr",
        "dim",
        "element_size",
        "get_device",
        "is_complex",
        "is_conj",
        "is_contiguous",
        "is_floating_point",
        "is_inference",
        "is_neg",
        "is_same_size",
        "is_signed",
        "is_tensor",
        "ndimension",
        "nelement",
        "numel",
        "requires_grad_",
        "result_type",
        "size",
        "storage_offset",
        "stride",
        "type",
        "untyped_storage",
    }
)

SIZES = frozenset({"shape", "size", "numel", "nelement", "__len__"})
VIEWS = frozenset({"T", "mT", "data", "real"})  # attributes that are views of a tensor

# Functions that draw other numbers in every call, and their operators.
RANDOM = {
    "rand": "RandomUniformLike",
    "rand_like": "RandomUniformLike",
    "randn": "RandomNormalLike",
    "randn_like": "RandomNormalLike",
}


def function_name(func: Any) -> str:
    """The name of a function; for the getter of an attribute, the name of the attribute.

    The method `where` has an underscore, since its operands are not in the order of the function's.
    """
    if func is Tensor.where:
        return "_where"
    name = getattr(func, "__name__", str(func))
    return getattr(func.__self__, "__name__", name) if name == "__get__" else name


def is_in_place(name: str) -> bool:
    """True for the name of a function that changes its first argument.

    Such are `add_`, `__iadd__` and `__setitem__`.
    """
    if not name.startswith("__"):
        return name.endswith("_") and not name.startswith("_")
    others = ("__iter__", "__invert__", "__int__", "__index__")
    return name == "__setitem__" or (name.startswith("__i") and name not in others)


# --- arguments

_PLAIN = frozenset({int, float, bool, str, type(None)})
"""Types without tensors: lists of these may be too long to visit every item."""


def tensors_in(x: Any) -> Iterator[Tensor]:
    """The tensors in nested arguments."""
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, tuple | list) and not _PLAIN.issuperset(map(type, x)):
        for item in x:
            yield from tensors_in(item)
    elif isinstance(x, dict):
        for item in x.values():
            yield from tensors_in(item)


def mapped(change: Callable[[Tensor], Tensor], x: Any) -> Any:
    """Nested arguments with `change` applied to every tensor."""
    if isinstance(x, Tensor):
        return change(x)
    if type(x) in (tuple, list):
        return type(x)(mapped(change, item) for item in x)
    if type(x) is dict:
        return {key: mapped(change, item) for key, item in x.items()}
    return x


def one_of_each(x: Tensor) -> Tensor:
    """The tensor before expansion: expanded dimensions are reduced to one element."""
    for dim, (size, stride) in enumerate(zip(x.shape, x.stride(), strict=True)):
        x = x if stride or not size else x.narrow(dim, 0, 1)
    return x


def memory(x: Tensor) -> int:
    """The address of a tensor's numbers, which its views share; 0 if it has none, as in vmap."""
    try:
        return x.untyped_storage().data_ptr()
    except NotImplementedError:
        return 0


# --- calls without data


def without_data(x: Tensor) -> Tensor:
    """A tensor of the same shape and type on the meta device."""
    return x if x.is_meta else torch.empty_like(x, device="meta")


def call_without_data(
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call a function on the meta device, to which moves to other devices are redirected."""
    name = function_name(func)
    if name in ("cpu", "cuda"):
        return torch.empty_like(args[0], device="meta")
    if name == "to":
        rest = ["meta" if isinstance(x, str | torch.device) else x for x in args[1:]]
        args = (args[0], *rest)
        kwargs = {**kwargs, "device": "meta"} if "device" in kwargs else kwargs
    return func(*mapped(without_data, args), **mapped(without_data, kwargs))


def without_numbers(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Tensor:
    """The result of a function that makes a tensor, without data."""
    with torch.device("meta"):
        made: Tensor = func(*mapped(without_data, args), **mapped(without_data, kwargs))
    return made


def without_dispatch(func: FunctionType) -> Callable[..., Any]:
    """The function without its dispatch to `__torch_function__`.

    This way the functions that it calls are recorded.
    """
    checks = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    never = dict.fromkeys(checks, _no)
    opened = FunctionType(
        func.__code__,
        {**func.__globals__, **never},
        func.__name__,
        func.__defaults__,
        func.__closure__,
    )
    opened.__kwdefaults__ = func.__kwdefaults__
    return opened


def _no(*_: Any) -> bool:
    return False
