"""The regression language model: a text encoder, an in-context reader of labelled examples, a digit
decoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from predictors.rlm.context import NUMBER_HEADS, ContextConfig, ContextReader, NumberDecoder
from predictors.rlm.encoder import EncoderConfig, TextEncoder, collate
from predictors.rlm.lines import lines
from search_spaces.common.errors import InputError

MAX_SIZE = 2048  # largest width or number of layers in a checkpoint's configuration


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of the model's parts."""

    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    context: ContextConfig = field(default_factory=ContextConfig)

    @classmethod
    def restore(cls, config: dict[str, Any]) -> ModelConfig:
        """Rebuild the configuration from its `asdict`.

        Raises:
            InputError: if a size is not an integer from 1 to `MAX_SIZE`, or heads do not divide a
                width.
        """
        sizes = [value for part in config.values() for value in part.values()]
        if not all(type(size) is int and 1 <= size <= MAX_SIZE for size in sizes):
            raise InputError(f"sizes must be whole numbers from 1 to {MAX_SIZE}, not {sizes}")
        encoder, context = EncoderConfig(**config["encoder"]), ContextConfig(**config["context"])
        if context.width % context.heads or context.number_width % NUMBER_HEADS:
            raise InputError(
                f"widths must be multiples of the number of heads in {config['context']}"
            )
        return cls(encoder, context)


class Model(nn.Module):
    """The network: texts to states (encoder), to the hidden states of queries (reader), to digits
    (decoder).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = TextEncoder(config.encoder)
        self.reader = ContextReader(config.context)
        self.decoder = NumberDecoder(config.context)

    @torch.inference_mode()
    def states(self, texts: Sequence[str]) -> np.ndarray:
        """States (n, S), float32, of n texts.

        Texts are encoded one by one: within a batch, the last bits of a state would depend on the
            other texts, and
        results on the order of requests.
        """
        found = np.empty((len(texts), self.config.encoder.outputs), np.float32)
        for row, text in zip(found, texts, strict=True):
            row[:] = self.encoder(collate([lines(text)]))[0].numpy()
        return found
