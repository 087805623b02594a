"""Short trainings on `shapes`, one by one and side by side."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from experiments.pretraining import bank, short_trainings, side_by_side
from experiments.pretraining.accuracies import MANY_STEPS, MIN_NETWORKS, targets
from experiments.pretraining.bank import BankedSpace, cell_architectures, cell_graphs
from experiments.pretraining.shapes import CLASSES, shapes
from experiments.pretraining.short_trainings import Row, train
from nas.evaluation.module import GraphModule
from search_spaces import get_space


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer images, and a dozen of the cells."""
    some = list(islice(get_space("nasbench201").enumerate(), 4000, 4012))
    monkeypatch.setattr(bank, "_all_cells", lambda: [(None, architecture) for architecture in some])
    monkeypatch.setattr(short_trainings, "TRAIN_IMAGES", 2560)
    monkeypatch.setattr(short_trainings, "TEST_IMAGES", 512)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 16, 16), (4, 12, 9)])
def test_images_have_the_requested_shape_and_standardized_channels(shape: tuple[int, int, int]) -> None:
    images, classes = shapes(200, shape, seed=0)
    assert images.shape == (200, *shape)
    torch.testing.assert_close(images.mean((0, 2, 3)), torch.zeros(shape[0]), atol=1e-4, rtol=0)
    torch.testing.assert_close(images.std((0, 2, 3)), torch.ones(shape[0]), atol=1e-4, rtol=0)
    assert set(classes.tolist()) == set(range(CLASSES))


def test_a_seed_draws_the_same_images() -> None:
    first, again, other = (shapes(20, (3, 8, 8), seed)[0] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_network_learns() -> None:
    space = get_space("nasbench201", channels=8, cells=1, input_shape=(3, 12, 12))
    cell = dict.fromkeys(cell_architectures(0, 1)[0].as_dict(), "nor_conv_3x3")
    accuracy, loss = train(space.graph(space.architecture(cell)), 30)
    assert accuracy > 0.2  # chance is .1
    assert loss < np.log(CLASSES)


def test_cells_side_by_side_compute_what_each_computes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs, cells = cell_graphs(0, 6), [a.as_dict() for a in cell_architectures(0, 6)]
    images = shapes(4, (3, 16, 16), 0)[0]

    def constant(*shape: int) -> torch.Tensor:
        return torch.linspace(-1, 1, int(np.prod(shape[1:]))).expand(shape[0], -1).reshape(shape) / shape[1] ** 0.5

    monkeypatch.setattr(torch, "randn", constant)
    together = side_by_side.CellNetworks(cells, torch.device("cpu"))(images)
    for graph, found in zip(graphs, together, strict=True):
        net = GraphModule(graph).train()
        with torch.no_grad():
            for name, weight in net.named_parameters():
                if weight.dim() > 1:
                    weight.copy_(_as_in(weight))
                elif name.endswith("conv.bias"):
                    weight.zero_()
        torch.testing.assert_close(net(images), found, atol=1e-3, rtol=1e-3)


def _as_in(weight: torch.Tensor) -> torch.Tensor:
    """The constant of the test above, with the scale of this kernel."""
    shape = weight.shape
    values = torch.linspace(-1, 1, weight.numel()).reshape(shape) / shape[0] ** 0.5
    return values / shape[1] ** 0.5 if shape[0] == CLASSES else values * (2 / np.prod(shape[1:])) ** 0.5


def test_gradients_of_the_batched_convolution_are_those_of_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 4, 5, 5, generator=generator, requires_grad=True)
    weight = torch.randn(2, 6, 3, 3, 3, generator=generator, requires_grad=True)
    wanted = torch.stack(
        [functional.conv2d(a.transpose(0, 1), w, padding=1).transpose(0, 1) for a, w in zip(x, weight, strict=True)]
    )
    found = side_by_side._Convolution.apply(x, weight)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
    direction = torch.randn(found.shape, generator=generator)
    for a, b in zip(
        torch.autograd.grad(found, (x, weight), direction),
        torch.autograd.grad(wanted, (x, weight), direction),
        strict=True,
    ):
        torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-4)


def test_commands_resume_their_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "trainings.csv.gz"
    side_by_side.main(out, quick=True)
    rows = short_trainings.read(out)
    assert [row[:3] for row in rows] == [("cells", i, 2) for i in range(4)]
    monkeypatch.setattr(side_by_side, "train", None)  # nothing is left to train
    side_by_side.main(out, quick=True)
    short_trainings.main(out, quick=True)
    assert short_trainings.read(out)[:4] == rows
    assert len({row[:3] for row in short_trainings.read(out)}) == 6


def test_targets_order_networks_by_accuracy_and_loss() -> None:
    count = MIN_NETWORKS + 5
    space = BankedSpace("cells-0", [None] * count, np.empty((count, 0)), np.empty((count, 0)))  # type: ignore[list-item]
    rows = [Row("cells", i, steps, i / count, -i) for i in range(MIN_NETWORKS) for steps in (10, MANY_STEPS)]
    found = targets(space, [*rows, Row("proxies-1", 0, 10, 0.0, 0.0)])
    assert (np.diff(found[:MIN_NETWORKS], axis=0) > 0).all()
    assert np.isnan(found[MIN_NETWORKS:]).all()


def test_shipped_trainings_are_of_different_networks() -> None:
    rows = short_trainings.read()
    assert len({row[:3] for row in rows}) == len(rows) > 4000
    assert all(0 <= row.accuracy <= 1 for row in rows)
