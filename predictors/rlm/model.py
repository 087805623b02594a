"""The regression language model: a small Transformer encoder over text tokens and a causal digit decoder.

After T5 and "Regression Language Models for Code" (arXiv 2509.26476), with rotary positions, RMSNorm and SwiGLU.
Sizes in comments: B texts, T text tokens, M latents, L decoder tokens, S samples, D width, h heads, H head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from predictors.rlm.numbers import NUMBER_TOKENS

MAX_METRICS = 64


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of the model.

    text_tokens: the longest text it reads. parts: different parts of tokens, and how many one token has at most.
    backbone: a T5Gemma encoder's configuration.
    """

    vocabulary: int
    width: int = 128
    heads: int = 4
    encoder_layers: int = 3
    latents: int = 16
    decoder_layers: int = 2
    number_length: int = 6
    text_tokens: int = 2048
    dropout: float = 0.1
    parts: int = 0
    token_parts: int = 1
    backbone: dict[str, Any] | None = None


def _rotary(length: int, head: int, device: torch.device, start: int = 0) -> tuple[Tensor, Tensor]:
    """Cosines and sines (length, H/2) of rotary position embedding (arXiv 2104.09864)."""
    frequency = 10000.0 ** (-torch.arange(0, head, 2, device=device) / head)
    angle = torch.arange(start, start + length, device=device)[:, None] * frequency
    return angle.cos(), angle.sin()


def _rotate(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    a, b = x.chunk(2, -1)
    cos, sin = rotary
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class Attention(nn.Module):
    """Multi-head attention; keys and values come from `project`, so that a decoder can keep them."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.query = nn.Linear(config.width, config.width, bias=False)
        self.key_value = nn.Linear(config.width, 2 * config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(-2, -3)  # (B, T, D) -> (B, h, T, H)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor]:
        key, value = self.key_value(x).chunk(2, -1)
        return self.split(key), self.split(value)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool = False) -> Tensor:
        y = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal)
        return self.out(y.transpose(-2, -3).flatten(-2))  # (B, h, T, H) -> (B, T, D)

    def attend_parts(self, query: Tensor, shared: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor]) -> Tensor:
        """Queries (B, S, h, 1, H) to keys and values (B, h, P, H) that S samples share and (B, S, h, L, H) of each."""
        asked = query.squeeze(3).transpose(1, 2)  # (B, h, S, H)
        there = asked @ shared[0].mT
        here = (query @ own[0].mT).squeeze(3).transpose(1, 2)  # (B, h, S, L)
        share = (torch.cat([there, here], -1) * query.shape[-1] ** -0.5).softmax(-1)
        of_shared, of_own = share.split([there.shape[-1], here.shape[-1]], -1)
        y = of_shared @ shared[1] + (of_own.transpose(1, 2)[:, :, :, None] @ own[1]).squeeze(3).transpose(1, 2)
        return self.out(y.transpose(1, 2).flatten(-2))  # (B, S, D)


class FeedForward(nn.Module):
    """SwiGLU (arXiv 2002.05202)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden = config.width * 2
        self.up = nn.Linear(config.width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, config.width, bias=False)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.up(x).chunk(2, -1)
        return self.drop(self.down(functional.silu(gate) * up))


class EncoderLayer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width)
        self.attention = Attention(config)
        self.feed_norm = nn.RMSNorm(config.width)
        self.feed = FeedForward(config)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        y = self.attention_norm(x)
        key, value = self.attention.project(y)
        query = _rotate(self.attention.split(self.attention.query(y)), rotary)
        x = x + self.attention.attend(query, _rotate(key, rotary), value, mask)
        return x + self.feed(self.feed_norm(x))


class Pooling(nn.Module):
    """Gathers a text of any length in M latent states, as a Perceiver does (arXiv 2103.03206)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(config.latents, config.width))
        self.norm = nn.RMSNorm(config.width)
        self.attention = Attention(config)
        self.feed_norm = nn.RMSNorm(config.width)
        self.feed = FeedForward(config)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, T, D) -> (B, M, D)"""
        query = self.attention.split(self.attention.query(self.latents)).expand(len(x), -1, -1, -1)
        y = self.latents + self.attention.attend(query, *self.attention.project(self.norm(x)), mask)
        return y + self.feed(self.feed_norm(y))


