"""Residual networks for colour images of 32×32 pixels, written in plain PyTorch as a user would, and
what a person scales by hand: the width and the depth of one of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

IMAGE = torch.zeros(1, 3, 32, 32)
CLASSES = 30
STAGES = 3


class Block(nn.Module):
    """A residual bottleneck: down to `inner` channels, a convolution of some groups, and up."""

    def __init__(self, width: int, out: int, inner: int, kernel: int, groups: int, stride: int):
        super().__init__()
        spatial = nn.Conv2d(inner, inner, kernel, stride, kernel // 2, groups=groups, bias=False)
        self.layers = nn.Sequential(
            *(nn.Conv2d(width, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU()),
            *(spatial, nn.BatchNorm2d(inner), nn.ReLU()),
            *(nn.Conv2d(inner, out, 1, bias=False), nn.BatchNorm2d(out)),
        )
        keeps_shape = stride == 1 and width == out
        self.shortcut = (
            nn.Identity() if keeps_shape else nn.Conv2d(width, out, 1, stride, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.shortcut(x) + self.layers(x))


def _network(stem: int, stages: list[list[Block]], width: int) -> nn.Module:
    blocks = [block for stage in stages for block in stage]
    return nn.Sequential(
        *(nn.Conv2d(3, stem, 3, 2, 1, bias=False), nn.BatchNorm2d(stem), nn.ReLU()),
        *blocks,
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES)),
    )


def build(trial: Any) -> nn.Module:
    """Three stages of one to three blocks; each block has its own kernel, groups and inner width."""
    stem = trial.suggest_categorical("stem", [8, 16, 24])
    width = stem
    stages = []
    for stage in range(STAGES):
        out = trial.suggest_int(f"width{stage}", 8 << stage, 32 << stage, step=8 << stage)
        blocks = []
        for block in range(trial.suggest_int(f"depth{stage}", 1, 3)):
            name = f"{stage}_{block}"
            inner = trial.suggest_categorical(f"inner{name}", [8, 16, 32, 64])
            kernel = trial.suggest_categorical(f"kernel{name}", [3, 5])
            groups = inner // trial.suggest_categorical(f"group{name}", [1, 8])
            if trial.suggest_categorical(f"dense{name}", [False, True]):
                groups = 1
            stride = 2 if stage and not block else 1
            blocks.append(Block(width, out, inner, kernel, groups, stride))
            width = out
        stages.append(blocks)
    return _network(stem, stages, width)


def scaled(trial: Any) -> nn.Module:
    """One network at thirteen widths and three depths: what a person would try."""
    factor = trial.suggest_int("width", 4, 52, step=4)
    depth = trial.suggest_int("depth", 1, 3)
    width = factor
    stages = []
    for stage in range(STAGES):
        out = factor << stage
        blocks = []
        for block in range(depth):
            stride = 2 if stage and not block else 1
            blocks.append(Block(width, out, max(4, out // 2), 3, 1, stride))
            width = out
        stages.append(blocks)
    return _network(factor, stages, width)


build.example_input = IMAGE  # type: ignore[attr-defined]
scaled.example_input = IMAGE  # type: ignore[attr-defined]
