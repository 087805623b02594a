"""From a query's hidden state to numbers: digits, the decoder that writes them, and samples.

A number is a z value (`predictors.transforms`) as tokens: sign, units, tenths, hundredths; -1.238 is
`- 1 2 4`. A small causal decoder writes it digit by digit, under a grammar that allows nothing but
numbers.

Samples are spread evenly over the decoder's distribution (arithmetic sampling, arXiv 2210.15458):
each decodes the digits at its quantile, so that their mean is far less noisy than that of
independent samples. Which sample of a network has which quantile couples the samples of different
networks: similar networks are overestimated together, or underestimated together.

Sizes in comments: q queries, R distinct rows, D width, h heads, H width of a head, L tokens of a
number, s samples, M metrics, n examples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from scipy.linalg import solve
from torch import Tensor, nn
from torch.nn import functional

from predictors.rlm.in_context import ContextConfig, join_heads
from predictors.rlm.kernel_regression import squared_distances
from predictors.rlm.tokens import learned_features
from predictors.uncertainty import draw_by_text

# --- numbers as tokens

PLUS, MINUS, ZERO = 0, 1, 2  # tokens; the digits are ZERO to ZERO + 9
NUMBER_TOKENS = 12
NUMBER_LENGTH = 4
START = NUMBER_TOKENS  # the token before a number
MAX_NUMBER = 9.99
PLACE_VALUES = np.array([1.0, 0.1, 0.01])  # of units, tenths, hundredths


def grammar() -> np.ndarray:
    """Mask (NUMBER_LENGTH, NUMBER_TOKENS), True where a token is allowed.

    Any allowed sequence is a number.
    """
    mask = np.zeros((NUMBER_LENGTH, NUMBER_TOKENS), bool)
    mask[0, :ZERO] = True
    mask[1:, ZERO:] = True
    return mask


def write_numbers(z: np.ndarray) -> np.ndarray:
    """Tokens (…, NUMBER_LENGTH) of finite z (…), rounded and clipped to ±`MAX_NUMBER`."""
    clipped = np.clip(z, -MAX_NUMBER, MAX_NUMBER)
    hundredths = np.rint(clipped * 100).astype(np.int64)
    size = np.abs(hundredths)
    tokens = [
        np.where(hundredths < 0, MINUS, PLUS),
        ZERO + size // 100,
        ZERO + size // 10 % 10,
        ZERO + size % 10,
    ]
    return np.stack(tokens, -1)


def read_numbers(tokens: np.ndarray) -> np.ndarray:
    """The z (…) of tokens (…, NUMBER_LENGTH)."""
    digits = tokens[..., 1:] - ZERO
    size = (digits * PLACE_VALUES).sum(-1)
    is_negative = tokens[..., 0] == MINUS
    return np.where(is_negative, -size, size)


# --- the decoder

Past = tuple[Tensor, Tensor]  # keys and values (R, h, P, H) of the P earlier tokens, in one layer
_ALLOWED = torch.from_numpy(grammar())
NUMBER_HEADS = 4


class NumberDecoder(nn.Module):
    """Causal decoder of numbers: logits of the next token, conditioned on a query's hidden state."""

    def __init__(self, config: ContextConfig) -> None:
        super().__init__()
        d = config.number_width
        self.token = nn.Embedding(NUMBER_TOKENS + 1, d)
        self.place = nn.Embedding(NUMBER_LENGTH, d)
        self.hidden = nn.Linear(config.width, 2 * d)
        self.condition = nn.Linear(2 * d, d)
        layers = [NumberLayer(d) for _ in range(config.number_layers)]
        self.layers = nn.ModuleList(layers)
        self.norm = nn.RMSNorm(d)
        self.head = nn.Linear(d, NUMBER_TOKENS)
        nn.init.normal_(self.token.weight, std=0.5)

    def conditions(self, hidden: Tensor) -> Tensor:
        """Conditions (…, d) of the numbers, from the queries' hidden states (…, D)."""
        wide = functional.gelu(self.hidden(hidden))  # (…, 2d)
        return self.condition(wide)

    def forward(self, conditions: Tensor, tokens: Tensor) -> Tensor:
        """Logits (R, L, NUMBER_TOKENS) of the token after each one, for training.

        Args:
            conditions: (R, d), see `conditions`.
            tokens: (R, L), of which the first is `START`.
        """
        length = tokens.shape[1]
        places = self.place.weight[:length]  # (L, d)
        x = self.token(tokens) + places
        x = x + conditions[:, None]  # (R, L, d)
        for layer in self.layers:
            x, _ = layer(x)
        return self.head(self.norm(x))

    def step(
        self,
        conditions: Tensor,
        token: Tensor,
        place: int,
        past: list[Past] | None,
    ) -> tuple[Tensor, list[Past]]:
        """Decode one more token per row.

        Args:
            conditions: (R, d), see `conditions`.
            token: (R,) last token of each row.
            place: its position, from 0.
            past: keys and values of the earlier tokens, per layer; None at the first position.

        Returns:
            Logits (R, NUMBER_TOKENS) of the next token, and keys and values including this token.
        """
        x = self.token(token) + self.place.weight[place]
        x = x + conditions  # (R, d)
        x = x[:, None]  # (R, 1, d)
        present = []
        for i, layer in enumerate(self.layers):
            of_layer = past[i] if past else None
            x, keys = layer(x, of_layer)
            present.append(keys)
        logits = self.head(self.norm(x))  # (R, 1, NUMBER_TOKENS)
        return logits[:, 0], present


