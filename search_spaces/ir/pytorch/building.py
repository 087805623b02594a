"""Build modules without memory for their weights, on which an architecture does not depend."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.overrides import TorchFunctionMode

from search_spaces.common.errors import InputError
from search_spaces.ir.pytorch.calls import function_name, mapped, tensors_in, without_data

Example = Tensor | Sequence[Any] | Mapping[str, Any]

_RANDOM = frozenset(
    {"uniform_", "normal_", "trunc_normal_", "bernoulli_", "exponential_", "erfinv_", "random_"}
)
_RESHAPING = frozenset(
    {"t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_", "resize_"}
)
_SMALL = 64  # elements; random constants up to this size are part of the architecture


class _WithoutWeights(TorchFunctionMode):
    """Creates the weights of torch's layers on the meta device, and skips their initialization.

    Everything else is computed: masks, positions, rates of stochastic depth, and weights of other
        layers.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        try:
            return self._call(func, args, kwargs or {})
        except RuntimeError as error:
            if "item() cannot be called on meta" not in str(error):
                raise
            raise InputError(
                f"{function_name(func).strip('_')} reads a weight's numbers, but architectures are "
                "built without them: "
                "leave out what depends on them, such as orthogonal parametrizations"
            ) from error

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = getattr(func, "__name__", "")
        if name == "__deepcopy__":  # its argument `memo` may hold many tensors
            return func(*args, **kwargs)
        if name == "__get__":
            attribute = function_name(func)
            if attribute == "device":
                # Not the meta device, so that constants that are created on a weight's device are
                # computed.
                return torch.device("cpu")
            if attribute == "is_meta" and _caller_is_torchs_layer("_load_from_state_dict"):
                # Of the loaded tensor: torch would warn for each weight that the meta device drops
                # it
                return True
            return func(*args, **kwargs)
        if name == "empty" and _caller_is_torchs_layer():
            kwargs = {**kwargs, "device": "meta"}
        elif name.endswith("_") and not name.endswith("__") and name not in _RESHAPING:
            target = args[0] if args else kwargs.get("tensor")
            if isinstance(target, Tensor) and (
                target.is_meta or (name in _RANDOM and _need_not_be_drawn(target))
            ):
                return target
        elif len({x.is_meta for x in tensors_in((args, kwargs))}) > 1:
            return func(*mapped(without_data, args), **mapped(without_data, kwargs))
        return func(*args, **kwargs)


def _caller_is_torchs_layer(method: str = "") -> bool:
    """True if the intercepted function was called by the code of one of torch's layers, in `method`
    if given.
    """
    caller = sys._getframe(3)
    is_torchs = str(caller.f_globals.get("__name__", "")).startswith("torch.nn.modules.")
    return is_torchs and method in ("", caller.f_code.co_name)


def _need_not_be_drawn(target: Tensor) -> bool:
    """False for small constants, and in truncated normal initialization, whose loop needs numbers
    to end.
    """
    return target.numel() > _SMALL and "trunc_normal" not in sys._getframe(3).f_code.co_name


@contextmanager
def without_weights() -> Iterator[None]:
    """Modules built within the block have weights on the meta device: shapes without data."""
    with _WithoutWeights(), torch.no_grad():
        yield


def is_lazy(module: nn.Module) -> bool:
    """True if the module has weights whose shapes follow from the first input, such as those of
    `nn.LazyLinear`.
    """
    return any(isinstance(p, UninitializedParameter) for p in module.parameters())


def run(module: nn.Module, example: Example) -> Any:
    """The module's output for an example input."""
    args, kwargs = arguments(example)
    return module(*args, **kwargs)


def arguments(example: Example) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of an example input: a tensor, a tuple of tensors, or a
    dictionary.
    """
    if isinstance(example, Mapping):
        return (), dict(example)
    return (example,) if isinstance(example, Tensor) else tuple(example), {}
