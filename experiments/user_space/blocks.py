"""A space as a user would write it, in PyTorch: stages of blocks of one kind, with attention of channels and skips."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

ACTIVATIONS = {"relu": nn.ReLU, "silu": nn.SiLU, "hardswish": nn.Hardswish}


class Gate(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.squeeze, self.excite = nn.Linear(width, max(2, width // 4)), nn.Linear(max(2, width // 4), width)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.excite(torch.relu(self.squeeze(x.mean((2, 3)))))
        return x * torch.sigmoid(weights)[:, :, None, None]


class Block(nn.Module):
    """Expansion, a depthwise or full convolution, and projection; the skip is optional."""

    def __init__(self, width: int, kernel: int, expansion: int, depthwise: bool, act: Any, gate: bool, skip: bool):
        super().__init__()
        inner = width * expansion
        layers = [nn.Conv2d(width, inner, 1, bias=False), nn.BatchNorm2d(inner), act()] if expansion > 1 else []
        groups = inner if depthwise else 1
        layers += [nn.Conv2d(inner, inner, kernel, padding=kernel // 2, groups=groups, bias=False)]
        layers += [nn.BatchNorm2d(inner), act(), *([Gate(inner)] if gate else [])]
        self.body = nn.Sequential(*layers, nn.Conv2d(inner, width, 1, bias=False), nn.BatchNorm2d(width))
        self.skip = skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.skip else self.body(x)


def build(trial: Any) -> nn.Module:
    """One network for digits (1, 8, 8)."""
    act = ACTIVATIONS[trial.suggest_categorical("activation", list(ACTIVATIONS))]
    width = trial.suggest_int("width", 4, 8, step=2)
    layers: list[nn.Module] = [nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), act()]
    for stage in range(2):
        depthwise = trial.suggest_categorical(f"stage{stage}_depthwise", [True, False])
        skip = trial.suggest_categorical(f"stage{stage}_skip", [True, False])
        for i in range(trial.suggest_int(f"stage{stage}_blocks", 1, 3)):
            kernel = trial.suggest_categorical(f"stage{stage}_block{i}_kernel", [1, 3, 5])
            expansion = trial.suggest_categorical(f"stage{stage}_block{i}_expansion", [1, 2, 4])
            gate = trial.suggest_categorical(f"stage{stage}_block{i}_gate", [True, False])
            layers.append(Block(width, kernel, expansion, depthwise, act, gate, skip))
        if stage == 0:
            pools = {"max": nn.MaxPool2d, "average": nn.AvgPool2d}
            layers.append(pools[trial.suggest_categorical("pool", list(pools))](2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


build.example_input = torch.zeros(1, 1, 8, 8)  # type: ignore[attr-defined]
