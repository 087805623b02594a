"""Texts to encoder states, in length-sorted batches, each distinct text read once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from tokenizers import Tokenizer
from torch import Tensor

from predictors.rlm.model import Memory, TextEncoder
from predictors.rlm.tokenizer import PAD, tokenize

Progress = Callable[[int, int], None]
_BATCH_TOKENS = 8192
_CACHE_BYTES = 1 << 30


class Reader:
    """A tokenizer and an encoder; remembers what it has read (half precision, up to 1 GiB) until `forget`."""

    def __init__(self, tokenizer: Tokenizer, encoder: TextEncoder) -> None:
        self.tokenizer, self.encoder = tokenizer, encoder
        self._tokens: dict[str, list[int]] = {}
        self._states: dict[str, Tensor] = {}
        self._bytes = 0

    def forget(self) -> None:
        """Drop remembered states, because the encoder's weights change."""
        self._states.clear()
        self._bytes = 0

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of every text."""
        new = [text for text in dict.fromkeys(texts) if text not in self._tokens]
        ids = tokenize(self.tokenizer, new, self.encoder.config.text_tokens)
        self._tokens.update(zip(new, ids, strict=True))
        return [self._tokens[text] for text in texts]

    def encode(self, texts: Sequence[str]) -> Memory:
        """Run the encoder on one padded batch, with gradients where they are enabled."""
        tokens, lengths = pad(self.tokens(texts))
        return self.encoder(tokens, lengths)

    def recall(self, texts: Sequence[str]) -> Memory:
        """The states of one batch without gradients, from memory where possible."""
        self.read(texts)
        states = [self._states[text].float() for text in texts]
        lengths = torch.tensor([len(s) for s in states])
        stacked = torch.nn.utils.rnn.pad_sequence(states, batch_first=True)
        mask = (torch.arange(stacked.shape[1]) < lengths[:, None])[:, None, None]
        return Memory(stacked, mask)

    @torch.inference_mode()
    def read(self, texts: Sequence[str], progress: Progress | None = None) -> None:
        """Make sure that all `texts` are remembered."""
        new = [text for text in dict.fromkeys(texts) if text not in self._states]
        if new and self._bytes > _CACHE_BYTES:
            self.forget()
            new = list(dict.fromkeys(texts))
        done = 0
        self.encoder.eval()
        for batch in batches(new, [len(ids) for ids in self.tokens(new)]):
            memory = self.encode(batch)
            for text, states, length in zip(batch, memory.states, memory.mask.sum((1, 2, 3)).tolist(), strict=True):
                kept = states[:length].half()
                self._states[text] = kept
                self._bytes += 2 * kept.numel()
            done += len(batch)
            if progress:
                progress(done, len(new))


def batches(texts: Sequence[str], lengths: Sequence[int]) -> Iterator[list[str]]:
    """Texts of similar length together, at most 8,192 padded tokens a batch."""
    order = sorted(range(len(texts)), key=lambda i: lengths[i])
    start = 0
    while start < len(order):
        stop = start + 1
        while stop < len(order) and (stop + 1 - start) * lengths[order[stop]] <= _BATCH_TOKENS:
            stop += 1
        yield [texts[i] for i in order[start:stop]]
        start = stop


def pad(ids: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Tokens (B, T) and lengths (B,)."""
    lengths = torch.tensor([len(i) for i in ids])
    tokens = torch.full((len(ids), int(lengths.max())), PAD)
    for row, i in enumerate(ids):
        tokens[row, : len(i)] = torch.tensor(i)
    return tokens, lengths
