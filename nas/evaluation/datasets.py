"""Image classification data sets to train on: the built-in digits, `.npz` files, folders of images."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from search_spaces.common.errors import InputError, unknown

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_BYTES = 8 << 30  # of all arrays together
TEST_SHARE = 0.2  # held out at random where a data set has no test part
IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"})

Shape = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images (n, channels, height, width) float32 with labels (n,) int64 in 0…num_classes-1."""

    name: str
    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    num_classes: int

    @property
    def shape(self) -> Shape:
        """Channels, height and width of an image."""
        return self.train_images.shape[1:]

    @property
    def metric(self) -> str:
        """Name of the test accuracy in %."""
        return f"{self.name}_accuracy"

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of everything in it."""
        digest = hashlib.sha256()
        for array in (self.train_images, self.train_labels, self.test_images, self.test_labels):
            digest.update(repr(array.shape).encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def load_dataset(source: str | Path, shape: tuple[int, ...] | None = None, seed: int = 0) -> Dataset:
    """The data set `"digits"`, in a `.npz` file, or in a folder of images. Raises InputError naming what is wrong.

    `.npz`: arrays x_train, y_train, x_test, y_test, or x and y, of which a fifth, drawn from `seed`, becomes the test
    part. Images are (n, height, width), (n, channels, height, width) or (n, height, width, 1 or 3), uint8 or float;
    labels are whole numbers from 0. Nothing in the file is executed.

    Folder: one folder of images per class, classes in alphabetical order, beneath `train` and `test` or split as
    above. Images are resized to `shape` (channels, height, width; 1 channel is grey), by default the first image's.

    Except for digits, every channel is normalized by the training part's mean and standard deviation.
    """
    if source == "digits":
        return digits()
    path = Path(source)
    if path.is_dir():
        return _normalized(path.name, _read_folder(path, shape, seed), path)
    if path.suffix == ".npz":
        return _normalized(path.stem, _read_npz(path, seed), path)
    if path.exists():
        raise InputError(f"{path}: a data set is a .npz file or a folder of images")
    raise unknown("data set (nor is it a file)", str(source), ["digits"])


# --- digits ----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4)
def digits(train_images: int = 512, shift: int = 1, noise: float = 0.1, seed: int = 0) -> Dataset:
    """scikit-learn's 1,797 handwritten digits (1, 8, 8), made hard enough for networks to differ.

    Few training images, and a test part that is disturbed once and for all (see `disturb`); `seed` draws the split
    and the disturbance. Pixels are in 0…1.
    """
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images, labels = (images / 16).astype(np.float32).reshape(-1, 1, 8, 8), labels.astype(np.int64)
    if not 1 <= train_images < len(images):
        raise InputError(f"digits: {train_images} training images of {len(images)}")
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(images))
    train, test = order[:train_images], order[train_images:]
    disturbed = augment(images[test], rng, shift, noise)
    return Dataset("digits", images[train], labels[train], disturbed, labels[test], 10)


def augment(images: np.ndarray, rng: np.random.Generator, shift: int, noise: float, flip: bool = False) -> np.ndarray:
    """Copies of images (n, channels, height, width) for augmentation.

    Each is moved by up to `shift` pixels in both directions (zeros move in), given Gaussian noise of standard deviation
    `noise`, and with `flip` mirrored left to right or not.
    """
    moved = images
    if shift:
        moved = _shifted(images, rng.integers(0, 2 * shift + 1, (len(images), 2)), shift)
    if noise:
        moved = moved + noise * rng.standard_normal(moved.shape, np.float32)
    if flip:
        moved = np.where(rng.integers(0, 2, (len(images), 1, 1, 1)), moved[..., ::-1], moved)
    return moved


def _shifted(images: np.ndarray, moves: np.ndarray, shift: int) -> np.ndarray:
    """Windows that start at `moves` (n, 2) of the images padded by `shift`."""
    height, width = images.shape[2:]
    padded = np.pad(images, ((0, 0), (0, 0), (shift, shift), (shift, shift)))
    rows, columns = moves[:, :1] + np.arange(height), moves[:, 1:] + np.arange(width)
    n, c = np.arange(len(images))[:, None, None, None], np.arange(images.shape[1])[:, None, None]
    return padded[n, c, rows[:, None, :, None], columns[:, None, None, :]]


# --- .npz ------------------------------------------------------------------------------------------------------------

Parts = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
_NAMES = ("x_train", "y_train", "x_test", "y_test")


def _read_npz(path: Path, seed: int) -> Parts:
    try:
        with zipfile.ZipFile(path) as archive:
            _check_bytes(path, sum(entry.file_size for entry in archive.infolist()))
        with np.load(path, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in ("x", "y", *_NAMES) if name in arrays}
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except InputError:
        raise
    except (OSError, ValueError, zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, EOFError) as error:
        raise InputError(f"{path}: not a readable .npz file ({' '.join(str(error).split())[:200]})") from None
    if set(found) >= set(_NAMES):
        (x, y), (x_test, y_test) = _pair(path, found, "x_train", "y_train"), _pair(path, found, "x_test", "y_test")
        return x, y, x_test, y_test
    if set(found) >= {"x", "y"}:
        return _split(path, *_pair(path, found, "x", "y"), seed)
    raise InputError(f"{path}: needs the arrays {', '.join(_NAMES)}, or x and y; it has {', '.join(found) or 'none'}")


def _pair(path: Path, arrays: Mapping[str, np.ndarray], x: str, y: str) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels under these names, as (n, c, h, w) float32 and (n,) int64."""
    images, labels = arrays[x], arrays[y]
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[3] in (1, 3) and images.shape[1] not in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.ndim != 4 or not images.size:
        raise InputError(f"{path}: {x} has shape {arrays[x].shape}, not (n, channels, height, width)")
    if images.dtype == np.uint8:
        images = images.astype(np.float32) / 255
    elif images.dtype.kind == "f":
        images = images.astype(np.float32)
    else:
        raise InputError(f"{path}: {x} is {images.dtype}; store pixels as uint8 or float32")
    if not np.isfinite(images).all():
        raise InputError(f"{path}: {x} has NaN or infinite values")
    labels = labels.reshape(-1) if labels.shape == (len(images), 1) else labels
    if labels.dtype.kind not in "iu" or labels.shape != (len(images),):
        raise InputError(f"{path}: {y} is {labels.dtype} {labels.shape}; {len(images)} whole numbers are needed")
    return images, labels.astype(np.int64)


