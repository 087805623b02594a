"""Published networks on cells: what they must not depend on, and that they learn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau

from predictors.gnn.cells import FIRST, INPUT, NONE, OUTPUT, RECIPES, Cells, hinge, predict, train

NODES, OPERATIONS = 6, FIRST + 3


def some_cells(n: int, seed: int = 0) -> Cells:
    """Random cells: every node reads the one before it, and some of the others before."""
    rng = np.random.default_rng(seed)
    edges = np.triu(rng.random((n, NODES, NODES)) < 0.4, 1) | np.eye(NODES, k=1, dtype=bool)
    operations = rng.integers(FIRST, OPERATIONS, (n, NODES))
    operations[:, 0], operations[:, -1] = INPUT, OUTPUT
    return Cells(torch.tensor(edges, dtype=torch.float32), torch.tensor(operations))


def untrained(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return RECIPES[name].network(OPERATIONS).eval()


def quick(name: str, cells: Cells, values: np.ndarray, seed: int = 0, epochs: int = 3) -> torch.nn.Module:
    return train(replace(RECIPES[name], epochs=epochs), cells, values, OPERATIONS, seed)


@pytest.fixture(params=RECIPES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_order_of_the_nodes_does_not_matter(name: str) -> None:
    cells, network = some_cells(20), untrained(name)
    order = torch.tensor([3, 0, 5, 2, 1, 4])
    reordered = Cells(cells.adjacency[:, order][:, :, order], cells.operations[:, order])
    assert np.allclose(predict(network, cells), predict(network, reordered), atol=1e-5)


def test_nodes_that_are_not_there_do_not_matter(name: str) -> None:
    cells, network = some_cells(20), untrained(name)
    padding = (0, 2)
    padded = Cells(
        torch.nn.functional.pad(cells.adjacency, (*padding, *padding)),
        torch.nn.functional.pad(cells.operations, padding, value=NONE),
    )
    assert padded.operations.shape == (20, NODES + 2)
    assert np.allclose(predict(network, cells), predict(network, padded), atol=1e-5)


@pytest.mark.parametrize("change", ["an edge", "its direction", "an operation"])
def test_what_a_cell_is_made_of_matters(name: str, change: str) -> None:
    cells, network = some_cells(1), untrained(name)
    adjacency, operations = cells.adjacency.clone(), cells.operations.clone()
    if change == "an edge":
        adjacency[0, 1, 2] = 0
    elif change == "its direction":
        adjacency[0, 1, 2], adjacency[0, 2, 1] = 0, 1
    else:
        operations[0, 2] = FIRST + (operations[0, 2] - FIRST + 1) % 3
    assert abs(predict(network, cells) - predict(network, Cells(adjacency, operations))) > 1e-6


def test_a_property_of_operations_and_edges_is_learned(name: str) -> None:
    cells = some_cells(160)
    weights = (cells.operations == FIRST).float()
    values = (weights * (1 + cells.adjacency.sum(1))).sum(1).numpy()  # sources of the nodes with the first operation
    known, asked = torch.arange(64), torch.arange(64, 160)
    network = quick(name, cells.at(known), values[:64], epochs=15)
    assert kendalltau(predict(network, cells.at(asked)), values[64:]).statistic > 0.6


def test_a_seed_decides_everything(name: str) -> None:
    cells, values = some_cells(40), np.arange(40.0)
    first, again, other = (predict(quick(name, cells, values, seed), cells) for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()


def test_training_leaves_the_callers_random_numbers_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    quick("gcn", some_cells(8), np.arange(8.0), epochs=1)
    assert torch.rand(1) == expected


def test_equal_accuracies_teach_nothing_but_break_nothing(name: str) -> None:
    cells = some_cells(8)
    assert np.isfinite(predict(quick(name, cells, np.ones(8)), cells)).all()


def test_the_hinge_loss_is_of_pairs_below_the_margin() -> None:
    target = torch.tensor([0.0, 1.0, 2.0])
    assert hinge(torch.tensor([0.0, 0.1, 0.2]), target, margin=0.1) == 0
    assert hinge(torch.tensor([0.2, 0.1, 0.0]), target, margin=0.1) == pytest.approx((0.2 + 0.2 + 0.3) / 3)
