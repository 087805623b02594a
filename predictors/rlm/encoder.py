"""The text encoder: lines read their neighbours along the data flow and the mean line; windows pool
them.

As in GraphCodeBERT (arXiv 2009.08366), a line reads the lines that produce its arguments and those
that use its value. Sizes in comments: B texts, n lines of all texts, e references, D width, K
windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from predictors.rlm.lines import BUCKETS, LINE_NUMBERS, TEXT_NUMBERS, Lines
from predictors.rlm.sketches import COUNTS, NEIGHBOURS

QUALITY, PROXIES, ACCURACIES = (
    64,
    8,
    2,
)  # sizes of these parts of a state, the same for every configuration
COMMON = (
    PROXIES + ACCURACIES + TEXT_NUMBERS
)  # size of the last part of a state, which means the same in every space


@dataclass(frozen=True)
class EncoderConfig:
    """Sizes of the encoder."""

    width: int = 128  # width of the layers
    layers: int = 3  # number of layers
    windows: int = 3  # soft sections of a text that are pooled separately, beside the whole text
    # Size of the structure part of a state, which is linear in the pooled lines
    structure: int = 256
    hidden: int = 256  # width of the network from structure to quality
    frequencies: int = 4  # sine and cosine features per number of a line

    @property
    def outputs(self) -> int:
        """Size of a text's state."""
        return self.structure + QUALITY + COUNTS + NEIGHBOURS + COMMON


class Batch(NamedTuple):
    """Lines of B texts; see `Lines`."""

    words: Tensor  # (w,)
    starts: Tensor  # (n,) index of each line's first word
    numbers: Tensor  # (n, LINE_NUMBERS)
    edges: Tensor  # (2, e) producer and consumer
    text: Tensor  # (n,) text of each line
    position: Tensor  # (n,) in [0, 1]
    shared: Tensor  # (n,) which of the m distinct lines of all texts it is
    totals: Tensor  # (B, TEXT_NUMBERS)
    counts: Tensor  # (B, COUNTS)
    neighbours: Tensor  # (B, NEIGHBOURS)


def collate(texts: Sequence[Lines]) -> Batch:
    """Concatenate the lines of several texts."""
    counts = [len(t.starts) for t in texts]
    sizes = {
        "starts": [len(t.words) for t in texts],
        "edges": counts,
        "shared": [t.shared.max() + 1 for t in texts],
    }

    def joined(name: str) -> Tensor:
        arrays = [getattr(t, name) for t in texts]
        if name in sizes:  # numbers of words or lines, which continue those of the texts before
            arrays = [
                array + first
                for array, first in zip(arrays, np.cumsum([0, *sizes[name]]), strict=False)
            ]
        return torch.from_numpy(np.concatenate(arrays, 1 if name == "edges" else 0))

    found = {
        name: joined(name) for name in ("words", "starts", "numbers", "edges", "position", "shared")
    }
    for name in ("totals", "counts", "neighbours"):
        found[name] = torch.from_numpy(np.stack([getattr(t, name) for t in texts]))
    return Batch(text=torch.from_numpy(np.repeat(np.arange(len(texts)), counts)), **found)


