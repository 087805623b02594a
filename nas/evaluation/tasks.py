"""How a network is trained: the settings of the built-in training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from search_spaces.common.errors import InputError, unknown

SCHEDULES = ("one-cycle", "cosine")
OPTIMIZERS = ("sgd", "adamw")


@dataclass(frozen=True)
class TrainingTask:
    """How a network is trained: by SGD with Nesterov momentum 0.9, or AdamW, and a learning rate schedule.

    Networks are selected by a validation part: the data set's, or a share `validation` of its training samples. Every
    epoch sees images disturbed anew (`nas.evaluation.datasets.augment`; shift in pixels, noise in the images' unit);
    other samples stay as they are. With `patience`, training stops once no seed's validation score has improved for
    that many epochs, and a seed's result is its network with the best score; without, it is the last one.
    """

    epochs: int = 6
    batch: int = 64
    learning_rate: float = 0.1
    weight_decay: float = 5e-4
    optimizer: str = "sgd"
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
            if value not in known:
                raise unknown(kind, value, known)
        least = {"epochs": 1, "batch": 2, "shift": 0, "noise": 0, "patience": 1, "weight_decay": 0}
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= bound):
                raise InputError(f"training with {name} = {value}: it must be at least {bound}")
        if not 0 < self.learning_rate < math.inf:
            raise InputError(f"training with learning_rate = {self.learning_rate}: it must be positive")
        if not 0 < self.validation < 1:
            raise InputError(f"training with validation = {self.validation}: it is a share between 0 and 1")


def training_task(settings: Mapping[str, Any]) -> TrainingTask:
    """The task with these settings; InputError for one that it does not have or that is of a wrong kind."""
    known = [field.name for field in fields(TrainingTask)]
    for name in settings:
        if name not in known:
            raise unknown("setting of the training", name, known)
    try:
        return TrainingTask(**settings)
    except TypeError as error:
        raise InputError(f"training with {dict(settings)}: a value is of the wrong kind ({error})") from None


@dataclass(frozen=True)
class DigitsTask(TrainingTask):
    """Training on digits of which `train_images` are seen, split by `split_seed`, the others disturbed alike."""

    train_images: int = 512
    split_seed: int = 0