class NumberLayer(nn.Module):
    """Pre-norm causal attention over the tokens of a number, then SwiGLU."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.heads = NUMBER_HEADS
        self.attention_norm = nn.RMSNorm(d)
        self.feed_norm = nn.RMSNorm(d)
        self.project = nn.Linear(d, 3 * d, bias=False)
        self.out = nn.Linear(d, d, bias=False)
        self.up = nn.Linear(d, 4 * d, bias=False)
        self.down = nn.Linear(2 * d, d, bias=False)

    def forward(
        self,
        x: Tensor,
        past: Past | None = None,
    ) -> tuple[Tensor, Past]:
        """Process tokens x (R, L, d) that follow `past`.

        Returns:
            The tokens after this layer, and the keys and values of all tokens.
        """
        # 1. Queries, keys and values of the new tokens; keys and values of earlier ones go before.
        projected = self.project(self.attention_norm(x))  # (R, L, 3d)
        projected = projected.unflatten(-1, (3, self.heads, -1))  # (R, L, 3, h, H)
        query, key, value = projected.permute(2, 0, 3, 1, 4)  # each (R, h, L, H)
        if past is not None:
            past_key, past_value = past
            key = torch.cat([past_key, key], 2)  # (R, h, P + L, H)
            value = torch.cat([past_value, value], 2)

        # 2. Attention. With a past, the only new token may read all others.          (R, h, L, H)
        causal = past is None and x.shape[1] > 1
        read = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            is_causal=causal,
        )
        x = x + self.out(join_heads(read))  # (R, L, d)

        # 3. SwiGLU.
        wide = self.up(self.feed_norm(x))  # (R, L, 4d)
        gate, up = wide.chunk(2, -1)
        x = x + self.down(functional.silu(gate) * up)
        return x, (key, value)


# --- samples of one metric

SMALLEST = 1e-300  # probability that is divided by
BELOW_ONE = 1 - 1e-12  # largest quantile


@torch.inference_mode()
def sample_numbers(
    decoder: NumberDecoder,
    conditions: Tensor,
    rows: np.ndarray,
    quantiles: np.ndarray,
) -> np.ndarray:
    """Decode S samples at given quantiles of the decoder's distributions.

    Samples of one row share the computation of equal prefixes.

    Args:
        decoder: the digit decoder.
        conditions: (R, d), see `NumberDecoder.conditions`.
        rows: (S,) row of each sample.
        quantiles: (S,) in [0, 1).

    Returns:
        (S,) z of the samples.
    """
    prefix = torch.from_numpy(rows)  # (S,) number of each sample's distinct prefix
    quantile = torch.from_numpy(quantiles)  # (S,) within the samples that share the prefix
    token = torch.full((len(conditions),), START)  # (P,) last token of each of P prefixes
    past = None
    written = []
    for place in range(NUMBER_LENGTH):
        # 1. One step of the decoder per prefix, and one token per sample.
        logits, past = decoder.step(conditions, token, place, past)  # (P, NUMBER_TOKENS)
        pick = _pick_sign if place == 0 else _pick_digit
        probability = _probabilities(logits, place)
        picked, quantile = pick(probability, prefix, quantile)  # (S,)
        written.append(picked)

        # 2. Each prefix goes on with the tokens that its samples picked.
        extended = prefix * NUMBER_TOKENS + picked
        distinct, prefix = torch.unique(extended, return_inverse=True)  # (P',) and (S,)
        parent = distinct // NUMBER_TOKENS
        token = distinct % NUMBER_TOKENS
        conditions = conditions[parent]
        past = [(key[parent], value[parent]) for key, value in past]
    tokens = torch.stack(written, 1)  # (S, NUMBER_LENGTH)
    return read_numbers(tokens.numpy())


def _probabilities(logits: Tensor, place: int) -> Tensor:
    """Probabilities (P, NUMBER_TOKENS) of the tokens that the grammar allows at a place."""
    finite = torch.nan_to_num(logits.double(), nan=0.0, posinf=1e4, neginf=-1e4)
    allowed = finite.masked_fill(~_ALLOWED[place], -torch.inf)
    return allowed.softmax(-1)


def _pick_sign(
    probability: Tensor,
    prefix: Tensor,
    quantile: Tensor,
) -> tuple[Tensor, Tensor]:
    """Signs (S,) of samples at quantiles (S,), and quantiles (S,) within the numbers of this sign.

    A higher quantile gives a higher number: minus comes before plus, and the quantile is mirrored
    for negative numbers, whose digits are ordered by absolute value.

    Args:
        probability: (P, NUMBER_TOKENS) of the first token after each prefix.
        prefix: (S,) prefix of each sample.
        quantile: (S,) within the samples of the prefix.
    """
    minus = probability[prefix, MINUS]  # (S,)
    is_negative = quantile < minus
    sign = torch.where(is_negative, MINUS, PLUS)
    mirrored = 1 - quantile / minus.clamp_min(SMALLEST)
    plus = (1 - minus).clamp_min(SMALLEST)
    upwards = (quantile - minus) / plus
    within = torch.where(is_negative, mirrored, upwards)
    return sign, within.clamp(0, BELOW_ONE)


def _pick_digit(
    probability: Tensor,
    prefix: Tensor,
    quantile: Tensor,
) -> tuple[Tensor, Tensor]:
    """Digits (S,) of samples at quantiles (S,), and quantiles (S,) within the numbers that go on
    with this digit; see `_pick_sign`.
    """
    # 1. The digit whose interval of the cumulative distribution holds the quantile.          (S,)
    total = probability.cumsum(-1)[prefix]  # (S, NUMBER_TOKENS)
    token = torch.searchsorted(total, quantile[:, None], right=True)[:, 0]
    token = token.clamp(ZERO, NUMBER_TOKENS - 1)

    # 2. Where in this interval the quantile is.                                              (S,)
    share = probability[prefix, token]
    end = total.gather(-1, token[:, None])[:, 0]
    start = end - share
    within = (quantile - start) / share.clamp_min(SMALLEST)
    return token, within.clamp(0, BELOW_ONE)


# --- coupling of the samples of different networks

OWN_VARIANCE = 0.1  # of the error that a network shares with no other; that of the process is 1
FOURIER_FEATURES = 512

Coupling = Callable[[np.ndarray, Sequence[str]], np.ndarray]
"""Quantiles (q, s, M) of q queries with states (q, S) and texts; equal texts have equal ones."""


def couple_samples(
    examples: np.ndarray,
    size: tuple[int, int],
    seed: Sequence[int],
) -> Coupling:
    """Couple the samples of any number of queries by the quantiles that they decode.

    The error of a prediction is a draw from a Gaussian process on the states, given that the
    examples have none: random Fourier features (Rahimi and Recht, 2007), conditioned by Matheron's
    rule (arXiv 2002.09309). Only its ranks among a network's samples count, so that every network
    keeps its own distribution, at the midpoints of equal intervals: random points would give some
    networks far tails, which a search prefers. The errors of different metrics are independent.

    Args:
        examples: states (n, S) of the examples.
        size: numbers of samples and of metrics.
        seed: integers. Quantiles depend on state, text and seed alone.
    """
    samples, metrics = size
    draws = metrics * samples
    if samples == 1:
        return lambda states, texts: np.full((len(texts), *size), 0.5)

    # 1. The kernel's length is the median distance of the examples.                        (n, n)
    points = learned_features(examples).astype(float)
    distances = squared_distances(points, points)
    scale = 1.0
    if distances.any():
        scale = float(np.median(distances[distances > 0]))

    # 2. One draw from the prior per sample and metric, as a sum of random waves.
    rng = np.random.default_rng(list(seed))
    frequencies = rng.standard_normal((points.shape[1], FOURIER_FEATURES))
    frequencies = frequencies / np.sqrt(scale)
    phases = rng.uniform(0, 2 * np.pi, FOURIER_FEATURES)
    amplitudes = rng.standard_normal((metrics, FOURIER_FEATURES, samples))
    weights = np.hstack([*amplitudes])  # (FOURIER_FEATURES, M s)
    weights = weights * np.sqrt(2 / FOURIER_FEATURES)

    def prior(at: np.ndarray) -> np.ndarray:
        waves = np.cos(at @ frequencies + phases)  # (m, FOURIER_FEATURES)
        return waves @ weights  # (m, M s)

    # 3. What must be subtracted for the draws to be 0 at the examples.                   (n, M s)
    kernel = np.exp(-distances / (2 * scale))
    kernel = kernel + OWN_VARIANCE * np.eye(len(points))
    correction = solve(kernel, prior(points), assume_a="pos")

    def draw_own(rng: np.random.Generator) -> np.ndarray:
        return rng.standard_normal(draws)

    def quantiles(states: np.ndarray, texts: Sequence[str]) -> np.ndarray:
        # 4. The errors of the queries: the conditioned draw, and one of their own.       (q, M s)
        queries = learned_features(states).astype(float)
        distances = squared_distances(queries, points)  # (q, n)
        near = np.exp(-distances / (2 * scale))
        shared = prior(queries) - near @ correction
        own = np.array(draw_by_text(texts, seed, draw_own))
        errors = shared + np.sqrt(OWN_VARIANCE) * own

        # 5. Their ranks among the samples of a query and metric.                        (q, M, s)
        errors = errors.reshape(len(texts), metrics, samples)
        order = errors.argsort(2)
        ranks = order.argsort(2).swapaxes(1, 2)  # (q, s, M)
        return (ranks + 0.5) / samples

    return quantiles
