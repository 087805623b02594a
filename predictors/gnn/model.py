"""The network: directed graph flow and graph attention on every block, functions first, then the blocks that call them.

An ensemble of K networks is one network whose tensors have a leading dimension K: all members run and train at once.
Sizes in comments: K members, N nodes, E edges, B blocks, T texts, D width, M metrics.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from predictors.gnn.graph import KIND_NUMBERS, NODE_NUMBERS, TEXT_NUMBERS, Batch, Kind, Level


@dataclass(frozen=True)
class Config:
    """Sizes of the network."""

    words: int
    metrics: int
    width: int = 32
    layers: int = 3
    members: int = 4


class Linear(nn.Module):
    """A linear layer per member: (K, ..., inputs) -> (K, ..., outputs)."""

    def __init__(self, members: int, inputs: int, outputs: int, scale: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(members, inputs, outputs) * scale * inputs**-0.5)
        self.bias = nn.Parameter(torch.zeros(members, 1, outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


class Norm(nn.Module):
    """Layer normalization with a scale and a shift per member."""

    def __init__(self, members: int, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(members, 1, width))
        self.shift = nn.Parameter(torch.zeros(members, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:]) * self.scale + self.shift


def _gather(x: Tensor, index: Tensor) -> Tensor:
    return x.index_select(1, index)


def _scatter(x: Tensor, index: Tensor, size: int) -> Tensor:
    return x.new_zeros(x.shape[0], size, x.shape[2]).index_add(1, index, x)


def _counts(index: Tensor, size: int) -> Tensor:
    return torch.zeros(size).index_add(0, index, torch.ones(len(index))).clamp(min=1)


class FlowLayer(nn.Module):
    """The mean of directed graph flow and graph attention, along the edges and against them.

    Flow: sigmoid(G) * (A X W) + X W with the gate G of the node's kind. Attention: as in GAT, one head.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        members, width = config.members, config.width
        self.norm = Norm(members, width)
        self.project = Linear(members, width, 4 * width)
        self.gate = Linear(members, width, 2 * width)
        self.score = nn.Parameter(torch.randn(2, 2, members, 1, width) * width**-0.5)

    def forward(self, h: Tensor, gates: Tensor, source: Tensor, target: Tensor) -> Tensor:
        x = self.project(self.norm(h))  # (K, N, 4D)
        ahead, back = x.chunk(2, dim=-1)
        gate_ahead, gate_back = gates.chunk(2, dim=-1)
        moved = self._move(ahead, gate_ahead, source, target, 0) + self._move(back, gate_back, target, source, 1)
        return h + F.gelu(moved)

    def _move(self, x: Tensor, gate: Tensor, source: Tensor, target: Tensor, direction: int) -> Tensor:
        nodes = x.shape[1]
        flow, attended = x.chunk(2, dim=-1)  # (K, N, D)
        to, by = self.score[direction]
        scores = _gather((attended * by).sum(-1, keepdim=True), source)
        scores = scores + _gather((attended * to).sum(-1, keepdim=True), target)  # (K, E, 1)
        weight = F.leaky_relu(scores, 0.2).clamp(-8, 8).exp()
        total = _scatter(weight, target, nodes) + 1e-6
        degree = _counts(target, nodes)[:, None] ** -0.5
        messages = _gather(x, source)
        flowing, attending = messages.chunk(2, dim=-1)
        mixed = _scatter(torch.cat([flowing, attending * weight], -1), target, nodes)
        flowed, gathered = mixed.chunk(2, dim=-1)
        return (gate * flowed * degree + flow + gathered / total) / 2


class Network(nn.Module):
    """Texts, and what is known of their metrics, to M normalized metrics per member."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        members, width = config.members, config.width
        self.config = config
        self.words = Linear(members, config.words + KIND_NUMBERS, width)
        self.numbers = Linear(members, NODE_NUMBERS, width)
        self.called = Linear(members, width, width)
        self.layers = nn.ModuleList(FlowLayer(config) for _ in range(config.layers))
        self.pool = Linear(members, 3 * width, width)
        self.pool_norm = Norm(members, width)
        self.join = Linear(members, 2 * width + TEXT_NUMBERS, width)
        self.hidden = Linear(members, width + 2 * config.metrics, 2 * width)
        self.out = Linear(members, 2 * width, config.metrics, scale=0.3)

    def forward(self, batch: Batch, words: Tensor, known: Tensor) -> Tensor:
        """words (kinds, W): features of the batch's kinds; known (T, 2M): values and which are known. -> (K, T, M)."""
        x = self.embed(batch, words)  # (K, T, D)
        x = torch.cat([x, known.expand(len(x), -1, -1)], dim=-1)
        return self.out(F.gelu(self.hidden(x)))

    def embed(self, batch: Batch, words: Tensor) -> Tensor:
        """(K, T, D)."""
        members = self.config.members
        kinds = self.words(words.expand(members, -1, -1))
        gates = [torch.sigmoid(layer.gate(kinds)) for layer in self.layers]
        blocks = kinds.new_zeros(members, 0, self.config.width)
        for level in batch.levels:
            blocks = torch.cat([blocks, self._blocks(level, kinds, gates, blocks)], dim=1)
        main = _gather(blocks, batch.main)
        parts = _gather(blocks, batch.part_block) * batch.part_share[:, None]
        parts = _scatter(parts, batch.part_text, len(batch.main))
        numbers = batch.numbers.expand(members, -1, -1)
        return F.gelu(self.join(torch.cat([main, parts, numbers], dim=-1)))

    def _blocks(self, level: Level, kinds: Tensor, gates: list[Tensor], callees: Tensor) -> Tensor:
        """(K, B, D) of one level's blocks."""
        nodes = len(level.node_kind)
        h = _gather(kinds, level.node_kind) + self.numbers(level.numbers.expand(len(kinds), -1, -1))
        if len(level.call_node):
            h = h.index_add(1, level.call_node, self.called(_gather(callees, level.call_block)))
        for layer, gate in zip(self.layers, gates, strict=True):
            h = layer(h, _gather(gate, level.node_kind), level.source, level.target)
        count = _counts(level.node_block, level.blocks)[:, None]
        total = _scatter(h, level.node_block, level.blocks)
        outputs = _scatter(_gather(h, level.output_node), level.output_block, level.blocks)
        ends = _counts(level.output_block, level.blocks)[:, None]
        pooled = torch.cat([total / count, total / 8, outputs / ends], dim=-1)
        return self.pool_norm(F.gelu(self.pool(pooled)))
