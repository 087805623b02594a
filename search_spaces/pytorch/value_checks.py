"""Checks of transformers that look at the numbers of inputs, which tensors of a recording do not have."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

_PADDING_CHECK = "warn_if_padding_and_no_attention_mask"
IsValue = Callable[[Any], bool]


@contextmanager
def without_value_checks(module: nn.Module, is_value: IsValue) -> Iterator[None]:
    """Let transformers treat recorded tensors as its own exporters treat tensors while they trace.

    Three kinds of checks change: a layer's search for padding in token ids, to warn of it; whether a mask hides
    nothing and can be left out, which is a shortcut to the same result; and assertions about values.

    Args:
        module: the network.
        is_value: whether an object is a tensor without numbers.
    """
    before: list[tuple[Any, str, Any]] = []  # object, attribute, its own value
    for layer in module.modules():
        if hasattr(layer, _PADDING_CHECK):
            layer.__dict__[_PADDING_CHECK] = _nothing
    for name, library in list(sys.modules.items()):
        if name.startswith("transformers."):
            for check, change in _CHANGES.items():
                if check in vars(library):
                    before.append((library, check, vars(library)[check]))
                    setattr(library, check, change(vars(library)[check], is_value))
    try:
        yield
    finally:
        for layer in module.modules():
            layer.__dict__.pop(_PADDING_CHECK, None)
        for library, check, own in before:
            setattr(library, check, own)


def _nothing(*_: Any, **__: Any) -> None: ...


def _tracing(own: Callable[..., bool], is_value: IsValue) -> Callable[..., bool]:
    return lambda tensor=None: is_value(tensor) or own(tensor)


def _asserting(own: Callable[..., None], is_value: IsValue) -> Callable[..., None]:
    def check(cond: Any, *args: Any, **kwargs: Any) -> None:
        condition = cond() if callable(cond) and not isinstance(cond, Tensor) else cond
        if not is_value(condition):
            own(condition, *args, **kwargs)

    return check


_CHANGES: dict[str, Callable[[Any, IsValue], Any]] = {"is_tracing": _tracing, "torch_compilable_check": _asserting}
