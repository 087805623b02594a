"""NN-Former (arXiv 2507.00880), a predictor of accuracy that starts cold: own code after the paper,
for comparisons.

    python -m experiments.unseen_spaces --only rlm,experiments/nn_former.py:NNFormer \
        --families nasbench201 --labels 50,156,300

A cell is a graph with one operation per node, as in the paper: of NAS-Bench-201, whose edges carry
the operations, each edge is a node, and `none` is an operation like the others. A token that sees
all nodes, and that all nodes see, is read out. Each layer has two steps:

- Attention of four heads. A head sees, beside the node itself, only the nodes after it, those
  before it, those with a common source, or those with a common target (siblings).
- A feed-forward network whose hidden units also get the sums over the nodes after and before.

Width, hidden units, heads, dropout, moving average of the weights and both losses are those that
the authors published. What differs: layers and steps (`LAYERS`, `STEPS`: theirs are 12, and 6,000
with 156 labels, hours of a core), with ten times their learning rate; no second pass for their
consistency loss; matrix products of the training in bfloat16; targets are normal scores instead of
accuracies. Settings were tried on digits-nasbench101 alone (seed 100).

Their code keeps the weights that rank 1,024 further labelled networks best. Here no label beside
those of `fit` is seen: the last weights are used.

Sizes in comments: n networks, L nodes, K operations, T = L + 1 tokens, H heads, D width.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import OneCycleLR

from predictors.base import Inputs
from predictors.baselines import MIN_STD, Regression, RegressionPredictor
from search_spaces import Architecture, get_space
from search_spaces.common.errors import InputError

LAYERS, STEPS = 3, 400
WIDTH, HIDDEN = 160, 640
HEADS = 4  # one for each of: after, before, common source, common target
DROPOUT = 0.1
LEARNING_RATE = 1e-3  # peak; a tenth of the steps rise to it
WEIGHT_DECAY = 0.01
BATCH, READ_AT_ONCE = 128, 512
DECAY = 0.99  # of the moving average of the weights, per step
RANKING = 0.2  # weight of the loss of differences
INIT_STD = 0.02
INPUT, OUTPUT = "input", "output"


# --- cells as graphs


class Cell(NamedTuple):
    """A cell of L nodes: their operations, and its edges as pairs of nodes."""

    operations: list[str]
    edges: list[tuple[int, int]]


def cell_graph(architecture: Any) -> Cell:
    """The graph of a cell from its choices.

    These are the operations of edges (NAS-Bench-201) or of nodes (NAS-Bench-101).

    Raises:
        InputError: for an architecture with other choices.
    """
    choices = architecture.as_dict() if isinstance(architecture, Architecture) else {}
    connections = {name: value for name, value in choices.items() if "->" in name}
    of_nodes = {name: value for name, value in choices.items() if name.startswith("op")}
    if not connections or len(connections) + len(of_nodes) < len(choices):
        raise InputError(
            "nn-former reads cells of NAS-Bench-201 and NAS-Bench-101, not "
            f"{str(architecture)[:60]!r}"
        )
    if of_nodes:
        return _with_operations_on_nodes(architecture)
    return _with_operations_on_edges(connections)


def _with_operations_on_edges(operation: Mapping[str, str]) -> Cell:
    """Each edge becomes a node, which leads to the edges that start where it ends."""
    ends = [tuple(map(int, name.split("->"))) for name in operation]
    last = max(target for _, target in ends)
    output = 1 + len(ends)
    edges = []
    for node, (source, target) in enumerate(ends, start=1):
        if source == 0:
            edges.append((0, node))
        edges += [(node, after) for after, (start, _) in enumerate(ends, 1) if start == target]
        if target == last:
            edges.append((node, output))
    return Cell([INPUT, *operation.values(), OUTPUT], edges)


def _with_operations_on_nodes(architecture: Architecture) -> Cell:
    """The vertices that have edges.

    Edges without an alternative are no choices: the space adds them.
    """
    notation = ast.literal_eval(get_space("nasbench101").format(architecture))
    matrix = np.array(notation["matrix"])
    vertices = np.flatnonzero(matrix.sum(0) + matrix.sum(1))
    operations = [notation["ops"][vertex] for vertex in vertices]
    connected = np.argwhere(matrix[np.ix_(vertices, vertices)])
    return Cell(operations, [(int(source), int(target)) for source, target in connected])


# --- the network


class Siblings(nn.Module):
    """Attention whose heads see different relations of a node.

    Args:
        width: D, a multiple of `HEADS`.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.queries_keys_values = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, tokens: Tensor, seen: Tensor) -> Tensor:
        """Tokens (n, T, D); seen (n, H, T, T), true where a row may read a column."""
        n, count, width = tokens.shape
        parts = self.queries_keys_values(tokens).view(n, count, 3, HEADS, width // HEADS)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)  # (n, H, T, D / H) each
        dropout = DROPOUT if self.training else 0.0
        read = F.scaled_dot_product_attention(queries, keys, values, seen, dropout)
        joined = read.transpose(1, 2).reshape(n, count, width)
        return F.dropout(self.out(joined), DROPOUT, self.training)


class BidirectionalFeedForward(nn.Module):
    """A feed-forward network over graphs.

    Half of its hidden units add the nodes after a node, the other half those before it.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.own = nn.Linear(width, hidden, bias=False)
        self.neighbours = nn.Linear(width, hidden, bias=False)
        self.out = nn.Linear(hidden, width, bias=False)

    def forward(self, tokens: Tensor, adjacency: Tensor) -> Tensor:
        """Tokens (n, T, D); adjacency (n, T, T), 1 where a row leads to a column."""
        of_neighbours = self.neighbours(tokens)
        after, before = of_neighbours.chunk(2, -1)  # (n, T, hidden / 2) each
        summed = torch.cat([adjacency @ after, adjacency.mT @ before], -1)
        hidden = F.relu(self.own(tokens) + summed)
        hidden = F.dropout(hidden, DROPOUT, self.training)
        return F.dropout(self.out(hidden), DROPOUT, self.training)


class Layer(nn.Module):
    """Attention among relatives, then the feed-forward network, each after a norm and added."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.attention = Siblings(WIDTH)
        self.hidden_norm = nn.LayerNorm(WIDTH)
        self.hidden = BidirectionalFeedForward(WIDTH, HIDDEN)

    def forward(self, tokens: Tensor, seen: Tensor, adjacency: Tensor) -> Tensor:
        tokens = tokens + self.attention(self.attention_norm(tokens), seen)
        return tokens + self.hidden(self.hidden_norm(tokens), adjacency)


class Network(nn.Module):
    """From graphs to one number each.

    Args:
        operations: K.
        covariates: further numbers of a network, which the last layer reads.
        layers: number of layers.
    """

    def __init__(self, operations: int, covariates: int, layers: int) -> None:
        super().__init__()
        self.operations = nn.Linear(operations, WIDTH, bias=False)
        self.readout = nn.Parameter(torch.zeros(WIDTH))
        self.input_norm = nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList([Layer() for _ in range(layers)])
        self.norm = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH + covariates, 1)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=INIT_STD)
        nn.init.trunc_normal_(self.readout, std=INIT_STD)
        nn.init.zeros_(self.out.bias)

    def forward(self, operations: Tensor, adjacency: Tensor, covariates: Tensor) -> Tensor:
        """Numbers (n,) of graphs.

        Args:
            operations: (n, L, K) one-hot; a row of zeros is a place without a node.
            adjacency: (n, L, L), 1 where a row leads to a column.
            covariates: (n, c).
        """
        # 1. A token per node, and one to read out, which comes first.                   (n, T, D)
        nodes = self.operations(operations)
        readout = self.readout.expand(len(nodes), 1, -1)
        tokens = self.input_norm(torch.cat([readout, nodes], 1))

        # 2. The layers.
        seen = relations(operations.sum(-1) > 0, adjacency)
        adjacency = F.pad(adjacency, (1, 0, 1, 0))  # the readout has no edges
        for layer in self.layers:
            tokens = layer(tokens, seen, adjacency)

        # 3. The number of the token that is read out.
        read = self.norm(tokens[:, 0])
        return self.out(torch.cat([read, covariates], -1))[:, 0]


