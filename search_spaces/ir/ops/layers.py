"""Layers of operators that torch does not have. Only makers of layers import this module, in
functions: it loads torch.

`state_dict` lists the tensors of a layer in the order of `search_spaces.ir.ops.initializers`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ZeroPad(nn.ConstantPad2d):
    """Zero padding of any number of spatial dimensions; sizes in torch's order."""

    def __init__(self, padding: tuple[int, ...]) -> None:
        super().__init__(0, 0)
        self.padding = padding  # type: ignore[assignment]


class GroupedLinear(nn.Module):
    """A linear layer per replica, as a grouped 1×1 convolution.

    Maps (n, replicas · inputs) to (n, replicas · features).
    """

    def __init__(
        self,
        inputs: int,
        features: int,
        bias: bool,
        replicas: int,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(
            inputs * replicas,
            features * replicas,
            kernel_size=1,
            groups=replicas,
            bias=bias,
        )
        nn.init.kaiming_uniform_(self.conv.weight, a=5**0.5)

    def forward(self, x: Tensor) -> Tensor:
        images = x[:, :, None, None]  # (n, replicas · inputs, 1, 1)
        return self.conv(images).flatten(1)


class LearnedTensor(nn.Module):
    """A learned tensor that is a value of its own."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.randn(shape) * 0.02)

    def forward(self) -> Tensor:
        return self.value
