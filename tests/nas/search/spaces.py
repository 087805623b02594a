"""A space that several test files search."""

from __future__ import annotations

from typing import Any

from search_spaces import SearchSpace
from search_spaces.ir.builder import Network, Tensor


class Widths(SearchSpace):
    """64 networks for digits."""

    name = "widths"
    input_shape = (1, 8, 8)
    num_classes = 10
    size = 64

    def build(self, trial: Any, net: Network) -> Tensor:
        x = net.input
        for i in range(3):
            x = net.conv_bn_relu(x, trial.suggest_categorical(f"width{i}", [1, 2, 3, 4]))
        return net.classifier(x)
