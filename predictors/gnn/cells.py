"""Two published networks on cells in their published encoding, to see how our baseline stands beside them.

A cell is a directed graph of at most V nodes; V may be any number, a node `NONE` is not there. Which node is the input
and which the output is told by its operation, so the order of the nodes does not matter.

Sizes in comments: B cells, V nodes, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

NONE, INPUT, OUTPUT = 0, 1, 2
FIRST = 3  # number of a space's first operation


class Cells(NamedTuple):
    """adjacency (B, V, V) float: [s, t] is 1 where node t reads node s, 0 elsewhere. operations (B, V) long."""

    adjacency: Tensor
    operations: Tensor

    def at(self, rows: Tensor) -> Cells:
        """Those of some rows (b,)."""
        return Cells(self.adjacency[rows], self.operations[rows])


def _mean(h: Tensor, operations: Tensor) -> Tensor:
    """(B, D): mean of h (B, V, D) over the nodes that are there."""
    there = (operations != NONE).to(h.dtype)[..., None]
    return (h * there).sum(1) / there.sum(1)


def _layers(*widths: int, dropout: float) -> nn.Sequential:
    """Linear layers with ReLU and dropout between them."""
    layers: list[nn.Module] = [nn.Linear(widths[0], widths[1])]
    for inputs, outputs in pairwise(widths[1:]):
        layers += [nn.ReLU(), nn.Dropout(dropout), nn.Linear(inputs, outputs)]
    return nn.Sequential(*layers)


# --- graph convolution -----------------------------------------------------------------------------------------------


class GCN(nn.Module):
    """The network of "Neural Predictor for Neural Architecture Search" (Wen et al. 2019, arXiv 1912.00848).

    A layer is the mean of ReLU(A H W+) and ReLU(A' H W-): A has self loops and rows that sum to 1, A' is that of the
    transposed graph.
    """

    def __init__(self, operations: int, width: int = 144, layers: int = 3, hidden: int = 128) -> None:
        super().__init__()
        self.operations = operations
        widths = [operations, *[width] * layers]
        pairs = list(pairwise(widths))
        self.along = nn.ModuleList(nn.Linear(i, o, bias=False) for i, o in pairs)
        self.against = nn.ModuleList(nn.Linear(i, o, bias=False) for i, o in pairs)
        self.head = _layers(width, hidden, 1, dropout=0.1)

    def forward(self, cells: Cells) -> Tensor:
        """(B,)."""
        h = F.one_hot(cells.operations, self.operations).float()  # (B, V, operations)
        loops = torch.eye(h.shape[1])
        forward, backward = cells.adjacency + loops, cells.adjacency.mT + loops
        forward, backward = forward / forward.sum(-1, keepdim=True), backward / backward.sum(-1, keepdim=True)
        for along, against in zip(self.along, self.against, strict=True):
            h = (F.relu(forward @ along(h)) + F.relu(backward @ against(h))) / 2
        return self.head(_mean(h, cells.operations))[:, 0]


# --- FLAN ------------------------------------------------------------------------------------------------------------


class FlowAttention(nn.Module):
    """Mean of directed graph flow and graph attention, what comes in gated by the operation of the node that reads it.

    Flow: sigmoid(O G) * (A X W) + X W + b. Attention: LayerNorm(sigmoid(O G') * (S X W')), where the rows of S are
    softmax over a node's sources and itself.
    """

    def __init__(self, inputs: int, outputs: int, gate: int) -> None:
        super().__init__()
        self.project = nn.Linear(inputs, 2 * outputs, bias=False)  # of flow, of attention
        self.gates = nn.Linear(gate, 2 * outputs)
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.scores = nn.Linear(outputs, 2, bias=False)  # of a node that is read, of one that reads
        self.norm = nn.LayerNorm(outputs)

    def forward(self, x: Tensor, operations: Tensor, sources: Tensor) -> Tensor:
        """x (B, V, inputs), operations (B, V, gate), sources (B, V, V): [t, s] is 1 where t reads s -> (B, V, D)."""
        moved, value = self.project(x).chunk(2, dim=-1)
        flow_gate, value_gate = torch.sigmoid(self.gates(operations)).chunk(2, dim=-1)
        flow = flow_gate * (sources @ moved) + moved + self.bias
        read, reads = self.scores(value).split(1, dim=-1)
        scores = F.leaky_relu(reads + read.mT, 0.2)  # (B, V, V)
        scores = scores.masked_fill(sources + torch.eye(x.shape[1]) == 0, -torch.inf)
        attention = self.norm(value_gate * (scores.softmax(-1) @ value))
        return (flow + attention) / 2


class FLAN(nn.Module):
    """Flow attention network (Akhauri and Abdelfattah 2024, arXiv 2403.02484), without supplementary encodings.

    Two time steps: information flows through the cell, then from its output against the edges; what both leave at the
    nodes refines the embeddings of their operations before information flows once more.
    """

    def __init__(
        self, operations: int, width: int = 128, layers: int = 5, embedding: int = 48, nodes: int = 96
    ) -> None:
        super().__init__()
        self.operation = nn.Embedding(operations, embedding)
        self.node = nn.Embedding(2, embedding)  # the input, and any other node
        self.entry = nn.Linear(embedding, nodes)
        self.exit = _layers(width, width, nodes, dropout=0.0)  # from the output node, into the backward pass
        widths = [nodes, *[width] * layers]
        pairs = list(pairwise(widths))
        self.along = nn.ModuleList(FlowAttention(i, o, embedding) for i, o in pairs)
        self.against = nn.ModuleList(FlowAttention(i, o, embedding) for i, o in pairs)
        self.refine = _layers(embedding + 2 * width, width, embedding, dropout=0.0)
        self.head = _layers(width, 200, 200, 200, 1, dropout=0.1)

    def forward(self, cells: Cells) -> Tensor:
        """(B,)."""
        operations = self.operation(cells.operations)  # (B, V, embedding)
        start = self.entry(self.node((cells.operations != INPUT).long()))  # (B, V, nodes)
        h = self._flow(self.along, start, operations, cells.adjacency.mT)
        is_output = (cells.operations == OUTPUT).to(h.dtype)[..., None]
        back = self._flow(self.against, is_output * self.exit(h), operations, cells.adjacency)
        operations = operations + 0.1 * self.refine(torch.cat([operations, h.detach(), back], dim=-1))
        h = self._flow(self.along, start, operations, cells.adjacency.mT)
        return self.head(_mean(h, cells.operations))[:, 0]

    @staticmethod
    def _flow(layers: nn.ModuleList, x: Tensor, operations: Tensor, sources: Tensor) -> Tensor:
        """(B, V, D): states of the nodes after all layers, ReLU between them."""
        for i, layer in enumerate(layers):
            x = layer(F.relu(x) if i else x, operations, sources)
        return x


# --- training --------------------------------------------------------------------------------------------------------


def hinge(predicted: Tensor, target: Tensor, margin: float = 0.1) -> Tensor:
    """Mean over the pairs of a batch (B,) of how much the better one's prediction falls short of the margin."""
    better = target[:, None] > target[None]
    short = F.relu(margin - (predicted[:, None] - predicted[None]))
    return (better * short).sum() / better.sum().clamp(min=1)


@dataclass(frozen=True)
class Recipe:
    """How a network is trained: Adam, the learning rate falling to 0 along a cosine.

    batch: at least; `share` of the cells where that is more.
    """

    network: Callable[[int], nn.Module]
    loss: Callable[[Tensor, Tensor], Tensor]
    epochs: int
    batch: int
    share: float
    learning_rate: float
    weight_decay: float


RECIPES = {
    "gcn": Recipe(GCN, F.mse_loss, epochs=300, batch=16, share=1 / 16, learning_rate=1e-3, weight_decay=1e-3),
    "flan": Recipe(FLAN, hinge, epochs=150, batch=16, share=1 / 4, learning_rate=1e-3, weight_decay=1e-5),
}


def train(recipe: Recipe, cells: Cells, values: np.ndarray, operations: int, seed: int) -> nn.Module:
    """A network that has learned the values (B,) of cells (B), higher is better; they are standardized first.

    operations: how many numbers of operations there are, those of `NONE`, `INPUT` and `OUTPUT` among them.
    """
    target = torch.tensor((values - values.mean()) / max(values.std(), 1e-12), dtype=torch.float32)
    size = max(recipe.batch, int(recipe.share * len(target)))
    torch.set_flush_denormal(True)  # weights that decay to almost nothing would slow it down threefold
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = recipe.network(operations)
        adam = torch.optim.Adam(
            network.parameters(), recipe.learning_rate, weight_decay=recipe.weight_decay, fused=True
        )
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(adam, recipe.epochs)
        for _ in range(recipe.epochs):
            for rows in torch.randperm(len(target)).split(size):
                loss = recipe.loss(network(cells.at(rows)), target[rows])
                adam.zero_grad()
                loss.backward()
                adam.step()
            cosine.step()
    torch.set_flush_denormal(False)
    return network.eval()


@torch.no_grad()
def predict(network: nn.Module, cells: Cells) -> np.ndarray:
    """(B,) predictions, of no unit: they order the cells."""
    return torch.cat([network(Cells(*part)) for part in zip(*(t.split(1024) for t in cells), strict=True)]).numpy()
