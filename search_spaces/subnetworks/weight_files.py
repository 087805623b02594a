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
_PARALLEL = "module."  # what torch's data parallelism puts before all names


def load_weights(module: nn.Module, path: str | Path) -> None:
    """Load a file of weights into a module.

    Args:
        module: the module.
        path: a .safetensors file, or a state dict that `torch.save` wrote; one under the key
            "state_dict" or "model" is read, too. Other objects of a file are not read.

    Raises:
        InputError: the file cannot be read, or its names or shapes differ from the module's.
    """
    state = _read(path)
    own = module.state_dict()
    # 1. Names as the module has them.
    is_parallel = state and all(name.startswith(_PARALLEL) for name in state)
    if is_parallel and not own.keys() & state.keys():
        state = {name.removeprefix(_PARALLEL): tensor for name, tensor in state.items()}
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
