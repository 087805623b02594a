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

from predictors.gnn.graph import (
    KIND_NUMBERS,
    NODE_NUMBERS,
    TEXT_NUMBERS,
    Batch,
    Level,
)

LEAK = 0.2  # slope of attention's logits below 0
MAX_LOGIT = 8.0  # of attention: its exponential stays finite
POOL_SCALE = 8.0  # divides the sum of a block's nodes
OUTPUT_SCALE = 0.3  # of the output layer's initial weights


@dataclass(frozen=True)
class Config:
    """Sizes of the network."""

    words: int  # size of the vocabulary
    metrics: int  # number of outputs
    width: int = 32  # width of the layers
    layers: int = 3  # flow layers per block
    members: int = 4  # networks in the ensemble


class Network(nn.Module):
    """Maps texts to M normalized metrics per member.

    A text's embedding joins its main block with the mean of all its functions, so the structure of
    a cell has a short path to the output however deep the cell is nested.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        members = config.members
        width = config.width
        self.config = config
        self.words = Linear(members, config.words + KIND_NUMBERS, width)
        self.numbers = Linear(members, NODE_NUMBERS, width)
        self.called = Linear(members, width, width)
        self.gates = Linear(members, width, config.layers * 2 * width)
        layers = [FlowLayer(config) for _ in range(config.layers)]
        self.layers = nn.ModuleList(layers)
        self.pool = Linear(members, 3 * width, width)
        self.pool_norm = Norm(members, width)
        self.join = Linear(members, 2 * width + TEXT_NUMBERS, width)
        self.hidden = Linear(members, width, 2 * width)
        self.out = Linear(members, 2 * width, config.metrics, scale=OUTPUT_SCALE)

    @torch.no_grad()
    def copy_pretrained(self, base: Network) -> None:
        """Copy the weights of a pretrained network of the same sizes, except its output layer.

        The vocabulary must begin with the words of `base`; further words keep their random weights.
        """
        weights = self.state_dict()
        for name, tensor in base.state_dict().items():
            if not name.startswith("out."):
                weights[name] = tensor

        # Rows of the words' weights: the vocabulary, then the numbers of a kind.
        shared = base.config.words
        of_base = weights["words.weight"]
        words = self.words.weight.detach().clone()
        words[:, :shared] = of_base[:, :shared]
        words[:, -KIND_NUMBERS:] = of_base[:, -KIND_NUMBERS:]
        weights["words.weight"] = words
        self.load_state_dict(weights)

    def forward(self, batch: Batch, words: Tensor) -> Tensor:
        """Normalized metrics (K, T, M) of a batch.

        Args:
            batch: T texts.
            words: (kinds, words + KIND_NUMBERS) features of the batch's kinds.
        """
        embedded = self.embed(batch, words)  # (K, T, D)
        hidden = F.gelu(self.hidden(embedded))  # (K, T, 2D)
        return self.out(hidden)

    def embed(self, batch: Batch, words: Tensor) -> Tensor:
        """Embeddings (K, T, D) of a batch; see `forward` for the arguments."""
        members = self.config.members

        # 1. Embed every kind of operator once, and its gates in every layer.    (K, kinds, D or 2D)
        of_members = words.expand(members, -1, -1)
        kinds = self.words(of_members)
        opened = torch.sigmoid(self.gates(kinds))
        gates = opened.chunk(self.config.layers, dim=-1)

        # 2. Embed the blocks, from those without calls upwards.                     (K, B, D)
        blocks = kinds.new_zeros(members, 0, self.config.width)
        for level in batch.levels:
            of_level = self._blocks(level, kinds, gates, blocks)
            blocks = torch.cat([blocks, of_level], dim=1)

        # 3. A text is its main block, its functions by their share of the calls, and its costs.
        main = _gather(blocks, batch.main)  # (K, T, D)
        functions = _gather(blocks, batch.part_block)  # (K, p, D)
        weighted = functions * batch.part_share[:, None]
        texts = len(batch.main)
        parts = _scatter(weighted, batch.part_text, texts)  # (K, T, D)
        numbers = batch.numbers.expand(members, -1, -1)  # (K, T, TEXT_NUMBERS)
        joined = torch.cat([main, parts, numbers], dim=-1)
        return F.gelu(self.join(joined))

    def _blocks(
        self,
        level: Level,
        kinds: Tensor,
        gates: Sequence[Tensor],
        callees: Tensor,
    ) -> Tensor:
        """Embeddings (K, B, D) of one level's blocks.

        Args:
            level: the B blocks.
            kinds: (K, kinds, D) embeddings of the kinds.
            gates: (K, kinds, 2D) per layer.
            callees: (K, b, D) embeddings of the blocks of all lower levels.
        """
        # 1. A node is its kind, its position, and the block that it calls.              (K, N, D)
        numbers = level.numbers.expand(len(kinds), -1, -1)
        kind_of_node = _gather(kinds, level.node_kind)
        h = kind_of_node + self.numbers(numbers)
        calling, called = level.calls
        if len(calling):
            of_callees = self.called(_gather(callees, called))
            h = h.index_add(1, calling, of_callees)

        # 2. Pass messages.                                                              (K, N, D)
        edges = Edges.of(level)
        for layer, gate in zip(self.layers, gates, strict=True):
            gate_of_node = _gather(gate, level.node_kind)
            h = layer(h, gate_of_node, edges)

        # 3. Pool each block: mean and sum of its nodes, and mean of its outputs.       (K, B, 3D)
        count = _counts(level.node_block, level.blocks)[:, None]  # (B, 1)
        total = _scatter(h, level.node_block, level.blocks)
        output_node, output_block = level.outputs
        output_count = _counts(output_block, level.blocks)[:, None]
        outputs = _scatter(_gather(h, output_node), output_block, level.blocks)
        means_and_sums = [
            total / count,
            total / POOL_SCALE,
            outputs / output_count,
        ]
        pooled = torch.cat(means_and_sums, dim=-1)
        return self.pool_norm(F.gelu(self.pool(pooled)))


class FlowLayer(nn.Module):
    """Directed graph flow plus graph attention, with a residual connection.

    Both follow both directions of the edges. Flow: sigmoid(G) * (A X W) + X W with the gate G of
    the node's kind and A normalized by degree. Attention: one head as in GAT (arXiv 1710.10903).
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        members = config.members
        self.width = config.width
        self.norm = Norm(members, self.width)
        self.project = Linear(members, self.width, 4 * self.width + 4)

    def forward(
        self,
        h: Tensor,
        gates: Tensor,
        edges: Edges,
    ) -> Tensor:
        """States h (K, N, D) and gates (K, N, 2D) to states (K, N, D)."""
        members, nodes, width = h.shape
        sides = 2 * nodes  # each node along and against the edges

        # 1. Values of flow and of attention, and attention's scores as source and as target, for
        #    both directions of a node.                             (K, 2N, 2D) and (K, 2N, 2)
        normalized = self.norm(h)
        projected, scored = self.project.split(normalized, 4 * width)
        values = projected.view(members, sides, 2 * width)
        scores = scored.view(members, sides, 2)

        # 2. Attention: a softmax over the edges that end at a node.                   (K, 2E)
        of_source = _gather(scores[..., 0], edges.source)
        of_target = _gather(scores[..., 1], edges.target)
        logits = F.leaky_relu(of_source + of_target, LEAK)
        weight = logits.clamp(-MAX_LOGIT, MAX_LOGIT).exp()
        nothing = torch.zeros(members, sides)
        total = nothing.index_add(1, edges.target, weight)  # (K, 2N)
        attention = weight / _gather(total, edges.target)
        flow = edges.share.expand_as(attention)
        weights = torch.stack([flow, attention], dim=-1)  # (K, 2E, 2)

        # 3. Messages along the edges. In place, here and below: allocation takes longer than the
        #    arithmetic.
        messages = _gather(values, edges.source)
        messages = messages.view(members, -1, 2, width)  # (K, 2E, 2, D)
        messages *= weights[..., None]
        received = _scatter(messages.flatten(2), edges.target, sides)  # (K, 2N, 2D)

        # 4. Gated flow, attention and the node itself; the mean of both directions.   (K, N, D)
        gate = gates.reshape(members, sides, width)
        moved = gate * received[..., :width]
        moved += received[..., width:]
        moved += values[..., :width]
        both = moved.view(members, nodes, 2, width)
        mean = both.sum(2) / 2
        return h + F.gelu(mean)


