"""Helpers for calls of torch functions within a `TorchFunctionMode`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

_PLAIN = frozenset(
    {int, float, bool, str, type(None)}
)  # lists of these may be too long to visit every item

# Functions whose results are plain values or shapes that depend on the numbers of a tensor.
DATA_DEPENDENT = frozenset(
    {"__bool__", "item", "tolist", "numpy", "__int__", "__float__", "__index__", "__contains__", "equal", "allclose",
     "nonzero", "__array__", "is_nonzero", "unique", "masked_select", "bincount"}
)  # fmt: skip


def without_data(x: Tensor) -> Tensor:
    """A tensor of the same shape and type on the meta device."""
    return x if x.is_meta else torch.empty_like(x, device="meta")


def function_name(func: Any) -> str:
    """The name of a function; for the getter of an attribute, the name of the attribute.

    The method `where` has an underscore, since its operands are not in the order of the function's.
    """
    if func is Tensor.where:
        return "_where"
    name = getattr(func, "__name__", str(func))
    return getattr(func.__self__, "__name__", name) if name == "__get__" else name


def is_in_place(name: str) -> bool:
    """True for the name of a function that changes its first argument: `add_`, `__iadd__`,
    `__setitem__`.
    """
    if name.startswith("__"):
        return name == "__setitem__" or (
            name.startswith("__i")
            and name not in ("__iter__", "__invert__", "__int__", "__index__")
        )
    return name.endswith("_") and not name.startswith("_")


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
    return {k: mapped(change, item) for k, item in x.items()} if type(x) is dict else x


def one_of_each(x: Tensor) -> Tensor:
    """The tensor before expansion: expanded dimensions are reduced to one element."""
    for dim, (size, stride) in enumerate(zip(x.shape, x.stride(), strict=True)):
        x = x if stride or not size else x.narrow(dim, 0, 1)
    return x


def memory(x: Tensor) -> int:
    """The address of a tensor's numbers, which its views share; 0 if it has none, such as tensors
    within vmap.
    """
    try:
        return x.untyped_storage().data_ptr()
    except NotImplementedError:
        return 0


def call_without_data(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a function on the meta device, to which moves to other devices are redirected."""
    name = function_name(func)
    if name in ("cpu", "cuda"):
        return torch.empty_like(args[0], device="meta")
    if name == "to":
        args = (args[0], *["meta" if isinstance(x, str | torch.device) else x for x in args[1:]])
        kwargs = {**kwargs, "device": "meta"} if "device" in kwargs else kwargs
    return func(*mapped(without_data, args), **mapped(without_data, kwargs))


def without_numbers(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Tensor:
    """The result of a function that makes a tensor, without data."""
    with torch.device("meta"):
        made: Tensor = func(*mapped(without_data, args), **mapped(without_data, kwargs))
    return made


def without_dispatch(func: FunctionType) -> Callable[..., Any]:
    """The function with its dispatch to `__torch_function__` disabled, so that the functions it
    calls are recorded.
    """
    never = dict.fromkeys(
        ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"), _no
    )
    made = FunctionType(
        func.__code__,
        {**func.__globals__, **never},
        func.__name__,
        func.__defaults__,
        func.__closure__,
    )
    made.__kwdefaults__ = func.__kwdefaults__
    return made


def _no(*_: Any) -> bool:
    return False