class Layer(nn.Module):
    """Residual block over a line, the lines that it reads, the lines that read it, and the text's
    mean line.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.up = nn.Linear(4 * width, 2 * width)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        """Lines x (m, D) to lines (m, D)."""
        return x + self.down(functional.gelu(self.up(flow.around(self.norm(x)))))


class Flow:
    """The m distinct lines of a batch and their references. Lines of equal calls are one distinct
    line.

    A line reads the sum of its neighbours on a side, divided by the square root of their number. If
    it belongs to several calls, it reads the mean of these sums.
    """

    def __init__(self, batch: Batch) -> None:
        self.times = torch.bincount(batch.shared).float()[:, None]
        self.text = torch.empty(len(self.times), dtype=torch.long).index_copy(
            0, batch.shared, batch.text
        )
        self.counts = torch.bincount(batch.text).float()[:, None]
        self.ends = batch.shared[batch.edges]
        fans = [torch.bincount(end, minlength=len(batch.starts))[end, None] for end in batch.edges]
        self.weights = [
            fan.rsqrt() / self.times[end] for fan, end in zip(fans, self.ends, strict=True)
        ]

    def around(self, x: Tensor) -> Tensor:
        """(m, 4D) lines x (m, D), what each reads, what reads it, and the mean line of its text."""
        source, target = self.ends
        read = _sums(x[source] * self.weights[1], target, len(x))
        readers = _sums(x[target] * self.weights[0], source, len(x))
        mean = _sums(x * self.times, self.text, len(self.counts)) / self.counts
        return torch.cat([x, read, readers, mean[self.text]], 1)


def _sums(x: Tensor, rows: Tensor, count: int) -> Tensor:
    """(count, D) sums of values x (n, D) by row (n,)."""
    return x.new_zeros(count, x.shape[1]).index_add(0, rows, x)


class TextEncoder(nn.Module):
    """Encodes the lines of B texts as states (B, structure + QUALITY + COUNTS + NEIGHBOURS +
    COMMON).

    Structure is linear in the pooled lines. Quality is nonlinear; zero-cost proxies are predicted
    from it, up to their order within a space. Counts and neighbours are not learned, so that they
    distinguish all kinds of lines in any space. The common part holds the predicted proxies,
    predicted accuracies of short trainings, and exact costs.
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
        self.register_buffer("frequency", 2.0 ** torch.arange(config.frequencies) * torch.pi / 16)
        self.layers = nn.ModuleList(Layer(d) for _ in range(config.layers))
        self.norm = nn.RMSNorm(d)
        self.out = nn.Linear((1 + config.windows) * d, config.structure, bias=False)
        nn.init.orthogonal_(self.out.weight)
        self.structure_norm = nn.RMSNorm(config.structure)
        self.quality, self.accuracies = (
            _network(config, QUALITY),
            _network(config, ACCURACIES, NEIGHBOURS),
        )
        self.proxies = nn.Linear(QUALITY, PROXIES, bias=False)

    def forward(self, batch: Batch) -> Tensor:
        """States (B, S) of a batch."""
        flow = Flow(batch)
        angle = (batch.numbers[..., None] * self.frequency).flatten(1)
        numbers = torch.cat([batch.numbers / 8, angle.sin(), angle.cos()], 1)
        x = self.words(batch.words, batch.starts) + self.numbers(numbers)
        x = _sums(x, batch.shared, len(flow.times)) / flow.times
        for layer in self.layers:
            x = layer(x, flow)
        x = self.norm(x)
        centers = torch.linspace(0, 1, self.config.windows)
        window = torch.exp(-12.5 * (batch.position[:, None] - centers) ** 2)  # (n, K)
        weights = [flow.times, *_sums(window, batch.shared, len(x)).T[..., None]]
        pooled = _sums(
            torch.cat([x * weight for weight in weights], 1), flow.text, len(flow.counts)
        )
        structure = self.out(pooled / flow.counts.sqrt())
        read = torch.cat([self.structure_norm(structure), batch.totals / 8], 1)
        quality = self.quality(read)
        around = functional.rms_norm(batch.neighbours, (NEIGHBOURS,), eps=1e-6)
        common = self.proxies(quality), self.accuracies(torch.cat([read, around], 1)), batch.totals
        return torch.cat([structure, quality, batch.counts, batch.neighbours, *common], 1)


def _network(config: EncoderConfig, outputs: int, more: int = 0) -> nn.Sequential:
    inputs, d = config.structure + TEXT_NUMBERS + more, config.hidden
    return nn.Sequential(
        nn.Linear(inputs, d),
        nn.GELU(),
        nn.Linear(d, d),
        nn.GELU(),
        nn.Linear(d, outputs, bias=False),
    )
