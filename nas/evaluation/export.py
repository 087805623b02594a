"""Writes trained networks: the ONNX model with its weights, and the weights alone as
safetensors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from nas.evaluation.datasets import Dataset
from nas.evaluation.trainable import State, Trainable
from search_spaces.common.errors import InputError
from search_spaces.common.files import replacing
from search_spaces.ir.onnx import to_model, write_model

if TYPE_CHECKING:
    import onnx

MAX_WEIGHT_BYTES = 8 << 30


def trained_model(network: Trainable, state: State) -> onnx.ModelProto:
    """The ONNX model of a network with trained weights."""
    graph, numbers = network.trained(state)
    return to_model(graph, numbers=numbers)


def save_onnx(
    path: Path, network: Trainable, state: State | None, metadata: Mapping[str, str] | None = None
) -> None:
    """Write a network as an ONNX file. The file is complete or absent.

    Args:
        path: the file.
        network: the network.
        state: its trained tensors; None for initial weights.
        metadata: entries of the model's `metadata_props`, besides `weights`, which is `trained` or
            `initial`.
    """
    graph, numbers = (network.graph, None) if state is None else network.trained(state)
    weights = "initial" if state is None else "trained"
    about = {"weights": weights, **(metadata or {})}
    with replacing(path) as temporary, temporary.open("wb") as file:
        write_model(graph, file, numbers=numbers, metadata=about)


def preprocessing(data: Dataset) -> dict[str, str]:
    """Name and normalization of a data set (JSON), as metadata of an ONNX model."""
    metadata = {"data": data.name}
    scales = {"input_scale": data.input_scale, "target_scale": data.target_scale}
    for name, scale in scales.items():
        if scale is not None:
            metadata[name] = json.dumps(scale.plain())
    return metadata


def save_weights(path: Path, state: State, metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors and metadata to a safetensors file. The file is complete or absent."""
    from safetensors.torch import save_file

    tensors = {}
    written = set[int]()  # addresses of the memory of earlier tensors
    for name, tensor in state.items():
        plain = tensor.detach().cpu().contiguous()
        memory = plain.untyped_storage()
        # The format knows no shared memory: a copy only for views and tied weights.
        is_alone = memory.nbytes() == plain.nbytes and memory.data_ptr() not in written
        tensors[name] = plain if is_alone else plain.clone()
        written.add(memory.data_ptr())
    with replacing(path) as temporary:
        save_file(tensors, temporary, metadata=dict(metadata or {}))


def load_weights(path: Path) -> tuple[State, dict[str, str]]:
    """Read tensors and metadata from a file of `save_weights`.

    Raises:
        InputError: the file is missing, damaged or larger than `MAX_WEIGHT_BYTES`.
    """
    from safetensors import SafetensorError, safe_open

    try:
        if path.stat().st_size > MAX_WEIGHT_BYTES:
            raise InputError(
                f"{path}: larger than {MAX_WEIGHT_BYTES / 1e9:.0f} GB, the limit for weights"
            )
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return tensors, file.metadata() or {}
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file") from error
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"{path}: not readable as safetensors ({' '.join(str(error).split())[:200]})"
        ) from error
