"""The in-context model: from labelled examples and a query to the query's hidden state.

Every example is one token: the features of its text and its target. Examples attend to each other,
and a query attends to the examples (as in TabPFN, arXiv 2207.01848), by learned products, learned
distances, and least squares; before them comes kernel regression.

Sizes in comments: B tasks, n examples, q queries, m of either, F features, D width, h heads, H width
of a head, K = 2H width of a key of least squares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from predictors.rlm.kernel_regression import (
    AXES,
    AXIS_SCALE,
    COVARIATES,
    FEATURES,
    MIN_REST,
    WHITENED,
    ExampleKernels,
    FittedHeads,
    KernelRegression,
)
from predictors.rlm.tokens import COMMON

REFERENCE_EXAMPLES = 64.0  # the number of examples for which attention is as sharp as learned
MAX_TARGET = 10.0  # largest absolute target of an example, in z
MAX_LEVERAGE = 50.0
UNREAD = 0.03  # factor of the initial scales of features that a kernel does not read


@dataclass(frozen=True)
class ContextConfig:
    """Sizes of the in-context model and of the digit decoder."""

    width: int = 128  # width of the layers over examples and queries
    heads: int = 4  # attention heads of these layers
    layers: int = 4  # number of these layers
    distance: int = 16  # projected features per head on which attention measures distances
    kernels: int = 16  # heads of the kernel regression
    number_width: int = 64  # width of the digit decoder
    number_layers: int = 2  # layers of the digit decoder


class Keys(NamedTuple):
    """What queries of attention read of the examples."""

    key: Tensor  # (B, h, n, H + distance + 1)
    value: Tensor  # (B, h, n, H)


class RidgeFit(NamedTuple):
    """Ridge regression from the examples' keys to their values."""

    inverse: Tensor  # (B, h, K, K) of the regularized Gram matrix
    weights: Tensor  # (B, h, K, H)
    key: Tensor  # (B, h, n, K) of the examples
    value: Tensor  # (B, h, n, H) of the examples


class LayerMemory(NamedTuple):
    """What queries read of the examples in one layer."""

    keys: Keys
    ridge: RidgeFit


class Memory(NamedTuple):
    """What queries read of the examples: the examples are processed once."""

    regression: FittedHeads
    layers: list[LayerMemory]


class ContextReader(nn.Module):
    """Maps labelled examples and queries to the queries' hidden states."""

    def __init__(self, config: ContextConfig) -> None:
        super().__init__()
        d = config.width
        self.kernels = KernelRegression(_kernel_scales(config.kernels))
        self.place = nn.Linear(FEATURES, d)  # embeds the features
        self.number = nn.Linear(5, d, bias=False)  # embeds the target
        self.regressed = nn.Linear(self.kernels.outputs, d, bias=False)
        self.role = nn.Parameter(torch.zeros(2, d))  # of examples, of queries
        layers = [ContextLayer(config) for _ in range(config.layers)]
        self.layers = nn.ModuleList(layers)
        self.norm = nn.RMSNorm(d)
        self.again = nn.Linear(self.kernels.outputs, d, bias=False)

    def examples(
        self,
        features: Tensor,
        targets: Tensor,
        kernels: ExampleKernels | None = None,
    ) -> Memory:
        """Process the examples once for any number of queries.

        Args:
            features: (B, n, F).
            targets: (B, n), in z.
            kernels: those of these features, if they are at hand.
        """
        # 1. Kernel regression, leaving one out.                              (B, n, outputs)
        kernels = kernels or self.kernels.kernels(features)
        regressed, fitted = self.kernels.fit(kernels, targets)

        # 2. One token per example: its features, its target, what the regression says of it.
        number = _target_features(targets)  # (B, n, 5)
        x = self.place(features) + self.number(number)  # (B, n, D)
        x = x + self.regressed(regressed)
        x = x + self.role[0]

        # 3. The layers, which keep what queries read.                               (B, n, D)
        layers = []
        for layer in self.layers:
            x, memory = layer.examples(x, features)  # type: ignore[operator]
            layers.append(memory)
        return Memory(fitted, layers)

    def forward(self, features: Tensor, memory: Memory) -> Tensor:
        """Hidden states (B, q, D) of queries with features (B, q, F)."""
        # 1. One token per query: its features, and the prediction of the regression.
        regressed = self.kernels(features, memory.regression)  # (B, q, outputs)
        x = self.place(features) + self.regressed(regressed)
        x = x + self.role[1]  # (B, q, D)

        # 2. The layers, which read the examples.
        for layer, of_examples in zip(self.layers, memory.layers, strict=True):
            x = layer(x, features, of_examples)

        # 3. The prediction of the regression again, past the layers.
        return self.norm(x) + self.again(regressed)


