"""Constants, which depend neither on inputs nor on weights: they are computed (`compute`), and added
to the graph when they are used (`add`).

A constant may have a dimension of the batch size, which is thousands of samples. All of them must be
equal; then one is computed, or two, and expanded without memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from search_spaces.common.errors import InputError
from search_spaces.ir.constants import Known, add_buffer, add_constant, add_filled, can_fill
from search_spaces.ir.graph import Attrs, typed
from search_spaces.ir.pytorch.calls import (
    element,
    mapped,
    memory,
    one_of_each,
    tensors_in,
    without_data,
)

if TYPE_CHECKING:
    import numpy as np

# Functions that make tensors, and the place of the sizes among their arguments.
_FACTORIES = {
    "zeros": 0,
    "ones": 0,
    "full": 0,
    "empty": 0,
    "rand": 0,
    "randn": 0,
    "new_zeros": 1,
    "new_ones": 1,
    "new_full": 1,
    "new_empty": 1,
}
# Functions whose numbers are sizes.
_SIZED = frozenset(
    {
        "broadcast_to",
        "expand",
        "flatten",
        "repeat",
        "repeat_interleave",
        "reshape",
        "tile",
        "view",
    }
)
_LARGE = 1 << 20  # elements; larger constants are computed for two samples if these are equal


# --- computing


def compute(
    batch: int | None,
    name: str,
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Any,
) -> Any:
    """Compute a function of constants.

    Tensors of batch size are filled for one sample and expanded.
    """
    if "device" in kwargs:
        kwargs = {**kwargs, "device": "cpu"}
    if name in _FACTORIES:
        made = _of_one_sample(batch, _FACTORIES[name], func, args, kwargs)
        if made is not None:
            return made
    if batch:
        made = _of_two_samples(batch, name, func, args, kwargs)
        if made is not None:
            return made
    return func(*args, **kwargs)


def _of_one_sample(
    batch: int | None,
    place: int,
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """A tensor of batch size, filled for one sample and expanded; None if it has no such size.

    Args:
        batch: the batch size.
        place: the place of the sizes among the arguments.
        func: a function that makes a tensor.
        args: its arguments.
        kwargs: its keyword arguments.
    """
    # 1. Sizes are one list, or the remaining arguments.
    argument = kwargs.get("size", args[place:])
    is_list = len(argument) and isinstance(argument[0], tuple | list)
    sizes = tuple(argument[0]) if is_list else tuple(argument)
    if not any(isinstance(size, int) and _holds(size, batch) for size in sizes):
        return None

    # 2. The other arguments stay.
    before = args[:place]
    behind: tuple[Any, ...] = ()
    if len(args) > place and isinstance(args[place], tuple | list):
        behind = args[place + 1 :]
    options = {key: value for key, value in kwargs.items() if key != "size"}
    one_sample = [1 if _holds(size, batch) else size for size in sizes]
    sample = func(*before, one_sample, *behind, **options)
    return sample.expand(sizes)


def joins_batch(
    batch: int | None,
    name: str,
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Any,
) -> bool:
    """True if a function of a constant makes a dimension of several times the batch size.

    The heads of all samples are such a dimension.
    """
    if batch is None or name not in _SIZED or not args:
        return False
    x = args[0]
    if not isinstance(x, Tensor) or x.is_meta:
        return False
    arguments = tree_leaves((args[1:], kwargs))
    numbers = [number for number in (*x.shape, *arguments) if isinstance(number, int)]
    if not any(_holds(number, batch) for number in numbers):
        return False
    try:
        result = func(*mapped(without_data, args), **mapped(without_data, kwargs))
    except Exception:  # the function itself will say what is wrong
        return False
    if not isinstance(result, Tensor):
        return False
    return any(size > batch and size % batch == 0 for size in result.shape)


def _holds(size: int, batch: int | None) -> bool:
    """True if a size is a multiple of the batch size."""
    return batch is not None and size > 0 and size % batch == 0


def _of_two_samples(
    batch: int,
    name: str,
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """A large tensor that is equal for all samples; None for other results.

    It is computed for two samples and expanded.
    """
    # 1. The arguments have samples, and no number that may be the batch size by its meaning.
    tensors = list(tensors_in((args, kwargs)))
    has_samples = any(batch in x.shape for x in tensors)
    if not has_samples or any(x.is_meta for x in tensors):
        return None
    leaves = tree_leaves((args, kwargs))
    has_number = any(type(x) is int and x == batch for x in leaves)
    if has_number and name not in _SIZED:
        return None

    # 2. The result is large, and has one axis of samples.
    try:
        full = func(*mapped(without_data, args), **mapped(without_data, kwargs))
    except Exception:  # it needs numbers
        return None
    if not isinstance(full, Tensor) or full.numel() < _LARGE:
        return None
    if any(full is x for x in tensors):
        return None
    axes = [axis for axis, size in enumerate(full.shape) if _holds(size, batch)]
    if len(axes) != 1 or full.shape[axes[0]] != batch:
        return None
    if not all(_is_repeated(x, batch) for x in tensors):
        return None

    # 3. Two samples are computed, and are equal.
    (axis,) = axes
    two_samples = func(*_with_two(batch, args), **_with_two(batch, kwargs))
    sample = two_samples.narrow(axis, 0, 1)
    if two_samples.shape[axis] != 2 or not bool((two_samples == sample).all()):
        return None
    return sample.expand(full.shape) if sample.dtype == full.dtype else None


def _is_repeated(x: Tensor, batch: int) -> bool:
    """True if a tensor has no batch dimension, or one along which all samples are equal."""
    axes = [axis for axis, size in enumerate(x.shape) if _holds(size, batch)]
    if not axes:
        return True
    if len(axes) > 1 or x.shape[axes[0]] != batch:
        return False
    first = x.narrow(axes[0], 0, 1)
    return bool((one_of_each(x) == first).all())


def _with_two(batch: int, x: Any) -> Any:
    """Nested arguments with two samples instead of the batch size."""
    if isinstance(x, Tensor):
        parts = [slice(2) if size == batch else slice(None) for size in x.shape]
        return x[tuple(parts)]
    if type(x) in (tuple, list) or isinstance(x, torch.Size):
        items = [_with_two(batch, item) for item in x]
        return type(x)(items)
    if type(x) is dict:
        return {name: _with_two(batch, item) for name, item in x.items()}
    is_batch = type(x) is int and x == batch
    return 2 if is_batch else x


# --- adding to a graph


class ConstantNumbers:
    """The numbers of a graph's long constants, which are written after the recording.

    The module's code may change a constant in place after an operator has read it.

    Attributes:
        viewed: constants that share memory with others, by identity.
    """

    def __init__(self) -> None:
        self.viewed: dict[int, Tensor] = {}
        self._held: list[list[Tensor]] = []  # a constant; if it was changed since, a copy of it

    def of(self, x: Tensor) -> Callable[[], Tensor]:
        """Returns the numbers that a constant has now."""
        held = [x]
        self._held.append(held)
        return lambda: held[0]

    def before_change(self, x: Tensor) -> None:
        """Copy the numbers of a constant, and of its views, before it is changed in place.

        Each element of an expanded constant gets memory of its own.
        """
        for held in self._held:
            if not x.is_meta and memory(held[0]) == memory(x):
                held[0] = held[0].clone()
        is_expanded = one_of_each(x).shape != x.shape
        if is_expanded and id(x) in self.viewed:
            raise InputError("a constant of which there are views is changed in place")
        if is_expanded:
            x.data = x.contiguous()


class Recorder(Protocol):
    """What `search_spaces.ir.pytorch.recorder.Recorder` has to add constants to a graph."""

    constant_numbers: ConstantNumbers

    def emit(self, op: str, inputs: tuple[int, ...], attrs: Attrs) -> int: ...

    def is_batch(self, size: int) -> bool: ...

    def multiple(self, size: int) -> int: ...

    def keep(self, *numbers: Callable[[], Tensor]) -> None: ...


def add(recorder: Recorder, x: Tensor) -> int:
    """Add a constant to the graph; return the number of its value.

    Raises:
        InputError: if it differs between the samples of a batch.
    """
    kind = element(x.dtype)
    batched = [axis for axis, size in enumerate(x.shape) if recorder.is_batch(size)]
    if x.is_meta:
        return _add_buffer(recorder, x, None)
    if batched:
        return _add_for_samples(recorder, x, batched)
    detached = x.detach()
    if x.dtype == torch.bfloat16:  # which numpy does not have
        detached = detached.float()
    array = detached.numpy()
    value = add_constant(recorder.emit, Known(typed(array.shape, kind), (array, array)))
    return _add_buffer(recorder, x, array) if value is None else value


def _add_for_samples(recorder: Recorder, x: Tensor, batched: list[int]) -> int:
    """Add a constant that is equal for all samples, from one sample.

    Args:
        recorder: the recorder.
        x: the constant.
        batched: its dimensions of batch size. One of 3 N is written as N, 3 and then joined.
    """
    # 1. One sample, of which all are copies.
    sample = x
    for axis in batched:
        sample = sample.narrow(axis, 0, 1)
    if not bool((one_of_each(x) == sample).all()):
        raise InputError("a constant differs between the samples of a batch")

    # 2. Its shape, the target, in which 0 is the batch size, and the target with -1 for joined
    #    dimensions.
    source: list[int] = []
    target: list[int] = []
    joined: list[int] = []
    for axis, size in enumerate(x.shape):
        if axis not in batched:
            source.append(size)
            target.append(size)
            joined.append(size)
            continue
        times = recorder.multiple(size)
        split = [0] if times == 1 else [0, times]
        source += [1] * len(split)
        target += split
        joined.append(-1)

    # 3. Filled with one number, or expanded from one sample.
    kind = element(x.dtype)
    number = sample.reshape(-1)[0].item()
    if bool((sample == number).all()) and can_fill(number, kind):
        value = add_filled(recorder.emit, number, tuple(target), kind)
    else:
        sample_value = add(recorder, sample.reshape(source))
        value = recorder.emit("Expand", (sample_value,), (("shape", tuple(target)),))

    # 4. Split dimensions are joined.
    if len(target) == x.dim():
        return value
    return recorder.emit("Reshape", (value,), (("shape", tuple(joined)),))


def _add_buffer(recorder: Recorder, x: Tensor, array: np.ndarray | None) -> int:
    """Add a constant that is too long to be written; `array` has its numbers, if it has any."""
    recorder.keep(recorder.constant_numbers.of(x))
    return add_buffer(recorder.emit, typed(x.shape, element(x.dtype)), array)
