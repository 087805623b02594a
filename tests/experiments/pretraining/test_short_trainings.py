"""Short trainings on `shapes`, one by one and side by side."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from experiments.pretraining import bank, short_trainings
from experiments.pretraining.accuracies import MANY_STEPS, MIN_NETWORKS, targets
from experiments.pretraining.bank import BankedSpace, cell_architectures
from experiments.pretraining.shapes import CLASSES, shapes
from experiments.pretraining.short_trainings import Row, train
from experiments.pretraining.side_by_side import MatrixConvolution, SideBySide
from nas.evaluation.module import GraphModule, live_nodes
from search_spaces import get_space


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer images, and a dozen of the cells."""
    some = list(islice(get_space("nasbench201").enumerate(), 4000, 4012))
    monkeypatch.setattr(bank, "_all_cells", lambda: [(None, architecture) for architecture in some])
    monkeypatch.setattr(short_trainings, "TRAIN_IMAGES", 2560)
    monkeypatch.setattr(short_trainings, "TEST_IMAGES", 512)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 16, 16), (4, 12, 9)])
def test_images_have_the_requested_shape_and_standardized_channels(
    shape: tuple[int, int, int],
) -> None:
    images, classes = shapes(200, shape, seed=0)
    assert images.shape == (200, *shape)
    torch.testing.assert_close(images.mean((0, 2, 3)), torch.zeros(shape[0]), atol=1e-4, rtol=0)
    torch.testing.assert_close(images.std((0, 2, 3)), torch.ones(shape[0]), atol=1e-4, rtol=0)
    assert set(classes.tolist()) == set(range(CLASSES))


def test_a_seed_draws_the_same_images() -> None:
    first, again, other = (shapes(20, (3, 8, 8), seed)[0] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.slow
def test_a_network_learns() -> None:
    space = get_space("nasbench201", channels=8, cells=1, input_shape=(3, 12, 12))
    cell = dict.fromkeys(cell_architectures(0, 1)[0].as_dict(), "nor_conv_3x3")
    ((accuracy, loss),) = train([space.graph(space.architecture(cell))], 30)
    assert accuracy > 0.2  # chance is .1
    assert loss < np.log(CLASSES)


@pytest.mark.parametrize(
    "seed", [1326, 1437, 1299, 1421]
)  # stages, cells, grouped convolutions, an encoder
def test_networks_side_by_side_compute_what_each_computes_alone(seed: int) -> None:
    graphs = bank.proxy_graphs(seed, 40)[:6]
    size, channels = int(graphs[0].shapes[0][2]), int(graphs[0].shapes[0][1])
    images = torch.randn(8, channels, size, size, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    together = SideBySide(graphs)
    outputs = together(images)
    outputs.square().mean((1, 2)).sum().backward()
    for i, graph in enumerate(graphs):
        alone = GraphModule(graph)
        own = list(_parts_of(together, i, alone))
        for weight, value, _ in own:
            weight.data = value.clone()
        found = alone(images)
        torch.testing.assert_close(found, outputs[i], atol=1e-4, rtol=1e-3)
        found.square().mean().backward()
        for weight, _, gradient in own:
            if gradient is not None:
                torch.testing.assert_close(weight.grad, gradient, atol=1e-4, rtol=2e-2)


def test_many_nodes_run_as_one() -> None:
    graphs = bank.proxy_graphs(1299)
    nodes = [node for graph in graphs for node in live_nodes(graph)]
    assert len(SideBySide(graphs).groups) < len(nodes) / 10


def test_gradients_are_clipped_per_network() -> None:
    graphs = bank.proxy_graphs(1326, 40)[:5]
    torch.manual_seed(0)
    net = SideBySide(graphs)
    outputs = net(torch.randn(8, 3, 14, 14))
    scales = torch.tensor([1e-3, 1.0, 1e3, 1e6, 0.0])
    (outputs.square().mean((1, 2)) * scales).sum().backward()
    before = _norms(net)
    net.clip_gradients(0.5)
    torch.testing.assert_close(_norms(net), before.clamp(max=0.5), atol=1e-6, rtol=1e-3)
    assert before[0] < 0.5 < before[3]


def test_a_network_that_diverges_leaves_the_others_alone() -> None:
    graphs = bank.proxy_graphs(1326, 40)[:5]
    net = SideBySide(graphs)
    scales = torch.tensor([1.0, math.inf, 1.0, 1.0, 1.0])
    (net(torch.randn(8, 3, 14, 14)).square().mean((1, 2)) * scales).sum().backward()
    net.clip_gradients(0.5)
    assert _norms(net).isfinite().tolist() == [True, False, True, True, True]


@pytest.mark.parametrize(
    ("groups", "channels", "kernel", "strides", "padding", "dilations"),
    [
        (2, 6, (3, 3), (1, 1), (1, 1), (1, 1)),
        (3, 6, (1, 1), (2, 2), (0, 0), (1, 1)),
        (1, 4, (5, 3), (2, 1), (2, 1), (1, 1)),
        (2, 4, (3, 3), (1, 1), (2, 2), (2, 2)),
    ],
)
def test_a_convolution_by_matrix_products_is_that_of_torch(
    groups: int,
    channels: int,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    padding: tuple[int, int],
    dilations: tuple[int, int],
) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, channels, 9, 8, generator=generator, requires_grad=True)
    weight = torch.randn(
        2 * channels, channels // groups, *kernel, generator=generator, requires_grad=True
    )
    wanted = functional.conv2d(x, weight, None, strides, padding, dilations, groups)
    found = MatrixConvolution.apply(x, weight, groups, strides, padding, dilations)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
    direction = torch.randn(found.shape, generator=generator)
    for a, b in zip(
        torch.autograd.grad(found, (x, weight), direction),
        torch.autograd.grad(wanted, (x, weight), direction),
        strict=True,
    ):
        torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-4)


