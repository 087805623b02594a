"""The in-context decoder: from labelled examples and a query to the query's number, digit by digit.

Every example is one token: the coordinates of its text and its score. Examples attend to each
    other, and a query
attends to the examples (as in TabPFN, arXiv 2207.01848), by learned products, learned distances,
and least squares. A small causal decoder then writes the query's number, digit by digit, from the
query's hidden state. Sizes in comments: B tasks, n examples, q queries, C coordinates, D width, H
width of a head, h heads, L number tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from predictors.rlm.digits import NUMBER_LENGTH, NUMBER_TOKENS
from predictors.rlm.encoder import COMMON
from predictors.rlm.kernels import Factored, KernelRegression, Solved

NUMBER_HEADS = 4
START = NUMBER_TOKENS  # the token before a number
AXES = (96, 32, 64, 64)  # principal axes of structure, quality, counts, neighbours
WHITENED = 8  # axes of each that are whitened, too
COVARIATES = 8
COORDINATES = sum(AXES) + len(AXES) * WHITENED + COVARIATES + COMMON + 3
UNREAD = 0.03  # factor of the initial scales of coordinates that a kernel does not read
AXIS_SCALE = 4.0  # multiplies coordinates along principal axes, whose mean squares sum to 1 before


@dataclass(frozen=True)
class ContextConfig:
    """Sizes of the in-context decoder."""

    width: int = 128  # width of the layers over examples and queries
    heads: int = 4  # attention heads of these layers
    layers: int = 4  # number of these layers
    distance: int = 16  # coordinates per head on which attention measures distances
    kernels: int = 16  # heads of the kernel regression
    number_width: int = 64  # width of the digit decoder
    number_layers: int = 2  # layers of the digit decoder


def _split(x: Tensor, heads: int) -> Tensor:
    """(B, n, D) to (B, h, n, H)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _join(x: Tensor) -> Tensor:
    """(B, h, n, H) to (B, n, D)."""
    return x.transpose(1, 2).flatten(2)


class ContextAttention(nn.Module):
    """Attention whose logits are scaled dot products minus squared distances of projected
    coordinates.
    """

    def __init__(self, config: ContextConfig) -> None:
        super().__init__()
        d, self.heads = config.width, config.heads
        self.query = nn.Linear(d, d, bias=False)
        self.key_value = nn.Linear(d, 2 * d, bias=False)
        self.place = nn.Linear(COORDINATES, config.heads * config.distance, bias=False)
        nn.init.normal_(self.place.weight, std=0.15)
        self.size = nn.Parameter(torch.zeros(config.heads))
        self.out = nn.Linear(d, d, bias=False)

    def keys(self, y: Tensor, coordinates: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the examples: (B, h, n, H + distance + 1) and (B, h, n, H)."""
        key, value = self.key_value(y).chunk(2, -1)
        key, place = _split(key, self.heads), _split(self.place(coordinates), self.heads)
        n = key.shape[2]
        # A softmax over n keys flattens as n grows (arXiv 2501.19399): a learned multiple of log n
        # sharpens it.
        sharpness = 1 + self.size[:, None, None] * torch.log(torch.tensor(n / 64.0))
        key = key * key.shape[-1] ** -0.5
        key = torch.cat([key, place, -place.square().sum(-1, keepdim=True) / 2], -1)
        return key * sharpness, _split(value, self.heads)

    def forward(self, y: Tensor, coordinates: Tensor, keys: tuple[Tensor, Tensor]) -> Tensor:
        """Output (B, q, D) for tokens y (B, q, D) with coordinates (B, q, C); `keys` are those of
        the examples.
        """
        query, place = (
            _split(self.query(y), self.heads),
            _split(self.place(coordinates), self.heads),
        )
        query = torch.cat([query, place, torch.ones_like(place[..., :1])], -1)
        key, value = keys
        size = value.shape[-1]
        # Values as wide as keys: only then is the matrix of logits never stored.
        value = functional.pad(value, (0, key.shape[-1] - size))
        found = functional.scaled_dot_product_attention(query, key, value, scale=1.0)[..., :size]
        return self.out(_join(found))


class LeastSquares(nn.Module):
    """Ridge regression as attention: queries read its prediction from the examples' keys to their
    values.

    After the mesa layer (arXiv 2309.05858). Examples read leave-one-out predictions. Examples and
    queries also read their leverage, a measure of their distance from the (other) examples. The
    cost of a query does not depend on n.
    """

    def __init__(self, config: ContextConfig) -> None:
        super().__init__()
        d, self.heads = config.width, config.heads
        self.key = nn.Linear(d + COORDINATES, 2 * d, bias=False)
        self.value = nn.Linear(d, d, bias=False)
        self.penalty = nn.Parameter(torch.linspace(-2.0, 2.0, config.heads))
        self.out = nn.Linear(d + config.heads, d, bias=False)

    def _key(self, y: Tensor, coordinates: Tensor) -> Tensor:
        return functional.normalize(
            _split(self.key(torch.cat([y, coordinates], -1)), self.heads), dim=-1
        )

    def solve(self, y: Tensor, coordinates: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Inverse (B, h, K, K), weights (B, h, K, H), and the examples' keys (B, h, n, K) and
        values (B, h, n, H).
        """
        key, value = self._key(y, coordinates), _split(self.value(y), self.heads)
        eye = torch.eye(key.shape[-1], device=key.device)
        gram = key.mT @ key + self.penalty.exp()[:, None, None] * eye
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(gram))
        return inverse, inverse @ (key.mT @ value), key, value

    def leave_one_out(self, solved: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
        """Output (B, n, D) for the examples: leave-one-out predictions in closed form."""
        inverse, weights, key, value = solved
        leverage = ((key @ inverse) * key).sum(-1, keepdim=True)
        rest = (1 - leverage).clamp(min=0.05)
        return self._project((key @ weights - leverage * value) / rest, leverage / rest)

    def forward(
        self, y: Tensor, coordinates: Tensor, solved: tuple[Tensor, Tensor, Tensor, Tensor]
    ) -> Tensor:
        """Output (B, q, D) for queries y (B, q, D) with coordinates (B, q, C); `solved` is the
        result of `solve`.
        """
        inverse, weights, _, _ = solved
        key = self._key(y, coordinates)
        return self._project(key @ weights, ((key @ inverse) * key).sum(-1, keepdim=True))

    def _project(self, found: Tensor, leverage: Tensor) -> Tensor:
        return self.out(torch.cat([_join(found), _join(torch.log1p(leverage.clamp(0, 50)))], -1))


Kept = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor, Tensor, Tensor]]


