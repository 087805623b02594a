"""Train many cells of NAS-Bench-201 side by side on a GPU: `python -m experiments.pretraining.side_by_side`.

Cells in the small skeleton of the proxies differ only in the operations on their edges, so that hundreds of networks
train as one batched computation: 17 networks of 120 steps per second on an NVIDIA H200. The
rows are those of `short_trainings`.
Sizes in comments: G networks, C channels, B images, H height, W width.
"""

from __future__ import annotations

from typing import Annotated

import torch
import typer
from torch import Tensor
from torch.nn import functional

from experiments.pretraining.bank import CELLS_PER_STAGE, CHANNELS, IMAGE, cell_architectures
from experiments.pretraining.shapes import CLASSES
from experiments.pretraining.short_trainings import OUT, Images, Out, Row, device, optimize, read, write
from experiments.runner import Quick, run_command
from nas.cli.progress import progress_bar

STAGES, NODES = 3, 4
OPERATIONS = ("nor_conv_3x3", "nor_conv_1x1", "avg_pool_3x3", "skip_connect")
TEST_BATCH = 512

Cell = dict[str, str]  # operation of each edge, such as `0->1`


def main(
    out: Out = OUT,
    cells: Annotated[int, typer.Option(min=1, help="Number of cells.")] = 3584,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each training, of 128 images.")] = 120,
    together: Annotated[int, typer.Option(min=1, help="Networks trained side by side.")] = 256,
    quick: Quick = False,
) -> None:
    """Train cells, on a GPU if there is one. An interrupted run resumes."""
    if quick:
        cells, steps, together = 4, 2, 2
    rows = read(out)
    done = {row.network for row in rows if (row.space, row.steps) == ("cells", steps)}
    images = Images.draw(IMAGE, device())
    with progress_bar("short trainings") as bar:
        for first in range(0, cells, together):
            bar("cells side by side", first, cells)
            last = min(first + together, cells)
            if not done.issuperset(range(first, last)):
                found = train([a.as_dict() for a in cell_architectures(first, last)], images, steps)
                rows += [Row("cells", first + i, steps, *result) for i, result in enumerate(found)]
                write(out, rows)
    print(out)


def train(cells: list[Cell], images: Images, steps: int) -> list[tuple[float, float]]:
    """Train the networks of some cells. Returns accuracy and cross-entropy of each on the test images."""
    torch.manual_seed(0)
    networks = CellNetworks(cells, images.train.device)
    optimize(networks.weights, lambda x, y: networks.losses(x, y).mean(1).sum(), images, steps)
    right, loss = torch.zeros(2, len(cells), device=networks.device)
    with torch.no_grad():
        for x, y in zip(images.test.split(TEST_BATCH), images.test_classes.split(TEST_BATCH), strict=True):
            right += (networks(x).argmax(2) == y).float().sum(1)
            loss += networks.losses(x, y).sum(1)
    count = len(images.test)
    return list(zip((right / count).tolist(), (loss / count).tolist(), strict=True))


class CellNetworks:
    """G networks with one cell each; 16-bit activations on a GPU. Values are (G, C, B, H, W)."""

    def __init__(self, cells: list[Cell], device: torch.device) -> None:
        self.count, self.device, self.weights = len(cells), device, list[Tensor]()
        self.type = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.stem = self._convolution(self.count, CHANNELS, 3, 3)
        self.reductions, self.cells = [], []
        width = CHANNELS
        for stage in range(STAGES):
            if stage:
                self.reductions.append(
                    (
                        self._convolution(self.count, 2 * width, width, 3),
                        self._convolution(self.count, 2 * width, 2 * width, 3),
                        self._kernels(self.count, 2 * width, width, 1),
                    )
                )
                width *= 2
            self.cells.append([self._cell(cells, width) for _ in range(CELLS_PER_STAGE)])
        self.last = self._affine(self.count, width)
        self.linear = self._weight(torch.randn(self.count, CLASSES, width) / width**0.5)
        self.bias = self._weight(torch.zeros(self.count, CLASSES, 1))

    def losses(self, images: Tensor, classes: Tensor) -> Tensor:
        """Cross-entropy (G, B)."""
        outputs, wanted = self(images).flatten(0, 1), classes.repeat(self.count)
        return functional.cross_entropy(outputs, wanted, reduction="none").view(self.count, -1)

    def __call__(self, images: Tensor) -> Tensor:
        """Outputs (G, B, classes) of images (B, 3, H, W)."""
        x = images.transpose(0, 1).to(self.type).expand(self.count, -1, -1, -1, -1).contiguous()
        x = _normalized(_Convolution.apply(x, self.stem[0]), *self.stem[1:])
        for stage in range(STAGES):
            if stage:
                x = _reduced(x, *self.reductions[stage - 1])
            for cell in self.cells[stage]:
                x = _through(cell, x)
        pooled = functional.relu(_normalized(x, *self.last)).float().mean((3, 4))
        return (self.linear @ pooled + self.bias).transpose(1, 2)

    def _cell(self, cells: list[Cell], width: int) -> list[_Group]:
        """The edges of a cell of all networks, grouped by source and operation."""
        found = []
        for source in range(NODES - 1):
            for operation in OPERATIONS:
                members = [
                    (target, [i for i, cell in enumerate(cells) if cell[f"{source}->{target}"] == operation])
                    for target in range(source + 1, NODES)
                ]
                members = [(target, rows) for target, rows in members if rows]
                if not members:
                    continue
                rows = [row for _, some in members for row in some]
                kernel = {"nor_conv_3x3": 3, "nor_conv_1x1": 1}.get(operation)
                weights = self._convolution(len(rows), width, width, kernel) if kernel else ()
                parts = [(target, torch.tensor(some, device=self.device)) for target, some in members]
                found.append((source, operation, torch.tensor(rows, device=self.device), parts, weights))
        return found

    def _convolution(self, count: int, out: int, inputs: int, kernel: int) -> tuple[Tensor, ...]:
        return self._kernels(count, out, inputs, kernel), *self._affine(count, out)

    def _kernels(self, count: int, out: int, inputs: int, kernel: int) -> Tensor:
        return self._weight(torch.randn(count, out, inputs, kernel, kernel) * (2 / (inputs * kernel**2)) ** 0.5)

    def _affine(self, count: int, width: int) -> tuple[Tensor, Tensor]:
        return self._weight(torch.ones(count, width)), self._weight(torch.zeros(count, width))

    def _weight(self, values: Tensor) -> Tensor:
        self.weights.append(values.to(self.device).requires_grad_())
        return self.weights[-1]


