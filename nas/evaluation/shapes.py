"""Modules without data: names and shapes of their tensors, at no cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


@contextmanager
def without_data() -> Iterator[None]:
    """A context in which modules are made on the meta device, and no initial weights are drawn.

    On this device, torch imports its compiler to draw normal numbers, which takes longer than all the rest.
    """
    with torch.device("meta"), _NoInitialWeights():
        yield


class _NoInitialWeights(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable, types: Sequence[type], args: tuple = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func is torch.Tensor.normal_ or getattr(func, "__module__", "") == "torch.nn.init":
            return given["tensor"] if "tensor" in given else args[0]
        return func(*args, **given)
