"""Decoding compared with the published implementation, both in one run (15 minutes).

Command: `python -m experiments.timing.decoding`.

Both sides decode five metrics of texts of about 100 tokens. The plain side works like the published
library (arXiv 2509.26476), with a model of about 5 million weights: it pads texts to 2,048 tokens,
copies all of their states for each sample, decodes each token from the whole sequence again, and
makes masks in Python. Its weights are random, which does not affect time. Our side is the shipped
RLM with 500 examples in its context and new texts. Time and memory are also measured for a growing
number of texts.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

import predictors
from experiments.runner import AsJson, Quick, Seeds, run_command
from nas.cli.console import print_json, print_table
from nas.cli.progress import progress_bar
from search_spaces import get_space

if TYPE_CHECKING:
    import torch

METRICS = (
    "cifar10_accuracy",
    "pixel3_latency_ms",
    "eyeriss_latency_ms",
    "gold_6240_latency_ms",
    "fpga_latency_ms",
)
WIDTH, HEADS, LAYERS, FEEDFORWARD = 256, 8, 3, 1024  # of the plain side's encoder and decoder
VOCABULARY, NUMBER_TOKENS, NUMBER_LENGTH = 1024, 24, 6
TOKENS, PADDED = 100, 2048
SAMPLES = 64
EXAMPLES = 500


def main(
    count: Annotated[
        int, typer.Option(min=100, help="Number of architectures for our side.")
    ] = 500,
    plain: Annotated[
        int, typer.Option(min=1, help="Number of architectures for the plain side.")
    ] = 2,
    seeds: Seeds = 5,
    digits: Annotated[
        int, typer.Option(min=3, max=6, help="Measure growth from 10^3 to 10^DIGITS texts.")
    ] = 4,
    threads: Annotated[int, typer.Option(min=1, help="Threads of PyTorch.")] = os.cpu_count() or 1,
    quick: Quick = False,
    as_json: AsJson = False,
) -> None:
    """Print architectures per second of both sides, and time and memory for many texts."""
    import torch

    examples = EXAMPLES
    padded = PADDED
    growth = [10**k for k in range(3, digits + 1)]
    if quick:
        examples, padded, growth = 10, 128, [100]
        count, plain, seeds, threads = 10, 1, 1, 1
    torch.set_num_threads(threads)
    grown = _growth(growth)  # first, since the peak memory of a process never decreases
    rows = []
    with progress_bar("decoding") as bar:
        for seed in range(seeds):
            rows.append(_speeds(examples, count, plain, padded, seed))
            bar("decoding, seeds", seed + 1, seeds)
    summary = _summary(rows) + grown
    if as_json:
        print_json(summary)
    else:
        print_table(f"Decoding of {len(METRICS)} metrics", summary)


def _speeds(examples: int, count: int, plain: int, padded: int, seed: int) -> dict[str, float]:
    """Architectures per second of the plain side, our samples and our point estimates."""
    space = get_space("nasbench101")
    rng = np.random.default_rng(seed)
    drawn: dict[str, None] = {}
    while len(drawn) < examples + 2 * count:
        drawn[space.to_text(space.sample(rng))] = None
    texts = list(drawn)
    learned = texts[:examples]
    first = texts[examples : examples + count]
    second = texts[examples + count :]
    values = {name: rng.random(examples) for name in METRICS}
    model = predictors.create("rlm").fit(learned, values)
    return {
        "plain": _speed(lambda: _plain(plain, padded), plain),
        "samples": _speed(lambda: model.predict(first, METRICS, samples=SAMPLES), count),
        "estimate": _speed(lambda: model.estimate(second, METRICS), count),
    }


def _speed(action: Any, count: int) -> float:
    started = time.perf_counter()
    action()
    return count / (time.perf_counter() - started)


def _plain(count: int, padded: int) -> np.ndarray:
    """Decode one text after the other as the published library does.

    Returns:
        Tokens (count, SAMPLES, metrics * (1 + NUMBER_LENGTH)).
    """
    import torch
    from torch import nn

    torch.manual_seed(0)
    embed = nn.Embedding(VOCABULARY, WIDTH)
    embed_numbers = nn.Embedding(NUMBER_TOKENS + len(METRICS), WIDTH)
    layers: dict[str, Any] = {
        "d_model": WIDTH,
        "nhead": HEADS,
        "dim_feedforward": FEEDFORWARD,
        "batch_first": True,
    }
    encoder_layer = nn.TransformerEncoderLayer(**layers)
    encoder = nn.TransformerEncoder(encoder_layer, LAYERS, enable_nested_tensor=False).eval()
    decoder_layer = nn.TransformerDecoderLayer(**layers)
    decoder = nn.TransformerDecoder(decoder_layer, LAYERS).eval()
    head = nn.Linear(WIDTH, NUMBER_TOKENS)
    sequences = []
    with torch.inference_mode():
        for _ in range(count):
            # 1. The text is encoded up to its padded length, and copied for each sample.
            text = embed(torch.randint(VOCABULARY, (1, padded)))
            states = encoder(text, src_key_padding_mask=_padding(padded))
            copied = states.expand(SAMPLES, -1, -1).contiguous()
            padding = _padding(padded).expand(SAMPLES, -1)

            # 2. One token after the other is decoded, with all earlier ones read again.
            sequence = torch.empty(SAMPLES, 0, dtype=torch.long)
            for metric in range(len(METRICS)):
                begin = torch.full((SAMPLES, 1), NUMBER_TOKENS + metric)
                sequence = torch.cat([sequence, begin], 1)
                for _ in range(NUMBER_LENGTH):
                    causal = nn.Transformer.generate_square_subsequent_mask(sequence.shape[1])
                    numbers = embed_numbers(sequence)
                    read = decoder(numbers, copied, causal, memory_key_padding_mask=padding)
                    allowed = torch.zeros(SAMPLES, NUMBER_TOKENS, dtype=torch.bool)
                    for sample in range(SAMPLES):
                        allowed[sample, list(range(10))] = True
                    logits = head(read[:, -1]).masked_fill(~allowed, -1e7)
                    drawn = logits.softmax(-1).multinomial(1)
                    sequence = torch.cat([sequence, drawn], 1)
            sequences.append(sequence.numpy())
    return np.array(sequences)


def _padding(padded: int) -> torch.Tensor:
    """Padding mask (1, padded), True after the text's last token."""
    import torch

    return (torch.arange(padded) >= TOKENS)[None]


