"""Settings of the built-in training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Self

from search_spaces.common.errors import InputError, unknown

if TYPE_CHECKING:
    import torch

SCHEDULES = ("one-cycle", "cosine")
RATES = {"sgd": 0.1, "adamw": 2e-3}  # learning rates of new weights, by optimizer
# The same from inherited weights, of networks as far from the model as can be. That of AdamW is
# relative to the size of each weight.
FINE_TUNING_RATES = {"sgd": 0.02, "adamw": 0.04}
LEAST_SIZE = 1e-3  # of the entries of a matrix, for relative rates: new ones may be zero
VECTOR_SIZE = 0.04  # biases and scales take steps as matrices with entries of this size do
MIN_DISTANCE = 1e-6  # from a model: what rounding leaves
UNKNOWN_DISTANCE = 0.25  # of networks that inherit weights from no single model
OPTIMIZERS = tuple(RATES)


@dataclass(frozen=True)
class TrainingTask:
    """How a network is trained.

    Args:
        epochs: passes over the training part; 0 only for networks that inherit weights.
        batch: samples per training step.
        learning_rate: the schedule's maximum. None: 0.1 for SGD and 0.002 for AdamW. From
            inherited weights, None is at most 0.02 for SGD, and for AdamW 4 % of the size of each
            weight; the less, the nearer a network is to the model, and the more its outputs
            depend on small changes (`fine_tuning_rate`).
        weight_decay: L2 penalty of SGD, decoupled weight decay of AdamW.
        optimizer: `"sgd"` (Nesterov momentum 0.9) or `"adamw"`. None: SGD, and from inherited
            weights AdamW, unless there is a learning rate.
        schedule: `"one-cycle"` or `"cosine"`.
        shift: translation of training images in pixels, see `nas.evaluation.datasets.augment`.
            Images are augmented anew in every epoch; other samples are not augmented.
        noise: standard deviation of noise on training images, in the unit of the network's inputs.
        flip: mirror training images at random.
        patience: stop once no seed's validation score has improved for that many epochs, and keep
            each seed's network with the best score. None: train all epochs and keep the last
            network.
        validation: share of the training part that is held out for validation if the data set has
            no such part.

    Raises:
        InputError: a value is unknown or out of range.
    """

    epochs: int = 6
    batch: int = 64
    learning_rate: float | None = None
    weight_decay: float = 5e-4
    optimizer: str | None = None
    schedule: str = "one-cycle"
    shift: int = 1
    noise: float = 0.1
    flip: bool = False
    patience: int | None = None
    validation: float = 0.2

    def __post_init__(self) -> None:
        for kind, value, known in (
            ("schedule", self.schedule, SCHEDULES),
            ("optimizer", self.optimizer, OPTIMIZERS),
        ):
            if value is not None and value not in known:
                raise unknown(kind, value, known)
        least = {"epochs": 0, "batch": 2, "shift": 0, "noise": 0, "patience": 1, "weight_decay": 0}
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= bound):
                raise InputError(f"training with {name} = {value}: it must be at least {bound}")
        if self.learning_rate is not None and not 0 < self.learning_rate < math.inf:
            raise InputError(
                f"training with learning_rate = {self.learning_rate}: it must be positive"
            )
        if not 0 < self.validation < 1:
            raise InputError(
                f"training with validation = {self.validation}: it must be a share between 0 and 1"
            )

    def of_weights(self, inherited: bool) -> Self:
        """The task with an optimizer, and with a learning rate unless each network has its own.

        Args:
            inherited: True if the training starts from the weights of a trained model.
        """
        optimizer = self.optimizer
        if optimizer is None:
            optimizer = "adamw" if inherited and self.learning_rate is None else "sgd"
        rate = self.learning_rate
        if rate is None and not inherited:
            rate = RATES[optimizer]
        return replace(self, optimizer=optimizer, learning_rate=rate)

    def of_samples(self, count: int, inherited: bool) -> Self:
        """The task with a batch of all samples, if these are fewer and weights are inherited.

        A few inputs are enough to imitate a trained model.
        """
        is_small = inherited and 0 < count < self.batch
        return replace(self, batch=count) if is_small else self


def fine_tuning_rate(optimizer: str, distance: float | None, tolerated: float = math.inf) -> float:
    """The learning rate of a network that inherits weights, for AdamW relative to their size.

    A network that is nearly the model has nearly its outputs. Adam takes steps of the same size
    however small the gradients are, which would lead away from them. A far one has to learn. Between
    them, the rate goes with the root of the distance, and with it the squared change of weights with
    the distance.

    Args:
        optimizer: of `OPTIMIZERS`.
        distance: of the network from the model, 0 to 1 (`nas.evaluation.inheritance.distance`); None
            if there is no such model.
        tolerated: the highest rate that the network stands
            (`nas.evaluation.inheritance.tolerated_change`).
    """
    far = UNKNOWN_DISTANCE if distance is None else max(distance, MIN_DISTANCE)
    highest = min(FINE_TUNING_RATES[optimizer], tolerated)
    return float(f"{highest * math.sqrt(far):.2g}")


def training_task(settings: Mapping[str, Any]) -> TrainingTask:
    """Make a task from settings by name.

    Raises InputError for an unknown setting or a value of a wrong type.
    """
    known = [field.name for field in fields(TrainingTask)]
    for name in settings:
        if name not in known:
            raise unknown("training setting", name, known)
    try:
        return TrainingTask(**settings)
    except TypeError as error:
        raise InputError(
            f"training with {dict(settings)}: a value has the wrong type ({error})"
        ) from error


@dataclass(frozen=True)
class DigitsTask(TrainingTask):
    """Training on `train_images` digits, split by `split_seed`.

    `shift` and `noise` apply to held-out images, too.
    """

    train_images: int = 512
    split_seed: int = 0


# --- what a training takes from its task


def optimizer_of(
    net: torch.nn.Module, task: TrainingTask, is_relative: bool = False
) -> torch.optim.Optimizer:
    """The optimizer of a task (`TrainingTask.of_weights`) for the parameters of a module.

    Args:
        net: the module.
        task: with a learning rate.
        is_relative: True if the rate is relative to the size of each parameter. Adam moves every
            entry by about the learning rate per step, whatever its gradient. What that changes
            depends on the size of the entries, which differs between layers and models by orders
            of magnitude (arXiv 1804.04235, 1904.00962).
    """
    import torch

    rate = task.learning_rate
    assert rate is not None
    parameters: list[Any] = list(net.parameters())
    if is_relative:
        parameters = [
            {"params": [weight], "lr": rate * weight_size(weight)} for weight in parameters
        ]
    if task.optimizer == "adamw":
        return torch.optim.AdamW(parameters, rate, weight_decay=task.weight_decay, foreach=True)
    return torch.optim.SGD(
        parameters,
        rate,
        momentum=0.9,
        weight_decay=task.weight_decay,
        nesterov=True,
        foreach=True,
    )


def weight_size(weight: torch.Tensor) -> float:
    """Root mean square of a matrix's or kernel's entries; one size of all vectors."""
    if weight.ndim < 2:
        return VECTOR_SIZE
    return max(float(weight.detach().square().mean().sqrt()), LEAST_SIZE)


def schedule_of(
    optimizer: torch.optim.Optimizer, task: TrainingTask, steps: int
) -> torch.optim.lr_scheduler.LRScheduler:
    """The schedule of a task over this number of steps, from the rates of the optimizer."""
    import torch

    if task.schedule == "cosine":
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(steps, 1))
    highest = [group["lr"] for group in optimizer.param_groups]
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, highest, total_steps=max(steps, 1))
