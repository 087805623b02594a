"""The format of checkpoints: `config.json` and `model.safetensors` in a folder, never a pickle.

Shipped checkpoints lie in `predictors/checkpoints`. `predictors.load` makes a predictor of one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from search_spaces.common.errors import InputError
from search_spaces.common.files import replacing

if TYPE_CHECKING:
    from torch import nn

FORMAT = "rlm-nas predictor"
FORMAT_VERSION = 10
FILES = {"config.json": 20_000_000, "model.safetensors": 2_000_000_000}  # most bytes of each
CHECKPOINTS = Path(__file__).parent / "checkpoints"


def checkpoint(name: str | Path) -> Path:
    """Folder of a shipped checkpoint; any other name is returned as a path."""
    shipped = CHECKPOINTS / name
    return shipped if shipped.is_dir() else Path(name)


def checksum(name: str | Path) -> str:
    """SHA-256, in hexadecimal, of a checkpoint's files."""
    digest = hashlib.sha256()
    for file in FILES:
        digest.update((checkpoint(name) / file).read_bytes())
    return digest.hexdigest()


def write(
    folder: Path,
    kind: str,
    config: dict[str, Any],
    tensors: dict[str, np.ndarray],
) -> None:
    """Write a checkpoint, each file atomically.

    Args:
        folder: is created if necessary.
        kind: `Predictor.kind`.
        config: JSON.
        tensors: arrays by name.
    """
    from safetensors.numpy import save

    header = {"format": FORMAT, "version": FORMAT_VERSION, "kind": kind}
    contiguous = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    files = {
        "model.safetensors": save(contiguous),
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
        for name, limit in FILES.items():
            size = (folder / name).stat().st_size
            if size > limit:
                raise InputError(f"{folder / name}: {size} bytes exceed the limit of {limit}")
        config = json.loads((folder / "config.json").read_text())
        tensors = load_tensors((folder / "model.safetensors").read_bytes())
    except InputError:
        raise
    except (FileNotFoundError, NotADirectoryError) as error:
        missing = Path(error.filename).name
        raise InputError(f"{folder}: not a checkpoint ({missing} is missing)") from error
    except (ValueError, SafetensorError, RecursionError) as error:
        reason = str(error)[:200]
        raise InputError(f"{folder}: damaged checkpoint ({reason})") from error

    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise InputError(f"{folder}: config.json does not describe a predictor")
    version = config.get("version")
    if version != FORMAT_VERSION:
        raise InputError(
            f"{folder}: the checkpoint has format version {version}, "
            f"this release reads {FORMAT_VERSION}; train it again"
        )
    return config, tensors


# --- tensors of a part of a predictor


def with_prefix(part: str, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Tensors with the prefix `part.` added to their names."""
    return {f"{part}.{name}": tensor for name, tensor in tensors.items()}


def without_prefix(part: str, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Tensors with the prefix `part.`, which is removed from their names."""
    prefix = f"{part}."
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def load_weights(
    network: nn.Module,
    part: str,
    tensors: Mapping[str, np.ndarray],
) -> None:
    """Replace the weights of a network by those of a checkpoint, as float32.

    Args:
        network: the network; its weights may be missing.
        part: prefix of the network's tensors.
        tensors: all tensors of the checkpoint.

    Raises:
        InputError: if a tensor is missing, has another shape, or has values that are not finite.
    """
    import torch

    stored = without_prefix(part, tensors)
    expected_shapes = {name: tuple(own.shape) for name, own in network.state_dict().items()}
    stored_shapes = {name: tensor.shape for name, tensor in stored.items()}
    if stored_shapes != expected_shapes:
        raise InputError(
            "damaged checkpoint: its tensors do not have the shapes of its configuration"
        )
    weights = {}
    for name, tensor in stored.items():
        is_float = tensor.dtype.kind == "f"
        if is_float and not np.isfinite(tensor).all():
            raise InputError(f"damaged checkpoint: {name} has values that are not finite")
        weights[name] = torch.tensor(tensor).float()
    network.load_state_dict(weights, assign=True)
