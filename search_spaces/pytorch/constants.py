"""Constants, which depend neither on inputs nor on weights: they are computed, and added to the graph when used."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from search_spaces.common.errors import InputError
from search_spaces.graph.ir import Attrs, typed
from search_spaces.onnx.constants import add_buffer, add_constant, add_filled, can_fill
from search_spaces.onnx.folding import Known
from search_spaces.pytorch.calls import one_of_each
from search_spaces.pytorch.dtypes import element

if TYPE_CHECKING:
    import numpy as np

IsBatch = Callable[[int], bool]  # whether a size is a multiple of the batch size

_FACTORIES = {"zeros": 0, "ones": 0, "full": 0, "empty": 0, "rand": 0, "randn": 0}
_METHODS = {"new_zeros": 1, "new_ones": 1, "new_full": 1, "new_empty": 1}


def compute(is_batch: IsBatch, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
    """Compute a function of constants; tensors of batch size are filled for one sample and expanded."""
    if "device" in kwargs:
        kwargs = {**kwargs, "device": "cpu"}
    at = _FACTORIES.get(name, _METHODS.get(name))
    sizes: tuple[Any, ...] = kwargs.get("size", args[at:]) if at is not None else ()
    sizes = tuple(sizes[0]) if len(sizes) and isinstance(sizes[0], tuple | list) else tuple(sizes)
    if at is None or not any(isinstance(size, int) and is_batch(size) for size in sizes):
        return func(*args, **kwargs)
    rest = args[at + 1 :] if len(args) > at and isinstance(args[at], tuple | list) else ()
    small = [1 if is_batch(size) else size for size in sizes]
    given = {name: value for name, value in kwargs.items() if name != "size"}
    return func(*args[:at], small, *rest, **given).expand(sizes)


class Recorder(Protocol):
    """The methods of `search_spaces.pytorch.recorder.Recorder` that add constants to a graph."""

    def emit(self, op: str, inputs: tuple[int, ...], attrs: Attrs) -> int: ...

    def is_batch(self, size: int) -> bool: ...

    def keep(self, *numbers: Callable[[], Tensor]) -> None: ...


def add(recorder: Recorder, x: Tensor) -> int:
    """Add a constant to the graph; return the number of its value.

    Raises:
        InputError: if it differs between the samples of a batch.
    """
    kind, batched = element(x.dtype), [i for i, size in enumerate(x.shape) if recorder.is_batch(size)]
    if x.is_meta:
        return _add_buffer(recorder, x, None)
    if batched:
        one, distinct = x, one_of_each(x)
        for axis in batched:
            one = one.narrow(axis, 0, 1)
        if not bool((distinct == one).all()):
            raise InputError("a constant differs between the samples of a batch")
        target = tuple([0 if i in batched else size for i, size in enumerate(x.shape)])
        fill = one.reshape(-1)[0].item()
        if bool((one == fill).all()) and can_fill(fill, kind):
            return add_filled(recorder.emit, fill, target, kind)
        return recorder.emit("Expand", (add(recorder, one),), (("shape", target),))
    array = x.detach().numpy() if x.dtype != torch.bfloat16 else x.detach().float().numpy()
    value = add_constant(recorder.emit, Known(typed(array.shape, kind), (array, array)))
    return _add_buffer(recorder, x, array) if value is None else value


def _add_buffer(recorder: Recorder, x: Tensor, array: np.ndarray | None) -> int:
    recorder.keep(lambda: x)
    return add_buffer(recorder.emit, typed(x.shape, element(x.dtype)), array)
