"""Files of a search's networks: trained weights while it runs, and the folder of its front.

Weights of dominated networks are removed. The folder of a front has an ONNX model, the text and, if
the network was trained, its weights of each network, and tables beside them.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nas.search.pareto import non_dominated
from search_spaces.common.errors import InputError
from search_spaces.common.files import replacing

if TYPE_CHECKING:
    from torch import nn

    from nas.evaluation.trainable import State
    from nas.search.study.networks import DistinctNetwork, Evaluation
    from search_spaces import Architecture, SearchSpace


Weights = Path | tuple["State", Mapping[str, str]]
"""A file of weights, or tensors by name and the metadata of their file."""


INT8 = ".int8.onnx"  # ending of a quantized network's file, beside its weights


def write_weights(path: Path, weights: Weights, int8: bytes | None = None) -> None:
    """Write a file of weights atomically, and the quantized network beside it.

    Args:
        path: file of the weights.
        weights: what is written; a file brings its quantized network along, if it has one.
        int8: the quantized network, an ONNX file; None if there is none.
    """
    from nas.evaluation.export import save_weights

    quantized = path.with_suffix(INT8)
    if isinstance(weights, Path):
        with replacing(path) as temporary:
            _link_or_copy(weights, temporary)
        if int8 is None and (copied := weights.with_suffix(INT8)).is_file():
            with replacing(quantized) as temporary:
                _link_or_copy(copied, temporary)
    else:
        save_weights(path, *weights)
    if int8 is not None:
        with replacing(quantized) as temporary:
            temporary.write_bytes(int8)


def _link_or_copy(file: Path, copy: Path) -> None:
    """Replace `copy` by a hard link to a file, which takes no space.

    It becomes a copy if the file system has no links.
    """
    copy.unlink()
    try:
        os.link(file, copy)
    except OSError:
        shutil.copyfile(file, copy)


class WeightFolder:
    """A folder with the weights of a study's trials, `NUMBER.safetensors`.

    If a metric needs them, it also has their quantized networks, `NUMBER.int8.onnx`. Several
    processes may share it. Each removes files of finished trials only, and all agree on which to
    remove.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self._front: dict[Architecture, tuple[int, np.ndarray]] = {}  # trial number and losses (m,)

    def write(self, number: int, weights: Weights, int8: bytes | None = None) -> Path:
        """Write a trial's weights, and its quantized network; return the path of the weights."""
        path = self._path(number)
        write_weights(path, weights, int8)
        return path

    def settle(self, architecture: Architecture, number: int, losses: np.ndarray | None) -> None:
        """Update the front with a finished trial.

        The weights of networks that are not on it are removed. If an architecture has two trials,
        the first counts, as in `SearchResult`.

        Args:
            architecture: the trial's architecture.
            number: the trial's number.
            losses: (m,), or None if the trial failed or violates a constraint.
        """
        first, _ = self._front.get(architecture, (number, None))
        if first < number or losses is None:
            self._remove(number)
            return
        if first > number:
            self._remove(first)
        self._front[architecture] = number, losses
        all_losses = np.array([losses for _, losses in self._front.values()])  # (k, m)
        on_front = non_dominated(all_losses)
        dominated = [entry for entry, stays in zip(self._front, on_front, strict=True) if not stays]
        for entry in dominated:
            dominated_number, _ = self._front.pop(entry)
            self._remove(dominated_number)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number}.safetensors"

    def _remove(self, number: int) -> None:
        self._path(number).unlink(missing_ok=True)
        self._path(number).with_suffix(INT8).unlink(missing_ok=True)


def find_weights(recorded: str, folder: Path) -> Path | None:
    """Find a trial's file of weights.

    Args:
        recorded: path to which it was written.
        folder: result folder, to which it may have been moved or copied.

    Returns:
        The file; None if neither place has one that can be read.
    """
    written = Path(recorded)
    moved = folder / "studies" / "weights" / written.parent.name / written.name
    for path in (moved, written):
        if path.is_file() and _is_readable(path):
            return path
    return None


def _is_readable(path: Path) -> bool:
    """False for a file that is damaged, such as a truncated one."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np"):
            return True
    except (OSError, SafetensorError):
        return False


# --- the folder of a front

log = logging.getLogger(__name__)
MAX_ATTEMPTS = 10  # to replace a folder that other processes replace, too


def network_name(place: int, count: int) -> str:
    """File name of the network at a place (from 0) on a front of `count` networks.

    The name is a padded number, such as 03 for the fourth network.
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
    """Write the files of an evaluated network: values, and weights if they were stored."""
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

    `STEM.int8.onnx` is written, too, if the file of the weights has a quantized network beside it.
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
    """An evaluated network as a PyTorch module in evaluation mode.

    It has its trained weights if these were stored.

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


def missing_weights(front: Sequence[DistinctNetwork], folder: Path) -> dict[int, str]:
    """Trained networks of a front whose weights are lost.

    Args:
        front: the front.
        folder: the result folder, to which weights may have been moved.

    Returns:
        By place on the front, the path to which the weights were written.
    """
    recorded = {place: network.representative.weights for place, network in enumerate(front)}
    return {
        place: path
        for place, path in recorded.items()
        if path and find_weights(path, folder) is None
    }
