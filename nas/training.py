"""Training an architecture on scikit-learn's handwritten digits: a real accuracy in well under a second."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from nas.module import GraphModule
from search_spaces.graph import Graph


@dataclass(frozen=True)
class DigitsTask:
    """The 1,797 8×8 digits, made hard enough for networks to differ: few images, shifts, noise, a short schedule.

    Every training epoch and the test set see the images shifted by up to `shift` pixels in both directions (zeros move
    in) under Gaussian noise of standard deviation `noise` (pixels are in 0…1). The split and the test set's shifts and
    noise come from `split_seed` and are the same for every network. SGD with Nesterov momentum, one-cycle schedule.
    """

    train_images: int = 512
    shift: int = 1
    noise: float = 0.1
    epochs: int = 6
    batch: int = 64
    learning_rate: float = 0.1
    weight_decay: float = 5e-4
    split_seed: int = 0


@lru_cache(maxsize=1)
def _digits() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return (images / 16).astype(np.float32).reshape(-1, 8, 8), labels.astype(np.int64)


def _disturb(images: np.ndarray, task: DigitsTask, rng: np.random.Generator) -> np.ndarray:
    """Shifted and noisy copies; (n, 8, 8) → (n, 8, 8)."""
    padded = np.pad(images, ((0, 0), (task.shift, task.shift), (task.shift, task.shift)))
    moves = rng.integers(0, 2 * task.shift + 1, (len(images), 2))
    pixel = np.arange(8)
    rows, columns = moves[:, :1] + pixel, moves[:, 1:] + pixel
    moved = padded[np.arange(len(images))[:, None, None], rows[:, :, None], columns[:, None, :]]
    return moved + task.noise * rng.standard_normal(moved.shape, np.float32)


@lru_cache(maxsize=4)
def _split(task: DigitsTask) -> tuple[np.ndarray, np.ndarray, Tensor, Tensor]:
    """Training images and labels, test images (n, 1, 8, 8) and labels."""
    images, labels = _digits()
    rng = np.random.default_rng(task.split_seed)
    order = rng.permutation(len(images))
    train, test = order[: task.train_images], order[task.train_images :]
    disturbed = _disturb(images[test], task, rng)[:, None]
    return images[train], labels[train], torch.from_numpy(disturbed), torch.from_numpy(labels[test])


def train_digits(graph: Graph, seeds: tuple[int, ...], task: DigitsTask | None = None) -> list[float]:
    """Test accuracy in % of an architecture trained from scratch once per seed (input (1, 8, 8), 10 classes).

    The seeds' networks train side by side; each has its own initial weights, batches, shifts and noise.
    """
    task = task or DigitsTask()
    images, labels, test_images, test_labels = _split(task)
    torch.manual_seed(hash(seeds) & 0x7FFFFFFF)
    rngs = [np.random.default_rng(seed) for seed in seeds]
    net = GraphModule(graph, replicas=len(seeds)).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    steps = task.epochs * (len(images) // task.batch)
    optimizer = torch.optim.SGD(
        net.parameters(), task.learning_rate, momentum=0.9, weight_decay=task.weight_decay, nesterov=True, foreach=True
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, task.learning_rate, total_steps=steps)
    net.train()
    for _ in range(task.epochs):
        for x, y in _batches(images, labels, task, rngs):
            optimizer.zero_grad()
            logits = net(x).unflatten(1, (len(seeds), -1)).flatten(0, 1)
            # The mean over replicas would shrink each one's gradient.
            (functional.cross_entropy(logits, y.flatten()) * len(seeds)).backward()
            optimizer.step()
            schedule.step()
    net.eval()
    with torch.no_grad():
        logits = net(test_images.expand(-1, len(seeds), -1, -1)).unflatten(1, (len(seeds), -1))
    return ((logits.argmax(2) == test_labels[:, None]).double().mean(0) * 100).tolist()


def _batches(
    images: np.ndarray, labels: np.ndarray, task: DigitsTask, rngs: list[np.random.Generator]
) -> list[tuple[Tensor, Tensor]]:
    """One epoch: [(images (batch, replicas, 8, 8), labels (batch, replicas))]."""
    views, targets = [], []
    for rng in rngs:
        order = rng.permutation(len(images))
        views.append(_disturb(images, task, rng)[order])
        targets.append(labels[order])
    x = torch.from_numpy(np.stack(views, 1)).to(memory_format=torch.channels_last)
    y = torch.from_numpy(np.stack(targets, 1))
    count = len(images) // task.batch
    return [(x[i * task.batch :][: task.batch], y[i * task.batch :][: task.batch]) for i in range(count)]
