"""The files of one network of a front: ONNX model, text and, where it was trained, its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nas.searching.weights import Weights, write_weights

if TYPE_CHECKING:
    from collections.abc import Mapping

    from search_spaces import Architecture, SearchSpace


def network_name(place: int, count: int) -> str:
    """Name of a network's files by its place on a front of so many: 03 for the fourth."""
    return f"{place:0{max(2, len(str(count - 1)))}d}"


def write_network(
    stem: Path, space: SearchSpace, architecture: Architecture, values: Mapping[str, Any], weights: Weights | None
) -> None:
    """Write `STEM.onnx`, `STEM.txt` and, with trained weights, `STEM.safetensors`.

    Without trained weights, those in the ONNX model are random. The model's metadata say which they are (`weights`),
    what was measured (`values`, JSON) and, beside trained weights, how inputs were normalized.
    """
    from nas.evaluation.export import load_weights, save_onnx
    from nas.evaluation.trainable import Trainable

    network = Trainable.of(space, architecture)
    kept = stem.with_suffix(".safetensors")
    if weights is not None:
        write_weights(kept, weights)
    state, about = (None, {}) if weights is None else load_weights(kept)
    save_onnx(stem.with_suffix(".onnx"), network, state, {"values": json.dumps(values), **about})
    stem.with_suffix(".txt").write_text(network.text)
