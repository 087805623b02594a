"""Label-free targets that depend on a network's structure: random devices, random qualities, random
networks.

They are a prior over latencies and accuracies and contain no numbers of a benchmark. Sizes in
docstrings: B texts, n lines of all texts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from predictors.rlm.encoder import Batch, EncoderConfig, TextEncoder, collate
from predictors.rlm.tokens import TEXT_NUMBERS, Tokens

DEVICES, QUALITIES = 40, 24
RANDOM_ENCODERS, ENCODER_OUTPUTS = 4, 8
AXES = 24  # principal axes of a random encoder's states that feed its outputs
HIDDEN = 32  # units between them
LEVELS = 4000  # resolution of a line's depth in its text
# Columns of `Tokens.numbers`
PARAMS, FLOPS, ELEMENTS, WIDTH, RESOLUTION, KERNEL, GROUP = 0, 1, 2, 3, 4, 6, 8


def structural_targets(texts: Sequence[Tokens], seed: int) -> np.ndarray:
    """Targets (B, DEVICES + QUALITIES + RANDOM_ENCODERS * ENCODER_OUTPUTS) of a space's B texts."""
    batch = collate(texts)
    rng = np.random.default_rng([seed, 5])
    targets = [
        random_devices(batch, rng, DEVICES),
        random_qualities(batch, rng, QUALITIES),
        random_networks(texts, seed),
    ]
    return np.concatenate(targets, 1)


# --- devices


def random_devices(batch: Batch, rng: np.random.Generator, count: int) -> np.ndarray:
    """Latencies (B, count) on devices with random rooflines (Williams et al. 2009).

    An operator takes the sum or maximum of its arithmetic and memory times, plus an overhead. Kinds
    of operators differ by random factors. Some devices run the branches of a network in parallel.
    """
    numbers = batch.numbers.numpy().astype(float)
    kinds, kind = np.unique(batch.words.numpy()[batch.starts.numpy()], return_inverse=True)
    traffic = _traffic(batch, numbers)
    level, text_of_level = _levels(batch)
    latencies = np.empty((len(batch.totals), count))
    for device in range(count):
        time = _operator_times(numbers, traffic, kind, len(kinds), rng)
        text = batch.text.numpy()
        runs_branches_in_parallel = rng.random() < 0.4
        if runs_branches_in_parallel:
            # Between the sum (power 1) and the longest (power ∞) of the lines of a level.
            power = rng.choice([2.0, 4.0])
            time = np.bincount(level, time**power) ** (1 / power)
            text = text_of_level
        latencies[:, device] = np.bincount(text, time, minlength=len(latencies))
    return latencies


def _traffic(batch: Batch, numbers: np.ndarray) -> np.ndarray:
    """Count of numbers (n,) that each line reads and writes."""
    source, target = batch.edges.numpy()
    written = 2.0 ** numbers[:, ELEMENTS] - 1
    read = np.bincount(target, written[source], minlength=len(written))
    return written + read + 2.0 ** numbers[:, PARAMS] - 1


