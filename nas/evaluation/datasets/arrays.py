"""Data sets in `.npz` files: images, sequences, token ids or vectors, with classes or regression
targets.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from nas.evaluation.datasets.dataset import Part
from search_spaces.common.errors import InputError
from search_spaces.ir.graph import Shape, element_type

MAX_BYTES = 8 << 30  # all arrays together
_ARRAYS = {
    "train": ("x_train", "y_train"),
    "test": ("x_test", "y_test"),
    "validation": ("x_val", "y_val"),
}
_UNSPLIT = ("x", "y")
_NEEDED = "x_train, y_train, x_test, y_test, or x and y"


def read_arrays(path: Path, shape: Shape | None = None) -> dict[str, Part]:
    """Read the parts `train`, `test` and `validation` of a `.npz` file, as far as it has them.

    Inputs `x_…` are images (n, height, width), (n, channels, height, width) or (n, height, width, 1
    or 3), vectors (n, features) or sequences (n, length, features), uint8 or float, or token ids
    (n, length), integers. uint8 values are divided by 255. Targets `y_…` are classes (n,), integers
    from 0, or regression targets (n,) or (n, outputs), float.

    Args:
        path: the file, with x_train, y_train, x_test and y_test, or x and y; x_val and y_val are
            optional. Without any targets, x or x_train is enough.
        shape: input shape of the networks. It tells greyscale images from sequences, and token ids
            from vectors.

    Raises:
        InputError: the file cannot be read or is larger than `MAX_BYTES`; an array is missing or
            has a wrong type or shape.
    """
    arrays = _load(path)

    # 1. Inputs alone, for networks that imitate a trained model.
    has_targets = any(y in arrays for _, y in (*_ARRAYS.values(), _UNSPLIT))
    if not has_targets and {"x", "x_train"} & arrays.keys():
        parts = {"x_train": "train", "x": "train", "x_test": "test", "x_val": "validation"}
        inputs = {parts[name]: _inputs(path, name, x, shape) for name, x in arrays.items()}
        return {which: Part(x, np.zeros(len(x), np.int64)) for which, x in inputs.items()}

    # 2. Names of inputs and targets of each part.
    if {"x", "y"} <= arrays.keys() and "x_train" not in arrays:
        pairs = {"train": _UNSPLIT}
    else:
        pairs = {"train": _ARRAYS["train"], "test": _ARRAYS["test"]}
    if "x_val" in arrays:
        pairs["validation"] = _ARRAYS["validation"]
    for names in pairs.values():
        if missing := [name for name in names if name not in arrays]:
            present = ", ".join(arrays) or "none"
            raise InputError(
                f"{path}: needs the arrays {_NEEDED}; it has {present} and lacks {missing[0]}"
            )

    # 3. The arrays themselves.
    read = {}
    for which, (x, y) in pairs.items():
        samples = _inputs(path, x, arrays[x], shape)  # checked first: targets need their number
        read[which] = Part(samples, _targets(path, y, arrays[y], len(samples)))
    return read


def _load(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file whose names have a meaning here, without running any code in it."""
    names = {name for pair in (*_ARRAYS.values(), _UNSPLIT) for name in pair}
    try:
        with zipfile.ZipFile(path) as archive:
            check_bytes(path, sum(entry.file_size for entry in archive.infolist()))
        with np.load(path, allow_pickle=False) as arrays:
            return {name: np.atleast_1d(arrays[name]) for name in arrays if name in names}
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file") from error
    except InputError:
        raise
    except (
        OSError,
        ValueError,
        zipfile.BadZipFile,
        zipfile.LargeZipFile,
        NotImplementedError,
        EOFError,
    ) as error:
        raise InputError(
            f"{path}: not a readable .npz file ({' '.join(str(error).split())[:200]})"
        ) from error


def check_bytes(path: Path, count: int) -> None:
    """Raise InputError if a data set has more than `MAX_BYTES`."""
    if count > MAX_BYTES:
        raise InputError(
            f"{path}: {count / 1e9:.1f} GB of samples; the limit is {MAX_BYTES / 1e9:.1f} GB"
        )


def _inputs(path: Path, name: str, array: np.ndarray, shape: Shape | None) -> np.ndarray:
    """Inputs in the layout of the networks, not yet normalized: float32, or int64 for token ids."""
    if not array.size or not 2 <= array.ndim <= 5:
        raise InputError(
            f"{path}: {name} has shape {array.shape}; (n, channels, height, width) or the like is "
            "needed"
        )
    if _is_token_ids(array, shape):
        if array.min() < 0:
            raise InputError(f"{path}: {name} has the token id {array.min()}: token ids start at 0")
        return array.astype(np.int64)
    if array.ndim == 3 and (shape is None or len(shape) == 3):
        array = array[:, None]
    elif array.ndim == 4 and array.shape[3] in (1, 3) and array.shape[1] not in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    if array.dtype == np.uint8:
        return array.astype(np.float32) / 255
    if array.ndim > 3 and array.dtype.kind != "f":
        raise InputError(f"{path}: {name} is {array.dtype}; store pixels as uint8 or float32")
    if array.dtype.kind not in "fiu":
        raise InputError(f"{path}: {name} is {array.dtype}; store uint8 or float32")
    if not np.isfinite(array).all():
        raise InputError(f"{path}: {name} has NaN or infinite values")
    return array.astype(np.float32)


def _is_token_ids(array: np.ndarray, shape: Shape | None) -> bool:
    """True for integers (n, length), unless the networks take floats."""
    if array.ndim != 2 or array.dtype.kind not in "iu":
        return False
    return array.dtype != np.uint8 if shape is None else element_type(shape) != "float"


def _targets(path: Path, name: str, array: np.ndarray, count: int) -> np.ndarray:
    """Classes (n,) int64, or regression targets (n, outputs) float32."""
    if array.dtype.kind in "iub":
        array = array.reshape(-1) if array.shape == (count, 1) else array
        if array.shape == (count,):
            return array.astype(np.int64)
        raise InputError(
            f"{path}: {name} is {array.dtype} {array.shape}; {count} whole numbers are needed"
        )
    if array.dtype.kind != "f" or array.ndim > 2 or len(array) != count:
        raise InputError(
            f"{path}: {name} is {array.dtype} {array.shape}; {count} classes or numbers are needed"
        )
    if not np.isfinite(array).all():
        raise InputError(f"{path}: {name} has NaN or infinite values")
    return array.reshape(count, -1).astype(np.float32)
