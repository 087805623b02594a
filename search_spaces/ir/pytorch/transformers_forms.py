"""What transformers does differently while it is recorded: no looks at numbers, no loops over
experts or time.

Tensors of a recording have no numbers, so checks of them are left out. Sums over experts and
recurrences have several forms of one result in transformers; the one that is a fixed and short list
of operators is chosen.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

_PADDING_CHECK = "warn_if_padding_and_no_attention_mask"
IsValue = Callable[[Any], bool]
_SCANS = importlib.import_module(
    "torch._higher_order_ops.associative_scan"
)  # the package has a function of its name


@contextmanager
def as_while_tracing(module: nn.Module, is_value: IsValue) -> Iterator[None]:
    """Let transformers treat recorded tensors as its own exporters treat tensors while they trace.

    - A layer does not look for padding in token ids to warn of it, and values are not asserted.
    - A mask is used even if it may hide nothing; leaving it out is a shortcut to the same result.
    - Experts are products with the chosen experts' weights, not loops over the samples of each
      expert.
    - A linear recurrence is a scan by doubling, not a loop over time.

    Args:
        module: the network.
        is_value: whether an object is a tensor without numbers.
    """
    with ExitStack() as changes:
        for layer in module.modules():
            _change_layer(changes, layer, is_value)
        changes.enter_context(patch.object(_SCANS, "associative_scan", associative_scan))
        for name, library in list(sys.modules.items()):
            if name.startswith("transformers."):
                _change_library(changes, vars(library), is_value)
        yield


def _change_layer(changes: ExitStack, layer: nn.Module, is_value: IsValue) -> None:
    if hasattr(layer, _PADDING_CHECK):
        changes.enter_context(patch.dict(vars(layer), {_PADDING_CHECK: _nothing}))
    if isinstance(getattr(getattr(layer, "config", None), "_experts_implementation", None), str):
        changes.enter_context(patch.dict(vars(layer.config), {_EXPERTS: "batched_mm"}))
    if type(layer).__name__ == "RecurrentGemmaRglru":
        own: Any = layer._rnn_scan
        changes.enter_context(patch.dict(vars(layer), {"_rnn_scan": _scanning(own, is_value)}))


def _change_library(changes: ExitStack, names: dict[str, Any], is_value: IsValue) -> None:
    new: dict[str, Any] = {}
    if "is_tracing" in names:
        new["is_tracing"] = _tracing(names["is_tracing"], is_value)
    if "torch_compilable_check" in names:
        new["torch_compilable_check"] = _asserting(names["torch_compilable_check"], is_value)
    if "mamba_selective_scan" in names:  # it scans while it is compiled, and loops otherwise
        new["is_torchdynamo_compiling"] = lambda: True
    if new:
        changes.enter_context(patch.dict(names, new))


_EXPERTS = "_experts_implementation_internal"


def _nothing(*_: Any, **__: Any) -> None: ...


def _tracing(own: Callable[..., bool], is_value: IsValue) -> Callable[..., bool]:
    return lambda tensor=None: is_value(tensor) or own(tensor)


def _asserting(own: Callable[..., None], is_value: IsValue) -> Callable[..., None]:
    def check(cond: Any, *args: Any, **kwargs: Any) -> None:
        condition = cond() if callable(cond) and not isinstance(cond, Tensor) else cond
        if not is_value(condition):
            own(condition, *args, **kwargs)

    return check


def associative_scan(
    combine: Callable[[Any, Any], Any], parts: tuple[Tensor, ...], dim: int, **_: Any
) -> tuple[Tensor, ...]:
    """All prefixes of an associative function along a dimension, by doubling (Hillis and Steele,
    1986).

    After step k, element t combines the elements t - 2^k + 1 to t, so log2 of the length many steps
    are enough.

    Args:
        combine: function of two tuples of tensors, the earlier one first.
        parts: tensors of equal length along the dimension.
        dim: the dimension.
    """
    length, reach = parts[0].shape[dim], 1
    while reach < length:
        rest = length - reach
        earlier = tuple(x.narrow(dim, 0, rest) for x in parts)
        later = tuple(x.narrow(dim, reach, rest) for x in parts)
        made = combine(earlier, later)
        parts = tuple(
            torch.cat([x.narrow(dim, 0, reach), y], dim) for x, y in zip(parts, made, strict=True)
        )
        reach *= 2
    return parts


def _scanning(own: Callable[..., Any], is_value: IsValue) -> Callable[..., Any]:
    """The linear recurrence of RecurrentGemma, state[t] = gate[t] state[t - 1] + hidden[t], as a
    scan from zero.
    """

    def scan(
        hidden_states: Tensor, recurrent_gate: Tensor, reset: Tensor, recurrent_states: Tensor | None,
        acc_dtype: torch.dtype = torch.float32,
    ) -> Any:  # fmt: skip
        if recurrent_states is not None and (
            is_value(recurrent_states) or bool(recurrent_states.any())
        ):
            return own(hidden_states, recurrent_gate, reset, recurrent_states, acc_dtype)
        gates = (recurrent_gate * ~reset).type(acc_dtype)
        _, states = associative_scan(_composed, (gates, hidden_states.type(acc_dtype)), 1)
        return states.type(hidden_states.dtype), states[:, -1]

    return scan


def _composed(
    earlier: tuple[Tensor, Tensor], later: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Slope and offset of a linear function of the result of another."""
    return earlier[0] * later[0], later[0] * earlier[1] + later[1]
