"""The folder of a front: each network's ONNX model, text and, if it was trained, its weights; and
tables.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nas.search.weights import Weights, find_weights, write_weights
from search_spaces.common.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

    from nas.search.distinct import DistinctNetwork, Evaluation
    from search_spaces import Architecture, SearchSpace

log = logging.getLogger(__name__)
MAX_ATTEMPTS = 10  # to replace a folder that other processes replace, too


def network_name(place: int, count: int) -> str:
    """File name of the network at a place (from 0) on a front of `count` networks, such as 03 for
    the fourth.
    """
    return f"{place:0{max(2, len(str(count - 1)))}d}"


def save_front(folder: Path, front: Sequence[DistinctNetwork], texts: Mapping[str, str]) -> None:
    """Write the networks of a front to `folder/front`, and text files by name.

    Everything is written to a temporary folder first, so that the folder never holds half a result.

    Raises:
        InputError: the files cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".partial-") as temporary:
            partial = Path(temporary)
            (partial / "front").mkdir()
            for place, network in enumerate(front):
                stem = partial / "front" / network_name(place, len(front))
                _write_evaluated(stem, network.representative, folder)
            for name, text in texts.items():
                (partial / name).write_text(text, encoding="utf-8")
            _replace_folder(folder / "front", partial)
            for name in texts:
                os.replace(partial / name, folder / name)
    except OSError as error:
        raise InputError(f"cannot write the result to {folder}: {error.strerror}") from error


def _write_evaluated(stem: Path, evaluation: Evaluation, results: Path) -> None:
    """Write the files of an evaluated network, with its stored weights if there are any, and with
    their own values.
    """
    weights = find_weights(evaluation.weights, results) if evaluation.weights else None
    notation = evaluation.space.format(evaluation.architecture)
    values = {"architecture": notation} | evaluation.further | evaluation.values
    write_network(stem, evaluation.space, evaluation.architecture, values, weights)


def write_network(
    stem: Path,
    space: SearchSpace,
    architecture: Architecture,
    values: Mapping[str, Any],
    weights: Weights | None,
) -> None:
    """Write `STEM.onnx`, `STEM.txt` and, with trained weights, `STEM.safetensors`.

    Without trained weights, the ONNX model has random ones. Its metadata name the kind of weights
    (`weights`), the measured values (`values`, JSON) and, for trained weights, the normalization of
    inputs. A model that an ONNX file cannot hold is left out. The weights are a hard link to the
    file of the trial where the file system has links.
    """
    from nas.evaluation.export import load_weights, save_onnx
    from nas.evaluation.trainable import Trainable
    from search_spaces.ir.onnx import ModelTooLarge

    network = Trainable.of(space, architecture)
    kept = stem.with_suffix(".safetensors")
    if weights is not None:
        write_weights(kept, weights)
    state, about = (None, {}) if weights is None else load_weights(kept)
    try:
        save_onnx(
            stem.with_suffix(".onnx"), network, state, {"values": json.dumps(values), **about}
        )
    except ModelTooLarge as error:
        log.warning("%s is not written: %s", f"{stem.name}.onnx", error)
    stem.with_suffix(".txt").write_text(network.text, encoding="utf-8")


def trained_module(network: DistinctNetwork, folder: Path) -> nn.Module:
    """An evaluated network as a PyTorch module in evaluation mode, with its trained weights if
    these were stored.

    Args:
        network: the network.
        folder: result folder, to which the weights may have been moved.

    Raises:
        InputError: the weights were stored, and are lost.
    """
    from nas.evaluation.export import load_weights
    from nas.evaluation.trainable import Trainable

    evaluation = network.representative
    module = Trainable.of(evaluation.space, evaluation.architecture).module()
    if evaluation.weights:
        path = find_weights(evaluation.weights, folder)
        if path is None:
            raise InputError(
                f"{evaluation.weights}: the trained weights of this network are missing or damaged"
            )
        module.load_state_dict(load_weights(path)[0])
    return module.eval()


def _replace_folder(path: Path, written: Path) -> None:
    """Move the folder `written / path.name` to `path`, even while other processes do the same."""
    for attempt in range(MAX_ATTEMPTS):
        with suppress(FileNotFoundError):
            os.replace(path, written / f"replaced-{attempt}")
        try:
            os.replace(written / path.name, path)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or attempt == MAX_ATTEMPTS - 1:
                raise
