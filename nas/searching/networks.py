"""The files of one network on a front: ONNX model, text and, if it was trained, its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nas.searching.weights import Weights, write_weights

if TYPE_CHECKING:
    from collections.abc import Mapping

    from search_spaces import Architecture, SearchSpace


def network_name(place: int, count: int) -> str:
    """File name of the network at a place (from 0) on a front of `count` networks, such as 03 for the fourth."""
    return f"{place:0{max(2, len(str(count - 1)))}d}"


def write_network(
    stem: Path, space: SearchSpace, architecture: Architecture, values: Mapping[str, Any], weights: Weights | None
) -> None:
    """Write `STEM.onnx`, `STEM.txt` and, with trained weights, `STEM.safetensors`.

    Without trained weights, the ONNX model has random ones. Its metadata name the kind of weights (`weights`), the
    measured values (`values`, JSON) and, for trained weights, the normalization of inputs.
    """
    from nas.evaluation.export import load_weights, save_onnx
    from nas.evaluation.trainable import Trainable

    network = Trainable.of(space, architecture)
    kept = stem.with_suffix(".safetensors")
    if weights is not None:
        write_weights(kept, weights)
    state, about = (None, {}) if weights is None else load_weights(kept)
    save_onnx(stem.with_suffix(".onnx"), network, state, {"values": json.dumps(values), **about})
    stem.with_suffix(".txt").write_text(network.text, encoding="utf-8")
