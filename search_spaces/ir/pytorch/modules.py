"""Modules before and around a recording: built without memory for weights, refused where a tool has
transformed them, and with the forms of transformers that exporters use.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from search_spaces.common.errors import InputError
from search_spaces.ir.pytorch.calls import function_name, mapped, tensors_in, without_data

Example = Tensor | Sequence[Any] | Mapping[str, Any]


# --- calls


def arguments(example: Example) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of an example input.

    The example is a tensor, a tuple of tensors, or a dictionary.
    """
    if isinstance(example, Mapping):
        return (), dict(example)
    return (example,) if isinstance(example, Tensor) else tuple(example), {}


def run(module: nn.Module, example: Example) -> Any:
    """The module's output for an example input."""
    args, kwargs = arguments(example)
    return module(*args, **kwargs)


def evaluating(module: nn.Module) -> nn.Module:
    """The module in evaluation mode, without what its layers keep for it.

    Those that keep what they compute from their weights forget it when they are trained.
    """
    for layer in module.modules():
        if type(layer).train is not nn.Module.train:
            layer.train()
    return module.eval()


def is_lazy(module: nn.Module) -> bool:
    """True if shapes of weights follow from the first input, such as those of `nn.LazyLinear`."""
    return any(isinstance(p, UninitializedParameter) for p in module.parameters())


# --- tensors that calls leave in layers

_OF_TORCH = frozenset(vars(nn.Module()))  # names of the attributes that all modules have
Attributes = list[tuple[nn.Module, dict[str, Any]]]


def plain_attributes(module: nn.Module) -> Attributes:
    """The layers of a module, each with its own attributes; of dictionaries and lists, copies."""
    attributes: Attributes = []
    for layer in module.modules():
        own = {}
        for name, value in vars(layer).items():
            if name not in _OF_TORCH:
                own[name] = value.copy() if type(value) in (dict, list) else value
        attributes.append((layer, own))
    return attributes


def set_plain_attributes(attributes: Attributes) -> None:
    """Give layers the attributes that they had, where these hold tensors or do so by now.

    Dictionaries and lists keep their identity. What else a layer notes of itself stays, such as
    that it has installed hooks.
    """
    for layer, before in attributes:
        now = vars(layer)
        for name in [name for name in now if name not in _OF_TORCH]:
            value = before.get(name)
            if not _holds_tensors(value) and not _holds_tensors(now[name]):
                continue
            if type(value) is dict and type(now[name]) is dict:
                now[name].clear()
                now[name].update(value)
            elif type(value) is list and type(now[name]) is list:
                now[name][:] = value
            elif name in before:
                now[name] = value
            else:
                del now[name]


def _holds_tensors(value: Any) -> bool:
    return any(isinstance(x, Tensor) for x in tree_leaves(value))


@contextmanager
def unchanged_attributes(module: nn.Module) -> Iterator[None]:
    """Undo what tensors calls within the block leave in a module's layers.

    A layer may keep what it has computed from its weights, for its next calls.
    """
    attributes = plain_attributes(module)
    try:
        yield
    finally:
        set_plain_attributes(attributes)


def _ignore(_: Tensor) -> None: ...


@contextmanager
def unchanged(
    module: nn.Module,
    before_restoring: Callable[[Tensor], None] = _ignore,
) -> Iterator[None]:
    """Undo what calls within the block leave in a module: as `unchanged_attributes`, and in buffers.

    Code may count its calls, `self.steps += 1`, or keep a state between them.

    Args:
        module: the module.
        before_restoring: called with each tensor that has changed, before it gets its old numbers.
    """
    # 1. The registered buffers, and the numbers of all tensors but parameters.
    registered: list[tuple[Any, Any]] = []
    for layer in module.modules():
        for names in (layer._buffers, layer._non_persistent_buffers_set):
            registered.append((names, names.copy()))
    others = [x for _, own in plain_attributes(module) for x in tree_leaves(own)]
    numbers = {}
    for x in (*module.buffers(), *others):
        if type(x) is Tensor and x.layout is torch.strided and not x.is_meta:
            numbers[id(x)] = x, x.detach().clone()

    # 2. The calls.
    try:
        with unchanged_attributes(module):
            yield
    finally:
        # 3. What they have changed.
        for names, before in registered:
            names.clear()
            names.update(before)
        for x, old in numbers.values():
            if not _has_numbers(x, old):
                before_restoring(x)
                _set_numbers(x, old)


def _has_numbers(x: Tensor, old: Tensor) -> bool:
    if x.shape != old.shape or x.dtype != old.dtype or x.device != old.device:
        return False
    if x.is_floating_point() or x.is_complex():
        return torch.allclose(x, old, rtol=0, atol=0, equal_nan=True)
    return torch.equal(x, old)


