"""An architecture's graph as a PyTorch module, for training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from search_spaces.errors import InputError
from search_spaces.graph import Graph, Node, Shape
from search_spaces.operators import convolution, pair


class GraphModule(nn.Module):
    """Runs a `Graph` (as `search_spaces.model.from_model` reads it from any ONNX model) with fresh trainable weights.

    Nodes whose result nobody uses are left out: they cost time and change nothing. Input (n, channels, height, width)
    float, output (n, classes). With `replicas` > 1, that many independent networks run side by side as groups of
    channels, which costs far less than one after the other: input (n, replicas · channels, height, width), output
    (n, replicas · classes), each replica's channels in one piece.
    """

    def __init__(self, graph: Graph, replicas: int = 1) -> None:
        super().__init__()
        self.outputs = graph.outputs
        live = _live(graph)
        self.layers = nn.ModuleList()
        self.steps: list[tuple[tuple[int, ...], int]] = []
        for node in graph.nodes:
            if node.outputs[0] in live:
                self.layers.append(_layer(node, [graph.shapes[v] for v in node.inputs], replicas))
                self.steps.append((node.inputs, node.outputs[0]))

    def forward(self, x: Tensor) -> Tensor:
        values = {0: x}
        for layer, (inputs, output) in zip(self.layers, self.steps, strict=True):
            values[output] = layer(*[values[v] for v in inputs])
        return values[self.outputs[0]]


def _live(graph: Graph) -> set[int]:
    """Values that the graph's outputs depend on."""
    needed = set(graph.outputs)
    for node in reversed(graph.nodes):
        if needed & set(node.outputs):
            needed |= set(node.inputs)
    return needed


class _Function(nn.Module):
    """A weightless operator."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)


def _layer(node: Node, shapes: list[Shape], replicas: int) -> nn.Module:
    attrs: dict[str, Any] = dict(node.attrs)
    if node.op in ("Conv", "ConvBn"):
        channels = convolution(node.attrs, shapes[0]).channels * replicas
        conv = _conv(node, shapes[0], replicas)
        return nn.Sequential(*conv, _norm(attrs, channels)) if node.op == "ConvBn" else conv
    if node.op == "Linear":
        return _Linear(int(shapes[0][-1]), attrs["features"], bool(attrs.get("bias", 1)), replicas)
    if node.op == "BatchNorm":
        return _norm(attrs, int(shapes[0][1]) * replicas)
    if node.op in ("MaxPool", "AveragePool"):
        return _pool(node.op, attrs)
    if node.op == "Concat":
        return _Concat(attrs["axis"], replicas)
    if node.op not in _FUNCTIONS:
        raise InputError(f"operator {node.op} cannot be trained yet; supported: {', '.join(sorted(_FUNCTIONS))}")
    return _Function(_FUNCTIONS[node.op])


def _norm(attrs: dict[str, Any], channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels, eps=attrs.get("epsilon", 1e-5))


def _conv(node: Node, shape: Shape, replicas: int) -> nn.Sequential:
    c = convolution(node.attrs, shape)
    symmetric = c.pads[:2] == c.pads[2:]
    padding = c.pads[:2] if symmetric else 0
    conv = nn.Conv2d(
        c.in_channels * replicas, c.channels * replicas, c.kernel, c.strides, padding, c.dilations, c.group * replicas,
        bias=c.bias,
    )  # fmt: skip
    nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
    return nn.Sequential(conv) if symmetric else nn.Sequential(_Pad(c.pads), conv)


class _Pad(nn.Module):
    """Zero padding that differs between the sides; `pads` in ONNX's order (top, left, bottom, right)."""

    def __init__(self, pads: tuple[int, int, int, int]) -> None:
        super().__init__()
        top, left, bottom, right = pads
        self.pads = (left, right, top, bottom)

    def forward(self, x: Tensor) -> Tensor:
        return functional.pad(x, self.pads)


class _Linear(nn.Module):
    """A linear layer per replica, as a grouped 1×1 convolution: (n, replicas · inputs) → (n, replicas · features)."""

    def __init__(self, inputs: int, features: int, bias: bool, replicas: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs * replicas, features * replicas, 1, groups=replicas, bias=bias)
        nn.init.kaiming_uniform_(self.conv.weight, a=5**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x[:, :, None, None]).flatten(1)


class _Concat(nn.Module):
    """Concatenation that keeps each replica's channels in one piece."""

    def __init__(self, axis: int, replicas: int) -> None:
        super().__init__()
        self.axis, self.replicas = axis, replicas

    def forward(self, *xs: Tensor) -> Tensor:
        if self.axis != 1 or self.replicas == 1:
            return torch.cat(xs, dim=self.axis)
        return torch.cat([x.unflatten(1, (self.replicas, -1)) for x in xs], dim=2).flatten(1, 2)


def _pool(op: str, attrs: dict[str, Any]) -> nn.Module:
    kernel, strides = attrs["kernel_shape"], pair(attrs.get("strides", 1))
    pads = attrs.get("pads", (0, 0, 0, 0))
    if pads[:2] != pads[2:] or attrs.get("ceil_mode", 0):
        raise InputError(f"{op} with pads {list(pads)} or ceil_mode cannot be trained yet; use symmetric pads")
    if op == "MaxPool":
        return nn.MaxPool2d(kernel, strides, pads[:2])
    return nn.AvgPool2d(kernel, strides, pads[:2], count_include_pad=bool(attrs.get("count_include_pad", 0)))


def _sum(*xs: Tensor) -> Tensor:
    total = xs[0]
    for x in xs[1:]:
        total = total + x
    return total


_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "Add": _sum,
    "Sum": _sum,
    "Mul": torch.mul,
    "Sub": torch.sub,
    "Relu": functional.relu,
    "Sigmoid": torch.sigmoid,
    "HardSigmoid": lambda x: torch.clamp(0.2 * x + 0.5, 0, 1),
    "HardSwish": functional.hardswish,
    "Tanh": torch.tanh,
    "Identity": lambda x: x,
    "Zero": torch.zeros_like,
    "GlobalAveragePool": lambda x: x.mean(dim=(2, 3), keepdim=True),
    "Flatten": lambda x: x.flatten(1),
}
