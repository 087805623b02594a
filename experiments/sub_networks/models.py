"""The networks that are trained and made faster: a ResNet and a vision transformer for 32×32
images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

EXAMPLE = torch.zeros(1, 3, 32, 32)


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (y + self.shortcut(x)).relu()


class ResNet(nn.Module):
    """A stem that halves the image, and a stage of residual blocks per width."""

    def __init__(self, classes: int, widths: Sequence[int], blocks: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, widths[0], 3, 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(widths[0])
        inputs, layers = widths[0], []
        for stage, width in enumerate(widths):
            for block in range(blocks):
                stride = 2 if stage and not block else 1
                layers.append(Block(inputs, width, stride))
                inputs = width
        self.blocks = nn.Sequential(*layers)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.norm(self.stem(x)).relu()).mean((2, 3)))


class Attention(nn.Module):
    """Self-attention over tokens (N, tokens, width), with heads of a fixed width."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_width = width // heads
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, tokens, _ = x.shape
        q, k, v = (
            layer(x).view(n, tokens, -1, self.head_width).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        y = scaled_dot_product_attention(q, k, v)
        return self.project(y.transpose(1, 2).reshape(n, tokens, -1))


class Layer(nn.Module):
    """Attention, then a perceptron of each token, both with a skip connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.narrow(nn.functional.gelu(self.wide(self.norm2(x))))


class ViT(nn.Module):
    """Convolutions that make 8×8 tokens of the image, layers, and a classifier of their mean."""

    def __init__(self, classes: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width // 2, 3, 2, 1, bias=False),
            nn.BatchNorm2d(width // 2),
            nn.ReLU(),
            nn.Conv2d(width // 2, width, 3, 2, 1),
        )
        self.position = nn.Parameter(0.02 * torch.randn(1, 64, width))
        self.layers = nn.Sequential(*[Layer(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.stem(x).flatten(2).transpose(1, 2) + self.position
        return self.head(self.norm(self.layers(tokens)).mean(1))


Make = Callable[[int], nn.Module]
# By family: the network of the protocol, and a tiny one for a quick run, for a number of classes.
FAMILIES: dict[str, tuple[Make, Make]] = {
    "resnet": (
        lambda classes: ResNet(classes, (24, 48, 96), 2),
        lambda classes: ResNet(classes, (8, 16), 1),
    ),
    "vit": (
        lambda classes: ViT(classes, 64, 4, 4),
        lambda classes: ViT(classes, 16, 2, 2),
    ),
}
