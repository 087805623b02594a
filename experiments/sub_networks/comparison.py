"""Sub-networks of a ResNet: does a short training rank them, and are they faster than pruned
networks?

    python -m experiments.sub_networks.comparison results/sub_networks

A ResNet is trained on `composed_images`. Then

1. *ranks*: random sub-networks, scored with recalibrated statistics alone and after each epoch of
   fine-tuning with the model as teacher; Kendall's τ between these scores and those of the last
   epoch.
2. *fronts*: networks of a search by recalibrated accuracy and measured latency, and of
   Torch-Pruning with uniform and global ratios (magnitude), all fine-tuned for the same epochs;
   measured latency at equal accuracy.

Every network is one line of a file, so that an interrupted run goes on. Without Torch-Pruning, 2.
compares nothing.
"""

from __future__ import annotations

import copy
import importlib.util
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import typer
from scipy.stats import kendalltau
from torch import Tensor, nn

from experiments.runner import Quick, run_command
from experiments.sub_networks.images import CLASSES, write_images
from nas.evaluation.datasets import Dataset, load_dataset
from nas.evaluation.latency import LatencyTask, time_model
from nas.evaluation.tasks import TrainingTask
from nas.evaluation.trainable import Trainable
from nas.evaluation.training import train
from search_spaces import Architecture, Subnetworks, to_model
from search_spaces.ir.pytorch import record, record_with_numbers

EXAMPLE = torch.zeros(1, 3, 32, 32)
RATIOS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.45, 0.6, 0.75)  # of channels that Torch-Pruning removes


class Size(NamedTuple):
    """Sizes of a run: images, widths and blocks of the model, epochs of the model, of ranked and of
    compared networks, ranked networks, evaluations of the search, and the number that channels are
    multiples of.
    """

    images: int
    widths: tuple[int, ...]
    blocks: int
    model_epochs: int
    rank_epochs: int
    tune_epochs: int
    ranked: int
    evaluations: int
    round_to: int


