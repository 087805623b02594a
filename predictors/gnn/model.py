"""The graph network: directed graph flow and graph attention on every block, callees before
callers.

An ensemble of K networks is one network whose tensors have a leading dimension K; all members run
and train at once. Sizes in comments: K members, N nodes, E edges, B blocks, T texts, D width, M
metrics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from predictors.gnn.graph import KIND_NUMBERS, NODE_NUMBERS, TEXT_NUMBERS, Batch, Level


@dataclass(frozen=True)
class Config:
    """Sizes of the network."""

    words: int  # size of the vocabulary
    metrics: int  # number of outputs
    width: int = 32  # width of the layers
    layers: int = 3  # flow layers per block
    members: int = 4  # networks in the ensemble


class Linear(nn.Module):
    """A linear layer per member."""

    def __init__(self, members: int, inputs: int, outputs: int, scale: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(members, inputs, outputs) * scale * inputs**-0.5)
        self.bias = nn.Parameter(torch.zeros(members, 1, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """(K, n, inputs) to (K, n, outputs)."""
        return torch.baddbmm(self.bias, x, self.weight)

    def split(self, x: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """The `first` outputs and the others as two contiguous tensors."""
        parts = (slice(None, first), slice(first, None))
        one, two = (
            torch.baddbmm(self.bias[..., part], x, self.weight[..., part]) for part in parts
        )
        return one, two


class Norm(nn.Module):
    """Layer normalization with a scale and a shift per member."""

    def __init__(self, members: int, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(members, 1, width))
        self.shift = nn.Parameter(torch.zeros(members, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.shift, F.layer_norm(x, x.shape[-1:]), self.scale)


def _gather(x: Tensor, index: Tensor) -> Tensor:
    return x.index_select(1, index)


def _scatter(x: Tensor, index: Tensor, size: int) -> Tensor:
    return x.new_zeros(x.shape[0], size, x.shape[2]).index_add_(1, index, x)


def _counts(index: Tensor, size: int) -> Tensor:
    return torch.zeros(size).index_add(0, index, torch.ones(len(index))).clamp(min=1)


class Edges(NamedTuple):
    """Edges in both directions between 2N nodes: 2i is node i along the edges, 2i + 1 against
    them.
    """

    source: Tensor  # (2E,)
    target: Tensor  # (2E,)
    share: Tensor  # (2E,) degree of the target to the power -0.5

    @classmethod
    def of(cls, level: Level) -> Edges:
        """The edges of one level's blocks."""
        source = torch.cat([2 * level.edges[0], 2 * level.edges[1] + 1])
        target = torch.cat([2 * level.edges[1], 2 * level.edges[0] + 1])
        return cls(source, target, _counts(target, 2 * len(level.node_kind)).rsqrt()[target])


