"""The widths of one residual network, written in plain PyTorch as a user would: it imports only
PyTorch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

IMAGE = torch.zeros(1, 1, 8, 8)  # example input, from which shapes are derived


class Residual(nn.Module):
    """Two convolutions with a skip connection, which has a convolution if shapes differ."""

    def __init__(self, width: int, hidden: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, hidden, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(hidden)
        self.conv2 = nn.Conv2d(hidden, out, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(out)
        same = stride == 1 and width == out
        self.skip = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(width, out, 1, stride), nn.BatchNorm2d(out))
        )

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.skip(x))


def build(trial: Any) -> nn.Module:
    """A residual network of five blocks: the hidden and output width of each."""
    sizes = [2, 3, 4, 6, 8, 12, 16, 24]
    width = trial.suggest_categorical("stem", sizes)
    layers: list[nn.Module] = [
        nn.Conv2d(1, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    ]
    for block, stride in enumerate((1, 1, 2, 1, 2)):
        hidden = trial.suggest_categorical(f"hidden{block}", sizes)
        out = trial.suggest_categorical(f"width{block}", sizes)
        layers.append(Residual(width, hidden, out, stride))
        width = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


build.example_input = IMAGE  # type: ignore[attr-defined]
