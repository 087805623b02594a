"""Training a graph from scratch on a data set: its accuracy."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from nas.evaluation.datasets import Dataset, augment, digits
from nas.evaluation.module import GraphModule
from search_spaces.common.errors import InputError, unknown
from search_spaces.common.files import replacing
from search_spaces.graph.ir import Graph
from search_spaces.text.program import compact
from search_spaces.text.syntax import write

SCHEDULES = ("one-cycle", "cosine")
AT_ONCE = 4096  # images that are disturbed at once, which bounds the memory for large data sets
TEST_BATCH = 2048

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class TrainingTask:
    """How a network is trained: SGD with Nesterov momentum 0.9 and a learning rate schedule.

    Every epoch sees the images disturbed anew (`nas.evaluation.datasets.augment`; shift in pixels, noise in the images'
    unit). With `patience`, a share `validation` of the training images is held out, training stops once no seed's
    validation accuracy has risen for that many epochs, and a seed's result is its test accuracy at its best validation
    accuracy.
    """

    epochs: int = 6
    batch: int = 64
    learning_rate: float = 0.1
    weight_decay: float = 5e-4
    schedule: str = "one-cycle"
    shift: int = 1
    noise: float = 0.1
    flip: bool = False
    patience: int | None = None
    validation: float = 0.1

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise unknown("schedule", self.schedule, SCHEDULES)
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
    """Training on digits of which `train_images` are seen, split by `split_seed`, the test part disturbed alike."""

    train_images: int = 512
    split_seed: int = 0


def train_digits(graph: Graph, seeds: tuple[int, ...], task: DigitsTask | None = None) -> list[float]:
    """Test accuracy in % of an architecture trained on digits once per seed (input (1, 8, 8), 10 classes)."""
    task = task or DigitsTask()
    data = digits(task.train_images, task.shift, task.noise, task.split_seed)
    return train(graph, data, seeds, task)


def train(
    graph: Graph,
    data: Dataset,
    seeds: tuple[int, ...] = (0,),
    task: TrainingTask | None = None,
    *,
    device: str = "cpu",
    checkpoint: Path | None = None,
    progress: Progress | None = None,
) -> list[float]:
    """Test accuracy in % of an architecture trained from scratch once per seed; NaN for one that diverged.

    The seeds' networks train side by side where the operators allow it; each has its own initial weights, batches and
    disturbances. With a checkpoint file, the state is kept after every epoch, and an interrupted training goes on to
    the same result. progress: called with the number of epochs done and wanted.

    Raises InputError for data that do not fit the network, operators that cannot be trained, a device that is not
    there, and the checkpoint of another training.
    """
    task = task or TrainingTask()
    check_fit(graph, data)
    if not seeds:
        raise InputError("training needs at least one seed")
    groups = [seeds] if _fit_side_by_side(graph, seeds) else [(seed,) for seed in seeds]
    accuracies: list[float] = []
    for number, group in enumerate(groups):
        path = checkpoint
        if checkpoint and len(groups) > 1:
            path = checkpoint.with_name(f"{checkpoint.stem}-{group[0]}{checkpoint.suffix}")
        training = _Training(graph, data, group, task, device)
        if path:
            training.restore(path)
        while not training.finished:
            training.run_epoch()
            if path:
                training.save(path)
            if progress:
                progress(number * task.epochs + training.epoch, len(groups) * task.epochs)
        accuracies += training.result()
    return accuracies


def check_fit(graph: Graph, data: Dataset) -> None:
    """InputError unless the network takes the data set's images and gives one logit per class."""
    shape, output = graph.shapes[graph.inputs[0]][1:], graph.shapes[graph.outputs[0]][1:]
    same = len(shape) == 3 and all(isinstance(a, str) or a == b for a, b in zip(shape, data.shape, strict=True))
    if not same or len(graph.inputs) != 1:
        raise InputError(
            f"the network takes inputs of shape {shape}; the images of {data.name} have shape {data.shape}"
        )
    if output != (data.num_classes,):
        raise InputError(f"the network's output has shape {output}; {data.name} has {data.num_classes} classes")


def _fit_side_by_side(graph: Graph, seeds: tuple[int, ...]) -> bool:
    if len(seeds) == 1:
        return True
    try:
        with torch.device("meta"):
            GraphModule(graph, len(seeds))
    except InputError:
        return False
    return True


