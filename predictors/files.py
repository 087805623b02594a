"""Files of a checkpoint: `config.json` and `model.safetensors`, never a pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from predictors.inputs import as_targets
from search_spaces.common.errors import InputError
from search_spaces.common.files import replacing

if TYPE_CHECKING:
    from torch import nn

FORMAT = "rlm-nas predictor"
FORMAT_VERSION = 10
FILES = {"config.json": 20_000_000, "model.safetensors": 2_000_000_000}  # most bytes of each


def write(folder: Path, kind: str, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    """Write a checkpoint, each file atomically."""
    from safetensors.numpy import save

    header = {"format": FORMAT, "version": FORMAT_VERSION, "kind": kind}
    files = {
        "model.safetensors": save({k: np.ascontiguousarray(v) for k, v in tensors.items()}),
        "config.json": json.dumps({**header, **config}, indent=1).encode(),
    }
    for name, content in files.items():
        with replacing(folder / name) as path:
            path.write_bytes(content)


def read(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read the configuration and the tensors of a checkpoint.

    Raises:
        InputError: if the folder is not a checkpoint of this format version, or is damaged.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load as load_tensors

    try:
        for file, limit in ((folder / name, limit) for name, limit in FILES.items()):
            if file.stat().st_size > limit:
                raise InputError(f"{file}: {file.stat().st_size} bytes exceed the limit of {limit}")
        config = json.loads((folder / "config.json").read_text())
        tensors = load_tensors((folder / "model.safetensors").read_bytes())
    except InputError:
        raise
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(
            f"{folder}: not a checkpoint ({Path(error.filename).name} is missing)"
        ) from error
    except (ValueError, SafetensorError, RecursionError) as error:
        raise InputError(f"{folder}: damaged checkpoint ({str(error)[:200]})") from error
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise InputError(f"{folder}: config.json does not describe a predictor")
    if config.get("version") != FORMAT_VERSION:
        raise InputError(
            f"{folder}: the checkpoint has format version {config.get('version')}, "
            f"this release reads {FORMAT_VERSION}; train it again"
        )
    return config, tensors


def load_weights(network: nn.Module, part: str, tensors: Mapping[str, np.ndarray]) -> None:
    """Replace the weights of a network by those of a checkpoint, as float32.

    Args:
        network: the network; its weights may be missing.
        part: prefix of the network's tensors.
        tensors: all tensors of the checkpoint.

    Raises:
        InputError: if a tensor is missing, has another shape, or has values that are not finite.
    """
    import torch

    found = without_prefix(part, tensors)
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    if shapes != {name: tensor.shape for name, tensor in found.items()}:
        raise InputError(
            "damaged checkpoint: its tensors do not have the shapes of its configuration"
        )
    for name, tensor in found.items():
        if tensor.dtype.kind == "f" and not np.isfinite(tensor).all():
            raise InputError(f"damaged checkpoint: {name} has values that are not finite")
    network.load_state_dict(
        {name: torch.tensor(tensor).float() for name, tensor in found.items()}, assign=True
    )


def examples(
    config: Mapping[str, Any], tensors: Mapping[str, np.ndarray], inputs: str
) -> dict[str, np.ndarray]:
    """The stored examples' values (n,) per metric, checked together with their inputs.

    Args:
        config: configuration with the names of the metrics.
        tensors: tensors of the checkpoint.
        inputs: name of the tensor (n, d) of the examples' inputs.

    Raises:
        InputError: if inputs and values do not match or are not finite.
    """
    names, kept = config["metrics"], tensors[inputs]
    values = dict(zip(names, tensors["values"], strict=True))
    if not all(isinstance(name, str) for name in names) or len(values) < len(names):
        raise InputError("damaged checkpoint: the names of its metrics are not distinct strings")
    if kept.ndim != 2 or not np.isfinite(kept).all():
        raise InputError(f"damaged checkpoint: {inputs} is not a matrix of finite numbers")
    try:
        return as_targets([""] * len(kept), values)
    except InputError as error:
        raise InputError(f"damaged checkpoint: {error}") from error


def without_prefix(part: str, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Tensors with the prefix `part.`, which is removed from their names."""
    return {
        name.removeprefix(f"{part}."): t
        for name, t in tensors.items()
        if name.startswith(f"{part}.")
    }


def with_prefix(part: str, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Tensors with the prefix `part.` added to their names: the inverse of `without_prefix`."""
    return {f"{part}.{name}": tensor for name, tensor in tensors.items()}