def _check_bytes(path: Path, count: int) -> None:
    if count > MAX_BYTES:
        raise InputError(f"{path}: {count / 1e9:.1f} GB of images; at most {MAX_BYTES / 1e9:.1f} GB are read")


# --- folders of images -----------------------------------------------------------------------------------------------


def _read_folder(path: Path, shape: tuple[int, ...] | None, seed: int) -> Parts:
    parts = [path / "train", path / "test"]
    present = [part for part in parts if part.is_dir()]
    if len(present) == 1:
        raise InputError(f"{path}: has the folder {present[0].name}, but needs both train and test, or neither")
    classes = _folders(present[0] if present else path)
    if len(classes) < 2:
        raise InputError(f"{path}: needs one folder of images per class, at least two; it has {len(classes)}")
    files = [_files(part, classes) for part in (present or [path])]
    if shape is None:
        shape = _first_shape(files[0][0][0])
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise InputError(f"{path}: images cannot be made into shape {shape}; use (1 or 3, height, width)")
    _check_bytes(path, sum(len(names) for names, _ in files) * int(np.prod(shape)) * 4)
    read = [(np.stack([_read_image(name, shape) for name in names]), labels) for names, labels in files]
    if not present:
        return _split(path, *read[0], seed)
    return (*read[0], *read[1])


def _folders(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _files(path: Path, classes: Sequence[str]) -> tuple[list[Path], np.ndarray]:
    """Image files in a fixed order, and their labels."""
    strange = set(_folders(path)) - set(classes)
    if strange:
        raise InputError(f"{path / min(strange)}: no such class among the training images ({', '.join(classes)})")
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        entries = sorted((path / name).iterdir()) if (path / name).is_dir() else []
        found = [entry for entry in entries if entry.suffix.lower() in IMAGE_SUFFIXES]
        files += found
        labels += [label] * len(found)
    if not files:
        raise InputError(f"{path}: no images ({', '.join(sorted(IMAGE_SUFFIXES))})")
    return files, np.array(labels, dtype=np.int64)


@contextmanager
def _opened(path: Path) -> Iterator[Image]:
    from PIL import Image

    try:
        with Image.open(path) as image:
            yield image
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"{path}: not a readable image ({' '.join(str(error).split())[:200]})") from None


def _first_shape(path: Path) -> Shape:
    with _opened(path) as image:
        return (1 if image.mode in ("1", "L", "I;16") else 3, image.height, image.width)


def _read_image(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """Pixels (channels, height, width) in 0…1."""
    channels, height, width = shape
    with _opened(path) as image:
        pixels = image.convert("L" if channels == 1 else "RGB").resize((width, height))
    return np.asarray(pixels, np.float32).reshape(height, width, channels).transpose(2, 0, 1) / 255


# --- both ------------------------------------------------------------------------------------------------------------


def _split(path: Path, images: np.ndarray, labels: np.ndarray, seed: int) -> Parts:
    order = np.random.default_rng(seed).permutation(len(images))
    count = round(TEST_SHARE * len(images))
    if not 0 < count < len(images):
        raise InputError(f"{path}: {len(images)} images are too few to hold out a test part")
    test, train = order[:count], order[count:]
    return images[train], labels[train], images[test], labels[test]


def _normalized(name: str, parts: Parts, path: Path) -> Dataset:
    images, labels, test_images, test_labels = parts
    classes = np.unique(labels)
    if classes[0] != 0 or classes[-1] != len(classes) - 1:
        shown = ", ".join(map(str, classes[:5]))
        raise InputError(f"{path}: training labels must be 0, 1, 2, … without a gap, not {shown}, …")
    if not np.isin(test_labels, classes).all():
        raise InputError(f"{path}: test labels beyond the {len(classes)} classes of the training images")
    if images.shape[1:] != test_images.shape[1:]:
        raise InputError(f"{path}: test images {test_images.shape[1:]} are not of shape {images.shape[1:]}")
    mean = images.mean((0, 2, 3), dtype=np.float64, keepdims=True).astype(np.float32)
    std = images.std((0, 2, 3), dtype=np.float64, keepdims=True).astype(np.float32)
    std[std == 0] = 1
    return Dataset(name, (images - mean) / std, labels, (test_images - mean) / std, test_labels, len(classes))
