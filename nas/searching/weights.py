"""Trained weights of a search's front: a file for each network on it, and none for others."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nas.searching.pareto import non_dominated
from search_spaces.common.files import replacing

if TYPE_CHECKING:
    from nas.evaluation.trainable import State
    from search_spaces import Architecture


WEIGHTS_FOLDER_KEY = "nas:weights"  # study user attribute: path of the folder with the weights of its front

Weights = Path | tuple["State", Mapping[str, str]]
"""A file of weights, or tensors by name and what their file is to say beside them."""


def write_weights(path: Path, weights: Weights) -> None:
    """Write a file of weights; it is complete or absent."""
    from nas.evaluation.export import save_weights

    if isinstance(weights, Path):
        with replacing(path) as temporary:
            shutil.copyfile(weights, temporary)
    else:
        save_weights(path, *weights)


class WeightFolder:
    """A folder with the weights of one study's trials, `NUMBER.safetensors`.

    Several processes may share it: each removes files of finished trials only, and all agree which those are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self._front: dict[Architecture, tuple[int, np.ndarray]] = {}  # trial's number and losses

    def write(self, number: int, weights: Weights) -> Path:
        """Write a trial's weights; the path of their file."""
        path = self._path(number)
        write_weights(path, weights)
        return path

    def settle(self, architecture: Architecture, number: int, losses: np.ndarray | None) -> None:
        """Take note of a finished trial, and remove the weights that are no longer on the front.

        losses: (m,); None for a trial that failed or breaks a constraint. Of two trials of an architecture, the first
        counts, as in `SearchResult`.
        """
        first, _ = self._front.get(architecture, (number, None))
        if first < number or losses is None:
            self._remove(number)
            return
        if first > number:
            self._remove(first)
        self._front[architecture] = number, losses
        stays = non_dominated(np.array([other for _, other in self._front.values()]))
        for dominated in [a for a, stay in zip(self._front, stays, strict=True) if not stay]:
            self._remove(self._front.pop(dominated)[0])

    def _path(self, number: int) -> Path:
        return self.folder / f"{number}.safetensors"

    def _remove(self, number: int) -> None:
        self._path(number).unlink(missing_ok=True)


def find_weights(recorded: str, folder: Path) -> Path | None:
    """The file of a trial's weights: where it was written, or in a result folder to which it was moved or copied."""
    written = Path(recorded)
    moved = folder / "studies" / "weights" / written.parent.name / written.name
    return next((path for path in (moved, written) if path.is_file()), None)
