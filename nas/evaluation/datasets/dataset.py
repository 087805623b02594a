"""A data set: parts to train on, to select by and to test on, as networks see them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from search_spaces.common.errors import InputError
from search_spaces.graph.ir import Shape, typed


@dataclass(frozen=True, eq=False)
class Part:
    """n samples.

    inputs: (n, …) float32, or int64 token ids. targets: (n,) int64, classes from 0; or (n, outputs) float32, numbers.
    """

    inputs: np.ndarray
    targets: np.ndarray

    def __len__(self) -> int:
        return len(self.inputs)

    def rows(self, rows: np.ndarray | slice) -> Part:
        """The samples with these numbers."""
        return Part(self.inputs[rows], self.targets[rows])


class Scale(NamedTuple):
    """What values were divided by after the mean was taken away; both broadcast to one sample."""

    mean: np.ndarray
    std: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray, axis: int) -> Scale:
        """Mean and standard deviation along an axis (1: the channels of images) of values (n, …)."""
        others = tuple(i for i in range(values.ndim) if i != axis)
        mean = values.mean(others, dtype=np.float64, keepdims=True).astype(np.float32)
        std = values.std(others, dtype=np.float64, keepdims=True).astype(np.float32)
        std[std == 0] = 1
        return cls(mean[0], std[0])

    def normalize(self, values: np.ndarray) -> np.ndarray:
        return (values - self.mean) / self.std

    def plain(self) -> dict[str, list[float]]:
        """Means and standard deviations as plain numbers, in the order of the axis."""
        return {"mean": self.mean.ravel().tolist(), "std": self.std.ravel().tolist()}


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples of one shape with classes, or with numbers to predict.

    outputs: classes, or numbers per sample. validation: networks are selected by it; None: a share of the training part
    (`with_validation`). input_scale, target_scale: how inputs, and numbers to predict, were normalized; None: they were
    not. source: by which `load_dataset` reads it again.
    """

    name: str
    train: Part
    test: Part
    outputs: int
    validation: Part | None = None
    input_scale: Scale | None = None
    target_scale: Scale | None = None
    source: str = ""

    @property
    def shape(self) -> Shape:
        """Shape of one input; `Typed` for token ids."""
        return typed(self.train.inputs.shape[1:], "float" if self.train.inputs.dtype.kind == "f" else "int64")

    @property
    def is_regression(self) -> bool:
        """True if numbers are predicted, False for classes."""
        return self.train.targets.dtype.kind == "f"

    @property
    def metric(self) -> str:
        """Name of what networks are selected by: accuracy in %, or root mean square error, on the validation part."""
        return f"{self.name}_{'rmse' if self.is_regression else 'accuracy'}"

    @property
    def test_metric(self) -> str:
        """Name of the same on the test part."""
        return f"{self.name}_test_{'rmse' if self.is_regression else 'accuracy'}"

    def with_validation(self, share: float) -> Dataset:
        """The data set with its validation part, or with that share of the training part, always the same."""
        return self if self.validation is not None else _split_off(self, share)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of everything in it."""
        digest = hashlib.sha256()
        for part in (self.train, self.test, *([self.validation] if self.validation else [])):
            for array in (part.inputs, part.targets):
                digest.update(repr(array.shape).encode())
                digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


@lru_cache(maxsize=2)
def _split_off(data: Dataset, share: float) -> Dataset:
    train, validation = split(data.train, share, 0)
    if not len(train) or not len(validation):
        raise InputError(
            f"{data.name}: {share:.0%} of {len(data.train)} training samples leave nothing: give x_val, y_val"
        )
    return replace(data, train=train, validation=validation)


def split(part: Part, share: float, seed: int) -> tuple[Part, Part]:
    """What remains, and a random share of the samples that is held out."""
    order = np.random.default_rng(seed).permutation(len(part))
    count = round(share * len(part))
    return part.rows(order[count:]), part.rows(order[:count])