# Source, operation, networks of the edges (E,), these networks per target, and weights of the edges.
_Group = tuple[int, str, Tensor, list[tuple[int, Tensor]], tuple[Tensor, ...]]


def _through(cell: list[_Group], x: Tensor) -> Tensor:
    nodes = [x, *(torch.zeros_like(x) for _ in range(NODES - 1))]
    for source, operation, rows, parts, weights in cell:
        value = nodes[source].index_select(0, rows)
        if weights:
            convolution = _Convolution.apply if operation == "nor_conv_3x3" else _pointwise
            value = _normalized(convolution(functional.relu(value), weights[0]), *weights[1:])
        elif operation == "avg_pool_3x3":
            pooled = functional.avg_pool2d(value.flatten(0, 1), 3, 1, 1, count_include_pad=False)
            value = pooled.view(value.shape)
        for (target, some), part in zip(parts, value.split([len(some) for _, some in parts]), strict=True):
            nodes[target] = nodes[target].index_add(0, some, part)
    return nodes[-1]


def _reduced(x: Tensor, first: tuple[Tensor, ...], second: tuple[Tensor, ...], shortcut: Tensor) -> Tensor:
    """The residual block between stages, which halves the image."""
    y = _Convolution.apply(functional.relu(x), first[0])[..., ::2, ::2].contiguous()
    y = _Convolution.apply(functional.relu(_normalized(y, *first[1:])), second[0])
    halved = functional.avg_pool2d(x.flatten(0, 1), 2).view(*x.shape[:3], *y.shape[3:])
    return _normalized(y, *second[1:]) + _pointwise(halved, shortcut)


def _normalized(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    networks, channels = x.shape[:2]
    flat = x.reshape(1, networks * channels, -1)
    return functional.batch_norm(flat, None, None, scale.view(-1), shift.view(-1), True).view(x.shape)


def _pointwise(x: Tensor, weight: Tensor) -> Tensor:
    found = weight.flatten(2).to(x.dtype) @ x.flatten(2)
    return found.view(*found.shape[:2], *x.shape[2:])


class _Convolution(torch.autograd.Function):
    """3 × 3 convolutions with padding of x (G, C, B, H, W) with weights (G, O, C, 3, 3), as batched matrix products."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        columns, kernels = _columns(x), weight.to(x.dtype)
        ctx.save_for_backward(columns, kernels)
        ctx.shape = x.shape
        return (kernels.flatten(2) @ columns).view(*kernels.shape[:2], *x.shape[2:])

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, Tensor]:  # type: ignore[no-untyped-def]
        columns, kernels = ctx.saved_tensors
        gradient = gradient.contiguous()
        of_weight = (gradient.flatten(2) @ columns.mT).view(kernels.shape).float()
        if not ctx.needs_input_grad[0]:
            return None, of_weight
        mirrored = kernels.flip(3, 4).transpose(1, 2).flatten(2)
        return (mirrored @ _columns(gradient)).view(ctx.shape), of_weight


def _columns(x: Tensor) -> Tensor:
    """The 3 × 3 neighbourhoods (G, 9 · C, B · H · W) of x (G, C, B, H, W)."""
    networks, channels, images, height, width = x.shape
    padded = functional.pad(x, (1, 1, 1, 1))
    g, c, b, h, w = padded.stride()
    shape = (networks, channels, 3, 3, images, height, width)
    return padded.as_strided(shape, (g, c, h, w, b, h, w)).reshape(networks, 9 * channels, -1)


if __name__ == "__main__":
    run_command(main)