class _Training:
    """One training of several replicas; everything that a checkpoint holds is an attribute."""

    def __init__(self, graph: Graph, data: Dataset, seeds: tuple[int, ...], task: TrainingTask, device: str) -> None:
        self.graph, self.data, self.seeds, self.task = graph, data, seeds, task
        self.device, self.replicas = _device(device), len(seeds)
        self.images, self.labels = data.train_images, data.train_labels
        self.test = (data.test_images, data.test_labels)
        self.held: tuple[np.ndarray, np.ndarray] | None = None
        if task.patience is not None:
            self._hold_out()
        if len(self.images) < task.batch:
            raise InputError(f"batches of {task.batch} images need more than the {len(self.images)} of {data.name}")
        torch.manual_seed(hash(seeds) & 0x7FFFFFFF)
        self.rngs = [np.random.default_rng(seed) for seed in seeds]
        self.net = GraphModule(graph, self.replicas).to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = torch.optim.SGD(
            self.net.parameters(), task.learning_rate, momentum=0.9, weight_decay=task.weight_decay, nesterov=True,
            foreach=True,
        )  # fmt: skip
        self.schedule = _schedule(self.optimizer, task, task.epochs * (len(self.images) // task.batch))
        self.epoch = 0
        self.stale = 0
        self.best = [(-1.0, math.nan)] * self.replicas  # validation and test accuracy of each

    def _hold_out(self) -> None:
        count = max(1, round(self.task.validation * len(self.images)))
        order = np.random.default_rng(0).permutation(len(self.images))
        held, kept = order[:count], order[count:]
        self.held = (self.images[held], self.labels[held])
        self.images, self.labels = self.images[kept], self.labels[kept]

    @property
    def finished(self) -> bool:
        return self.epoch == self.task.epochs or (self.task.patience is not None and self.stale >= self.task.patience)

    def run_epoch(self) -> None:
        self.net.train()
        for x, y in self._batches():
            self.optimizer.zero_grad()
            logits = self.net(x).unflatten(1, (self.replicas, -1)).flatten(0, 1)
            # The mean over replicas would shrink each one's gradient.
            (functional.cross_entropy(logits, y.flatten()) * self.replicas).backward()
            self.optimizer.step()
            self.schedule.step()
        self.epoch += 1
        if self.held:
            self._validate(self.held)

    def _validate(self, held: tuple[np.ndarray, np.ndarray]) -> None:
        found = self._accuracies(*held)
        better = [new > old for new, (old, _) in zip(found, self.best, strict=True)]
        self.stale = 0 if any(better) else self.stale + 1
        if any(better):
            pairs = zip(found, self._accuracies(*self.test), strict=True)
            self.best = [new if rose else old for new, old, rose in zip(pairs, self.best, better, strict=True)]

    def result(self) -> list[float]:
        """Test accuracy of each replica."""
        return [test for _, test in self.best] if self.held else self._accuracies(*self.test)

    def _accuracies(self, images: np.ndarray, labels: np.ndarray) -> list[float]:
        """Accuracy in % of each replica; NaN where a logit is not finite."""
        self.net.eval()
        right = torch.zeros(self.replicas, dtype=torch.double)
        for start in range(0, len(images), TEST_BATCH):
            x = torch.from_numpy(images[start:][:TEST_BATCH]).to(self.device).repeat(1, self.replicas, 1, 1)
            with torch.no_grad():
                logits = self.net(x).unflatten(1, (self.replicas, -1)).cpu()
            y = torch.from_numpy(labels[start:][:TEST_BATCH])
            correct = (logits.argmax(2) == y[:, None]).double()
            right += torch.where(logits.isfinite().all(2), correct, math.nan).sum(0)
        return (right / len(images) * 100).tolist()

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """One epoch: (images (batch, replicas · channels, height, width), labels (batch, replicas))."""
        batch, count = self.task.batch, len(self.images) // self.task.batch
        orders = [rng.permutation(len(self.images)) for rng in self.rngs]
        per_block = max(1, AT_ONCE // batch)
        for first in range(0, count, per_block):
            last = min(first + per_block, count)
            rows = slice(first * batch, last * batch if last < count else None)
            views = [self._disturbed(order[rows], rng) for order, rng in zip(orders, self.rngs, strict=True)]
            x = torch.from_numpy(np.concatenate(views, 1)).to(memory_format=torch.channels_last)
            y = torch.from_numpy(np.stack([self.labels[order[rows]] for order in orders], 1))
            for i in range(last - first):
                yield x[i * batch :][:batch].to(self.device), y[i * batch :][:batch].to(self.device)

    def _disturbed(self, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Disturbed copies of these images; the disturbance belongs to the image, not to its place in the epoch."""
        ordered = np.sort(rows)
        views = augment(self.images[ordered], rng, self.task.shift, self.task.noise, self.task.flip)
        return views[np.searchsorted(ordered, rows)]

    # --- checkpoints

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What the result depends on, so that no checkpoint of another training is taken for this one's."""
        return {
            "seeds": list(self.seeds),
            "task": asdict(self.task),
            "data set": self.data.fingerprint,
            "network": write(compact(self.graph)),
        }

    def save(self, path: Path) -> None:
        state = {
            "settings": json.dumps(self.settings),
            "net": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "rngs": json.dumps([rng.bit_generator.state for rng in self.rngs]),
            "progress": (self.epoch, self.stale, self.best),
        }
        with replacing(path) as file:
            torch.save(state, file)

    def restore(self, path: Path) -> None:
        """Go on from a checkpoint, if there is one."""
        if not path.exists():
            return
        try:
            state: dict[str, Any] = torch.load(path, map_location=self.device, weights_only=True)
            settings = json.loads(state["settings"])
        except Exception as error:  # torch's errors on damaged files share no base class
            raise InputError(f"{path}: not the checkpoint of a training ({type(error).__name__}): remove it") from None
        for key, value in self.settings.items():
            if settings.get(key) != value:
                raise InputError(f"{path}: the checkpoint of a training with other {key}: give another folder")
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        for rng, saved in zip(self.rngs, json.loads(state["rngs"]), strict=True):
            rng.bit_generator.state = saved
        self.epoch, self.stale, self.best = state["progress"]


def _schedule(optimizer: torch.optim.Optimizer, task: TrainingTask, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
    if task.schedule == "cosine":
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, task.learning_rate, total_steps=steps)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device {name!r} cannot be used here ({reason}); cpu always can") from None
    return device