def _set_numbers(x: Tensor, old: Tensor) -> None:
    with torch.no_grad():
        if x.shape == old.shape and x.dtype == old.dtype and x.device == old.device:
            x.copy_(old)
        else:
            x.data = old


# --- modules without weights

_RANDOM = frozenset(
    {
        "bernoulli_",
        "erfinv_",
        "exponential_",
        "normal_",
        "random_",
        "trunc_normal_",
        "uniform_",
    }
)
_RESHAPING = frozenset(
    {
        "resize_",
        "squeeze_",
        "swapaxes_",
        "swapdims_",
        "t_",
        "transpose_",
        "unsqueeze_",
    }
)
_SMALL = 64  # elements; random constants up to this size are part of the architecture


@contextmanager
def without_weights() -> Iterator[None]:
    """Modules built within the block have weights on the meta device: shapes without data."""
    with _WithoutWeights(), torch.no_grad():
        yield


class _WithoutWeights(TorchFunctionMode):
    """Creates the weights of torch's layers on the meta device, and skips their initialization.

    Everything else is computed: masks, positions, rates of stochastic depth, and weights of other
    layers.
    """

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Any = None,
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
            return self._attribute(func, args, kwargs)
        if name == "empty" and _caller_is_torchs_layer():
            return func(*args, **{**kwargs, "device": "meta"})
        is_in_place = name.endswith("_") and not name.endswith("__")
        if is_in_place and name not in _RESHAPING:
            target = args[0] if args else kwargs.get("tensor")
            if isinstance(target, Tensor):
                need_not_be_drawn = name in _RANDOM and _need_not_be_drawn(target)
                if target.is_meta or need_not_be_drawn:
                    return target
        elif len({x.is_meta for x in tensors_in((args, kwargs))}) > 1:
            return func(*mapped(without_data, args), **mapped(without_data, kwargs))
        return func(*args, **kwargs)

    def _attribute(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        attribute = function_name(func)
        if attribute == "device":
            # Not the meta device, so that constants that are created on a weight's device are
            # computed.
            return torch.device("cpu")
        if attribute == "is_meta" and _caller_is_torchs_layer("_load_from_state_dict"):
            # Of the loaded tensor: torch would warn for each weight that the meta device drops it.
            return True
        return func(*args, **kwargs)


def _caller() -> Any:
    """The frame that called the intercepted function."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename == __file__:
        frame = frame.f_back  # type: ignore[assignment]
    return frame


def _caller_is_torchs_layer(method: str = "") -> bool:
    """True if the code of one of torch's layers called the intercepted function.

    method: the layer's method that must have called it; "" for any.
    """
    caller = _caller()
    is_torchs = str(caller.f_globals.get("__name__", "")).startswith("torch.nn.modules.")
    return is_torchs and method in ("", caller.f_code.co_name)


def _need_not_be_drawn(target: Tensor) -> bool:
    """False for small constants, and in truncated normal initialization.

    The loop of the latter needs numbers to end.
    """
    return target.numel() > _SMALL and "trunc_normal" not in _caller().f_code.co_name


# --- modules that tools of torch have transformed, so that their calls cannot be seen

_SCRIPTED = "torch.jit modules cannot be recorded: use the modules that were scripted or traced"
_QUANTIZED = "quantized modules cannot be recorded: use the module before its quantization"
_EXPORTED = "exported programs cannot be recorded: use the module that was exported"
_ORTHOGONAL = (
    "orthogonal parametrizations cannot be recorded: leave them out, the plain layer has the same "
    "text and costs"
)
_TOOLS = {
    "torch/jit/": _SCRIPTED,
    "torch/ao/quantization/": _QUANTIZED,
    "torch/ao/nn/": _QUANTIZED,
    "torch/export/": _EXPORTED,
}
"""By folder of torch, what to say if a tool there fails on a module without weights."""


def check_untransformed(module: nn.Module) -> None:
    """InputError if a layer was scripted, traced, quantized or exported, or is orthogonal."""
    quantized = "torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized"
    for layer in module.modules():
        kind = type(layer)
        if isinstance(layer, torch.jit.ScriptModule):
            raise InputError(_SCRIPTED)
        prepared = kind.__name__ == "FloatFunctional"  # of a network that may be quantized later
        if kind.__module__.startswith(quantized) and not prepared:
            raise InputError(_QUANTIZED)
        if kind.__name__ == "_Orthogonal" and kind.__module__.startswith("torch.nn.utils"):
            raise InputError(_ORTHOGONAL)


def failed_tool(error: BaseException) -> str | None:
    """What to do about an error of a tool that transforms modules; None for other errors."""
    files = [
        frame.f_code.co_filename.replace("\\", "/")
        for frame, _ in traceback.walk_tb(error.__traceback__)
    ]
    for folder, remedy in _TOOLS.items():
        if any(folder in file for file in files):
            return remedy
    return None


# --- forms of transformers
#
# Tensors of a recording have no numbers, so checks of them are left out. Sums over experts and
# recurrences have several forms of one result in transformers; the one that is a fixed and short list
# of operators is chosen, as its own exporters choose.

IsValue = Callable[[Any], bool]
_PADDING_CHECK = "warn_if_padding_and_no_attention_mask"
_EXPERTS = "_experts_implementation_internal"
# The package has a function of this module's name.
_SCANS = importlib.import_module("torch._higher_order_ops.associative_scan")


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
        changes.enter_context(_replacing(vars(layer), {_PADDING_CHECK: _nothing}))
    config = getattr(layer, "config", None)
    if isinstance(getattr(config, "_experts_implementation", None), str):
        changes.enter_context(_replacing(vars(config), {_EXPERTS: "batched_mm"}))
    if type(layer).__name__ == "RecurrentGemmaRglru":
        own: Any = layer._rnn_scan
        scan = _scanning(own, is_value)
        changes.enter_context(_replacing(vars(layer), {"_rnn_scan": scan}))


def _change_library(changes: ExitStack, names: dict[str, Any], is_value: IsValue) -> None:
    new: dict[str, Any] = {}
    if "is_tracing" in names:
        new["is_tracing"] = _tracing(names["is_tracing"], is_value)
    if "torch_compilable_check" in names:
        new["torch_compilable_check"] = _asserting(names["torch_compilable_check"], is_value)
    if "mamba_selective_scan" in names:  # it scans while it is compiled, and loops otherwise
        new["is_torchdynamo_compiling"] = lambda: True
    if new:
        changes.enter_context(_replacing(names, new))


@contextmanager
def _replacing(names: dict[str, Any], new: dict[str, Any]) -> Iterator[None]:
    """Other values for these names within the block. What else is set within it stays, such as the
    note of a model that its hooks are installed, which `unittest.mock.patch.dict` would remove.
    """
    old = {name: names[name] for name in new if name in names}
    names.update(new)
    try:
        yield
    finally:
        for name in new:
            names.pop(name, None)
        names.update(old)


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
    combine: Callable[[Any, Any], Any],
    parts: tuple[Tensor, ...],
    dim: int,
    **_: Any,
) -> tuple[Tensor, ...]:
    """All prefixes of an associative function along a dimension.

    They are computed by doubling (Hillis and Steele, 1986). After step k, element t combines the
    elements t - 2^k + 1 to t, so log2 of the length many steps are enough.

    Args:
        combine: function of two tuples of tensors, the earlier one first.
        parts: tensors of equal length along the dimension.
        dim: the dimension.
    """
    length, reach = parts[0].shape[dim], 1
    while reach < length:
        # Elements before `reach` are complete; each later one is combined with the one before it.
        earlier = tuple(x.narrow(dim, 0, length - reach) for x in parts)
        later = tuple(x.narrow(dim, reach, length - reach) for x in parts)
        combined = combine(earlier, later)
        complete = [x.narrow(dim, 0, reach) for x in parts]
        parts = tuple(torch.cat(pair, dim) for pair in zip(complete, combined, strict=True))
        reach *= 2
    return parts


def _scanning(own: Callable[..., Any], is_value: IsValue) -> Callable[..., Any]:
    """The linear recurrence of RecurrentGemma as a scan from zero.

    The recurrence is state[t] = gate[t] state[t - 1] + hidden[t].
    """

    def scan(
        hidden_states: Tensor,
        recurrent_gate: Tensor,
        reset: Tensor,
        recurrent_states: Tensor | None,
        acc_dtype: torch.dtype = torch.float32,
    ) -> Any:
        if recurrent_states is not None:
            starts_at_zero = not is_value(recurrent_states) and not bool(recurrent_states.any())
            if not starts_at_zero:
                return own(hidden_states, recurrent_gate, reset, recurrent_states, acc_dtype)
        gates = (recurrent_gate * ~reset).type(acc_dtype)
        _, states = associative_scan(_composed, (gates, hidden_states.type(acc_dtype)), 1)
        return states.type(hidden_states.dtype), states[:, -1]

    return scan


def _composed(
    earlier: tuple[Tensor, Tensor],
    later: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor]:
    """Slope and offset of a linear function of the result of another."""
    slope = earlier[0] * later[0]
    return slope, later[0] * earlier[1] + later[1]
