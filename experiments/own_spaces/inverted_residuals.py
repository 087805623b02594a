"""A search space of inverted residual blocks, written in plain PyTorch as a user would: it imports
only PyTorch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

ACTIVATIONS = {"relu6": nn.ReLU6, "hardswish": nn.Hardswish}
IMAGE = torch.zeros(1, 1, 8, 8)  # example input, from which shapes are derived


class Gate(nn.Module):
    """Squeeze-and-excitation: a small network of the channels' means weights the channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(width, max(4, width // 4), 1)
        self.excite = nn.Conv2d(max(4, width // 4), width, 1)

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean((2, 3), keepdim=True)
        return x * torch.sigmoid(self.excite(torch.relu(self.squeeze(mean))))


class InvertedResidual(nn.Module):
    """Expansion, depthwise convolution, optional gate and projection.

    There is a skip connection if shapes agree.
    """

    def __init__(
        self,
        width: int,
        out: int,
        stride: int,
        kernel: int,
        ratio: int,
        gate: bool,
        activation: str,
    ) -> None:
        super().__init__()
        hidden = width * ratio
        act = ACTIVATIONS[activation]
        expand = (
            [nn.Conv2d(width, hidden, 1, bias=False), nn.BatchNorm2d(hidden), act()]
            if ratio > 1
            else []
        )
        depthwise = nn.Conv2d(
            hidden, hidden, kernel, stride, kernel // 2, groups=hidden, bias=False
        )
        self.layers = nn.Sequential(
            *expand,
            *(depthwise, nn.BatchNorm2d(hidden), act()),
            Gate(hidden) if gate else nn.Identity(),
            *(nn.Conv2d(hidden, out, 1, bias=False), nn.BatchNorm2d(out)),
        )
        self.residual = stride == 1 and width == out

    def forward(self, x: Tensor) -> Tensor:
        y = self.layers(x)
        return x + y if self.residual else y


def build(trial: Any) -> nn.Module:
    """A network for digits: three stages of one to three blocks.

    Each block has its own kernel and ratio.
    """
    activation = trial.suggest_categorical("activation", list(ACTIVATIONS))
    width = trial.suggest_categorical("stem", [8, 16])
    layers: list[nn.Module] = [nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)]
    layers.append(ACTIVATIONS[activation]())
    for stage in range(3):
        out = trial.suggest_categorical(f"width{stage}", [8, 12, 16, 24])
        gate = trial.suggest_categorical(f"gate{stage}", [False, True])
        for block in range(trial.suggest_int(f"depth{stage}", 1, 3)):
            kernel = trial.suggest_categorical(f"kernel{stage}_{block}", [3, 5])
            ratio = trial.suggest_categorical(f"ratio{stage}_{block}", [1, 2, 4])
            stride = 2 if stage and not block else 1
            layers.append(InvertedResidual(width, out, stride, kernel, ratio, gate, activation))
            width = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


build.example_input = IMAGE  # type: ignore[attr-defined]
