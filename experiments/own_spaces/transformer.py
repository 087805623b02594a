"""A search space of vision transformers, written in plain PyTorch as a user would: it imports only
PyTorch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

IMAGE = torch.zeros(1, 1, 8, 8)  # example input, from which shapes are derived


class Attention(nn.Module):
    """Multi-head self-attention over the tokens (N, tokens, width)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, tokens, width = x.shape
        q, k, v = (
            self.qkv(x)
            .reshape(n, tokens, 3, self.heads, width // self.heads)
            .permute(2, 0, 3, 1, 4)
            .unbind(0)
        )
        y = scaled_dot_product_attention(q, k, v)
        return self.project(y.transpose(1, 2).reshape(n, tokens, width))


class Block(nn.Module):
    """Attention, then a perceptron of each token, both with a skip connection."""

    def __init__(self, width: int, heads: int, ratio: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, ratio * width), nn.GELU(), nn.Linear(ratio * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """Patches of the image as tokens, blocks, and a linear classifier on their mean."""

    def __init__(self, width: int, patch: int, blocks: list[tuple[int, int]]) -> None:
        super().__init__()
        self.embed = nn.Conv2d(1, width, patch, patch)
        self.position = nn.Parameter(0.02 * torch.randn(1, (8 // patch) ** 2, width))
        self.blocks = nn.Sequential(*[Block(width, heads, ratio) for heads, ratio in blocks])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2) + self.position
        return self.head(self.norm(self.blocks(x)).mean(1))


def build(trial: Any) -> nn.Module:
    """A transformer for digits.

    The choices are its width, patch size and depth, and heads and ratio of each block.
    """
    width = trial.suggest_categorical("width", [16, 24, 32, 48])
    patch = trial.suggest_categorical("patch", [2, 4])
    blocks = [
        (
            trial.suggest_categorical(f"heads{i}", [1, 2, 4]),
            trial.suggest_categorical(f"ratio{i}", [1, 2, 4]),
        )
        for i in range(trial.suggest_int("depth", 1, 5))
    ]
    return Transformer(width, patch, blocks)


build.example_input = IMAGE  # type: ignore[attr-defined]
