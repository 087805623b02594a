"""A file of trained weights into a module, or one line that says why it does not fit."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from search_spaces.common.errors import InputError

MAX_NAMED = 3  # names in an error about weights


def load_weights(module: nn.Module, path: str | Path) -> None:
    """Load a file of weights into a module.

    Args:
        module: the module.
        path: a .safetensors file, or a state dict that `torch.save` wrote; one under the key
            "state_dict" or "model" is read, too. Other objects of a file are not read. All names
            may have what wrappers put before them, such as "module.", "_orig_mod." or "net.". Of
            tensors that the module ties, one is enough.

    Raises:
        InputError: the file cannot be read, or its names or shapes differ from the module's.
    """
    state = _read(path)
    own = module.state_dict()
    # 1. Names as the module has them.
    prefix = _prefix(state, own)
    state = {name.removeprefix(prefix): tensor for name, tensor in state.items()}
    state = _by_all_names(module, state)
    counters = "num_batches_tracked"  # of batch normalizations: older files lack them
    missing = [name for name in own if name not in state and not name.endswith(counters)]
    unexpected = [name for name in state if name not in own]
    if missing or unexpected:
        differences = [
            _named("missing", missing, unexpected),
            _named("unexpected", unexpected, missing),
        ]
        shown = "; ".join(part for part in differences if part)
        raise InputError(f"{path}: the weights do not fit the model: {shown}")
    # 2. Shapes as the module has them.
    others = []
    for name, tensor in own.items():
        if name in state and state[name].shape != tensor.shape:
            others.append(f"{name} {list(state[name].shape)} instead of {list(tensor.shape)}")
    if others:
        shown = _first(others)
        raise InputError(f"{path}: the weights have other shapes than the model: {shown}")
    # 3. A module without memory for its weights takes the file's.
    has_none = any(x.is_meta for x in own.values())
    module.load_state_dict(state, strict=False, assign=has_none)


def _prefix(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> str:
    """What a wrapper put before all names of a file; "" if the names are the module's."""
    if not state or not own or own.keys() & state.keys():
        return ""
    first = next(iter(own))
    for name in state:
        if name.endswith(f".{first}"):
            prefix = name.removesuffix(first)
            if all(other.startswith(prefix) for other in state):
                return prefix
    return ""


def _by_all_names(module: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state with all names of tensors that the module ties: a file may have one of them."""
    names_of: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names_of.setdefault(id(parameter), []).append(name)
    whole = dict(state)
    for names in names_of.values():
        stored = [name for name in names if name in state]
        for name in names:
            if stored and name not in state:
                whole[name] = state[stored[0]]
    return whole


def _named(word: str, names: Sequence[str], others: Sequence[str]) -> str:
    """Names that one side lacks, each with the nearest name of the other side; "" for none."""
    if not names:
        return ""
    shown = []
    for name in names[:MAX_NAMED]:
        near = difflib.get_close_matches(name, others, 1)
        shown.append(f"{name} (the nearest is {near[0]})" if near else name)
    return f"{word} {_first([*shown, *names[MAX_NAMED:]])}"


def _first(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def _read(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a file by name; nothing else of it is read, so that no code of it runs."""
    file = Path(path)
    if not file.is_file():
        raise InputError(f"{path}: no such file of weights")
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        state: Any = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch's and safetensors' errors share no base class
        reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise InputError(
            f"{path}: not a .safetensors file or state dict ({reason}): save one with "
            "torch.save(net.state_dict(), …)"
        ) from error
    for key in ("state_dict", "model"):
        if isinstance(state, Mapping) and isinstance(state.get(key), Mapping):
            state = state[key]
    is_state = isinstance(state, Mapping) and all(isinstance(x, Tensor) for x in state.values())
    if not is_state:
        kind = type(state).__name__
        raise InputError(f"{path}: holds no state dict, but {kind}: save net.state_dict()")
    return dict(state)
