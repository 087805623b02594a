"""Claims about modules without data: they have all names and shapes, and no process pays for
torch's compiler.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from nas.evaluation.module import GraphModule, without_data
from search_spaces import get_space

COMPILER = """
import sys, numpy as np
from nas.evaluation.module import GraphModule
from search_spaces import get_space

space = get_space("tiny-resnet")
GraphModule(space.graph(space.sample(np.random.default_rng(0))), replicas=2).state_of(0)
print("torch._dynamo" in sys.modules)
"""


def test_names_and_shapes_are_those_of_the_module_with_data() -> None:
    space = get_space("tiny-resnet")
    graph = space.graph(next(iter(space.enumerate())))
    with without_data():
        empty = GraphModule(graph).state_dict()
    assert {name: tensor.shape for name, tensor in empty.items()} == {
        name: tensor.shape for name, tensor in GraphModule(graph).state_dict().items()
    }
    assert all(tensor.is_meta for tensor in empty.values())


def test_random_numbers_continue_as_before_afterwards() -> None:
    torch.manual_seed(0)
    expected = nn.Embedding(3, 2).weight
    torch.manual_seed(0)
    with without_data():
        nn.Embedding(3, 2)
    assert torch.equal(nn.Embedding(3, 2).weight, expected)


@pytest.mark.slow
def test_a_trained_network_is_taken_apart_without_the_compiler() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMPILER], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False"]