def _growth(counts: list[int]) -> list[dict[str, Any]]:
    """Speed and peak memory of the process while it predicts streams of different texts.

    counts: the number of texts of each stream.
    """
    rows = []
    model = predictors.create("rlm").fit(list(_variants(10)), {METRICS[0]: np.arange(10.0)})
    for count in counts:
        started = time.perf_counter()
        for _ in model.predict_stream(_variants(count), METRICS[:1], samples=1):
            pass
        seconds = time.perf_counter() - started
        speed = np.array([count / seconds])
        rows.append(_row(f"10 examples, {count:,} different texts", speed, "architectures/s"))
        rows.append(_row(f"peak memory after {count:,}", np.array([_peak()]), "MB"))
    return rows


def _variants(count: int) -> Iterator[str]:
    """Yield `count` different texts: one network with different output widths."""
    space = get_space("nasbench201")
    text = space.to_text(space.sample(np.random.default_rng(0)))
    for i in range(count):
        yield text.replace("features = 10", f"features = {10 + i}")


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _row(what: str, values: np.ndarray, unit: str) -> dict[str, Any]:
    return {
        "what": what,
        "mean": float(values.mean()),
        "std": float(values.std(ddof=min(1, len(values) - 1))),
        "unit": unit,
    }


def _summary(rows: list[dict[str, float]]) -> list[dict[str, Any]]:
    plain = np.array([row["plain"] for row in rows])
    samples = np.array([row["samples"] for row in rows])
    estimate = np.array([row["estimate"] for row in rows])
    return [
        _row("plain decoding, 64 samples", plain, "architectures/s"),
        _row(f"ours, 64 samples, {EXAMPLES} examples", samples, "architectures/s"),
        _row("ours against plain", samples / plain, "times"),
        _row("ours, point estimate", estimate, "architectures/s"),
    ]


if __name__ == "__main__":
    run_command(main)