def relations(is_node: Tensor, adjacency: Tensor) -> Tensor:
    """What each head sees (n, H, T, T): itself, the readout, and one kind of relatives.

    The readout sees all nodes.

    Args:
        is_node: (n, L).
        adjacency: (n, L, L), 1 where a row leads to a column.
    """
    after = adjacency
    before = adjacency.mT
    common_source = before @ after
    common_target = after @ before
    related = torch.stack([after, before, common_source, common_target], 1) > 0  # (n, H, L, L)
    seen = F.pad(related, (1, 0, 1, 0))
    seen |= torch.eye(seen.shape[-1], dtype=torch.bool)
    is_token = F.pad(is_node, (1, 0), value=True)  # (n, T)
    seen[:, :, 0, :] = is_token[:, None]
    seen[:, :, :, 0] = True
    return seen


# --- the predictor


class NNFormer(RegressionPredictor):
    """NN-Former, trained on the labels of `fit` alone. It reads cells from their choices.

    The paper predicts no uncertainty. The spread of samples is that of the errors on the training
    labels, and too narrow for new networks.

    Args:
        seed: seed of weights, batches and dropout.
        layers: number of layers.
        steps: optimizer steps, at least 2.
    """

    kind = "nn-former"
    reads_choices: ClassVar[bool] = True

    def __init__(self, seed: int = 0, layers: int = LAYERS, steps: int = STEPS) -> None:
        super().__init__(seed)
        if min(layers, steps - 1) < 1:
            raise InputError("nn-former: layers must be at least 1, steps at least 2")
        self.layers = layers
        self.steps = steps

    # --- inputs: operations (L K), then adjacency (L L)

    def _select(self, architectures: Inputs) -> list[str]:
        cells = [cell_graph(architecture) for architecture in architectures]
        operations = sorted(set().union(*(cell.operations for cell in cells)))
        places = range(max(len(cell.operations) for cell in cells))
        names = [f"{place}: {operation}" for place in places for operation in operations]
        return names + [f"{source}->{target}" for source in places for target in places]

    def _encode(self, architectures: Inputs) -> np.ndarray:
        column = {name: i for i, name in enumerate(self._names)}
        matrix = np.zeros((len(architectures), len(column)), np.float32)
        for row, architecture in zip(matrix, architectures, strict=True):
            cell = cell_graph(architecture)
            names = [f"{place}: {operation}" for place, operation in enumerate(cell.operations)]
            names += [f"{source}->{target}" for source, target in cell.edges]
            known = [column[name] for name in names if name in column]
            row[known] = 1
        return matrix

    def _join(self, inputs: np.ndarray, covariates: Mapping[str, np.ndarray]) -> np.ndarray:
        """Graphs as they are, followed by the covariates in z."""
        columns = [self._transforms[name].to_z(values) for name, values in covariates.items()]
        return np.concatenate([inputs, *(column[:, None] for column in columns)], 1)

    def _tensors(self, inputs: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        """Operations (n, L, K), adjacency (n, L, L) and covariates (n, c) of inputs (n, d)."""
        entries = sum("->" in name for name in self._names)
        places = int(entries**0.5)
        of_operations = len(self._names) - entries
        rows = torch.from_numpy(inputs).float()
        operations = rows[:, :of_operations].view(len(rows), places, -1)
        adjacency = rows[:, of_operations : len(self._names)].view(len(rows), places, places)
        return operations, adjacency, rows[:, len(self._names) :]

    # --- learning

    def _fit_regression(self, inputs: np.ndarray, targets: np.ndarray) -> Regression:
        tensors = self._tensors(inputs)
        z = torch.from_numpy(targets).float()  # (n,)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            network = Network(tensors[0].shape[2], tensors[2].shape[1], self.layers)
            averaged = train(network, tensors, z, self.steps)

        @torch.inference_mode()
        def mean(points: np.ndarray) -> np.ndarray:
            parts = zip(*(part.split(READ_AT_ONCE) for part in self._tensors(points)), strict=True)
            return torch.cat([averaged(*part) for part in parts]).double().numpy()

        errors = targets - mean(inputs)
        std = max(MIN_STD, float(np.sqrt(np.mean(errors**2))))
        return Regression(
            lambda points: (mean(points), np.full(len(points), std)), errors=errors / std
        )

    # --- checkpoints

    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        config, tensors = super()._state()
        return config | {"layers": self.layers, "steps": self.steps}, tensors

    @classmethod
    def _restore(cls, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> NNFormer:
        self = super()._restore(config, tensors)
        self.layers = config["layers"]
        self.steps = config["steps"]
        return self


def train(
    network: Network, tensors: tuple[Tensor, Tensor, Tensor], targets: Tensor, steps: int
) -> Network:
    """Train on targets (n,) with AdamW; return the moving average of the weights.

    Args:
        network: is trained in place.
        tensors: inputs of the network, n rows each.
        targets: (n,).
        steps: optimizer steps, at least 2.
    """
    optimizer = torch.optim.AdamW(
        network.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True
    )
    rise = max(0.1, 1.5 / steps)  # OneCycleLR divides by zero if the rise ends with the first step
    cycle = OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps, pct_start=rise)
    averaged = deepcopy(network).eval()
    network.train()
    waiting: list[Tensor] = []  # batches of the pass
    for _ in range(steps):
        waiting = waiting or list(torch.randperm(len(targets)).split(BATCH))
        rows = waiting.pop()
        with torch.autocast("cpu", torch.bfloat16):
            predicted = network(*(part[rows] for part in tensors))
        loss = _loss(predicted.float(), targets[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        cycle.step()
        with torch.no_grad():
            pairs = zip(averaged.parameters(), network.parameters(), strict=True)
            for average, weight in pairs:
                average.lerp_(weight, 1 - DECAY)
    return averaged


def _loss(predicted: Tensor, targets: Tensor) -> Tensor:
    """Squared error, and the error of the differences to the next network of a random order."""
    squared = F.mse_loss(predicted, targets)
    differences = predicted - predicted.roll(1)
    ranking = F.l1_loss(differences, targets - targets.roll(1))
    return squared + RANKING * ranking