class Cache:
    """What one decoder layer keeps while it decodes S samples of each of B texts.

    cross: keys and values (B, h, M, H) of the memory; shared: those (B, h, P, H) of the tokens that all samples of a
    text begin with; own: those of each sample's further tokens, with room for `capacity`, so that a token more moves no
    memory.
    """

    def __init__(self, cross: tuple[Tensor, Tensor], shared: tuple[Tensor, Tensor], capacity: int) -> None:
        self.cross, self.shared, self.length = cross, shared, 0
        batch, heads, _, head = cross[0].shape
        self.own = cross[0].new_zeros(2, batch, 1, heads, capacity, head)  # (2, B, S, h, L, H)

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (B, S, h, L, H) with one more (B, S, h, H)."""
        self.own[0, ..., self.length, :] = key
        self.own[1, ..., self.length, :] = value
        self.length += 1
        keys, values = self.own[..., : self.length, :]
        return keys, values

    def select(self, samples: Tensor) -> None:
        """Go on with `samples` (B, S'), each a continuation of one there was."""
        batch, before = self.own.shape[1:3]
        first = before * torch.arange(batch, device=samples.device)[:, None]
        self.own = self.own.flatten(1, 2).index_select(1, (first + samples).flatten()).unflatten(1, samples.shape)


class DecoderLayer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_norm = nn.RMSNorm(config.width)
        self.self_attention = Attention(config)
        self.cross_norm = nn.RMSNorm(config.width)
        self.cross_attention = Attention(config)
        self.feed_norm = nn.RMSNorm(config.width)
        self.feed = FeedForward(config)

    def forward(
        self, x: Tensor, rotary: tuple[Tensor, Tensor], cross: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Whole sequences x (B, L, D), every position sees those before it; also their keys and values (B, h, L, H)."""
        query, key, value = self._project(x, rotary)
        x = x + self.self_attention.attend(query, key, value, None, causal=True)
        return self._rest(x, cross), (key, value)

    def step(self, x: Tensor, rotary: tuple[Tensor, Tensor], cache: Cache) -> Tensor:
        """One more token for each sample: x (B, S, D). All samples of a text share what they begin with."""
        query, key, value = self._project(x[:, :, None], rotary)  # (B, S, h, 1, H)
        keys, values = cache.append(key[..., 0, :], value[..., 0, :])
        return self._rest(x + self.self_attention.attend_parts(query, cache.shared, (keys, values)), cache.cross)

    def _project(self, x: Tensor, rotary: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        y = self.self_norm(x)
        key, value = self.self_attention.project(y)
        query = self.self_attention.split(self.self_attention.query(y))
        return _rotate(query, rotary), _rotate(key, rotary), value

    def _rest(self, x: Tensor, cross: tuple[Tensor, Tensor]) -> Tensor:
        query = self.cross_attention.split(self.cross_attention.query(self.cross_norm(x)))
        x = x + self.cross_attention.attend(query, *cross, None)
        return x + self.feed(self.feed_norm(x))


def _initialize(module: nn.Module, layers: nn.ModuleList, width: int) -> None:
    for part in module.modules():
        if isinstance(part, nn.Embedding):
            nn.init.normal_(part.weight, std=0.5)
        elif isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=part.in_features**-0.5)
    for layer in layers:
        # Small residual branches let a deep stack start near the identity.
        nn.init.normal_(layer.feed.down.weight, std=0.3 * width**-0.5)  # type: ignore[union-attr, arg-type]


class TokenEmbedding(nn.Module):
    """A token's own embedding plus those of its parts (as in arXiv 1607.04606): tokens (B, T) -> (B, T, D)."""

    of_token: Tensor

    def __init__(self, config: ModelConfig, parts: Sequence[Sequence[int]] = ()) -> None:
        """parts: the numbers, from 1 on, of every token's parts; none where a checkpoint's are to be loaded."""
        super().__init__()
        self.token = nn.Embedding(config.vocabulary, config.width)
        self.part = nn.Embedding(1 + config.parts, config.width, padding_idx=0)
        of_token = torch.zeros(config.vocabulary, config.token_parts, dtype=torch.int32)
        for row, numbers in zip(of_token, parts, strict=False):
            row[: len(numbers)] = torch.tensor(numbers)
        self.register_buffer("of_token", of_token)

    def forward(self, tokens: Tensor) -> Tensor:
        # One sum per token of the vocabulary, not per token of the batch.
        parts = functional.embedding_bag(self.of_token, self.part.weight, mode="sum", padding_idx=0)
        return functional.embedding(tokens, self.token.weight + parts)


class Readout(nn.Module):
    """Everything at once from a text's memory (B, M, D) -> (B, 64 + components): metrics by slot, then structure.

    It serves the training of an encoder alone, which learns much faster from all metrics of a text than from digits of
    a few.
    """

    def __init__(self, config: ModelConfig, components: int = 0) -> None:
        super().__init__()
        self.hidden = nn.Linear(config.width, config.width)
        self.out = nn.Linear(config.width, MAX_METRICS + components)

    def forward(self, memory: Tensor) -> Tensor:
        return self.out(functional.gelu(self.hidden(memory.mean(1))))


class TextEncoder(nn.Module):
    """Reads texts: tokens (B, T) and lengths (B,) to latent states (B, M, D), the decoder's memory of them."""

    def __init__(self, config: ModelConfig, parts: Sequence[Sequence[int]] = ()) -> None:
        super().__init__()
        self.config = config
        self.embedding = TokenEmbedding(config, parts)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.pooling = Pooling(config)
        self.norm = nn.RMSNorm(config.width)
        _initialize(self, self.layers, config.width)
        if config.parts:
            nn.init.normal_(self.embedding.token.weight, std=0.1)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        mask = (torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None])[:, None, None]
        rotary = _rotary(tokens.shape[1], self.config.width // self.config.heads, tokens.device)
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, rotary, mask)
        return self.norm(self.pooling(x, mask))


class NumberDecoder(nn.Module):
    """Number tokens in, logits of the next number token out, with a text's memory (B, M, D) in view.

    A sequence is, metric after metric, the metric's token (`NUMBER_TOKENS` + slot) and its number's tokens.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(NUMBER_TOKENS + MAX_METRICS, config.width)
        self.place = nn.Embedding(config.number_length + 1, config.width)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        self.norm = nn.RMSNorm(config.width)
        self.head = nn.Linear(config.width, NUMBER_TOKENS)
        _initialize(self, self.layers, config.width)

    def _embed(self, tokens: Tensor, place: Tensor) -> Tensor:
        return self.embedding(tokens) + self.place(place)

    def forward(self, memory: Tensor, tokens: Tensor) -> Tensor:
        """Logits (B, L, 12) of the token after each of `tokens` (B, L)."""
        return self.head(self.norm(self._read(memory, tokens)[0]))

    def _read(self, memory: Tensor, tokens: Tensor) -> tuple[Tensor, list[tuple]]:
        """Outputs (B, L, D), and each layer's keys and values of the memory and of the tokens."""
        length = tokens.shape[1]
        rotary = _rotary(length, self.config.width // self.config.heads, tokens.device)
        place = torch.arange(length, device=tokens.device) % (self.config.number_length + 1)
        x, kept = self._embed(tokens, place), []
        for layer in self.layers:
            cross = layer.cross_attention.project(memory)  # type: ignore[union-attr, operator]
            x, own = layer(x, rotary, cross)
            kept.append((cross, own))
        return x, kept

    def caches(self, memory: Tensor, forced: Tensor, capacity: int) -> list[Cache]:
        """Caches that have read the tokens `forced` (B, P), for decoding `capacity` more of each sample."""
        return [Cache(cross, shared, capacity) for cross, shared in self._read(memory, forced)[1]]

    def step(self, tokens: Tensor, position: int, caches: list[Cache]) -> Tensor:
        """Logits (B, S, 12) after one more token per sample; tokens (B, S) stand at `position`."""
        rotary = _rotary(1, self.config.width // self.config.heads, tokens.device, start=position)
        x = self._embed(tokens, torch.tensor(position % (self.config.number_length + 1), device=tokens.device))
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer.step(x, rotary, cache)  # type: ignore[operator]
        return self.head(self.norm(x))
