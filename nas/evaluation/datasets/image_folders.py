"""Data sets in folders of images: one folder per class, or a table of regression targets."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nas.evaluation.datasets.arrays import check_bytes
from nas.evaluation.datasets.dataset import Part
from search_spaces.common.errors import InputError
from search_spaces.ir.graph import Shape

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"})
TARGETS = "targets.csv"
_PARTS = {"train": ("train",), "test": ("test",), "validation": ("val", "validation", "valid")}


def read_folder(path: Path, shape: Shape | None = None) -> dict[str, Part]:
    """Read the parts `train`, `test` and `validation` of a folder, as far as it has them.

    Classification: one folder of images per class, either directly in the folder or in `train`,
    `val` and `test`. Classes are numbered in alphabetical order. Regression: a table `targets.csv`,
    whose column `file` names an image in the folder and whose other columns are targets. Images in
    `train`, `val` and `test` belong to these parts, all others to the training part.

    Args:
        path: the folder.
        shape: (channels, height, width) of the result, 1 channel for greyscale; by default that of
            the first image.

    Raises:
        InputError: an image, a class or a target is missing or unreadable, or the images need more
            than `arrays.MAX_BYTES`.
    """
    listed = _listed_targets(path) if (path / TARGETS).is_file() else _listed_classes(path)
    if shape is None:
        shape = _first_shape(listed["train"][0][0])
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise InputError(
            f"{path}: images cannot be converted to shape {tuple(shape)}; use (1 or 3, height, "
            "width)"
        )
    sizes = [int(size) for size in shape]
    count = sum(len(files) for files, _ in listed.values())
    bytes_per_image = 4 * int(np.prod(sizes))  # float32
    check_bytes(path, count * bytes_per_image)
    parts = {}
    for which, (files, targets) in listed.items():
        images = np.stack([_read_image(file, sizes) for file in files])  # (n, channels, H, W)
        parts[which] = Part(images, targets)
    return parts


Listed = dict[str, tuple[list[Path], np.ndarray]]
"""For each part: n image files, and their targets (n,) or (n, outputs)."""


def _listed_classes(path: Path) -> Listed:
    """Images and classes of folders with one folder per class."""
    parts = {which: folder for which in _PARTS if (folder := _part_folder(path, which))}
    if ("train" in parts) != ("test" in parts):
        present = next(folder.name for folder in parts.values())
        raise InputError(
            f"{path}: has the folder {present}, but needs both train and test, or neither"
        )
    if "train" not in parts:
        parts = {"train": path}  # the classes are directly in the folder
    classes = _folders(parts["train"])
    if len(classes) < 2:
        raise InputError(
            f"{path}: needs one folder of images per class, at least two; it has {len(classes)}"
        )
    return {which: _files(folder, classes) for which, folder in parts.items()}


def _part_folder(path: Path, which: str) -> Path | None:
    """The folder of a part, by any of its names; None if there is none."""
    folders = [path / name for name in _PARTS[which]]
    return next((folder for folder in folders if folder.is_dir()), None)


def _folders(path: Path) -> list[str]:
    """Names of the folders in a folder, in alphabetical order, without hidden ones."""
    names = [entry.name for entry in path.iterdir() if entry.is_dir()]
    return sorted(name for name in names if not name.startswith("."))


def _files(path: Path, classes: Sequence[str]) -> tuple[list[Path], np.ndarray]:
    """Image files sorted by class and name, and their labels (n,)."""
    strange = set(_folders(path)) - set(classes)
    if strange:
        raise InputError(
            f"{path / min(strange)}: the training images have no such class ({', '.join(classes)})"
        )
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        entries = sorted((path / name).iterdir()) if (path / name).is_dir() else []
        images = [entry for entry in entries if entry.suffix.lower() in IMAGE_SUFFIXES]
        files += images
        labels += [label] * len(images)
    if not files:
        raise InputError(f"{path}: no images ({', '.join(sorted(IMAGE_SUFFIXES))})")
    return files, np.array(labels, dtype=np.int64)


def _listed_targets(path: Path) -> Listed:
    """Images and targets in the order of `targets.csv`."""
    parts: dict[str, tuple[list[Path], list[list[float]]]] = {}
    for name, numbers in _rows(path / TARGETS):
        folders = Path(name).parts[:-1]
        first = folders[0] if folders else ""
        which = next((part for part, names in _PARTS.items() if first in names), "train")
        files, targets = parts.setdefault(which, ([], []))
        files.append(path / name)
        targets.append(numbers)
    if "train" not in parts:
        raise InputError(f"{path / TARGETS}: lists no training image")
    return {
        which: (files, np.array(targets, np.float32)) for which, (files, targets) in parts.items()
    }


def _rows(path: Path) -> Iterator[tuple[str, list[float]]]:
    """Image file and targets of each row."""
    try:
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            names = list(reader.fieldnames or ())
            columns = [name for name in names if name != "file"]
            if "file" not in names or not columns:
                raise InputError(
                    f"{path}: needs a column `file` and one column per regression target"
                )
            for row in reader:
                line = reader.line_num
                yield row["file"], [_number(path, line, name, row[name]) for name in columns]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read ({error})") from error


def _number(path: Path, line: int, column: str, text: str | None) -> float:
    """A regression target. Raises InputError if it is missing or not finite."""
    try:
        value = float(text or "")
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        raise InputError(f"{path}, line {line}, column {column!r}: {text!r} is not a finite number")
    return value


@contextmanager
def _opened(path: Path) -> Iterator[Image]:
    """A context with an image. Raises InputError if it cannot be read."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            yield image
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(
            f"{path}: not a readable image ({' '.join(str(error).split())[:200]})"
        ) from error


def _first_shape(path: Path) -> tuple[int, int, int]:
    """Channels, height and width of an image."""
    with _opened(path) as image:
        channels = 1 if image.mode in ("1", "L", "I;16") else 3
        return channels, image.height, image.width


def _read_image(path: Path, shape: Sequence[int]) -> np.ndarray:
    """Pixels (channels, height, width) in 0…1."""
    channels, height, width = shape
    with _opened(path) as image:
        resized = image.convert("L" if channels == 1 else "RGB").resize((width, height))
    pixels = np.asarray(resized, np.float32).reshape(height, width, channels)
    return pixels.transpose(2, 0, 1) / 255
