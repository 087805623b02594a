"""Training objectives: loss and score of classification and of regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from nas.evaluation.inheritance import Cosine, Imitation

if TYPE_CHECKING:
    from nas.evaluation.datasets import Dataset


class Goal(Protocol):
    """Loss and score of outputs (n, replicas, outputs).

    The score is the metric `Dataset.metric`.
    """

    sign: float  # 1 if lower scores are better, -1 if higher ones are

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean loss. Targets are (n, replicas) or (n, replicas, outputs)."""

    def terms(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Score (n, replicas) of each sample before averaging, in double precision.

        It is NaN where an output is not finite. Targets are (n,) or (n, outputs), the same for all
        replicas.
        """

    def score(self, mean: float) -> float:
        """The score of one replica from the mean of its terms."""


class Classification:
    """Cross-entropy, and accuracy in %."""

    sign = -1.0

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    def terms(self, outputs: Tensor, targets: Tensor) -> Tensor:
        right = (outputs.argmax(2) == targets[:, None]).double()
        return torch.where(outputs.isfinite().all(2), right, torch.nan)

    def score(self, mean: float) -> float:
        return 100 * mean


@dataclass(frozen=True)
class Regression:
    """Mean squared error of normalized targets.

    The score is the root mean square error in the targets' own unit.

    Args:
        std: (outputs,) standard deviations that the targets were divided by.
    """

    std: Tensor
    sign = 1.0

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.mse_loss(outputs, targets)

    def terms(self, outputs: Tensor, targets: Tensor) -> Tensor:
        squares = ((outputs - targets[:, None]).double() * self.std).square().mean(2)
        return torch.where(outputs.isfinite().all(2), squares, torch.nan)

    def score(self, mean: float) -> float:
        return mean**0.5


def goal_of(data: Dataset) -> Goal:
    """The training objective of a data set."""
    if isinstance(data, Imitation):
        return Cosine() if data.is_regression else Classification()
    if data.target_scale is not None:
        return Regression(torch.from_numpy(data.target_scale.std).double())
    return Regression(torch.ones(data.outputs).double()) if data.is_regression else Classification()
