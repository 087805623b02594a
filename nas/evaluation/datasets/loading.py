"""Reading a data set by its name or path."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nas.evaluation.datasets.arrays import read_arrays
from nas.evaluation.datasets.dataset import Dataset, Part, Scale, split
from nas.evaluation.datasets.digits import digits
from nas.evaluation.datasets.image_folders import read_folder
from search_spaces.common.errors import InputError, unknown
from search_spaces.graph.ir import Shape

TEST_SHARE = 0.2  # held out at random where a data set has no test part


def load_dataset(source: str | Path, shape: Shape | None = None, seed: int = 0) -> Dataset:
    """The data set `"digits"`, in a `.npz` file, or in a folder of images. Raises InputError naming what is wrong.

    `.npz` (`arrays.read_arrays`): arrays x_train, y_train, x_test, y_test, or x and y; x_val and y_val where there are
    validation samples. Nothing in the file is executed. Folder (`image_folders.read_folder`): one folder of images per
    class, or images and `targets.csv`; beneath `train`, `val` and `test`, or not split.

    Whole numbers in y are classes, other numbers are to be predicted. Without a test part, a fifth, drawn from `seed`,
    becomes it. Except for digits, inputs are normalized by the training part's mean and standard deviation (per channel
    of images, per feature of vectors and sequences), and so are numbers to predict. Token ids stay as they are.

    shape: of one input as networks take it, `Typed` for token ids. Images are resized to it; by default they are of the
    first one's size.
    """
    if source == "digits":
        return digits()
    path = Path(source)
    if path.is_dir():
        return _dataset(path, path.name, read_folder(path, shape), seed)
    if path.suffix == ".npz":
        return _dataset(path, path.stem, read_arrays(path, shape), seed)
    if path.exists():
        raise InputError(f"{path}: a data set is a .npz file or a folder of images")
    raise unknown("data set (nor is it a file)", str(source), ["digits"])


def _dataset(path: Path, name: str, parts: dict[str, Part], seed: int) -> Dataset:
    """Parts that were read, with a test part, checked and normalized."""
    if "test" not in parts:
        train, test = split(parts["train"], TEST_SHARE, seed)
        if not len(train) or not len(test):
            raise InputError(f"{path}: {len(parts['train'])} samples are too few to hold out a test part")
        parts = {**parts, "train": train, "test": test}
    train = parts["train"]
    for which, part in parts.items():
        if part.inputs.shape[1:] != train.inputs.shape[1:]:
            found = f"{which} inputs {part.inputs.shape[1:]} are not of shape {train.inputs.shape[1:]}"
            raise InputError(f"{path}: {found}, as the training part's are")
        if part.targets.dtype != train.targets.dtype or part.targets.shape[1:] != train.targets.shape[1:]:
            raise InputError(f"{path}: {which} targets {_kind(part)}, but those of the training part {_kind(train)}")
    is_regression = train.targets.dtype.kind == "f"
    outputs = train.targets.shape[1] if is_regression else _count_classes(path, parts)
    inputs = None if train.inputs.dtype.kind != "f" else Scale.of(train.inputs, _channel_axis(train.inputs))
    targets = Scale.of(train.targets, 1) if is_regression else None
    scaled = {which: _normalized(part, inputs, targets) for which, part in parts.items()}
    source = str(path.absolute())
    return Dataset(name, **scaled, outputs=outputs, input_scale=inputs, target_scale=targets, source=source)


def _kind(part: Part) -> str:
    return (
        f"are classes {part.targets.shape}" if part.targets.dtype.kind == "i" else f"are numbers {part.targets.shape}"
    )


def _channel_axis(inputs: np.ndarray) -> int:
    """The axis whose elements have a scale each: channels of images, features of vectors and sequences."""
    return 1 if inputs.ndim == 4 else inputs.ndim - 1


def _count_classes(path: Path, parts: dict[str, Part]) -> int:
    classes = np.unique(parts["train"].targets)
    if classes[0] != 0 or classes[-1] != len(classes) - 1:
        shown = ", ".join(map(str, classes[:5]))
        raise InputError(f"{path}: training labels must be 0, 1, 2, … without a gap, not {shown}, …")
    for which, part in parts.items():
        if not np.isin(part.targets, classes).all():
            raise InputError(f"{path}: {which} labels beyond the {len(classes)} classes of the training samples")
    return len(classes)


def _normalized(part: Part, inputs: Scale | None, targets: Scale | None) -> Part:
    return Part(
        inputs.normalize(part.inputs) if inputs else part.inputs,
        targets.normalize(part.targets) if targets else part.targets,
    )
