"""`train_supernet`: one training for all networks of a space.

Each step trains four networks on one batch (the sandwich rule of Yu & Huang, "Universally
Slimmable Networks", ICCV 2019): the largest one on the targets, the smallest and two random ones on
the targets and the outputs of the largest. All write to the same shared weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from nas.evaluation.datasets import Dataset, augment
from nas.evaluation.extremes import corners, largest, smallest
from nas.evaluation.goals import check_fit, goal_of
from nas.evaluation.inheritance import TEACHER_SHARE, distillation
from nas.evaluation.tasks import TrainingTask, optimizer_of, schedule_of
from nas.evaluation.trainable import Trainable
from nas.evaluation.training import train
from search_spaces import Architecture, TorchSpace
from search_spaces.common.errors import InputError
from search_spaces.common.files import replacing
from search_spaces.common.progress import Progress
from search_spaces.shared_weights import SharedWeights

MET = 200  # random networks that say how large each parameter gets
STARTS = 20  # of them, from which the largest and the smallest one are looked for
RANDOM = 2  # random networks per step
REDRAWS = 50  # of a network with a parameter that is larger than all that were met


def train_supernet(
    space: TorchSpace,
    data: Dataset,
    task: TrainingTask,
    *,
    seed: int = 0,
    checkpoint: Path | None = None,
    progress: Progress | None = None,
    until: int | None = None,
) -> SharedWeights:
    """Train the shared weights of all networks of a space.

    Args:
        space: a space of PyTorch modules.
        data: the data set; classes or regression targets.
        task: how: epochs, batch, rates and augmentation.
        seed: of all random choices.
        checkpoint: file for the state after every epoch; an interrupted training resumes from it
            with the same result.
        progress: called with "epochs", the number of epochs done and the total.
        until: stop after this epoch, without an end; a checkpoint resumes.

    Raises:
        InputError: space and data do not match, the space is none of PyTorch modules, or the
            checkpoint belongs to another training.
    """
    if not isinstance(space, TorchSpace):
        raise InputError(f"{space.name}: a supernet needs a space of PyTorch modules")
    training = _Training(space, data.with_validation(task.validation), task, seed)
    check_fit(training.caller.graph, training.data)
    if checkpoint is not None:
        training.restore(checkpoint)
    last = task.epochs if until is None else min(until, task.epochs)
    while training.epoch < last:
        training.run_epoch()
        if checkpoint is not None:
            training.save(checkpoint)
        if progress:
            progress("epochs", training.epoch, task.epochs)
    return SharedWeights(
        {key: parameter.detach() for key, parameter in training.parameters.items()},
        training.settings,
    )


class _Training:
    """The state of a training. Everything in a checkpoint is an attribute."""

    def __init__(self, space: TorchSpace, data: Dataset, task: TrainingTask, seed: int) -> None:
        task = task.of_weights(inherited=False)
        self.space, self.data, self.task, self.seed = space, data, task, seed
        self.goal = goal_of(data)
        self.rng = np.random.default_rng(seed)
        self.epoch = 0
        torch.manual_seed(seed)

        # 1. The networks that show how large each parameter gets.
        drawn = [space.sample(self.rng) for _ in range(MET)]
        self.largest = largest(space, drawn[:STARTS], self.rng)
        self.smallest = smallest(space, drawn[:STARTS], self.rng)
        met = [self.largest, self.smallest, *corners(space, self.rng), *drawn]
        weights = SharedWeights()
        for arch in dict.fromkeys(met):
            weights.grow(self._module(arch))

        # 2. Their parameters, shared by all.
        self.parameters = {key: nn.Parameter(x) for key, x in weights.tensors.items()}
        self.weights = SharedWeights(self.parameters)
        self.caller = Trainable(space.graph(self.largest), example=space.example_input)
        self.ends = [self._module(arch) for arch in (self.largest, self.smallest)]
        holder = nn.ParameterList(self.parameters.values())
        self.optimizer = optimizer_of(holder, task)
        self.schedule = schedule_of(self.optimizer, task, task.epochs * self._steps)

    @property
    def _steps(self) -> int:
        steps = len(self.data.train) // self.task.batch
        if not steps:
            raise InputError(
                f"batch = {self.task.batch} is more than the {len(self.data.train)} training "
                f"samples of {self.data.name}"
            )
        return steps

    def run_epoch(self) -> None:
        for x, y in self._batches():
            self.optimizer.zero_grad()
            self._step(x, y)
            self.optimizer.step()
            self.schedule.step()
        self.epoch += 1

    def _step(self, x: Tensor, y: Tensor) -> None:
        """Gradients of one batch: inputs (n, …), targets (n,) or (n, outputs)."""
        whole, least = self.ends
        others = [least, *[self._random() for _ in range(RANDOM)]]
        share = 1 / (1 + len(others))
        # 1. The largest network learns the targets.
        outputs = self._outputs(whole, x)
        (share * self.goal.loss(outputs[:, None], y[:, None])).backward()
        # 2. The others learn the targets and, for classes, its outputs.
        taught = outputs.detach()
        for module in others:
            own = self._outputs(module, x)
            loss = self.goal.loss(own[:, None], y[:, None])
            if not self.data.is_regression:
                soft = distillation(own, taught, "classes")
                loss = (1 - TEACHER_SHARE) * loss + TEACHER_SHARE * soft
            (share * loss).backward()

    def _outputs(self, module: nn.Module, x: Tensor) -> Tensor:
        """Outputs (n, outputs) of a module with the shared weights."""

        def call(*args: Any, **kwargs: Any) -> Any:
            return functional_call(module, self.weights.slices(module), args, kwargs)

        return self.caller.outputs(call, x).flatten(1)  # type: ignore[arg-type]

    def _module(self, arch: Architecture) -> nn.Module:
        return self.space.with_sizes(self.space.module(arch)).train()

    def _random(self) -> nn.Module:
        for _ in range(REDRAWS):
            module = self._module(self.space.sample(self.rng))
            if self.weights.covers(module):
                return module
        raise InputError(
            f"{self.space.name}: {REDRAWS} networks in a row have parameters of sizes that {MET} "
            "random ones did not have: their sizes vary too much to be shared"
        )

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        train, batch = self.data.train, self.task.batch
        order = self.rng.permutation(len(train))
        for step in range(self._steps):
            rows = order[step * batch : (step + 1) * batch]
            inputs = train.inputs[rows]
            if inputs.ndim == 4:
                task = self.task
                inputs = augment(inputs, self.rng, task.shift, task.noise, task.flip)
            yield (
                torch.from_numpy(np.ascontiguousarray(inputs)),
                torch.from_numpy(train.targets[rows]),
            )

    # --- checkpoints

    @property
    def settings(self) -> dict[str, Any]:
        """What the result depends on."""
        return {
            "space": self.space.reference,
            "options": json.loads(json.dumps(self.space.options, default=str)),
            "seed": self.seed,
            "task": asdict(self.task),
            "data set": self.data.fingerprint,
        }

    def save(self, path: Path) -> None:
        state = {
            "settings": json.dumps(self.settings),
            "parameters": {key: x.detach() for key, x in self.parameters.items()},
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "rng": json.dumps(self.rng.bit_generator.state),
            "torch rng": torch.get_rng_state(),
            "epoch": self.epoch,
        }
        with replacing(path) as file:
            torch.save(state, file)

    def restore(self, path: Path) -> None:
        """Resume from a checkpoint, if there is one."""
        if not path.exists():
            return
        try:
            state: dict[str, Any] = torch.load(path, weights_only=True)
            settings = json.loads(state["settings"])
        except Exception as error:  # torch's errors on damaged files share no base class
            raise InputError(
                f"{path}: not the state of a supernet's training: remove it"
            ) from error
        for key, value in self.settings.items():
            if settings.get(key) != value:
                raise InputError(
                    f"{path}: this training differs in {key}: give another --out, or remove it"
                )
        with torch.no_grad():
            for key, parameter in self.parameters.items():
                parameter.copy_(state["parameters"][key])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.rng.bit_generator.state = json.loads(state["rng"])
        torch.set_rng_state(state["torch rng"])
        self.epoch = state["epoch"]


def supernet_score(
    space: TorchSpace, weights: SharedWeights, arch: Architecture, data: Dataset, task: TrainingTask
) -> float:
    """Validation score of a network with the shared weights and recalibrated statistics."""

    def build() -> nn.Module:
        module = space.with_sizes(space.module(arch))
        weights.load_into(module)
        return module

    network = Trainable(space.graph(arch), build, space.example_input, inherits=True)
    return train(network, data, task=replace(task, epochs=0)).validation[0]


def scores_of_ends(
    space: TorchSpace, weights: SharedWeights, data: Dataset, task: TrainingTask, seed: int = 0
) -> dict[str, float]:
    """`supernet_score` of the smallest, the largest and some random networks."""
    data = data.with_validation(task.validation)
    rng = np.random.default_rng(seed)
    drawn = [space.sample(rng) for _ in range(STARTS)]
    shown = {"smallest": smallest(space, drawn, rng), "largest": largest(space, drawn, rng)}
    for number, architecture in enumerate(drawn[:RANDOM], start=1):
        shown[f"random {number}"] = architecture
    scores = {}
    for name, architecture in shown.items():
        scores[name] = supernet_score(space, weights, architecture, data, task)
    return scores
