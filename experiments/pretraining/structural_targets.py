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
LEVELS = 4000  # resolution of a line's depth in its text
# Columns of `Tokens.numbers`
PARAMS, FLOPS, ELEMENTS, WIDTH, RESOLUTION, KERNEL, GROUP = 0, 1, 2, 3, 4, 6, 8


def structural_targets(texts: Sequence[Tokens], seed: int) -> np.ndarray:
    """Targets (B, DEVICES + QUALITIES + RANDOM_ENCODERS * ENCODER_OUTPUTS) of the B texts of one
    space.
    """
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
    level, first = _levels(batch)
    latencies = np.empty((len(batch.totals), count))
    for device in range(count):
        time = _operator_times(numbers, traffic, kind, len(kinds), rng)
        if rng.random() < 0.4:
            power = rng.choice([2.0, 4.0])
            time = np.bincount(level, time**power) ** (1 / power)
            latencies[:, device] = np.bincount(first, time, minlength=len(latencies)).astype(float)
        else:
            latencies[:, device] = np.bincount(batch.text.numpy(), time, minlength=len(latencies))
    return latencies


def _traffic(batch: Batch, numbers: np.ndarray) -> np.ndarray:
    """Count of numbers (n,) that each line reads and writes."""
    elements = 2.0 ** numbers[:, ELEMENTS] - 1
    source, target = batch.edges.numpy()
    return (
        elements
        + np.bincount(target, elements[source], minlength=len(elements))
        + 2.0 ** numbers[:, PARAMS]
        - 1
    )


def _levels(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """The level (n,) of each line and the text of each level. Tokens of a text with equal depth
    share a level.
    """
    depth = (batch.position.numpy() * LEVELS).astype(int)
    text = batch.text.numpy()
    _, level = np.unique(text * (LEVELS + 1) + depth, return_inverse=True)
    first = np.zeros(level.max() + 1, int)
    first[level] = text
    return level, first


def _operator_times(
    numbers: np.ndarray, traffic: np.ndarray, kind: np.ndarray, kinds: int, rng: np.random.Generator
) -> np.ndarray:
    """Time (n,) of each line on one random device."""

    def factors(spread: float) -> np.ndarray:
        return np.exp(spread * rng.standard_normal(kinds))[kind]

    slopes = rng.normal(0, [0.25, 0.2, 0.15, 0.1])
    uneven = np.abs(numbers[:, WIDTH] - rng.uniform(4, 10))
    shape = slopes @ np.stack(
        [numbers[:, KERNEL], numbers[:, GROUP], uneven, numbers[:, RESOLUTION]]
    )
    compute = (2.0 ** numbers[:, FLOPS] - 1) * factors(rng.uniform(0.1, 1.2)) * np.exp(shape)
    memory = traffic * factors(0.4)
    compute = compute / (compute.mean() or 1.0)
    memory = memory / (memory.mean() or 1.0)
    share = np.exp(rng.normal(0, 1.2, 3))
    if rng.random() < 0.5:
        time = share[0] * compute + share[1] * memory
    else:
        time = np.maximum(share[0] * compute, share[1] * memory)
    has_overhead = (rng.random(kinds) < 0.8)[kind]
    return time + share[2] * rng.choice([0.1, 0.5, 1.0]) * factors(1.0) * has_overhead


# --- qualities


def random_qualities(batch: Batch, rng: np.random.Generator, count: int) -> np.ndarray:
    """Scores (B, count) that resemble accuracies: random values of operators and their inputs, plus
    sizes.
    """
    text = batch.text.numpy()
    totals = batch.totals.numpy().astype(float)
    lines_of_text = np.bincount(text, minlength=len(totals))
    totals = (totals - totals.mean(0)) / (totals.std(0) + 1e-6)
    scores = np.empty((len(totals), count))
    for column in range(count):
        worth = _worths(batch, rng)
        total = np.bincount(text, worth, minlength=len(totals)) / lines_of_text ** rng.choice(
            [0.5, 1.0]
        )
        of_sizes = totals @ (
            rng.standard_normal(TEXT_NUMBERS) * rng.choice([0, 0.3, 1.0], TEXT_NUMBERS)
        )
        scores[:, column] = (total - total.mean()) / (total.std() + 1e-9) + of_sizes
    return scores


def _worths(batch: Batch, rng: np.random.Generator) -> np.ndarray:
    """Random value (n,) of each line."""
    numbers = batch.numbers.numpy().astype(float)
    position = batch.position.numpy()
    starts = batch.starts.numpy()
    words = batch.words.numpy()
    line_of_word = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(words))))
    vocabulary, word = np.unique(words, return_inverse=True)
    of_word = rng.standard_normal(len(vocabulary)) * np.exp(rng.normal(0, 0.7, len(vocabulary)))
    worth: np.ndarray = np.bincount(line_of_word, of_word[word], minlength=len(starts)).astype(
        float
    )
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
    fed = np.bincount(target, np.tanh(worth[source] * rng.uniform(0.3, 1.5)), minlength=len(worth))
    values = worth + rng.normal(0, 1.5) * np.tanh(fed) * np.tanh(worth)
    if rng.random() < 0.5:
        values = values + rng.normal(0, 1.5) * np.bincount(
            target, np.tanh(fed[source]), minlength=len(worth)
        )
    return values


# --- random networks


@torch.inference_mode()
def random_networks(texts: Sequence[Tokens], seed: int) -> np.ndarray:
    """Outputs (B, RANDOM_ENCODERS * ENCODER_OUTPUTS) of untrained encoders with one to four
    layers.
    """
    outputs = []
    for number in range(RANDOM_ENCODERS):
        states = _random_states(texts, number, seed)
        rng = np.random.default_rng([seed, number])
        left, sizes, _ = np.linalg.svd(states - states.mean(0), full_matrices=False)
        axes = left[:, :AXES] * sizes[:AXES] ** rng.uniform(0.3, 1.0)
        axes = axes / axes.std()
        inner = (
            rng.standard_normal((axes.shape[1], 32)) / axes.shape[1] ** 0.5 * rng.uniform(0.5, 2.0)
        )
        hidden = np.tanh(axes @ inner + 0.3 * rng.standard_normal(32))
        outputs.append(hidden @ rng.standard_normal((32, ENCODER_OUTPUTS)))
    return np.concatenate(outputs, 1)


def _random_states(texts: Sequence[Tokens], number: int, seed: int) -> np.ndarray:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1000 + 17 * seed + number)
        config = EncoderConfig(width=64, layers=1 + number % 4, structure=64, frequencies=2)
        encoder = TextEncoder(config).eval()
        encoder.words.weight.mul_(0.5 + 1.5 * torch.rand(()))
    parts = [encoder(collate(texts[start : start + 64])) for start in range(0, len(texts), 64)]
    return torch.cat(parts)[:, : config.structure].double().numpy()