class FlowLayer(nn.Module):
    """Directed graph flow plus graph attention, in both directions of the edges, with a residual
    connection.

    Flow: sigmoid(G) * (A X W) + X W with the gate G of the node's kind and A normalized by degree.
        Attention: one head
    as in GAT (arXiv 1710.10903).
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        members, self.width = config.members, config.width
        self.norm = Norm(members, self.width)
        self.project = Linear(members, self.width, 4 * self.width + 4)

    def forward(self, h: Tensor, gates: Tensor, edges: Edges) -> Tensor:
        """States h (K, N, D) and gates (K, N, 2D) to states (K, N, D)."""
        members, nodes, width = h.shape
        projected, scored = self.project.split(self.norm(h), 4 * width)
        values, scores = (
            projected.view(members, 2 * nodes, 2 * width),
            scored.view(members, 2 * nodes, 2),
        )
        scores = _gather(scores[..., 0], edges.source) + _gather(scores[..., 1], edges.target)
        weight = F.leaky_relu(scores, 0.2).clamp(-8, 8).exp()  # (K, 2E)
        total = torch.zeros(members, 2 * nodes).index_add(1, edges.target, weight)
        weight = weight / _gather(total, edges.target)
        weights = torch.stack(
            [edges.share.expand_as(weight), weight], dim=-1
        )  # of flow and attention
        messages = _gather(values, edges.source).view(members, -1, 2, width)
        messages *= weights[
            ..., None
        ]  # in place, here and below: allocation takes longer than the arithmetic
        received = _scatter(messages.flatten(2), edges.target, 2 * nodes)  # (K, 2N, 2D)
        moved = gates.reshape(members, 2 * nodes, width) * received[..., :width]
        moved += received[..., width:]
        moved += values[..., :width]
        return h + F.gelu(moved.view(members, nodes, 2, width).sum(2) / 2)


class Network(nn.Module):
    """Maps texts to M normalized metrics per member.

    A text's embedding joins its main block with the mean of all its functions, so the structure of
    a cell has a short path to the output however deep the cell is nested.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        members, width = config.members, config.width
        self.config = config
        self.words = Linear(members, config.words + KIND_NUMBERS, width)
        self.numbers = Linear(members, NODE_NUMBERS, width)
        self.called = Linear(members, width, width)
        self.gates = Linear(members, width, config.layers * 2 * width)
        self.layers = nn.ModuleList(FlowLayer(config) for _ in range(config.layers))
        self.pool = Linear(members, 3 * width, width)
        self.pool_norm = Norm(members, width)
        self.join = Linear(members, 2 * width + TEXT_NUMBERS, width)
        self.hidden = Linear(members, width, 2 * width)
        self.out = Linear(members, 2 * width, config.metrics, scale=0.3)

    @torch.no_grad()
    def copy_pretrained(self, base: Network) -> None:
        """Copy the weights of a pretrained network of the same sizes, except its output layer.

        The vocabulary must begin with the words of `base`; further words keep their random weights.
        """
        learned = {
            name: tensor
            for name, tensor in base.state_dict().items()
            if not name.startswith("out.")
        }
        words, known = self.words.weight.detach().clone(), base.config.words
        words[:, :known] = learned["words.weight"][:, :known]
        words[:, -KIND_NUMBERS:] = learned["words.weight"][:, -KIND_NUMBERS:]
        self.load_state_dict({**self.state_dict(), **learned, "words.weight": words})

    def forward(self, batch: Batch, words: Tensor) -> Tensor:
        """Normalized metrics (K, T, M) of a batch; `words` (kinds, words + KIND_NUMBERS) are its
        kinds' features.
        """
        return self.out(F.gelu(self.hidden(self.embed(batch, words))))

    def embed(self, batch: Batch, words: Tensor) -> Tensor:
        """Embeddings (K, T, D) of a batch; see `forward` for the arguments."""
        members = self.config.members
        kinds = self.words(words.expand(members, -1, -1))
        gates = torch.sigmoid(self.gates(kinds)).chunk(self.config.layers, dim=-1)
        blocks = kinds.new_zeros(members, 0, self.config.width)
        for level in batch.levels:
            blocks = torch.cat([blocks, self._blocks(level, kinds, gates, blocks)], dim=1)
        main = _gather(blocks, batch.main)
        parts = _gather(blocks, batch.part_block) * batch.part_share[:, None]
        parts = _scatter(parts, batch.part_text, len(batch.main))
        numbers = batch.numbers.expand(members, -1, -1)
        return F.gelu(self.join(torch.cat([main, parts, numbers], dim=-1)))

    def _blocks(
        self, level: Level, kinds: Tensor, gates: Sequence[Tensor], callees: Tensor
    ) -> Tensor:
        """Embeddings (K, B, D) of one level's blocks; `callees` (K, b, D) are those of all lower
        levels.
        """
        edges = Edges.of(level)
        h = _gather(kinds, level.node_kind) + self.numbers(level.numbers.expand(len(kinds), -1, -1))
        calling, called = level.calls
        if len(calling):
            h = h.index_add(1, calling, self.called(_gather(callees, called)))
        for layer, gate in zip(self.layers, gates, strict=True):
            h = layer(h, _gather(gate, level.node_kind), edges)
        count = _counts(level.node_block, level.blocks)[:, None]
        total = _scatter(h, level.node_block, level.blocks)
        output_node, output_block = level.outputs
        outputs = _scatter(_gather(h, output_node), output_block, level.blocks)
        ends = _counts(output_block, level.blocks)[:, None]
        pooled = torch.cat([total / count, total / 8, outputs / ends], dim=-1)
        return self.pool_norm(F.gelu(self.pool(pooled)))
