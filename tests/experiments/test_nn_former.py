"""NN-Former reads cells as its paper says, and learns from its labels alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau

from experiments.nn_former import Network, NNFormer, cell_graph, relations
from predictors.registry import load
from search_spaces import get_space
from search_spaces.common.errors import InputError

CELL = "|nor_conv_3x3~0|+|none~0|nor_conv_1x1~1|+|skip_connect~0|nor_conv_1x1~1|avg_pool_3x3~2|"
AFTER, BEFORE, COMMON_SOURCE, COMMON_TARGET = range(4)  # heads


def test_an_edge_with_an_operation_is_a_node_and_none_is_an_operation() -> None:
    cell = cell_graph(get_space("nasbench201").parse(CELL))
    assert cell.operations == [
        "input",
        "nor_conv_3x3",
        "none",
        "nor_conv_1x1",
        "skip_connect",
        "nor_conv_1x1",
        "avg_pool_3x3",
        "output",
    ]
    of_benchmark = [(0, 1), (0, 2), (0, 4), (1, 3), (1, 5), (2, 6), (3, 6), (4, 7), (5, 7), (6, 7)]
    assert sorted(cell.edges) == of_benchmark


def test_vertices_that_are_missing_are_no_nodes() -> None:
    cell = get_space("nasbench101").parse(
        '{"matrix": [[0,1,0,1],[0,0,1,0],[0,0,0,1],[0,0,0,0]],'
        ' "ops": ["input", "conv3x3-bn-relu", "maxpool3x3", "output"]}'
    )
    graph = cell_graph(cell)
    assert graph.operations == ["input", "conv3x3-bn-relu", "maxpool3x3", "output"]
    assert sorted(graph.edges) == [(0, 1), (0, 3), (1, 2), (2, 3)]


def test_each_head_sees_its_own_relatives_and_the_readout() -> None:
    adjacency = torch.zeros(1, 5, 5)
    for source, target in [(0, 1), (0, 2), (1, 3), (2, 3)]:
        adjacency[0, source, target] = 1
    is_node = torch.tensor([[True, True, True, True, False]])
    seen = relations(is_node, adjacency)[0]  # (H, T, T); node i is token i + 1
    of_first_branch = [seen[head, 2].nonzero()[:, 0].tolist() for head in range(4)]
    assert of_first_branch[AFTER] == [0, 2, 4]
    assert of_first_branch[BEFORE] == [0, 1, 2]
    assert of_first_branch[COMMON_SOURCE] == [0, 2, 3], "the other branch is its sibling"
    assert of_first_branch[COMMON_TARGET] == [0, 2, 3]
    assert seen[COMMON_SOURCE, 4].nonzero()[:, 0].tolist() == [0, 4], "one node has no sibling"
    assert seen[:, 0].int().tolist() == [[1, 1, 1, 1, 1, 0]] * 4, "no place without a node"


def test_the_order_of_the_nodes_does_not_matter_but_their_edges_do() -> None:
    torch.manual_seed(0)
    network = Network(operations=3, covariates=0, layers=2).eval()
    operations = torch.nn.functional.one_hot(torch.tensor([[0, 1, 2, 1]]), 3).float()
    adjacency = torch.triu(torch.ones(1, 4, 4), 1)
    nothing = torch.zeros(1, 0)
    order = torch.tensor([2, 0, 3, 1])
    value = network(operations, adjacency, nothing)
    permuted = network(operations[:, order], adjacency[:, order][:, :, order], nothing)
    assert permuted.item() == pytest.approx(value.item(), abs=1e-5)
    adjacency[0, 0, 1] = 0
    assert abs(network(operations, adjacency, nothing).item() - value.item()) > 1e-4


def test_it_learns_ranks_and_a_loaded_checkpoint_predicts_the_same(tmp_path: Path) -> None:
    space = get_space("nasbench201")
    rng = np.random.default_rng(0)
    cells = [space.sample(rng) for _ in range(120)]
    convolutions = [sum("conv_3x3" in str(op) for _, op in cell.choices) for cell in cells]
    accuracies = np.array(convolutions) + 0.01 * rng.normal(size=120)
    model = NNFormer(layers=1, steps=60).fit(cells[:60], {"accuracy": accuracies[:60]})
    predicted = model.predict(cells[60:], ["accuracy"], samples=8)
    assert kendalltau(predicted["accuracy"], accuracies[60:]).statistic > 0.6
    model.save(tmp_path / "model")
    again = load(tmp_path / "model", of=NNFormer)
    assert isinstance(again, NNFormer)
    assert (again.layers, again.steps) == (1, 60)
    other = again.predict(cells[60:], ["accuracy"], samples=8)
    assert other["accuracy"] == pytest.approx(predicted["accuracy"], abs=1e-4)


def test_networks_that_are_no_cells_are_refused() -> None:
    space = get_space("tiny-resnet")
    architecture = space.sample(np.random.default_rng(0))
    with pytest.raises(InputError, match="reads cells of NAS-Bench-201 and NAS-Bench-101"):
        NNFormer().fit([architecture], {"accuracy": [1.0]})
    with pytest.raises(InputError, match="steps at least 2"):
        NNFormer(steps=1)