class ContextLayer(nn.Module):
    """Pre-norm softmax attention and least squares over the examples, then SwiGLU."""

    def __init__(self, config: ContextConfig) -> None:
        super().__init__()
        d = config.width
        self.attention_norm, self.feed_norm = nn.RMSNorm(d), nn.RMSNorm(d)
        self.attention = ContextAttention(config)
        self.regression = LeastSquares(config)
        self.up = nn.Linear(d, 4 * d, bias=False)
        self.down = nn.Linear(2 * d, d, bias=False)
        nn.init.normal_(self.down.weight, std=0.1 * d**-0.5)

    def examples(self, x: Tensor, coordinates: Tensor) -> tuple[Tensor, Kept]:
        """Examples (B, n, D) after this layer, and the tensors that queries read."""
        y = self.attention_norm(x)
        keys, solved = self.attention.keys(y, coordinates), self.regression.solve(y, coordinates)
        x = x + self.attention(y, coordinates, keys) + self.regression.leave_one_out(solved)
        return self._feed_forward(x), (keys, solved)

    def forward(self, x: Tensor, coordinates: Tensor, kept: Kept) -> Tensor:
        """Queries (B, q, D) after this layer."""
        y = self.attention_norm(x)
        x = x + self.attention(y, coordinates, kept[0]) + self.regression(y, coordinates, kept[1])
        return self._feed_forward(x)

    def _feed_forward(self, x: Tensor) -> Tensor:
        gate, up = self.up(self.feed_norm(x)).chunk(2, -1)
        return x + self.down(functional.silu(gate) * up)


