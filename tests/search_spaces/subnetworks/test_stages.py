"""Stages: how many of the blocks that compute alike stay, and which."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from search_spaces import Subnetworks
from tests.search_spaces.subnetworks.small_networks import SmallGPT


class Block(nn.Module):
    """x + f(x), of a hidden width."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.wide = nn.Linear(width, hidden)
        self.narrow = nn.Linear(hidden, width)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return x + scale * self.narrow(self.wide(x).relu())


class Net(nn.Module):
    """Four blocks, of which the last is narrower, between a stem and a head."""

    def __init__(self, named: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Linear(8, 16)
        self.blocks = nn.ModuleList([Block(16, 32 if i < 3 else 24) for i in range(4)])
        self.head = nn.Linear(16, 3)
        self.named = named

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x=x, scale=1.0) if self.named else block(x)
        return self.head(x)


def shrink(block: Any, factor: float) -> None:
    """Let a block change its input less."""
    with torch.no_grad():
        block.narrow.weight *= factor
        block.narrow.bias *= factor


def names(space: Subnetworks, stage: int, kept: int) -> list[str]:
    return [block.name for block in space.stages[stage].left_out(kept)]


def test_blocks_that_compute_alike_are_one_choice() -> None:
    space = Subnetworks(Net(), torch.zeros(1, 8))
    assert [(stage.name, stage.sizes) for stage in space.stages] == [
        ("blocks", (0, 1, 2, 3)),
        ("blocks.3", (0, 1)),
    ]
    whole = space.whole.as_dict()
    assert (whole["depth.blocks"], whole["depth.blocks.3"]) == (3, 1)


@pytest.mark.parametrize("named", [False, True])
def test_the_blocks_without_which_the_outputs_change_least_are_left_out_first(named: bool) -> None:
    net = Net(named)
    shrink(net.blocks[1], 0.01)
    shrink(net.blocks[0], 0.1)
    space = Subnetworks(net, torch.zeros(1, 8))
    assert names(space, 0, kept=1) == ["blocks.1", "blocks.0"]

    # The network is what is left of the model.
    short = space.shallow(0.34)
    assert short.as_dict()["depth.blocks"] == 1
    x = torch.randn(5, 8)
    y = net.stem(x)
    for block in (net.blocks[2],) if short.as_dict()["depth.blocks.3"] == 0 else net.blocks[2:]:
        y = block(y)
    assert torch.allclose(space.module(short)(x), net.head(y), atol=1e-5)


def test_influences_are_measured_on_the_users_inputs_if_there_are_any() -> None:
    net = Net()
    # The first block only adds something where the first input is large, the second where the
    # second is.
    with torch.no_grad():
        for block in net.blocks[:3]:
            assert isinstance(block, Block)
            block.wide.weight.zero_()
            block.wide.bias.zero_()
            block.narrow.bias.zero_()
        net.stem.weight.zero_()
        net.stem.bias.fill_(1)
        net.stem.weight[0, 0] = 1
        net.stem.weight[1, 1] = 1
        for place in (0, 1):
            first = net.blocks[place]
            assert isinstance(first, Block)
            first.wide.weight[0, place] = 1
            first.wide.bias[0] = -1.5
            first.narrow.weight[2, 0] = 50
    inputs = torch.zeros(4, 8)
    for place, other in ((0, 1), (1, 0)):
        batch = inputs.clone()
        batch[:, place] = 5
        space = Subnetworks(net, inputs, importance="activation", importance_data=[batch])
        assert {*names(space, 0, kept=1)} == {f"blocks.{other}", "blocks.2"}


def test_token_models_get_random_tokens() -> None:
    torch.manual_seed(0)
    model = SmallGPT()
    example = torch.zeros(1, 6, dtype=torch.int64)
    first, second = (Subnetworks(model, example).stages for _ in range(2))
    orders = [
        [block.name for stage in stages for block in stage.blocks] for stages in (first, second)
    ]
    assert orders[0] == orders[1]
    assert any(len(stage.blocks) == 2 for stage in first)


def test_a_model_without_weights_has_stages_too() -> None:
    with torch.device("meta"):
        net = Net()
    space = Subnetworks(net, torch.zeros(1, 8, device="meta"))
    assert names(space, 0, kept=2) == ["blocks.0"]


def test_a_text_says_how_many_blocks_stay() -> None:
    space = Subnetworks(Net(), torch.zeros(1, 8))
    texts = {space.to_text(space.shallow(share)) for share in (0.3, 0.6, 1)}
    assert len(texts) == 3
    designs = space.initial_designs(6)
    assert len({*designs}) == 6
    depths = [design.as_dict()["depth.blocks"] for design in designs]
    assert depths[0] == 3
    assert min(depths) < 3
