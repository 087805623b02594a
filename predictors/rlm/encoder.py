"""The text encoder: lines attend along the data flow, and to all others through their mean; windows pool them.

Data-flow guided attention follows GraphCodeBERT (arXiv 2009.08366): a line sees the lines that make its arguments and
those that read its value. Sizes in comments: B texts, n lines of all texts, e references, D width, K windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from predictors.rlm.lines import BUCKETS, COUNTS, LINE_NUMBERS, TEXT_NUMBERS, Lines

QUALITY, PROXIES = 64, 8  # numbers of a state beside its structure, whatever the configuration
COMMON = PROXIES + TEXT_NUMBERS  # the last numbers of a state, which mean the same in every space


@dataclass(frozen=True)
class EncoderConfig:
    """Sizes of the encoder.

    windows: soft thirds (or so) of a text that are pooled apart, beside the whole.
    structure: linear readouts of what is pooled: sums over lines, as latencies and costs are.
    hidden: width of the network that makes nonlinear readouts of them.
    """

    width: int = 128
    layers: int = 3
    windows: int = 3
    structure: int = 256
    hidden: int = 256
    frequencies: int = 4

    @property
    def outputs(self) -> int:
        """Numbers of a text's state."""
        return self.structure + QUALITY + COUNTS + COMMON


class Batch(NamedTuple):
    """Lines of B texts. words (w,), starts (n,), numbers (n, F), edges (2, e), text (n,), position (n,) in [0, 1],
    totals (B, T), counts (B, COUNTS)."""

    words: Tensor
    starts: Tensor
    numbers: Tensor
    edges: Tensor
    text: Tensor
    position: Tensor
    totals: Tensor
    counts: Tensor


def collate(texts: Sequence[Lines]) -> Batch:
    """The lines of several texts, one text after another."""
    counts = np.array([len(t.starts) for t in texts])
    first = np.cumsum(counts) - counts
    words = np.array([len(t.words) for t in texts])
    word_first = np.cumsum(words) - words
    return Batch(
        torch.from_numpy(np.concatenate([t.words for t in texts])),
        torch.from_numpy(np.concatenate([t.starts + f for t, f in zip(texts, word_first, strict=True)])),
        torch.from_numpy(np.concatenate([t.numbers for t in texts])),
        torch.from_numpy(np.concatenate([t.edges + f for t, f in zip(texts, first, strict=True)], 1)),
        torch.from_numpy(np.repeat(np.arange(len(texts)), counts)),
        torch.from_numpy(np.concatenate([t.position for t in texts])),
        torch.from_numpy(np.stack([t.totals for t in texts])),
        torch.from_numpy(np.stack([t.counts for t in texts])),
    )


class Layer(nn.Module):
    """Residual block of what a line is, what it reads, what reads it, and the text's mean line."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.up = nn.Linear(4 * width, 2 * width)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        """(n, D) -> (n, D)"""
        y = self.norm(x)
        return x + self.down(functional.gelu(self.up(torch.cat([y, flow.read(y), flow.readers(y), flow.mean(y)], 1))))


class Flow:
    """Sums over references and texts, computed for all layers at once."""

    def __init__(self, batch: Batch) -> None:
        self.source, self.target = batch.edges
        n = len(batch.starts)
        ones = torch.ones(len(self.source))
        self.fan_in = torch.zeros(n).index_add(0, self.target, ones).clamp(min=1).rsqrt()[:, None]
        self.fan_out = torch.zeros(n).index_add(0, self.source, ones).clamp(min=1).rsqrt()[:, None]
        self.text, self.texts = batch.text, len(batch.totals)
        self.counts = torch.bincount(batch.text, minlength=self.texts).float()[:, None]

    def read(self, x: Tensor) -> Tensor:
        """Of every line, the sum of the lines that it reads over the root of their number."""
        return torch.zeros_like(x).index_add(0, self.target, x[self.source]) * self.fan_in

    def readers(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, self.source, x[self.target]) * self.fan_out

    def total(self, x: Tensor) -> Tensor:
        """(n, D) -> (B, D)"""
        return x.new_zeros(self.texts, x.shape[1]).index_add(0, self.text, x)

    def mean(self, x: Tensor) -> Tensor:
        return (self.total(x) / self.counts)[self.text]


class TextEncoder(nn.Module):
    """Lines of B texts to states (B, structure + QUALITY + COUNTS + COMMON).

    Structure is linear in what is pooled. Quality is not: from it, the order of zero-cost proxies within a space is
    predicted. Counts are not learned, so that no kind of line is lost, in whichever space. What is common to all spaces
    are the predicted proxies and exact costs.
    """

    frequency: Tensor

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        d = config.width
        self.words = nn.EmbeddingBag(BUCKETS, d, mode="sum", padding_idx=0)
        nn.init.normal_(self.words.weight, std=0.5)
        numbers = LINE_NUMBERS * (1 + 2 * config.frequencies)
        self.numbers = nn.Linear(numbers, d)
        nn.init.normal_(self.numbers.weight, std=0.5 * numbers**-0.5)
        self.frequency: Tensor
        self.register_buffer("frequency", 2.0 ** torch.arange(config.frequencies) * torch.pi / 16)
        self.layers = nn.ModuleList(Layer(d) for _ in range(config.layers))
        self.norm = nn.RMSNorm(d)
        self.out = nn.Linear((1 + config.windows) * d, config.structure, bias=False)
        nn.init.orthogonal_(self.out.weight)
        self.structure_norm = nn.RMSNorm(config.structure)
        self.quality = nn.Sequential(
            nn.Linear(config.structure + TEXT_NUMBERS, config.hidden),
            nn.GELU(),
            nn.Linear(config.hidden, config.hidden),
            nn.GELU(),
            nn.Linear(config.hidden, QUALITY, bias=False),
        )
        self.proxies = nn.Linear(QUALITY, PROXIES, bias=False)

    def forward(self, batch: Batch) -> Tensor:
        flow = Flow(batch)
        angle = (batch.numbers[..., None] * self.frequency).flatten(1)
        numbers = torch.cat([batch.numbers / 8, angle.sin(), angle.cos()], 1)
        x = self.words(batch.words, batch.starts) + self.numbers(numbers)
        for layer in self.layers:
            x = layer(x, flow)
        x = self.norm(x)
        centers = torch.linspace(0, 1, self.config.windows)
        window = torch.exp(-12.5 * (batch.position[:, None] - centers) ** 2)  # (n, K)
        pooled = [flow.total(x), *(flow.total(x * w[:, None]) for w in window.T)]
        structure = self.out(torch.cat(pooled, 1) / flow.counts.sqrt())
        quality = self.quality(torch.cat([self.structure_norm(structure), batch.totals / 8], 1))
        return torch.cat([structure, quality, batch.counts, self.proxies(quality), batch.totals], 1)
