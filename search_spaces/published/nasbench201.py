"""NAS-Bench-201 (Dong and Yang, ICLR 2020, arXiv 2001.00326): 15,625 cells of six edges with five
operations each.

    image ─ conv ─ 5 cells ─ reduction ─ 5 cells ─ reduction ─ 5 cells ─ BN, ReLU, pooling, linear
                   16 channels           32                    64

    cell:   0 ─▶ 1 ─▶ 2 ─▶ 3     and the edges 0 ─▶ 2, 0 ─▶ 3, 1 ─▶ 3

Each edge has an operation, and a node is the sum of its edges.
"""

from __future__ import annotations

from typing import Any

from search_spaces.choosers import Trial
from search_spaces.common.errors import InputError, unknown
from search_spaces.ir.builder import Network, Tensor
from search_spaces.registry import register_space
from search_spaces.space import Architecture, SearchSpace

OPERATIONS = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
EDGES = ((0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3))
_NAMES = {edge: f"{edge[0]}->{edge[1]}" for edge in EDGES}

Edges = dict[tuple[int, int], str]


@register_space("nasbench201")
class NASBench201(SearchSpace):
    """NAS-Bench-201: stem, three stages of cells, residual reduction blocks in between, classifier.

    Edges that have no effect on any value are omitted: `none` and pooled zeros add nothing, and
    `skip_connect` adds the terms of its source. Operations with unused results are kept, since
    published parameters and latencies count them. There are 7,360 different networks, 6,040 with
    `prune`.

    Args:
        channels: channels of the first stage.
        cells: cells per stage.
        input_shape: shape of one input.
        num_classes: number of classes.
        prune: omit operations whose results are not used.
    """

    def __init__(
        self,
        channels: int = 16,
        cells: int = 5,
        input_shape: tuple[int, ...] = (3, 32, 32),
        num_classes: int = 10,
        prune: bool = False,
    ) -> None:
        if min(channels, cells, num_classes, *input_shape) < 1:
            raise InputError(
                "nasbench201: channels, cells, classes and input sizes must be positive"
            )
        self.channels = channels
        self.cells = cells
        self.prune = prune
        self.input_shape = tuple(input_shape)
        self.num_classes = num_classes

    @property
    def size(self) -> int:
        return len(OPERATIONS) ** len(EDGES)

    @property
    def options(self) -> dict[str, Any]:
        return {
            "channels": self.channels,
            "cells": self.cells,
            "input_shape": self.input_shape,
            "num_classes": self.num_classes,
            "prune": self.prune,
        }

    def ask(self, trial: Trial) -> Edges:
        """Choose the operation of every edge."""
        return {edge: trial.suggest_categorical(_NAMES[edge], OPERATIONS) for edge in EDGES}

    def build(self, trial: Trial, net: Network) -> Tensor:
        edges = self.ask(trial)
        if self.prune:
            edges = _prune(edges)
        choices = tuple([edges[edge] for edge in EDGES])
        x = net.conv_bn(net.input, self.channels)
        for stage in range(3):
            if stage:
                with net.block("reduce"):
                    x = _reduction(net, x, self.channels * 2**stage)
            with net.block("stage"):
                for _ in range(self.cells):
                    x = net.repeated("cell", _cell, (x,), choices)
        return net.classifier(net.relu(net.batch_norm(x)))

    def parse(self, native: str) -> Architecture:
        """Read the official notation, `|op~0|+|op~0|op~1|+|op~0|op~1|op~2|`."""
        edges: Edges = {}
        for target, group in enumerate(native.split("+"), start=1):
            for part in group.strip("|").split("|"):
                operation, _, source = part.partition("~")
                if not source.isdigit() or (int(source), target) not in _NAMES:
                    raise InputError(
                        f"not a NAS-Bench-201 architecture: {native[:200]!r} (at {part!r})"
                    )
                if operation not in OPERATIONS:
                    raise unknown("NAS-Bench-201 operation", operation, OPERATIONS)
                edges[int(source), target] = operation
        if len(edges) != len(EDGES):
            raise InputError(
                f"not a NAS-Bench-201 architecture: {native[:200]!r} ({len(edges)} of 6 edges)"
            )
        choices = tuple((_NAMES[edge], edges[edge]) for edge in EDGES)
        return Architecture(self.name, choices)

    def format(self, arch: Architecture) -> str:
        """Write the official notation."""
        chosen = arch.as_dict()
        nodes = []
        for target in (1, 2, 3):
            names = [chosen[_NAMES[source, target]] for source in range(target)]
            operations = [f"{name}~{source}" for source, name in enumerate(names)]
            nodes.append(f"|{'|'.join(operations)}|")
        return "+".join(nodes)


def _prune(edges: Edges) -> Edges:
    """Set edges to `none` if they lead to a node without a path to the output."""
    edges = dict(edges)
    for node in (2, 1):
        leaving = [edges[node, later] for later in range(node + 1, 4)]
        if all(operation == "none" for operation in leaving):
            for source in range(node):
                edges[source, node] = "none"
    return edges


def _cell(net: Network, x: Tensor, choices: tuple[str, ...]) -> Tensor:
    """Build the cell whose `EDGES` have these operations.

    A node's value is the sum of its terms; `skip_connect` passes the terms on, `none` has no terms.
    Equal sums, and the ReLU of a value, are computed once.
    """
    edges = dict(zip(EDGES, choices, strict=True))
    terms: list[tuple[Tensor, ...]] = [(x,)]
    sums: dict[tuple[Tensor, ...], Tensor] = {}
    activations: dict[Tensor, Tensor] = {}

    def value(node: int) -> Tensor:
        key = tuple(sorted(terms[node]))
        if key not in sums:
            sums[key] = net.add(*key) if key else net.zero(x)
        return sums[key]

    def convolved(node: int, kernel: int) -> Tensor:
        source = value(node)
        if source not in activations:
            activations[source] = net.relu(source)
        return net.conv_bn(activations[source], kernel=kernel)

    for node in (1, 2, 3):
        incoming: list[Tensor] = []
        for source in range(node):
            operation = edges[source, node]
            if operation == "skip_connect":
                incoming += terms[source]
            elif operation == "avg_pool_3x3" and terms[source]:
                incoming.append(net.avg_pool(value(source), 3))
            elif operation == "nor_conv_1x1":
                incoming.append(convolved(source, kernel=1))
            elif operation == "nor_conv_3x3":
                incoming.append(convolved(source, kernel=3))
        terms.append(tuple(incoming))
    return value(3)


def _reduction(net: Network, x: Tensor, channels: int) -> Tensor:
    """Build the residual block with stride 2 between stages."""
    y = net.conv_bn(net.relu(x), channels, kernel=3, stride=2)
    y = net.conv_bn(net.relu(y), kernel=3)
    return net.add(net.conv(net.avg_pool(x, 2, stride=2), channels, kernel=1), y)
