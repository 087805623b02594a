"""Texts to encoder states, in length-sorted batches, each distinct text read once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
from tokenizers import Tokenizer
from torch import Tensor

from predictors.rlm.backbone import T5GemmaTextEncoder
from predictors.rlm.model import TextEncoder
from predictors.rlm.tokenizer import PAD, tokenize

Item = TypeVar("Item")
Progress = Callable[[int, int], None]
_BATCH_TOKENS = 2048
_MOST_TEXTS = 30_000


class Reader:
    """A tokenizer and an encoder; remembers what it has read, up to about 30,000 texts (250 MB), until `forget`.

    memory: what is remembered, by text (M, D). A text's states differ in their last bits by what is read along with it.
    """

    def __init__(
        self, tokenizer: Tokenizer, encoder: TextEncoder | T5GemmaTextEncoder, memory: dict[str, Tensor] | None = None
    ) -> None:
        self.tokenizer, self.encoder = tokenizer, encoder
        self._tokens: dict[str, list[int]] = {}
        self._states: dict[str, Tensor] = {} if memory is None else memory

    def forget(self) -> None:
        """Drop remembered states, because the encoder's weights change."""
        self._states.clear()

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of every text."""
        new = [text for text in dict.fromkeys(texts) if text not in self._tokens]
        if new and len(self._tokens) > _MOST_TEXTS:
            self._tokens.clear()
            new = list(dict.fromkeys(texts))
        ids = tokenize(self.tokenizer, new, self.encoder.config.text_tokens)
        self._tokens.update(zip(new, ids, strict=True))
        return [self._tokens[text] for text in texts]

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Run the encoder on one padded batch, with gradients where they are enabled: (B, M, D)."""
        tokens, lengths = pad(self.tokens(texts))
        device = next(self.encoder.parameters()).device
        return self.encoder(tokens.to(device), lengths.to(device))

    def recall(self, texts: Sequence[str]) -> Tensor:
        """The states (B, M, D) without gradients, from memory where possible."""
        self.read(texts)
        return torch.stack([self._states[text] for text in texts])

    @torch.inference_mode()
    def read(self, texts: Sequence[str], progress: Progress | None = None) -> None:
        """Make sure that all `texts` are remembered."""
        new = [text for text in dict.fromkeys(texts) if text not in self._states]
        if new and len(self._states) > _MOST_TEXTS:
            self.forget()
            new = list(dict.fromkeys(texts))
        done = 0
        self.encoder.eval()
        for batch in batches(new, [len(ids) for ids in self.tokens(new)]):
            self._states.update(zip(batch, self.encode(batch).cpu().unbind(), strict=True))
            done += len(batch)
            if progress:
                progress(done, len(new))


def batches(items: Sequence[Item], lengths: Sequence[int]) -> Iterator[list[Item]]:
    """Items whose texts have similar lengths together, at most 2,048 padded tokens a batch."""
    order = sorted(range(len(items)), key=lambda i: lengths[i])
    start = 0
    while start < len(order):
        stop = start + 1
        while stop < len(order) and (stop + 1 - start) * lengths[order[stop]] <= _BATCH_TOKENS:
            stop += 1
        yield [items[i] for i in order[start:stop]]
        start = stop


def pad(ids: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Tokens (B, T) and lengths (B,)."""
    lengths = torch.tensor([len(i) for i in ids])
    tokens = torch.full((len(ids), int(lengths.max())), PAD)
    for row, i in enumerate(ids):
        tokens[row, : len(i)] = torch.tensor(i)
    return tokens, lengths
