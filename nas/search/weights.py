"""Trained weights of the networks on a search's front. Weights of dominated networks are
removed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nas.search.pareto import non_dominated
from search_spaces.common.files import replacing

if TYPE_CHECKING:
    from nas.evaluation.trainable import State
    from search_spaces import Architecture


Weights = Path | tuple["State", Mapping[str, str]]
"""A file of weights, or tensors by name and the metadata of their file."""


def write_weights(path: Path, weights: Weights) -> None:
    """Write a file of weights atomically."""
    from nas.evaluation.export import save_weights

    if isinstance(weights, Path):
        with replacing(path) as temporary:
            _link_or_copy(weights, temporary)
    else:
        save_weights(path, *weights)


def _link_or_copy(file: Path, copy: Path) -> None:
    """Replace `copy` by a hard link to a file, which takes no space, or by a copy if the file
    system has no links.
    """
    copy.unlink()
    try:
        os.link(file, copy)
    except OSError:
        shutil.copyfile(file, copy)


class WeightFolder:
    """A folder with the weights of a study's trials, `NUMBER.safetensors`.

    Several processes may share it. Each removes files of finished trials only, and all agree on
    which to remove.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self._front: dict[Architecture, tuple[int, np.ndarray]] = {}  # trial number and losses (m,)

    def write(self, number: int, weights: Weights) -> Path:
        """Write a trial's weights and return the path of their file."""
        path = self._path(number)
        write_weights(path, weights)
        return path

    def settle(self, architecture: Architecture, number: int, losses: np.ndarray | None) -> None:
        """Update the front with a finished trial and remove the weights of networks that are not on
        it.

        If an architecture has two trials, the first counts, as in `SearchResult`.

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
        stays = non_dominated(np.array([other for _, other in self._front.values()]))
        for dominated in [a for a, stay in zip(self._front, stays, strict=True) if not stay]:
            self._remove(self._front.pop(dominated)[0])

    def _path(self, number: int) -> Path:
        return self.folder / f"{number}.safetensors"

    def _remove(self, number: int) -> None:
        self._path(number).unlink(missing_ok=True)


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
    return next((path for path in (moved, written) if path.is_file() and _is_readable(path)), None)


def _is_readable(path: Path) -> bool:
    """False for a file that is damaged, such as a truncated one."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np"):
            return True
    except (OSError, SafetensorError):
        return False
