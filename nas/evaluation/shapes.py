"""Builds modules without data, to read names and shapes of their tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


@contextmanager
def without_data() -> Iterator[None]:
    """Create modules on the meta device, and skip the initialization of their weights.

    To draw normal numbers on the meta device, torch would import its compiler, which takes longer
    than all the rest.
    """
    with torch.device("meta"), _NoInitialWeights():
        yield


class _NoInitialWeights(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable,
        types: Sequence[type],
        args: tuple = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        if func is torch.Tensor.normal_ or getattr(func, "__module__", "") == "torch.nn.init":
            return given["tensor"] if "tensor" in given else args[0]
        return func(*args, **given)