SIZES = {
    "full": Size(8000, (32, 64, 128), 3, 20, 8, 4, 30, 120, 8),
    "small": Size(2400, (8, 16, 32), 2, 10, 4, 2, 8, 36, 4),
    "quick": Size(400, (8, 16), 1, 1, 1, 1, 3, 6, 4),
}
TIMING = LatencyTask(warmup=20, runs=200)


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = (
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.conv2, self.bn2 = (
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        project = stride > 1 or inputs != outputs
        self.shortcut = (
            nn.Conv2d(inputs, outputs, 1, stride, bias=False) if project else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (y + self.shortcut(x)).relu()


class ResNet(nn.Module):
    """A stem and a stage of residual blocks per width."""

    def __init__(self, widths: tuple[int, ...], blocks: int) -> None:
        super().__init__()
        self.stem, self.norm = (
            nn.Conv2d(3, widths[0], 3, 1, 1, bias=False),
            nn.BatchNorm2d(widths[0]),
        )
        inputs, stages = widths[0], []
        for i, width in enumerate(widths):
            for j in range(blocks):
                stages.append(Block(inputs, width, 2 if j == 0 and i else 1))
                inputs = width
        self.blocks, self.head = nn.Sequential(*stages), nn.Linear(inputs, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.norm(self.stem(x)).relu()).mean((2, 3)))


def tuned(network: Trainable, data: Dataset, epochs: int) -> list[float]:
    """Validation accuracy in % with recalibrated statistics, and after each epoch of
    fine-tuning.
    """
    task = TrainingTask(0, learning_rate=0.02, shift=2, noise=0)
    curve = train(network, data, task=task).validation[:1]
    if epochs:

        def report(epoch: int, metrics: dict[str, float]) -> bool:
            curve.append(metrics[data.metric])
            return True

        task = TrainingTask(epochs, learning_rate=0.02, shift=2, noise=0)
        train(network, data, task=task, report=report)
    return curve


def latency(module: nn.Module) -> float:
    """Median latency in ms in ONNX Runtime, one thread; the least of three, since other programs
    disturb some.
    """
    model = to_model(*_with_seed(record_with_numbers(module, EXAMPLE)))
    return min(time_model(model, TIMING).median for _ in range(3))


def _with_seed(recorded: tuple[Any, Any]) -> tuple[Any, int, Any]:
    return recorded[0], 0, recorded[1]


class Lines:
    """A file of results, one JSON object per line, by key; done ones are not repeated."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.rows: dict[str, dict[str, Any]] = {row["key"]: row for row in map(json.loads, lines)}

    def __call__(self, key: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        if key not in self.rows:
            self.rows[key] = {"key": key, **make()}
            with self.path.open("a") as file:
                file.write(json.dumps(self.rows[key]) + "\n")
        return self.rows[key]


def base_model(folder: Path, data: Dataset, size: Size) -> ResNet:
    """The model, whose trained weights are in the folder."""
    torch.manual_seed(0)
    model, file = ResNet(size.widths, size.blocks), folder / "model.safetensors"
    if not file.exists():
        from safetensors.torch import save_file

        network = Trainable(record(model, EXAMPLE), lambda: copy.deepcopy(model).train(), EXAMPLE)
        trained = train(network, data, task=TrainingTask(size.model_epochs, shift=2, noise=0))
        assert trained.state is not None
        save_file({name: x.contiguous() for name, x in trained.state.items()}, file)
        print(
            f"model: {trained.validation[0]:.2f} % validation, {trained.test[0]:.2f} % test "
            "accuracy",
            flush=True,
        )
    return model


def ranks(space: Subnetworks, data: Dataset, lines: Lines, count: int, epochs: int) -> None:
    """Print Kendall's τ between the scores after few epochs and after all of them."""
    rng = np.random.default_rng(0)
    curves = []
    for i, arch in enumerate([space.sample(rng) for _ in range(count)]):
        network = Trainable.of(space, arch)
        row = lines(f"rank {i}", lambda n=network: {"curve": tuned(n, data, epochs)})  # type: ignore[misc]
        curves.append(row["curve"])
    table = np.array(curves)
    for epoch in range(epochs):
        tau = kendalltau(table[:, epoch], table[:, -1]).statistic
        print(
            f"τ({epoch} epochs, {epochs} epochs) = {tau:.2f} of {count} random sub-networks",
            flush=True,
        )


def searched(
    space: Subnetworks, data: Dataset, lines: Lines, evaluations: int
) -> list[Architecture]:
    """The front of recalibrated accuracy and measured latency, by mutation of the best ones."""
    rng = np.random.default_rng(1)
    archs: list[Architecture] = []
    values: list[tuple[float, float]] = []
    for i in range(evaluations):
        if (
            i < evaluations // 6
        ):  # from nearly whole to narrow networks, by the importance of channels
            arch = space.ranked(1 - (i + 1) / (evaluations // 6 + 1))
        elif i < evaluations // 3:
            arch = space.sample(rng)
        else:
            front = _front(values)
            a, b = (archs[front[int(rng.integers(len(front)))]] for _ in range(2))
            arch = space.mutate(space.crossover(a, b, rng), rng)

        def measure(arch: Architecture = arch) -> dict[str, Any]:
            accuracy = tuned(Trainable.of(space, arch), data, 0)[0]
            return {
                "arch": space.format(arch),
                "accuracy": accuracy,
                "latency": latency(space.module(arch)),
            }

        row = lines(f"search {i}", measure)
        archs.append(space.parse(row["arch"]))
        values.append((-row["accuracy"], row["latency"]))
    return [archs[i] for i in _front(values)]


def _front(values: list[tuple[float, float]]) -> list[int]:
    """Indices of the values that no other one dominates."""
    table = np.array(values)
    return [i for i, v in enumerate(table) if not ((table <= v).all(1) & (table < v).any(1)).any()]


def pruned(model: nn.Module, ratio: float, everywhere: bool, round_to: int) -> nn.Module:
    """The model after Torch-Pruning: magnitude, one ratio for all layers or one global
    threshold.
    """
    import torch_pruning

    made: nn.Module = copy.deepcopy(model)
    pruner = torch_pruning.pruner.MagnitudePruner(
        made, EXAMPLE, importance=torch_pruning.importance.GroupMagnitudeImportance(p=2), pruning_ratio=ratio,
        global_pruning=everywhere, ignored_layers=[made.head], round_to=round_to,
    )  # fmt: skip
    pruner.step()
    return made


def main(
    folder: Annotated[Path, typer.Argument(help="Folder for the results.")],
    small: Annotated[
        bool, typer.Option("--small", help="A run of about ten minutes on an idle core.")
    ] = False,
    quick: Quick = False,
) -> None:
    """Compare sub-networks with pruned networks, and short with long fine-tuning."""
    size = SIZES["quick" if quick else "small" if small else "full"]
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    if not (folder / "images.npz").exists():
        write_images(folder / "images.npz", size.images)
    data = load_dataset(folder / "images.npz")
    model = base_model(folder, data, size)
    space = Subnetworks(
        model, EXAMPLE, weights=folder / "model.safetensors", round_to=size.round_to, name="resnet"
    )
    lines = Lines(folder / "results.jsonl")
    network = _network(space, space.model)
    whole = lines(
        "model", lambda: {"latency": latency(space.model), "curve": tuned(network, data, 0)}
    )
    print(f"model: {whole['curve'][0]:.2f} %, {whole['latency']:.3f} ms", flush=True)
    tune = size.tune_epochs
    found = searched(space, data, lines, size.evaluations)
    rows: dict[str, list[tuple[float, float]]] = {"search": [], "uniform": [], "global": []}
    for arch in found:
        row = lines(
            f"tuned {space.format(arch)}",
            lambda arch=arch: {  # type: ignore[misc]
                "curve": tuned(Trainable.of(space, arch), data, tune), "latency": latency(space.module(arch)),
            },
        )  # fmt: skip
        rows["search"].append((row["curve"][-1], row["latency"]))
    has_rivals = importlib.util.find_spec("torch_pruning") is not None
    if not has_rivals:
        print(
            "Torch-Pruning is not installed, so nothing is compared with it: pip install "
            "torch-pruning --no-deps"
        )
    for name in ("uniform", "global") if has_rivals else ():
        for ratio in RATIOS[:1] if quick else RATIOS:
            pruned_row = partial(_pruned_row, space, data, ratio, name == "global", size)
            row = lines(f"{name} {ratio}", pruned_row)
            rows[name].append((row["curve"][-1], row["latency"]))
    for drop in (0.5, 1.0, 2.0, 4.0):
        needed = whole["curve"][0] - drop
        fast = {name: [ms for score, ms in of if score >= needed] for name, of in rows.items()}
        shown = ", ".join(
            f"{name} {min(times, default=float('nan')):.3f} ms" for name, times in fast.items()
        )
        print(f"within {drop} points of the model ({needed:.2f} %): {shown}", flush=True)
    ranks(space, data, lines, size.ranked, size.rank_epochs)


def _pruned_row(
    space: Subnetworks, data: Dataset, ratio: float, everywhere: bool, size: Size
) -> dict[str, Any]:
    module = pruned(space.model, ratio, everywhere, size.round_to)
    return {
        "curve": tuned(_network(space, module), data, size.tune_epochs),
        "latency": latency(module.eval()),
    }


def _network(space: Subnetworks, module: nn.Module) -> Trainable:
    """A pruned network with the same teacher as sub-networks."""
    return Trainable(
        record(module, EXAMPLE), lambda: copy.deepcopy(module), EXAMPLE, space.model, True
    )


if __name__ == "__main__":
    run_command(main)