class ContextReader(nn.Module):
    """Maps labelled examples and queries to the queries' hidden states."""

    def __init__(self, config: ContextConfig) -> None:
        super().__init__()
        d = config.width
        self.kernels = KernelRegression(_kernel_scales(config.kernels))
        self.place = nn.Linear(COORDINATES, d)
        self.number = nn.Linear(5, d, bias=False)
        self.regressed = nn.Linear(self.kernels.outputs, d, bias=False)
        self.role = nn.Parameter(torch.zeros(2, d))
        self.layers = nn.ModuleList(ContextLayer(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(d)
        self.again = nn.Linear(self.kernels.outputs, d, bias=False)

    def examples(
        self, coordinates: Tensor, scores: Tensor, factored: Factored | None = None
    ) -> tuple[Solved, list[Kept]]:
        """Process the examples once for any number of queries.

        Args:
            coordinates: (B, n, C).
            scores: (B, n).
            factored: the kernels of these coordinates, if they are known.

        Returns:
            The tensors of kernel regression and of every layer that queries read.
        """
        found, solved = self.kernels.solve(factored or self.kernels.factor(coordinates), scores)
        z = scores.clamp(-10, 10)
        number = torch.stack(
            [z, z.clamp(-1, 1), z.square() / 4, torch.sin(2 * z), torch.cos(2 * z)], -1
        )
        x = self.place(coordinates) + self.number(number) + self.regressed(found) + self.role[0]
        kept = []
        for layer in self.layers:
            x, own = layer.examples(x, coordinates)  # type: ignore[operator]
            kept.append(own)
        return solved, kept

    def forward(self, coordinates: Tensor, kept: tuple[Solved, list[Kept]]) -> Tensor:
        """Hidden states (B, q, D) of queries with coordinates (B, q, C)."""
        found = self.kernels(coordinates, kept[0])
        x = self.place(coordinates) + self.regressed(found) + self.role[1]
        for layer, own in zip(self.layers, kept[1], strict=True):
            x = layer(x, coordinates, own)
        return self.norm(x) + self.again(found)


def _kernel_scales(kernels: int) -> Tensor:
    """Initial scales (kernels, C) of the coordinates for kernels of length 1: principal axes
    dominate.

    Every fourth kernel reads neighbours and from none to all of the other parts; the others read no
    neighbours.
    """
    sizes = (sum(AXES), len(AXES) * WHITENED, COVARIATES, COMMON, 3)
    scales = (1 / AXIS_SCALE, 0.05, 0.3, 0.1, 0.01)
    row = torch.cat([torch.full((size,), scale) for size, scale in zip(sizes, scales, strict=True)])
    part = torch.arange(len(AXES)).repeat_interleave(torch.tensor(AXES))
    neighbours = part == len(AXES) - 1
    found = row.repeat(kernels, 1)
    for kernel, scale in enumerate(found):
        read = neighbours | (part < kernel // 4) if kernel % 4 == 3 else ~neighbours
        scale[: len(part)] *= torch.where(read, 1.0, UNREAD)
    return found


class NumberLayer(nn.Module):
    """Pre-norm causal attention over the tokens of a number, then SwiGLU."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.heads = NUMBER_HEADS
        self.attention_norm, self.feed_norm = nn.RMSNorm(d), nn.RMSNorm(d)
        self.project = nn.Linear(d, 3 * d, bias=False)
        self.out = nn.Linear(d, d, bias=False)
        self.up = nn.Linear(d, 4 * d, bias=False)
        self.down = nn.Linear(2 * d, d, bias=False)

    def forward(
        self, x: Tensor, past: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Process the tokens x (R, L, D) that follow `past`, the keys and values (R, h, P, H) of P
        earlier tokens.

        Returns:
            The tokens after this layer, and the keys and values of all tokens.
        """
        projected = self.project(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = projected.permute(2, 0, 3, 1, 4)
        if past is not None:
            key, value = torch.cat([past[0], key], 2), torch.cat([past[1], value], 2)
        causal = past is None and x.shape[1] > 1
        found = functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
        x = x + self.out(_join(found))
        gate, up = self.up(self.feed_norm(x)).chunk(2, -1)
        return x + self.down(functional.silu(gate) * up), (key, value)


class NumberDecoder(nn.Module):
    """Causal decoder of numbers: logits of the next token, conditioned on a query's hidden
    state.
    """

    def __init__(self, config: ContextConfig) -> None:
        super().__init__()
        d = config.number_width
        self.token = nn.Embedding(NUMBER_TOKENS + 1, d)
        self.place = nn.Embedding(NUMBER_LENGTH, d)
        self.hidden = nn.Linear(config.width, 2 * d)
        self.condition = nn.Linear(2 * d, d)
        self.layers = nn.ModuleList(NumberLayer(d) for _ in range(config.number_layers))
        self.norm = nn.RMSNorm(d)
        self.head = nn.Linear(d, NUMBER_TOKENS)
        nn.init.normal_(self.token.weight, std=0.5)

    def conditions(self, gathered: Tensor) -> Tensor:
        """Conditions (…, d) of the numbers, from the queries' hidden states (…, D)."""
        return self.condition(functional.gelu(self.hidden(gathered)))

    def forward(self, conditions: Tensor, tokens: Tensor) -> Tensor:
        """Logits (R, L, NUMBER_TOKENS) of the token after each of `tokens` (R, L), of which the
        first is `START`.

        `conditions` (R, d) are those of the rows.
        """
        x = self.token(tokens) + self.place.weight[: tokens.shape[1]] + conditions[:, None]
        for layer in self.layers:
            x, _ = layer(x)
        return self.head(self.norm(x))

    def step(
        self, condition: Tensor, token: Tensor, place: int, past: list[tuple[Tensor, Tensor]] | None
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Decode one more token per row.

        Args:
            condition: (R, d).
            token: (R,) last token of each row.
            place: its position, from 0.
            past: keys and values of the earlier tokens, per layer; None at the first position.

        Returns:
            Logits (R, NUMBER_TOKENS) of the next token, and keys and values including this token.
        """
        x = (self.token(token) + self.place.weight[place] + condition)[:, None]
        kept = []
        for i, layer in enumerate(self.layers):
            x, keys = layer(x, past[i] if past else None)
            kept.append(keys)
        return self.head(self.norm(x))[:, 0], kept