class Edges(NamedTuple):
    """Edges in both directions between 2N nodes: 2i is node i along, 2i + 1 against the edges."""

    source: Tensor  # (2E,)
    target: Tensor  # (2E,)
    share: Tensor  # (2E,) degree of the target to the power -0.5

    @classmethod
    def of(cls, level: Level) -> Edges:
        """The edges of one level's blocks."""
        producer, consumer = level.edges
        nodes = len(level.node_kind)
        source = torch.cat([2 * producer, 2 * consumer + 1])
        target = torch.cat([2 * consumer, 2 * producer + 1])
        degree = _counts(target, 2 * nodes)  # (2N,)
        share = degree.rsqrt()[target]
        return cls(source, target, share)


class Linear(nn.Module):
    """A linear layer per member."""

    def __init__(
        self,
        members: int,
        inputs: int,
        outputs: int,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        weight = torch.randn(members, inputs, outputs) * scale * inputs**-0.5
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(torch.zeros(members, 1, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """(K, n, inputs) to (K, n, outputs)."""
        return torch.baddbmm(self.bias, x, self.weight)

    def split(self, x: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """The `first` outputs and the others as two contiguous tensors."""
        outputs = []
        for part in (slice(None, first), slice(first, None)):
            bias = self.bias[..., part]
            weight = self.weight[..., part]
            outputs.append(torch.baddbmm(bias, x, weight))
        leading, trailing = outputs
        return leading, trailing


class Norm(nn.Module):
    """Layer normalization with a scale and a shift per member."""

    def __init__(self, members: int, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(members, 1, width))
        self.shift = nn.Parameter(torch.zeros(members, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        """(K, n, width) to (K, n, width)."""
        normalized = F.layer_norm(x, x.shape[-1:])
        return torch.addcmul(self.shift, normalized, self.scale)


def _gather(x: Tensor, index: Tensor) -> Tensor:
    """(K, n, …) rows x (K, m, …) by their numbers (n,)."""
    return x.index_select(1, index)


def _scatter(
    x: Tensor,
    index: Tensor,
    size: int,
) -> Tensor:
    """(K, size, D) sums of x (K, n, D) by row (n,)."""
    sums = x.new_zeros(x.shape[0], size, x.shape[2])
    return sums.index_add_(1, index, x)


def _counts(index: Tensor, size: int) -> Tensor:
    """(size,) how often each row occurs in an index, at least 1."""
    ones = torch.ones(len(index))
    return torch.zeros(size).index_add(0, index, ones).clamp(min=1)
