"""Constrained decoding of numbers: all samples of a text at once, or all numbers with their probabilities."""

from __future__ import annotations

import torch
from torch import Tensor

from predictors.rlm.model import NumberDecoder
from predictors.rlm.numbers import NUMBER_TOKENS

BRANCHES = 16


class Sampler:
    """Arithmetic sampling (arXiv 2210.15458): sample s follows the quantile (s + offset) / S through the digit tree.

    Each sample is drawn exactly from the model's distribution, and together they cover it evenly, so a mean over them
    is far less noisy than one over independent samples. Between metrics the quantiles are shuffled: samples stay joint.
    """

    def __init__(self, allowed: Tensor, randomness: Tensor) -> None:
        """allowed: (length, 12). randomness: (B, metrics, 1 + S) in [0, 1), of each text's own."""
        self.allowed, self.randomness = allowed, randomness

    @property
    def samples(self) -> int:
        return self.randomness.shape[2] - 1

    def quantiles(self, column: int) -> Tensor:
        """Fresh quantiles (B, S), one in every S-th of [0, 1): in order for the first metric, then in random order."""
        numbers = self.randomness[:, column]
        order = numbers[:, 1:].argsort(1) if column else torch.arange(self.samples).expand(len(numbers), -1)
        return (order + numbers[:, :1]) / self.samples

    def pick(self, logits: Tensor, place: int, quantiles: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens (B, S) at these quantiles of logits (B, S, 12), and the quantiles within the picked tokens."""
        masked = torch.nan_to_num(logits.double(), nan=0.0, posinf=1e4, neginf=-1e4)
        probability = masked.masked_fill(~self.allowed[place], -torch.inf).softmax(-1)
        total = probability.cumsum(-1)
        total = total / total[..., -1:]
        tokens = torch.searchsorted(total, quantiles[..., None], right=True)[..., 0]
        last = NUMBER_TOKENS - 1 - self.allowed[place].flip(0).int().argmax()
        tokens = tokens.clamp(max=int(last))
        share = probability.gather(-1, tokens[..., None])[..., 0]
        start = total.gather(-1, tokens[..., None])[..., 0] - share
        return tokens, ((quantiles - start) / share.clamp_min(1e-300)).clamp(0, 1 - 1e-12)


def _prefixes(owner: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Number the distinct prefixes among neighbouring samples.

    owner, tokens: (B, S), each sample's old prefix and new token. Returns each sample's new prefix (B, S) and a sample
    that stands for each prefix (B, G); rows with fewer prefixes repeat one.
    """
    new = torch.ones_like(owner, dtype=torch.bool)
    new[:, 1:] = (owner[:, 1:] != owner[:, :-1]) | (tokens[:, 1:] != tokens[:, :-1])
    prefix = new.long().cumsum(1) - 1
    stands = torch.zeros(len(owner), int(prefix.max()) + 1, dtype=torch.long)
    return prefix, stands.scatter_(1, prefix, torch.arange(owner.shape[1]).expand_as(owner))


@torch.inference_mode()
def sample_numbers(
    decoder: NumberDecoder, memory: Tensor, forced: Tensor, slots: list[int], sampler: Sampler
) -> Tensor:
    """Number tokens (B, S, asked metrics, length) of the metrics in `slots`, in that order, conditioned on `forced`.

    memory: (B, M, D). forced: tokens (B, P), a prefix of known metrics with their numbers, the same for all samples.
    The decoder runs once for all samples that agree so far: with quantiles in order those are neighbours.
    """
    batch, length = len(memory), len(sampler.allowed)
    caches = decoder.caches(memory, forced, len(slots) * (length + 1))
    position = forced.shape[1]
    owner = torch.zeros(batch, sampler.samples, dtype=torch.long)
    stands = torch.zeros(batch, 1, dtype=torch.long)
    alone = torch.arange(sampler.samples).expand_as(owner)
    merged = True
    numbers = torch.empty(batch, sampler.samples, len(slots), length, dtype=torch.long)
    for column, slot in enumerate(slots):
        tokens = torch.full((batch, sampler.samples), NUMBER_TOKENS + slot)
        quantiles = sampler.quantiles(column)
        for place in range(length):
            logits = decoder.step(tokens.gather(1, stands), position, caches)
            logits = logits.gather(1, owner[..., None].expand(-1, -1, NUMBER_TOKENS))
            tokens, quantiles = sampler.pick(logits, place, quantiles)
            numbers[:, :, column, place] = tokens
            position += 1
            if merged:
                prefix, stands = _prefixes(owner, tokens)
                merged = 2 * stands.shape[1] <= sampler.samples
                if not merged:  # so few agree that moving caches would cost more than decoding them twice
                    prefix = stands = alone
                for cache in caches:
                    cache.select(owner.gather(1, stands))
                owner = prefix
        if column + 1 < len(slots):
            decoder.step(tokens.gather(1, stands), position, caches)
            position += 1
    return numbers


@torch.inference_mode()
def digit_tree(
    decoder: NumberDecoder, memory: Tensor, forced: Tensor, slot: int, allowed: Tensor, most: int = BRANCHES
) -> tuple[Tensor, Tensor]:
    """The numbers that a metric may be, as tokens (B, leaves, length), and their probabilities (B, leaves).

    Every digit is followed, not a sample of them; at each place the `most` likeliest beginnings go on. What the others
    would have had is shared out: probabilities sum to 1.
    """
    batch, length = len(memory), len(allowed)
    caches = decoder.caches(memory, forced, length)
    found = torch.empty(batch, 1, 0, dtype=torch.long)
    probability = torch.ones(batch, 1, dtype=torch.double)
    tokens = torch.full((batch, 1), NUMBER_TOKENS + slot)
    for place in range(length):
        logits = decoder.step(tokens, forced.shape[1] + place, caches)
        options = allowed[place].nonzero()[:, 0]
        finite = torch.nan_to_num(logits.double(), nan=0.0, posinf=1e4, neginf=-1e4)
        joint = probability[..., None] * finite[..., options].softmax(-1)  # (B, beginnings, options)
        kept = joint.shape[1] * len(options) if place == length - 1 else min(most, joint[0].numel())
        probability, chosen = joint.flatten(1).topk(kept, sorted=False)
        parent = chosen // len(options)
        tokens = options[chosen % len(options)]
        found = torch.cat([found.gather(1, parent[..., None].expand(-1, -1, place)), tokens[..., None]], 2)
        if place < length - 1:
            for cache in caches:
                cache.select(parent)
    return found, probability / probability.sum(1, keepdim=True)
