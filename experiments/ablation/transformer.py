"""What a plain Transformer on the tokens of the text would cost: `python -m
experiments.ablation.transformer`.

The recipe of arXiv 2509.26476 reads the text itself, without graph, shapes and costs. A fair row of
the ablation would pretrain such an encoder on the same generated spaces for as many steps. This
times one step of both: the RLM's encoder, and a Transformer of the same number of weights whose
tokens are the words, numbers and signs of the text. Times are those of one core's processor, so that
other programs do not count.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from experiments.ablation.readers import load_model
from experiments.runner import AsJson, Quick, run_command
from nas.cli.console import print_json
from predictors.rlm.encoder import collate
from predictors.rlm.tokens import BUCKETS, bucket, tokenize

BASE = "rlm-generated"
FAMILIES = ("digits-nasbench101", "digits-pnas", "digits-fbnet")
TEXTS, REPEATS = 2, 2  # per family: each text needs a gigabyte of activations
PRETRAINING_STEPS, PRETRAINING_TEXTS = 8000, 48  # of `rlm-generated`'s encoder, and per step
WIDTH, LAYERS, HEADS = 128, 5, 4  # with the embeddings, as many weights as the encoder
WORD = re.compile(r"[A-Za-z_.]+|\d|[^\w\s]")


class PlainTransformer(nn.Module):
    """Mean of the last hidden states of a text's words, numbers and signs."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(BUCKETS, WIDTH, padding_idx=0)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, batch_first=True, norm_first=True, activation="gelu"
        )
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """States (B, WIDTH) of tokens (B, L), padded with 0."""
        there = tokens > 0
        hidden = self.layers(self.words(tokens), src_key_padding_mask=~there)
        return (hidden * there[..., None]).sum(1) / there.sum(1, keepdim=True)


def words(text: str) -> Tensor:
    """Hashed words, digits and signs (L,) of a text."""
    return torch.tensor([bucket(word) for word in WORD.findall(text)])


def step_seconds(module: nn.Module, forward: Callable[[], Tensor], repeats: int) -> float:
    """Least processor time, in seconds, of a forward and a backward pass."""
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        forward().square().mean().backward()
        seconds.append(time.process_time() - start)
        module.zero_grad()
    return min(seconds)


def main(quick: Quick = False, as_json: AsJson = False) -> None:
    """Time both; print seconds per step and hours of pretraining on one core."""
    from nas.benchmarks import load_benchmark

    torch.set_num_threads(1)
    families, count = (FAMILIES[:1], 1) if quick else (FAMILIES, TEXTS)
    texts = [t for f in families for t in load_benchmark(f).load_texts()[:count]]
    encoder = load_model(BASE).encoder.train()
    plain = PlainTransformer()
    tokens = [tokenize(text) for text in texts]
    read = [words(text) for text in texts]
    padded = nn.utils.rnn.pad_sequence(read, batch_first=True)
    rows = {
        "the RLM's encoder": (encoder, lambda: encoder(collate(tokens))),
        "a plain Transformer": (plain, lambda: plain(padded)),
    }
    encoders = []
    for name, (module, forward) in rows.items():
        seconds = step_seconds(module, forward, 1 if quick else REPEATS)
        per_step = seconds * PRETRAINING_TEXTS / len(texts)
        encoders.append(
            {
                "encoder": name,
                "weights": sum(weight.numel() for weight in module.parameters()),
                "s per step": per_step,
                "hours of pretraining": per_step * PRETRAINING_STEPS / 3600,
            }
        )
    median = float(torch.tensor([float(len(one)) for one in read]).median())
    if as_json:
        print_json({"median tokens": median, "encoders": encoders})
        return
    print(f"median length: {median:.0f} tokens")
    for row in encoders:
        print(
            f"{row['encoder']}: {row['weights']:,} weights, {row['s per step']:.2f} s per step of "
            f"{PRETRAINING_TEXTS} texts, {row['hours of pretraining']:.1f} hours for "
            f"{PRETRAINING_STEPS} steps"
        )


if __name__ == "__main__":
    run_command(main)
