"""A search space of one operator per layer, written in plain PyTorch as a user would: it imports
only PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

IMAGE = torch.zeros(1, 1, 8, 8)  # example input, from which shapes are derived
WIDTHS, STRIDES = (12, 12, 12, 24, 24, 24, 32, 32), (1, 1, 1, 2, 1, 1, 2, 1)


def conv(
    width: int, out: int, kernel: int, stride: int = 1, groups: int = 1, dilation: int = 1
) -> list[nn.Module]:
    """A padded convolution and its normalization."""
    pad = dilation * (kernel // 2)
    return [
        nn.Conv2d(width, out, kernel, stride, pad, dilation, groups, bias=False),
        nn.BatchNorm2d(out),
    ]


def plain(
    width: int, out: int, kernel: int, stride: int, groups: int = 1, dilation: int = 1
) -> nn.Module:
    """One convolution with an activation."""
    return nn.Sequential(*conv(width, out, kernel, stride, groups, dilation), nn.ReLU())


def bottleneck(width: int, out: int, stride: int) -> nn.Module:
    """Convolutions 1×1, 3×3 and 1×1, the inner one with half of the channels."""
    inner = out // 2
    return nn.Sequential(
        *conv(width, inner, 1),
        nn.ReLU(),
        *conv(inner, inner, 3, stride),
        nn.ReLU(),
        *conv(inner, out, 1),
    )


def inverted(width: int, out: int, kernel: int, stride: int, ratio: int) -> nn.Module:
    """Expansion, depthwise convolution and projection."""
    hidden = ratio * width
    return nn.Sequential(
        *conv(width, hidden, 1),
        nn.ReLU6(),
        *conv(hidden, hidden, kernel, stride, hidden),
        nn.ReLU6(),
        *conv(hidden, out, 1),
    )


class Pooled(nn.Module):
    """The mean or maximum of each neighbourhood, then a convolution 1×1."""

    def __init__(self, width: int, out: int, stride: int, largest: bool) -> None:
        super().__init__()
        self.pool = nn.MaxPool2d(3, stride, 1) if largest else nn.AvgPool2d(3, stride, 1)
        self.project = nn.Sequential(*conv(width, out, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.project(self.pool(x))


OPERATORS: dict[str, Callable[[int, int, int], nn.Module]] = {
    "conv3": lambda width, out, stride: plain(width, out, 3, stride),
    "conv5 in 4 groups": lambda width, out, stride: plain(width, out, 5, stride, groups=4),
    "dilated": lambda width, out, stride: plain(width, out, 3, stride, dilation=2),
    "bottleneck": bottleneck,
    "inverted3": lambda width, out, stride: inverted(width, out, 3, stride, 3),
    "inverted5": lambda width, out, stride: inverted(width, out, 5, stride, 2),
    "mean": lambda width, out, stride: Pooled(width, out, stride, largest=False),
    "maximum": lambda width, out, stride: Pooled(width, out, stride, largest=True),
}


class Layer(nn.Module):
    """An operator with an optional skip connection."""

    def __init__(self, operator: nn.Module, skip: bool) -> None:
        super().__init__()
        self.operator, self.skip = operator, skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.operator(x) if self.skip else self.operator(x)


def build(trial: Any) -> nn.Module:
    """Eight layers: an operator or nothing each, with or without a skip connection."""
    width = WIDTHS[0]
    layers: list[nn.Module] = [*conv(1, width, 3), nn.ReLU()]
    for i, (out, stride) in enumerate(zip(WIDTHS, STRIDES, strict=True)):
        changes = stride > 1 or width != out
        options = [*OPERATORS] if changes else [*OPERATORS, "nothing"]
        operator = trial.suggest_categorical(f"operator{i}", options)
        if operator != "nothing":
            skip = not changes and trial.suggest_categorical(f"skip{i}", [False, True])
            layers.append(Layer(OPERATORS[operator](width, out, stride), skip))
        width = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


build.example_input = IMAGE  # type: ignore[attr-defined]