@pytest.mark.slow
def test_the_command_resumes_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "trainings.csv.gz"
    short_trainings.main(out, quick=True)
    rows = short_trainings.read(out)
    assert [row[1:3] for row in rows] == [(0, 2), (1, 2)] * 2
    assert len({row.space for row in rows}) == 2
    monkeypatch.setattr(short_trainings, "train", None)  # nothing is left to train
    short_trainings.main(out, quick=True)
    assert short_trainings.read(out) == rows


def test_targets_order_networks_by_accuracy_and_loss() -> None:
    count = MIN_NETWORKS + 5
    space = BankedSpace("cells-0", [None] * count, np.empty((count, 0)), np.empty((count, 0)))  # type: ignore[list-item]
    rows = [
        Row("cells", i, steps, i / count, -i)
        for i in range(MIN_NETWORKS)
        for steps in (10, MANY_STEPS)
    ]
    found = targets(space, [*rows, Row("proxies-1", 0, 10, 0.0, 0.0)])
    assert (np.diff(found[:MIN_NETWORKS], axis=0) > 0).all()
    assert np.isnan(found[MIN_NETWORKS:]).all()


def test_shipped_trainings_are_of_different_networks() -> None:
    rows = short_trainings.read()
    assert len({row[:3] for row in rows}) == len(rows) > 4000
    assert all(0 <= row.accuracy <= 1 for row in rows)


def _parts_of(
    net: SideBySide, network: int, alone: GraphModule
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]]:
    """Weights of a network alone, each with its value and gradient side by side."""
    layers = {node.outputs[0]: layer for node, layer in zip(alone.nodes, alone.layers, strict=True)}
    for group in net.groups:
        for row, (i, value) in enumerate(group.results):
            if i == network:
                for weight, shared in zip(
                    layers[value].parameters(), group.layer.parameters(), strict=True
                ):
                    shape = len(group.results), *weight.shape
                    gradient = None if shared.grad is None else shared.grad.view(shape)[row]
                    yield weight, shared.detach().view(shape)[row], gradient


def _norms(net: SideBySide) -> torch.Tensor:
    """Norm of each network's gradient."""
    squares = torch.zeros(len(net.graphs))
    for group in net.groups:
        for weight in group.layer.parameters():
            if weight.grad is not None:
                for (i, _), part in zip(
                    group.results, weight.grad.view(len(group.results), -1), strict=True
                ):
                    squares[i] += part.square().sum()
    return squares.sqrt()
