"""Attention with fewer heads than its width allows computes what torch's attention computes with
zeroed heads.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from search_spaces import Subnetworks
from search_spaces.subnetworks.attention import NarrowMultiheadAttention

WIDTH, HEADS, LENGTH = 24, 4, 5


def attention(**options: Any) -> nn.MultiheadAttention:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(WIDTH, HEADS, **options).eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    return layer


def narrow(layer: nn.MultiheadAttention) -> nn.MultiheadAttention:
    made = copy.deepcopy(layer)
    NarrowMultiheadAttention.adopt(made, HEADS, WIDTH)
    return made


CASES: dict[str, dict[str, Any]] = {
    "weights": {},
    "no weights": {"need_weights": False},
    "weights of each head": {"average_attn_weights": False},
    "mask": {"attn_mask": torch.ones(LENGTH, LENGTH).tril() == 0},
    "mask without weights": {
        "attn_mask": torch.ones(LENGTH, LENGTH).tril() == 0,
        "need_weights": False,
    },
    "mask of numbers": {"attn_mask": torch.randn(LENGTH, LENGTH)},
    "mask of each head": {
        "attn_mask": torch.randn(2 * HEADS, LENGTH, LENGTH),
        "need_weights": False,
    },
    "padding": {"key_padding_mask": torch.tensor([[False] * 4 + [True], [False] * 5])},
    "padding and mask": {
        "key_padding_mask": torch.tensor([[False] * 4 + [True], [False] * 5]),
        "attn_mask": torch.ones(LENGTH, LENGTH).tril() == 0,
        "need_weights": False,
    },
    "causal": {
        "attn_mask": torch.ones(LENGTH, LENGTH).tril() == 0,
        "is_causal": True,
        "need_weights": False,
    },
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("options", [{"batch_first": True}, {}, {"bias": False}])
def test_with_all_heads_it_is_torchs_attention(case: str, options: dict[str, Any]) -> None:
    layer = attention(**options)
    x = torch.randn(2, LENGTH, WIDTH)
    x = x if options.get("batch_first") else x.transpose(0, 1)
    expected, made = layer(x, x, x, **CASES[case]), narrow(layer)(x, x, x, **CASES[case])
    assert torch.allclose(expected[0], made[0], atol=1e-5)
    assert (expected[1] is None) == (made[1] is None)
    if expected[1] is not None:
        assert torch.allclose(expected[1], made[1], atol=1e-5)


def test_of_keys_of_another_sequence_and_width() -> None:
    x, memory = torch.randn(2, LENGTH, WIDTH), torch.randn(2, 7, WIDTH)
    layer = attention(batch_first=True)
    assert torch.allclose(
        layer(x, memory, memory)[0], narrow(layer)(x, memory, memory)[0], atol=1e-5
    )
    assert torch.allclose(
        layer(x, memory, 2 * memory)[0], narrow(layer)(x, memory, 2 * memory)[0], atol=1e-5
    )
    wide = attention(batch_first=True, kdim=10, vdim=12)
    keys, values = torch.randn(2, 7, 10), torch.randn(2, 7, 12)
    assert torch.allclose(wide(x, keys, values)[0], narrow(wide)(x, keys, values)[0], atol=1e-5)
    alone = attention()
    y = torch.randn(LENGTH, WIDTH)
    assert torch.allclose(alone(y, y, y)[0], narrow(alone)(y, y, y)[0], atol=1e-5)


class Encoder(nn.Module):
    """torch's encoder layers, which compute attention themselves in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 40, batch_first=True, dropout=0.0)
        self.layers, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x)).mean(1)


def test_encoder_layers_use_the_narrow_attention_in_both_modes() -> None:
    torch.manual_seed(0)
    model = Encoder()
    space = Subnetworks(model, torch.zeros(2, LENGTH, WIDTH), round_to=1)
    heads = [group.name for group in space.groups if group.kind == "heads"]
    assert len(heads) == 2
    assert space.whole.as_dict()["depth.layers.layers"] == 2
    assert space.unpruned == {}
    # Heads whose outputs nothing reads can be left out.
    with torch.no_grad():
        for layer in model.layers.layers:
            layer.self_attn.out_proj.weight[:, WIDTH // HEADS :] = 0
    space = Subnetworks(model, torch.zeros(2, LENGTH, WIDTH), round_to=1)
    module = space.module(space.architecture({**space.whole.as_dict(), **dict.fromkeys(heads, 1)}))
    x = torch.randn(2, LENGTH, WIDTH)
    for mode in (False, True):
        with torch.no_grad():
            assert torch.allclose(module.train(mode)(x), model.train(mode)(x), atol=1e-5)
    weights = (module.get_parameter(f"layers.layers.{i}.self_attn.in_proj_weight") for i in (0, 1))
    shapes = {tuple(weight.shape) for weight in weights}
    assert shapes == {(3 * WIDTH // HEADS, WIDTH)}
    assert space.sample(np.random.default_rng(0)) != space.whole
