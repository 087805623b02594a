"""What is trained for and how well it is met: the class of each sample, or its numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from nas.evaluation.datasets import Dataset


class Goal(Protocol):
    """Loss and score of outputs (n, replicas, outputs). A score is the metric of `Dataset.metric`."""

    sign: float  # of a score as a loss: 1 where lower is better

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean loss; targets (n, replicas) or (n, replicas, outputs)."""

    def terms(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """(n, replicas) double, whose mean makes the score; NaN where an output is not finite. Targets as a part's."""

    def score(self, mean: float) -> float:
        """The score, of the mean of all samples' terms."""


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
    """Mean square error of normalized numbers, and root mean square error in the numbers' own unit.

    std: (outputs,) what the numbers were divided by.
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
    """The goal of training on a data set."""
    if data.target_scale is not None:
        return Regression(torch.from_numpy(data.target_scale.std).double())
    return Regression(torch.ones(data.outputs).double()) if data.is_regression else Classification()
