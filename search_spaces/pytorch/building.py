"""Building modules whose weights are never filled: a network's architecture does not depend on them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.overrides import TorchFunctionMode

from search_spaces.pytorch.calls import function_name, mapped, tensors_in, without_data

Example = Tensor | Sequence[Any] | Mapping[str, Any]

_RANDOM = frozenset({"uniform_", "normal_", "trunc_normal_", "bernoulli_", "exponential_", "erfinv_", "random_"})
_SMALL = 64  # numbers; smaller constants are part of the architecture even where they are drawn


class _WithoutWeights(TorchFunctionMode):
    """torch's own layers make their weights on the meta device, and nothing fills them.

    Everything else is computed as it stands: masks, positions, rates of stochastic depth, and weights of other layers.
    """

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__deepcopy__":  # its memo holds all that was copied so far
            return func(*args, **kwargs)
        if name == "__get__":
            # Not the weights' own, so that what is computed beside them is computed for real.
            return torch.device("cpu") if function_name(func) == "device" else func(*args, **kwargs)
        if name == "empty" and sys._getframe(1).f_globals.get("__name__", "").startswith("torch.nn.modules."):
            kwargs = {**kwargs, "device": "meta"}
        elif name.endswith("_") and not name.endswith("__"):
            target = args[0] if args else kwargs.get("tensor")
            if isinstance(target, Tensor) and (target.is_meta or (name in _RANDOM and _need_not_be_drawn(target))):
                return target
        elif len({x.is_meta for x in tensors_in((args, kwargs))}) > 1:
            return func(*mapped(without_data, args), **mapped(without_data, kwargs))
        return func(*args, **kwargs)


def _need_not_be_drawn(target: Tensor) -> bool:
    """False for small constants, and where numbers are drawn again until they lie within bounds: it would never end."""
    return target.numel() > _SMALL and "trunc_normal" not in sys._getframe(2).f_code.co_name


@contextmanager
def without_weights() -> Iterator[None]:
    """Modules that are built inside have the shapes of their weights, but no numbers: as fast as it gets."""
    with _WithoutWeights(), torch.no_grad():
        yield


def is_lazy(module: nn.Module) -> bool:
    """True if the module has weights whose shapes follow from the first input, such as those of `nn.LazyLinear`."""
    return any(isinstance(p, UninitializedParameter) for p in module.parameters())


def run(module: nn.Module, example: Example) -> Any:
    """What the module gives for an example input."""
    args, kwargs = arguments(example)
    return module(*args, **kwargs)


def arguments(example: Example) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of an example input: a tensor, a tuple of tensors, or a dictionary."""
    if isinstance(example, Mapping):
        return (), dict(example)
    return (example,) if isinstance(example, Tensor) else tuple(example), {}
