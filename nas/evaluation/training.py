"""Trains a network from scratch on a data set and scores it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nas.evaluation.datasets import Dataset, Part, augment, digits
from nas.evaluation.goals import check_fit, goal_of
from nas.evaluation.inheritance import (
    CALIBRATION_BATCH,
    CALIBRATION_SAMPLES,
    TEACHER_SHARE,
    Imitation,
    Teacher,
    adapted_to_data,
    batch_size,
    distance_from_model,
    distillation,
    per_position,
    recalibrate,
    targets_per_position,
    tolerated_change,
)
from nas.evaluation.machine import MeasurementPause
from nas.evaluation.module import memory_format_of, torch_device, without_data
from nas.evaluation.tasks import (
    DigitsTask,
    TrainingTask,
    fine_tuning_rate,
    optimizer_of,
    schedule_of,
    training_task,
)
from nas.evaluation.trainable import State, Trainable
from search_spaces.common.errors import InputError
from search_spaces.common.files import replacing
from search_spaces.common.process import threads_for
from search_spaces.common.progress import Progress
from search_spaces.ir.costs import graph_flops
from search_spaces.ir.graph import Graph

__all__ = [
    "DigitsTask",
    "Trained",
    "TrainingTask",
    "train",
    "train_digits",
    "training_task",
]

# Samples augmented at a time, which bounds the memory for large data sets
AUGMENTATION_BLOCK = 4096
TEST_BATCH_SIZE = 2048  # samples
PROBE_SECONDS = 0.3  # of the training steps from which the seconds of a training are told

Report = Callable[[int, dict[str, float]], bool]
"""Called after each epoch with its number, from 1, and the validation score by metric. Returns False to stop."""


class Trained(NamedTuple):
    """Scores of each seed's network, and the weights of the best one.

    Attributes:
        validation: score of each seed on the validation part (see `Dataset.metric`); NaN if it
            diverged.
        test: the same on the test part; NaN also if that part is empty.
        best: index of the seed with the best validation score.
        state: weights of that seed's network; None if all diverged.
    """

    validation: list[float]
    test: list[float]
    best: int
    state: State | None


def train_digits(
    graph: Graph,
    seeds: tuple[int, ...],
    task: DigitsTask | None = None,
    curve: list[float] | None = None,
) -> list[float]:
    """Train a network on digits once per seed.

    Args:
        graph: the network, input (1, 8, 8), 10 classes.
        seeds: one training each.
        task: how it is trained.
        curve: a list to which the mean accuracy of the seeds that train together is appended after
            each epoch.

    Returns:
        Accuracy of each seed in % on all held-out digits.
    """

    def report(epoch: int, metrics: dict[str, float]) -> bool:
        if curve is not None:
            curve.append(metrics[data.metric])
        return True

    task = task or DigitsTask()
    data = digits(task.train_images, task.shift, task.noise, task.split_seed, test_share=0.0)
    return train(
        Trainable(graph), data, seeds, task, report=None if curve is None else report
    ).validation


def train(
    network: Trainable,
    data: Dataset,
    seeds: tuple[int, ...] = (0,),
    task: TrainingTask | None = None,
    *,
    device: str = "cpu",
    checkpoint: Path | None = None,
    progress: Progress | None = None,
    report: Report | None = None,
    until: int | None = None,
) -> Trained:
    """Train a network from scratch once per seed.

    The networks of all seeds train side by side if the operators allow it. Each has its own initial
    weights, batches and augmentation.

    Args:
        network: the network.
        data: the data set.
        seeds: one training each.
        task: how it is trained.
        device: torch device.
        checkpoint: file for the state after every epoch; an interrupted training resumes from it
            with the same result.
        progress: called with "epochs", the number of epochs done and the total.
        report: receives the mean validation score of the networks that train together, and may stop
            their training. If networks train one by one, only the first reports.
        until: pause after this epoch; 0 to score a network with the weights that it inherits.
            Scores are then those of the unfinished networks, and the next call resumes from the
            checkpoint.

    Raises:
        InputError: the data do not match the network, an operator cannot be trained, the device is
            not available, or the checkpoint belongs to another training.
    """
    task = task or TrainingTask()
    data = data.with_validation(task.validation)
    check_fit(network.graph, data)
    if not seeds:
        raise InputError("training needs at least one seed")
    if not task.epochs and not network.inherits:
        raise InputError(
            "a training of 0 epochs needs a network that inherits weights: give --model, or "
            "--epochs 1"
        )

    groups = _groups(network, seeds)
    trainings: list[_Training] = []
    for number, group in enumerate(groups):
        # 1. Begin, or continue from the group's own checkpoint.
        path = checkpoint
        if checkpoint and len(groups) > 1:
            path = checkpoint.with_name(f"{checkpoint.stem}-{group[0]}{checkpoint.suffix}")
        training = _Training(network, data, group, task, device, None if number else report)
        if path:
            training.restore(path)

        # 2. Epoch by epoch, up to the end or a pause.
        last = task.epochs if until is None else until
        while not training.finished and training.epoch < last:
            with threads_for(training.multiply_adds):
                training.run_epoch()
            if path:
                training.save(path)
            if progress:
                progress("epochs", number * task.epochs + training.epoch, len(groups) * task.epochs)
        trainings.append(training)
    return _merged(trainings)


def probe(
    network: Trainable,
    data: Dataset,
    seeds: tuple[int, ...] = (0,),
    task: TrainingTask | None = None,
    *,
    device: str = "cpu",
) -> float:
    """Seconds that `train` would take, from the time of a few training steps.

    Args:
        network, data, seeds, task, device: as in `train`.

    Raises:
        InputError: as in `train`.
    """
    task = task or TrainingTask()
    data = data.with_validation(task.validation)
    check_fit(network.graph, data)
    groups = _groups(network, seeds)
    task = task.of_samples(len(data.train), network.inherits)
    steps = len(data.train) // task.batch

    def time_epoch(part: Dataset) -> float:
        training = _Training(network, part, groups[0], task, device, report=lambda *_: True)
        started = time.monotonic()
        with threads_for(training.multiply_adds):
            training.run_epoch()
        return time.monotonic() - started

    with torch.random.fork_rng(devices=[]):
        # 1. One step warms up, and tells how many fit into the time.
        first = time_epoch(_beginning(data, task.batch, 1))
        timed = min(max(1, int(PROBE_SECONDS / first)), steps)
        # 2. An epoch of so many steps, which scores as small a share of the validation part.
        seconds = time_epoch(_beginning(data, task.batch, timed))
    return len(groups) * task.epochs * seconds * steps / timed


def _beginning(data: Dataset, batch: int, steps: int) -> Dataset:
    """The first samples of each part, enough for so many training steps."""
    share = batch * steps / len(data.train)

    def beginning(part: Part) -> Part:
        return part.rows(slice(math.ceil(share * len(part))))

    assert data.validation is not None
    train = data.train.rows(slice(batch * steps))
    return replace(
        data, train=train, validation=beginning(data.validation), test=beginning(data.test)
    )


def _groups(network: Trainable, seeds: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The seeds that train side by side."""
    return [seeds] if _fit_side_by_side(network, seeds) else [(seed,) for seed in seeds]