def _target_features(targets: Tensor) -> Tensor:
    """Features (B, n, 5) of targets (B, n).

    They are the value itself near 0, its size beyond, and waves that tell close values apart.
    """
    z = targets.clamp(-MAX_TARGET, MAX_TARGET)
    features = [
        z,
        z.clamp(-1, 1),
        z.square() / 4,
        torch.sin(2 * z),
        torch.cos(2 * z),
    ]
    return torch.stack(features, -1)


def _kernel_scales(kernels: int) -> Tensor:
    """Initial scales (kernels, F) of the features for kernels of length 1: principal axes dominate.

    Every fourth kernel reads neighbours and from none to all of the other parts; the others read no
    neighbours.
    """
    # 1. One scale per kind of feature.                                                        (F,)
    scale_of_size = (
        (1 / AXIS_SCALE, sum(AXES)),
        (0.05, len(AXES) * WHITENED),
        (0.3, COVARIATES),
        (0.1, COMMON),
        (0.01, 3),
    )
    parts = [torch.full((size,), scale) for scale, size in scale_of_size]
    scales = torch.cat(parts).repeat(kernels, 1)  # (kernels, F)

    # 2. Of the axes, each kernel reads some parts: structure, quality, counts, neighbours.
    sizes = torch.tensor(AXES)
    part = torch.arange(len(AXES)).repeat_interleave(sizes)  # (sum(AXES),)
    is_neighbour = part == len(AXES) - 1
    for kernel, scale in enumerate(scales):
        reads_neighbours = kernel % 4 == 3
        is_read = ~is_neighbour
        if reads_neighbours:
            is_read = is_neighbour | (part < kernel // 4)
        scale[: len(part)] *= torch.where(is_read, 1.0, UNREAD)
    return scales


class ContextLayer(nn.Module):
    """Pre-norm softmax attention and least squares over the examples, then SwiGLU."""

    def __init__(self, config: ContextConfig) -> None:
        super().__init__()
        d = config.width
        self.attention_norm = nn.RMSNorm(d)
        self.feed_norm = nn.RMSNorm(d)
        self.attention = ContextAttention(config)
        self.regression = LeastSquares(config)
        self.up = nn.Linear(d, 4 * d, bias=False)
        self.down = nn.Linear(2 * d, d, bias=False)
        nn.init.normal_(self.down.weight, std=0.1 * d**-0.5)

    def examples(self, x: Tensor, features: Tensor) -> tuple[Tensor, LayerMemory]:
        """Examples (B, n, D) after this layer, and what queries read."""
        y = self.attention_norm(x)
        keys = self.attention.keys(y, features)
        ridge = self.regression.fit(y, features)
        attended = self.attention(y, features, keys)
        x = x + attended + self.regression.leave_one_out(ridge)
        return self._feed_forward(x), LayerMemory(keys, ridge)

    def forward(
        self,
        x: Tensor,
        features: Tensor,
        memory: LayerMemory,
    ) -> Tensor:
        """Queries (B, q, D) after this layer."""
        y = self.attention_norm(x)
        attended = self.attention(y, features, memory.keys)
        x = x + attended + self.regression(y, features, memory.ridge)
        return self._feed_forward(x)

    def _feed_forward(self, x: Tensor) -> Tensor:
        wide = self.up(self.feed_norm(x))  # (B, m, 4D)
        gate, up = wide.chunk(2, -1)
        return x + self.down(functional.silu(gate) * up)


class ContextAttention(nn.Module):
    """Attention whose logits are scaled dot products minus squared distances of projected features.

    Both are one product of longer vectors, since -|a - b|² / 2 = ab - a²/2 - b²/2, of which the
    softmax does not see the term of the query.
    """

    def __init__(self, config: ContextConfig) -> None:
        super().__init__()
        d = config.width
        self.heads = config.heads
        self.query = nn.Linear(d, d, bias=False)
        self.key_value = nn.Linear(d, 2 * d, bias=False)
        places = config.heads * config.distance
        self.place = nn.Linear(FEATURES, places, bias=False)
        nn.init.normal_(self.place.weight, std=0.15)
        self.size = nn.Parameter(torch.zeros(config.heads))
        self.out = nn.Linear(d, d, bias=False)

    def keys(self, y: Tensor, features: Tensor) -> Keys:
        """Keys and values of examples y (B, n, D)."""
        # 1. A scaled key, a projection of the features, and half of its square.
        key, value = self.key_value(y).chunk(2, -1)
        key = split_heads(key, self.heads)  # (B, h, n, H)
        scaled = key * key.shape[-1] ** -0.5
        projected = self._projected(features)  # (B, h, n, distance)
        half_square = projected.square().sum(-1, keepdim=True) / 2
        key = torch.cat([scaled, projected, -half_square], -1)

        # 2. A softmax over n keys flattens as n grows (arXiv 2501.19399): a learned multiple of
        #    log n sharpens it.
        examples = key.shape[2]
        growth = torch.log(torch.tensor(examples / REFERENCE_EXAMPLES))
        sharpness = 1 + self.size[:, None, None] * growth  # (h, 1, 1)
        return Keys(key * sharpness, split_heads(value, self.heads))

    def forward(
        self,
        y: Tensor,
        features: Tensor,
        keys: Keys,
    ) -> Tensor:
        """Output (B, m, D) for tokens y (B, m, D) with features (B, m, F)."""
        # 1. Queries, as long as the keys: the last 1 multiplies the keys' half squares.
        query = split_heads(self.query(y), self.heads)  # (B, h, m, H)
        projected = self._projected(features)  # (B, h, m, distance)
        one = torch.ones_like(projected[..., :1])
        query = torch.cat([query, projected, one], -1)

        # 2. Values as wide as keys: only then is the matrix of logits never stored.
        size = keys.value.shape[-1]
        missing = keys.key.shape[-1] - size
        value = functional.pad(keys.value, (0, missing))
        read = functional.scaled_dot_product_attention(query, keys.key, value, scale=1.0)
        return self.out(join_heads(read[..., :size]))

    def _projected(self, features: Tensor) -> Tensor:
        """Features (B, m, F) among which distances are measured: (B, h, m, distance)."""
        return split_heads(self.place(features), self.heads)


class LeastSquares(nn.Module):
    """Ridge regression as attention.

    Queries read its prediction from the examples' keys to their values. After the mesa layer
    (arXiv 2309.05858). Examples read leave-one-out predictions. Examples and queries also read
    their leverage, a measure of their distance from the (other) examples. The cost of a query
    does not depend on n.
    """

    def __init__(self, config: ContextConfig) -> None:
        super().__init__()
        d = config.width
        self.heads = config.heads
        self.key = nn.Linear(d + FEATURES, 2 * d, bias=False)
        self.value = nn.Linear(d, d, bias=False)
        self.penalty = nn.Parameter(torch.linspace(-2.0, 2.0, config.heads))
        self.out = nn.Linear(d + config.heads, d, bias=False)

    def _key(self, y: Tensor, features: Tensor) -> Tensor:
        """Unit keys (B, h, m, K) of tokens y (B, m, D)."""
        key = self.key(torch.cat([y, features], -1))
        key = split_heads(key, self.heads)
        return functional.normalize(key, dim=-1)

    def fit(self, y: Tensor, features: Tensor) -> RidgeFit:
        """Fit the regression to examples y (B, n, D) with features (B, n, F)."""
        key = self._key(y, features)
        value = split_heads(self.value(y), self.heads)
        eye = torch.eye(key.shape[-1], device=key.device)
        penalty = self.penalty.exp()[:, None, None]  # (h, 1, 1)
        gram = key.mT @ key + penalty * eye  # (B, h, K, K)
        factor = torch.linalg.cholesky(gram)
        inverse = torch.cholesky_inverse(factor)
        weights = inverse @ (key.mT @ value)  # (B, h, K, H)
        return RidgeFit(inverse, weights, key, value)

    def leave_one_out(self, ridge: RidgeFit) -> Tensor:
        """Output (B, n, D) for the examples: leave-one-out predictions in closed form."""
        leverage = _leverage(ridge.key, ridge.inverse)  # (B, h, n, 1)
        rest = (1 - leverage).clamp(min=MIN_REST)
        own = leverage * ridge.value  # (B, h, n, H)
        predicted = (ridge.key @ ridge.weights - own) / rest
        return self._output(predicted, leverage / rest)

    def forward(
        self,
        y: Tensor,
        features: Tensor,
        ridge: RidgeFit,
    ) -> Tensor:
        """Output (B, q, D) for queries y (B, q, D) with features (B, q, F)."""
        key = self._key(y, features)
        predicted = key @ ridge.weights  # (B, h, q, H)
        leverage = _leverage(key, ridge.inverse)
        return self._output(predicted, leverage)

    def _output(self, predicted: Tensor, leverage: Tensor) -> Tensor:
        distance = torch.log1p(leverage.clamp(0, MAX_LEVERAGE))
        joined = [join_heads(predicted), join_heads(distance)]
        return self.out(torch.cat(joined, -1))


def _leverage(key: Tensor, inverse: Tensor) -> Tensor:
    """Leverage (B, h, m, 1) of keys: the diagonal of key · inverse · keyᵀ."""
    products = (key @ inverse) * key  # (B, h, m, K)
    return products.sum(-1, keepdim=True)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, m, D) to (B, h, m, H)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """(B, h, m, H) to (B, m, D)."""
    return x.transpose(1, 2).flatten(2)