def _levels(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """The level (n,) of each line and the text of each level.

    Lines of a text with equal depth share a level.
    """
    depth = (batch.position.numpy() * LEVELS).astype(int)
    text = batch.text.numpy()
    _, level = np.unique(text * (LEVELS + 1) + depth, return_inverse=True)
    text_of_level = np.zeros(level.max() + 1, int)
    text_of_level[level] = text
    return level, text_of_level


def _operator_times(
    numbers: np.ndarray, traffic: np.ndarray, kind: np.ndarray, kinds: int, rng: np.random.Generator
) -> np.ndarray:
    """Time (n,) of each line on one random device."""

    def factors(spread: float) -> np.ndarray:
        return np.exp(spread * rng.standard_normal(kinds))[kind]

    # 1. How well the arithmetic of an operator fits the device: its kernel, groups, width and
    #    resolution.
    slopes = rng.normal(0, [0.25, 0.2, 0.15, 0.1])
    best_width = rng.uniform(4, 10)
    uneven = np.abs(numbers[:, WIDTH] - best_width)
    sizes = np.stack([numbers[:, KERNEL], numbers[:, GROUP], uneven, numbers[:, RESOLUTION]])
    slowness = np.exp(slopes @ sizes)

    # 2. Times of arithmetic and of memory, relative to their means.
    flops = 2.0 ** numbers[:, FLOPS] - 1
    compute = flops * factors(rng.uniform(0.1, 1.2)) * slowness
    memory = traffic * factors(0.4)
    compute = compute / (compute.mean() or 1.0)
    memory = memory / (memory.mean() or 1.0)

    # 3. One after the other, or at once.
    of_compute, of_memory, of_overhead = np.exp(rng.normal(0, 1.2, 3))
    is_sum = rng.random() < 0.5
    combine = np.add if is_sum else np.maximum
    time = combine(of_compute * compute, of_memory * memory)

    # 4. The overhead of most kinds of operators.
    has_overhead = (rng.random(kinds) < 0.8)[kind]
    overhead = of_overhead * rng.choice([0.1, 0.5, 1.0]) * factors(1.0)
    return time + overhead * has_overhead


# --- qualities


def random_qualities(batch: Batch, rng: np.random.Generator, count: int) -> np.ndarray:
    """Scores (B, count) that resemble accuracies.

    They are sums of random values of operators and their inputs, plus a random function of sizes.
    """
    text = batch.text.numpy()
    totals = batch.totals.numpy().astype(float)
    lines_of_text = np.bincount(text, minlength=len(totals))
    totals = (totals - totals.mean(0)) / (totals.std(0) + 1e-6)
    scores = np.empty((len(totals), count))
    for column in range(count):
        worth = _worths(batch, rng)
        sums = np.bincount(text, worth, minlength=len(totals))
        of_lines = sums / lines_of_text ** rng.choice([0.5, 1.0])
        of_lines = (of_lines - of_lines.mean()) / (of_lines.std() + 1e-9)
        slopes = rng.standard_normal(TEXT_NUMBERS) * rng.choice([0, 0.3, 1.0], TEXT_NUMBERS)
        scores[:, column] = of_lines + totals @ slopes
    return scores


def _worths(batch: Batch, rng: np.random.Generator) -> np.ndarray:
    """A random value (n,) of each line: the sum of its words', perhaps scaled by place and size."""
    numbers = batch.numbers.numpy().astype(float)
    position = batch.position.numpy()
    starts = batch.starts.numpy()
    words = batch.words.numpy()
    line_of_word = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(words))))
    vocabulary, word = np.unique(words, return_inverse=True)
    of_word = rng.standard_normal(len(vocabulary)) * np.exp(rng.normal(0, 0.7, len(vocabulary)))
    worth = np.bincount(line_of_word, of_word[word], minlength=len(starts)).astype(float)
    if rng.random() < 0.6:
        worth = worth * (1 + rng.normal() * (position - 0.5))
    if rng.random() < 0.5:
        worth = worth * numbers[:, WIDTH]
    if rng.random() < 0.4:
        worth = worth * numbers[:, FLOPS] / 10
    if rng.random() < 0.6:
        worth = _with_sources(worth, batch, rng)
    return np.tanh(worth) if rng.random() < 0.3 else worth


def _with_sources(worth: np.ndarray, batch: Batch, rng: np.random.Generator) -> np.ndarray:
    """Values (n,) that also depend on a line's inputs, and perhaps on the inputs of these."""
    source, target = batch.edges.numpy()

    def of_inputs(values: np.ndarray) -> np.ndarray:
        return np.bincount(target, np.tanh(values[source]), minlength=len(worth))

    fed = of_inputs(worth * rng.uniform(0.3, 1.5))
    values = worth + rng.normal(0, 1.5) * np.tanh(fed) * np.tanh(worth)
    if rng.random() < 0.5:
        values = values + rng.normal(0, 1.5) * of_inputs(fed)
    return values


# --- random networks


@torch.inference_mode()
def random_networks(texts: Sequence[Tokens], seed: int) -> np.ndarray:
    """Outputs (B, RANDOM_ENCODERS * ENCODER_OUTPUTS) of untrained encoders, one to four layers."""
    outputs = []
    for number in range(RANDOM_ENCODERS):
        # 1. The principal axes of its states, flattened.                                  (B, AXES)
        states = _random_states(texts, number, seed)
        rng = np.random.default_rng([seed, number])
        left, sizes, _ = np.linalg.svd(states - states.mean(0), full_matrices=False)
        axes = left[:, :AXES] * sizes[:AXES] ** rng.uniform(0.3, 1.0)
        axes = axes / axes.std()

        # 2. A random network of one hidden layer on them.
        count = axes.shape[1]
        weights = rng.standard_normal((count, HIDDEN)) / count**0.5 * rng.uniform(0.5, 2.0)
        hidden = np.tanh(axes @ weights + 0.3 * rng.standard_normal(HIDDEN))
        outputs.append(hidden @ rng.standard_normal((HIDDEN, ENCODER_OUTPUTS)))
    return np.concatenate(outputs, 1)


def _random_states(texts: Sequence[Tokens], number: int, seed: int) -> np.ndarray:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1000 + 17 * seed + number)
        config = EncoderConfig(width=64, layers=1 + number % 4, structure=64, frequencies=2)
        encoder = TextEncoder(config).eval()
        encoder.words.weight.mul_(0.5 + 1.5 * torch.rand(()))
    parts = [encoder(collate(texts[start : start + 64])) for start in range(0, len(texts), 64)]
    return torch.cat(parts)[:, : config.structure].double().numpy()