def _merged(trainings: list[_Training]) -> Trained:
    results = [result for training in trainings for result in training.results()]
    # The best is the one of the smallest loss; NaN is worse than any.
    first = trainings[0]
    losses = [first.goal.sign * result.validation for result in results]
    best = min(range(len(results)), key=lambda i: (math.isnan(losses[i]), losses[i]))
    has_validation = len(first.validation) > 0
    has_diverged = math.isnan(losses[best]) and has_validation
    return Trained(
        [result.validation for result in results],
        [result.test for result in results],
        best,
        None if has_diverged else results[best].state,
    )


def _fit_side_by_side(network: Trainable, seeds: tuple[int, ...]) -> bool:
    if len(seeds) == 1:
        return True
    try:
        with without_data():
            network.module(len(seeds))
    except InputError:
        return False
    return True


# --- one training


class _Result(NamedTuple):
    """Validation score, test score and tensors of one network."""

    validation: float
    test: float
    state: State


class _Training:
    """One training of several replicas. Everything in a checkpoint is an attribute."""

    def __init__(
        self,
        network: Trainable,
        data: Dataset,
        seeds: tuple[int, ...],
        task: TrainingTask,
        device: str,
        report: Report | None = None,
    ) -> None:
        assert data.validation is not None
        task = task.of_weights(network.inherits).of_samples(len(data.train), network.inherits)
        # 1. What is trained, and on what.
        self.network = network
        self.data = data
        self.seeds = seeds
        self.task = task
        self.report = report
        self.device = torch_device(device)
        self.replicas = len(seeds)
        self.goal = goal_of(data)
        self.train = data.train
        self.validation = data.validation
        self.test = data.test
        self.has_images = self.train.inputs.ndim == 4
        if len(self.train) < task.batch:
            raise InputError(
                f"batch = {task.batch} is more than the {len(self.train)} training samples of "
                f"{data.name}"
            )

        # 2. The module with its initial weights, and what steers its training.
        torch.manual_seed(hash(seeds) & 0x7FFFFFFF)
        self.rngs = [np.random.default_rng(seed) for seed in seeds]
        self.net = self._initial_module().to(self.device)
        self.memory_format = memory_format_of(network.graph)
        if self.has_images:
            self.net = self.net.to(memory_format=self.memory_format)  # type: ignore[call-overload]
        self.teacher = None
        if network.teacher is not None:
            self.teacher = Teacher(network, network.teacher, self.device)
        # Of an imitated model, the outputs themselves say more than its top classes.
        self.teacher_share = 1.0 if isinstance(data, Imitation) else TEACHER_SHARE
        self.inherited: State | None = None
        if network.inherits:
            # Statistics of the whole model do not fit a part of it.
            recalibrate(self.net, self._calibration(), self._outputs)
            self.inherited = self._copied_state()
        is_relative = task.learning_rate is None and task.optimizer == "adamw"
        if task.learning_rate is None:
            assert task.optimizer is not None
            far, tolerated = None, math.inf
            if task.epochs:
                some = next(self._calibration())
                far = distance_from_model(network, self.net, some)
                if is_relative and far is not None:
                    tolerated = tolerated_change(network, self.net, some)
            rate = fine_tuning_rate(task.optimizer, far, tolerated)
            self.task = replace(task, learning_rate=rate)
        self.optimizer = optimizer_of(self.net, self.task, is_relative)
        steps = task.epochs * (len(self.train) // task.batch)
        self.schedule = schedule_of(self.optimizer, self.task, steps)
        self.pause = MeasurementPause()

        # 3. How far it is.
        self.epoch = 0
        self.stale = 0
        # Mean validation score after each epoch, without diverged replicas
        self.curve: list[float] = []
        self.best: list[_Result | None] = [None] * self.replicas
        self.stopped = False

    def _initial_module(self) -> torch.nn.Module:
        """The module with fresh weights, or with those of a model that is adapted to the data."""
        network = self.network
        if network.model is None:
            return network.module(self.replicas)
        model = network.model.to(self.device)
        with adapted_to_data(
            model, self.data, self._calibration(), lambda x: network.outputs(model, x)
        ):
            return network.module(self.replicas)

    @property
    def multiply_adds(self) -> float:
        """Of one training step: a forward pass, and backward passes for inputs and for weights."""
        return 3.0 * graph_flops(self.network.graph) * self.task.batch * self.replicas

    @property
    def finished(self) -> bool:
        is_stale = self.task.patience is not None and self.stale >= self.task.patience
        return self.epoch == self.task.epochs or is_stale or self.stopped

    def run_epoch(self) -> None:
        self.net.train()
        for x, y in self._batches():
            self.pause()  # while another process measures a latency
            self.optimizer.zero_grad()
            outputs = self._outputs(x)
            loss = self.goal.loss(outputs, y)
            if self.teacher:  # it teaches own modules, which train one by one
                taught = distillation(outputs[:, 0], self.teacher(x), self.network.imitates)
                loss = (1 - self.teacher_share) * loss + self.teacher_share * taught
            # The loss is a mean over replicas, which would shrink the gradient of each.
            (loss * self.replicas).backward()
            self.optimizer.step()
            self.schedule.step()
        self.epoch += 1
        if self.task.patience is not None or self.report:
            self._validate()

    def _calibration(self) -> Iterator[Tensor]:
        """Batches of training samples that running statistics are computed from."""
        rows = np.random.default_rng(0).permutation(len(self.train))[:CALIBRATION_SAMPLES]
        some = self.train.inputs[rows]
        # No batch is so small that its statistics are noise.
        count = max(1, len(some) // max(CALIBRATION_BATCH, self.task.batch))
        for part in np.array_split(some, count):
            yield torch.from_numpy(part).to(self.device)

    def _outputs(self, x: Tensor) -> Tensor:
        """Outputs (n, replicas, outputs) for inputs (n, replicas · channels, …).

        A network that imitates one with several positions has (n · positions, 1, outputs).
        """
        outputs = self.network.outputs(self.net, x)
        if isinstance(self.data, Imitation):
            return per_position(outputs)[:, None]
        return outputs.unflatten(1, (self.replicas, -1))

    def _validate(self) -> None:
        scores = self._scores(self.validation)
        finite = [score for score in scores if math.isfinite(score)]
        self.curve.append(float(np.mean(finite)) if finite else math.nan)
        if self.task.patience is not None:
            self._keep_best(scores)
        self._report(self.epoch)

    def _report(self, epoch: int) -> None:
        if self.report and not self.report(epoch, {self.data.metric: self.curve[epoch - 1]}):
            self.stopped = True

    def _keep_best(self, scores: list[float]) -> None:
        better = [self._is_better(*of) for of in zip(scores, self.best, strict=True)]
        self.stale = 0 if any(better) else self.stale + 1
        if any(better):
            new = self._current_results(scores)
            self.best = [
                a if rose else b for a, b, rose in zip(new, self.best, better, strict=True)
            ]

    def results(self) -> list[_Result]:
        """Scores and tensors of each replica.

        A network that inherits weights has these if the training has made it worse.
        """
        if all(self.best):
            results = [result for result in self.best if result]
        else:
            if self.inherited is not None and self.epoch:
                # Moving averages over few steps are those of earlier weights.
                recalibrate(self.net, self._calibration(), self._outputs)
            now = self._current_results(self._scores(self.validation))
            results = [result or here for result, here in zip(self.best, now, strict=True)]
        if self.inherited is None or not self.epoch:
            return results

        trained = self._copied_state()
        self.net.load_state_dict(self.inherited)
        before = self._scores(self.validation)
        if any(map(self._is_better, before, results)):
            untrained = self._current_results(before)
            results = [
                old if self._is_better(old.validation, new) else new
                for old, new in zip(untrained, results, strict=True)
            ]
        self.net.load_state_dict(trained)
        return results

    def _is_better(self, score: float, result: _Result | None) -> bool:
        """True if a validation score is finite and better than that of a result."""
        if not math.isfinite(score):
            return False
        if result is None or math.isnan(result.validation):
            return True
        return self.goal.sign * score < self.goal.sign * result.validation

    def _copied_state(self) -> State:
        return {name: tensor.clone() for name, tensor in self.net.state_dict().items()}

    def _current_results(self, scores: list[float]) -> list[_Result]:
        states = [self.network.state(self.net, replica) for replica in range(self.replicas)]
        return [_Result(*of) for of in zip(scores, self._scores(self.test), states, strict=True)]

    def _scores(self, part: Part) -> list[float]:
        """Score of each replica; NaN if an output is not finite or the part is empty."""
        if not len(part):
            return [math.nan] * self.replicas
        self.net.eval()
        total = torch.zeros(self.replicas, dtype=torch.double)
        graph = self.network.graph
        ends = (graph.shapes[graph.inputs[0]], graph.shapes[graph.outputs[0]])
        batch = batch_size(TEST_BATCH_SIZE, *ends)
        for start in range(0, len(part), batch):
            some = part.rows(slice(start, start + batch))
            x = torch.from_numpy(some.inputs).to(self.device)
            with torch.no_grad():
                outputs = self._outputs(torch.cat([x] * self.replicas, 1)).cpu()
            targets = targets_per_position(torch.from_numpy(some.targets))
            terms = self.goal.terms(outputs, targets)  # (n · positions, replicas)
            total += terms.unflatten(0, (len(some), -1)).mean(1).sum(0)
        return [self.goal.score(mean) for mean in (total / len(part)).tolist()]

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of one epoch.

        Inputs are (n, replicas · channels, …), targets (n, replicas) or (n, replicas, outputs).
        """
        batch = self.task.batch
        count = len(self.train) // batch
        orders = [rng.permutation(len(self.train)) for rng in self.rngs]
        batches_per_block = max(1, AUGMENTATION_BLOCK // batch)
        for first in range(0, count, batches_per_block):
            # 1. The rows of one block; the last one has what is left of a batch, too.
            last = min(first + batches_per_block, count)
            end = last * batch if last < count else None
            blocks = [order[first * batch : end] for order in orders]

            # 2. Each replica reads its own order and augmentation.
            views = []
            for rows, rng in zip(blocks, self.rngs, strict=True):
                views.append(self._inputs(rows, rng))
            x = torch.from_numpy(np.concatenate(views, 1))
            if self.has_images:
                x = x.to(memory_format=self.memory_format)
            targets = [self.train.targets[rows] for rows in blocks]
            y = torch.from_numpy(np.stack(targets, 1))

            # 3. Batch by batch.
            for start in range(0, (last - first) * batch, batch):
                part = slice(start, start + batch)
                yield x[part].to(self.device), y[part].to(self.device)

    def _inputs(self, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Inputs of these samples.

        The augmentation of an image does not depend on the order within `rows`.
        """
        if not self.has_images:
            return self.train.inputs[rows]
        ordered = np.sort(rows)
        views = augment(
            self.train.inputs[ordered], rng, self.task.shift, self.task.noise, self.task.flip
        )
        return views[np.searchsorted(ordered, rows)]

    # --- checkpoints

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What the result depends on, to recognize the checkpoint of another training."""
        return {
            "seeds": list(self.seeds),
            "task": asdict(self.task),
            "data set": self.data.fingerprint,
            "network": self.network.text,
            **({"inherited": self.network.label} if self.network.inherits else {}),
        }

    def save(self, path: Path) -> None:
        state = {
            "settings": json.dumps(self.settings),
            "net": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "rngs": json.dumps([rng.bit_generator.state for rng in self.rngs]),
            "torch rng": torch.get_rng_state(),
            "progress": (self.epoch, self.stale, self.stopped, self.curve),
            "best": [tuple(result) if result else None for result in self.best],
        }
        with replacing(path) as file:
            torch.save(state, file)

    def restore(self, path: Path) -> None:
        """Resume from a checkpoint, if there is one, and repeat its reports."""
        if not path.exists():
            return
        try:
            state: dict[str, Any] = torch.load(path, map_location=self.device, weights_only=True)
            settings = json.loads(state["settings"])
        except Exception as error:  # torch's errors on damaged files share no base class
            raise InputError(
                f"{path}: not a training checkpoint ({type(error).__name__}): remove it"
            ) from error
        for key, value in self.settings.items():
            if settings.get(key) != value:
                raise InputError(
                    f"{path}: this checkpoint is of a training that differs in {key}: give another "
                    "folder"
                )
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        for rng, saved in zip(self.rngs, json.loads(state["rngs"]), strict=True):
            rng.bit_generator.state = saved
        torch.set_rng_state(state["torch rng"].cpu())
        self.epoch, self.stale, self.stopped, self.curve = state["progress"]
        self.best = [_Result(*result) if result else None for result in state["best"]]
        for epoch in range(1, len(self.curve) + 1):
            self._report(epoch)
