"""A data set: training, validation and test parts, as networks see them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from search_spaces.common.errors import InputError
from search_spaces.ir.graph import Shape, typed


@dataclass(frozen=True, eq=False)
class Part:
    """Samples of a data set.

    Attributes:
        inputs: (n, …) float32, or int64 for token ids.
        targets: classes (n,) int64 from 0, or regression targets (n, outputs) float32.
        content: SHA-256 of the samples before any arithmetic, whose last digits depend on the
            machine; empty if the arrays themselves are the content.
    """

    inputs: np.ndarray
    targets: np.ndarray
    content: str = ""

    def __len__(self) -> int:
        return len(self.inputs)

    def rows(self, rows: np.ndarray | slice) -> Part:
        """The samples at these indices."""
        content = _sha256(self.content, np.arange(len(self))[rows]) if self.content else ""
        return Part(self.inputs[rows], self.targets[rows], content)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the content; the same on every machine that reads the same samples."""
        return self.content or _sha256(self.inputs, self.targets)


def _sha256(*parts: np.ndarray | str) -> str:
    """SHA-256, in hexadecimal, of arrays with their shapes, and of texts."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            digest.update(part.encode())
            continue
        digest.update(repr(part.shape).encode())
        digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()


class Scale(NamedTuple):
    """Mean and standard deviation that values were normalized with.

    Both broadcast to one sample.
    """

    mean: np.ndarray
    std: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray, axis: int) -> Scale:
        """Statistics of values (n, …) per index of `axis` (1 for the channels of images)."""
        reduced = tuple(i for i in range(values.ndim) if i != axis)
        mean = values.mean(reduced, dtype=np.float64, keepdims=True).astype(np.float32)
        std = values.std(reduced, dtype=np.float64, keepdims=True).astype(np.float32)
        std[std == 0] = 1  # of constant values, which become 0
        return cls(mean[0], std[0])

    def normalize(self, values: np.ndarray) -> np.ndarray:
        """Values (n, …) minus the mean, divided by the standard deviation."""
        return (values - self.mean) / self.std

    def plain(self) -> dict[str, list[float]]:
        """Means and standard deviations as lists, one number per index of the axis."""
        return {"mean": self.mean.ravel().tolist(), "std": self.std.ravel().tolist()}


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples of one shape, for classification or regression.

    Attributes:
        name: prefix of the metric names.
        train: part that networks are trained on.
        test: part for the final score.
        outputs: number of classes, or of regression targets per sample.
        validation: part that networks are selected by; None if `with_validation` is to take it from
            `train`.
        input_scale: normalization of the inputs; None if they are not normalized.
        target_scale: normalization of the regression targets; None if they are not normalized.
        source: name or path from which `load_dataset` reads the data set again.
        labelled: False if there are inputs alone, for networks that imitate a trained model.
    """

    name: str
    train: Part
    test: Part
    outputs: int
    validation: Part | None = None
    input_scale: Scale | None = None
    target_scale: Scale | None = None
    source: str = ""
    labelled: bool = True

    @property
    def shape(self) -> Shape:
        """Shape of one input; `Typed` for token ids."""
        inputs = self.train.inputs
        return typed(inputs.shape[1:], "float" if inputs.dtype.kind == "f" else "int64")

    @property
    def is_regression(self) -> bool:
        """True for regression, False for classification."""
        return self.train.targets.dtype.kind == "f"

    @property
    def metric(self) -> str:
        """Name of the validation score.

        It is the accuracy in %, or the root mean square error in the targets' unit.
        """
        return f"{self.name}_{'rmse' if self.is_regression else 'accuracy'}"

    @property
    def test_metric(self) -> str:
        """Name of the same score on the test part."""
        return f"{self.name}_test_{'rmse' if self.is_regression else 'accuracy'}"

    def with_validation(self, share: float) -> Dataset:
        """This data set if it has a validation part.

        Else a copy that takes a fixed random share of `train` for it.
        """
        return self if self.validation is not None else _split_off(self, share)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the content of all parts."""
        parts = [self.train, self.test]
        if self.validation is not None:
            parts.append(self.validation)
        return _sha256(*(part.fingerprint for part in parts))


@lru_cache(maxsize=2)
def _split_off(data: Dataset, share: float) -> Dataset:
    """A copy whose validation part is a share of `train`; the same object for the same arguments."""
    train, validation = split(data.train, share, 0)
    if not len(train) or not len(validation):
        raise InputError(
            f"{data.name}: {share:.0%} of {len(data.train)} training samples leaves an empty part: "
            "add x_val and y_val"
        )
    return replace(data, train=train, validation=validation)


def split(part: Part, share: float, seed: int) -> tuple[Part, Part]:
    """Split samples at random into the remaining part and a held-out part with `share` of them."""
    order = np.random.default_rng(seed).permutation(len(part))
    count = round(share * len(part))
    return part.rows(order[count:]), part.rows(order[:count])
