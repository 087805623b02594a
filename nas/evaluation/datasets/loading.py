"""Loads a data set by name or path."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from nas.evaluation.datasets.arrays import read_arrays
from nas.evaluation.datasets.dataset import Dataset, Part, Scale, split
from nas.evaluation.datasets.digits import digits
from nas.evaluation.datasets.image_folders import read_folder
from search_spaces.common.errors import InputError, unknown
from search_spaces.ir.graph import Shape

RAW = "raw:"  # prefix of a data set whose inputs are not normalized
TEST_SHARE = 0.2  # of the training samples, held out at random if a data set has no test part


def load_dataset(source: str | Path, shape: Shape | None = None, seed: int = 0) -> Dataset:
    """Load the data set `"digits"`, a `.npz` file or a folder of images.

    A `.npz` file has arrays x_train, y_train, x_test, y_test, or x and y, and optionally x_val and
    y_val (see `arrays.read_arrays`). Loading executes nothing in the file. A folder has one folder
    of images per class, or images and `targets.csv`, either split into `train`, `val` and `test` or
    not (see `image_folders.read_folder`).

    With `raw:` before the name, inputs are not normalized: uint8 values are divided by 255, others
    stay.

    Integer targets are classes, floats are regression targets. Except for digits, inputs and
    regression targets are normalized with the mean and standard deviation of the training part: per
    channel of images, per feature of vectors and sequences, per target. Token ids stay as they are.

    Example:

        >>> import nas
        >>> digits = nas.load_dataset("digits")
        >>> digits.train.inputs.shape, digits.outputs
        ((512, 1, 8, 8), 10)

    Args:
        source: `"digits"` or a path.
        shape: input shape of the networks, `Typed` for token ids. Images are resized to it, by
            default to the size of the first image.
        seed: draws the test part, a fifth of the training samples, if the data set has none.

    Raises:
        InputError: the data set is missing, unreadable or inconsistent.
    """
    if source == "digits":
        return digits()
    if str(source).startswith(RAW):
        data = load_dataset(str(source).removeprefix(RAW), shape, seed)
        return data if data.source == "digits" else _unscaled(data)
    path = Path(source)
    if path.is_dir():
        return _dataset(path, path.name, read_folder(path, shape), seed)
    if path.suffix == ".npz":
        return _dataset(path, path.stem, read_arrays(path, shape), seed)
    if path.exists():
        raise InputError(f"{path}: a data set is a .npz file or a folder of images")
    raise unknown("data set or missing file", str(source), ["digits"])


def _unscaled(data: Dataset) -> Dataset:
    """A data set whose inputs are as in its files.

    It is for models that normalize them, or were trained without.
    """
    scale = data.input_scale
    if scale is None:
        return data

    def part(samples: Part) -> Part:
        content = f"{RAW}{samples.fingerprint}"  # not the rounded numbers
        return Part(samples.inputs * scale.std + scale.mean, samples.targets, content)

    validation = None if data.validation is None else part(data.validation)
    return replace(
        data,
        train=part(data.train),
        test=part(data.test),
        validation=validation,
        input_scale=None,
        source=f"{RAW}{data.source}",
    )


def _dataset(path: Path, name: str, parts: dict[str, Part], seed: int) -> Dataset:
    """A data set of the parts that were read: test part added if missing, checked, normalized."""
    if "test" not in parts:
        train, test = split(parts["train"], TEST_SHARE, seed)
        if not len(train) or not len(test):
            raise InputError(
                f"{path}: {len(parts['train'])} samples are too few to hold out a test part"
            )
        parts = {**parts, "train": train, "test": test}
    train = parts["train"]
    for which, part in parts.items():
        if part.inputs.shape[1:] != train.inputs.shape[1:]:
            raise InputError(
                f"{path}: {which} inputs have shape {part.inputs.shape[1:]}, but training inputs "
                f"have shape {train.inputs.shape[1:]}"
            )
        if (
            part.targets.dtype != train.targets.dtype
            or part.targets.shape[1:] != train.targets.shape[1:]
        ):
            raise InputError(
                f"{path}: {which} targets {_kind(part)}, but training targets {_kind(train)}"
            )
    is_regression = train.targets.dtype.kind == "f"
    outputs = train.targets.shape[1] if is_regression else _count_classes(path, parts)
    inputs = (
        None
        if train.inputs.dtype.kind != "f"
        else Scale.of(train.inputs, _channel_axis(train.inputs))
    )
    targets = Scale.of(train.targets, 1) if is_regression else None
    scaled = {which: _normalized(part, inputs, targets) for which, part in parts.items()}
    source = str(path.absolute())
    labelled = any(part.targets.any() for part in parts.values())
    return Dataset(
        name,
        **scaled,
        outputs=outputs,
        input_scale=inputs,
        target_scale=targets,
        source=source,
        labelled=labelled,
    )


def _kind(part: Part) -> str:
    return (
        f"are classes {part.targets.shape}"
        if part.targets.dtype.kind == "i"
        else f"are numbers {part.targets.shape}"
    )


def _channel_axis(inputs: np.ndarray) -> int:
    """Axis that is normalized per index: channels of images, features of vectors and sequences."""
    return 1 if inputs.ndim == 4 else inputs.ndim - 1


def _count_classes(path: Path, parts: dict[str, Part]) -> int:
    classes = np.unique(parts["train"].targets)
    if classes[0] != 0 or classes[-1] != len(classes) - 1:
        shown = ", ".join(map(str, classes[:5]))
        raise InputError(
            f"{path}: training labels must be 0, 1, 2, … without a gap, not {shown}, …"
        )
    for which, part in parts.items():
        if not np.isin(part.targets, classes).all():
            raise InputError(
                f"{path}: a {which} label is not among the {len(classes)} classes of the training "
                "part"
            )
    return len(classes)


def _normalized(part: Part, inputs: Scale | None, targets: Scale | None) -> Part:
    return Part(
        inputs.normalize(part.inputs) if inputs else part.inputs,
        targets.normalize(part.targets) if targets else part.targets,
        part.fingerprint,
    )
