"""Accuracies of short trainings on `shapes`: `python -m experiments.pretraining.short_trainings`.

The targets of `pretrain_accuracies`. `short_trainings.csv.gz` has those of the shipped checkpoints:
cells of NAS-Bench-201 in a small skeleton, and networks of generated spaces. Nearly all were
trained on a GPU.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
import typer
from torch import Tensor
from torch.nn import functional

from experiments.pretraining.bank import PROXY_SEEDS, cell_graphs, proxy_graphs
from experiments.pretraining.shapes import CLASSES, shapes
from experiments.pretraining.side_by_side import SideBySide
from experiments.runner import Quick, run_command
from nas.cli.progress import progress_bar
from search_spaces.common.files import replacing
from search_spaces.ir.graph import Graph

SHIPPED = Path(__file__).with_name("short_trainings.csv.gz")
TRAIN_IMAGES, TEST_IMAGES, BATCH_SIZE, TEST_BATCH = 25_600, 2048, 128, 512
LEARNING_RATE, MOMENTUM, WEIGHT_DECAY, MAX_NORM = 0.2, 0.9, 5e-4, 5.0
# Share of steps until the full rate, and the last rate relative to it
WARM_UP, LAST_RATE = 0.2, 0.01
GENERATED = 45  # spaces
NETWORKS = 72  # of a generated space


class Row(NamedTuple):
    """One trained network."""

    space: str  # `cells`, or a file of the bank
    network: int  # in the order of the bank
    steps: int
    accuracy: float  # of 0 to 1, on the test images
    loss: float  # cross-entropy in nats, on the test images


class Images(NamedTuple):
    """Training and test images with their classes."""

    train: Tensor
    train_classes: Tensor
    test: Tensor
    test_classes: Tensor

    @classmethod
    def draw(cls, shape: tuple[int, int, int], device: str) -> Images:
        """Draw the images of one shape."""
        return cls(*shapes(TRAIN_IMAGES, shape, 1, device), *shapes(TEST_IMAGES, shape, 2, device))


def main(
    out: Annotated[
        Path, typer.Option(help="The table, a .csv.gz file; rows that it has are kept.")
    ] = Path("results/short_trainings.csv.gz"),
    steps: Annotated[int, typer.Option(min=1, help="Steps of each training, of 128 images.")] = 150,
    cells: Annotated[int, typer.Option(min=0, help="Cells of NAS-Bench-201.")] = 300,
    generated: Annotated[int, typer.Option(min=0, help="Generated spaces.")] = GENERATED,
    first: Annotated[
        int, typer.Option(min=0, help="Seed of the first generated space.")
    ] = PROXY_SEEDS,
    together: Annotated[int, typer.Option(min=1, help="Networks trained side by side.")] = 72,
    quick: Quick = False,
) -> None:
    """Train networks, on a GPU if there is one; an interruption loses at most those in training."""
    if quick:
        steps, cells, generated = 2, 2, 1
    rows = read(out)
    with progress_bar("short trainings") as bar:
        for name, graphs in _networks(cells, first, generated):
            done = {row.network for row in rows if (row.space, row.steps) == (name, steps)}
            missing = [
                number for number in range(2 if quick else len(graphs)) if number not in done
            ]
            for start in range(0, len(missing), together):
                bar(name, start, len(missing))
                some = missing[start : start + together]
                results = train([graphs[number] for number in some], steps, device())
                rows += [
                    Row(name, number, steps, *result)
                    for number, result in zip(some, results, strict=True)
                ]
                write(out, rows)
    print(out)


def train(graphs: Sequence[Graph], steps: int, device: str = "cpu") -> list[tuple[float, float]]:
    """Train networks of one space side by side, with fresh weights.

    They are trained by gradient descent with momentum. The rate rises linearly,
    then falls linearly.

    Returns:
        Accuracy and cross-entropy of each on the test images; infinite cross-entropy if its
        training diverged.
    """
    channels, height, width = (int(size) for size in graphs[0].shapes[graphs[0].inputs[0]][1:])
    images = _images((channels, height, width), device)
    classes = min(CLASSES, int(graphs[0].shapes[graphs[0].outputs[0]][-1]))
    torch.manual_seed(0)
    net = SideBySide(graphs).to(device)
    optimizer = torch.optim.SGD(
        net.parameters(), LEARNING_RATE, MOMENTUM, nesterov=True, weight_decay=WEIGHT_DECAY
    )
    for step in range(steps):
        done = (step + 1) / steps
        start = step * BATCH_SIZE % TRAIN_IMAGES
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(
                done / WARM_UP, (1 - done) / (1 - WARM_UP) + LAST_RATE
            )
        rows = slice(start, start + BATCH_SIZE)
        loss = _losses(net(images.train[rows]), images.train_classes[rows] % classes).mean(1).sum()
        if not loss.requires_grad:
            break  # no weight has an effect
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        net.clip_gradients(MAX_NORM)
        optimizer.step()
    right, total = torch.zeros(2, len(graphs), device=device)
    with torch.no_grad():
        for x, y in zip(
            images.test.split(TEST_BATCH),
            (images.test_classes % classes).split(TEST_BATCH),
            strict=True,
        ):
            outputs = net(x)
            right += (outputs.argmax(2) == y).float().sum(1)
            total += _losses(outputs, y).sum(1)
    count = len(images.test)
    losses = (total / count).nan_to_num(nan=math.inf)
    return list(zip((right / count).tolist(), losses.tolist(), strict=True))


def _losses(outputs: Tensor, classes: Tensor) -> Tensor:
    """Cross-entropy (networks, B) of outputs (networks, B, classes)."""
    targets = classes.repeat(len(outputs))
    logits = outputs.flatten(0, 1).float()
    losses = functional.cross_entropy(logits, targets, reduction="none")
    return losses.view(len(outputs), -1)


def device() -> str:
    """The device to train on."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def read(path: Path = SHIPPED) -> list[Row]:
    """Read a table; no rows if there is none."""
    if not path.exists():
        return []
    content = gzip.decompress(path.read_bytes()).decode()
    lines = csv.reader(io.StringIO(content))
    next(lines)  # names of the columns
    rows = []
    for space, network, steps, accuracy, loss in lines:
        rows.append(Row(space, int(network), int(steps), float(accuracy), float(loss)))
    return rows


def write(path: Path, rows: list[Row]) -> None:
    """Write a table."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Row._fields)
    for row in rows:
        scores = [f"{value:.5g}" for value in row[3:]]
        writer.writerow([*row[:3], *scores])
    with replacing(path) as file:
        file.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


def _networks(cells: int, first: int, generated: int) -> Iterator[tuple[str, list[Graph]]]:
    """Files of the bank and their networks."""
    if cells:
        yield "cells", cell_graphs(0, cells)
    seeds = count(first)
    for _ in range(generated):
        graphs: list[Graph] = []
        while not graphs:  # a space with too few networks has none
            seed = next(seeds)
            graphs = proxy_graphs(seed, NETWORKS)
        yield f"proxies-{seed}", graphs


@lru_cache(maxsize=2)
def _images(shape: tuple[int, int, int], device: str) -> Images:
    return Images.draw(shape, device)


if __name__ == "__main__":
    run_command(main)
