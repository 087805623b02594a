"""Claims about digits and how they are sampled."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from predictors.rlm import digits
from predictors.rlm.context import ContextConfig, NumberDecoder
from predictors.rlm.decoding import sample_scores

CONFIG = ContextConfig(width=16, number_width=16, number_layers=1)


def _decoder(seed: int = 0, scale: float = 1.0) -> NumberDecoder:
    torch.manual_seed(seed)
    decoder = NumberDecoder(CONFIG).eval()
    with torch.no_grad():
        decoder.head.weight.mul_(scale)
    return decoder


@given(st.floats(-9.99, 9.99))
def test_a_score_is_written_to_the_nearest_hundredth(score: float) -> None:
    tokens = digits.encode(np.array([score]))
    assert abs(digits.decode(tokens)[0] - score) <= 0.005 + 1e-9
    assert digits.allowed()[np.arange(digits.NUMBER_LENGTH), tokens[0]].all()


@given(st.floats(-1e6, 1e6))
def test_larger_scores_are_the_largest_number(score: float) -> None:
    written = digits.decode(digits.encode(np.array([score])))[0]
    assert abs(written) <= digits.LARGEST
    assert abs(written - np.clip(score, -digits.LARGEST, digits.LARGEST)) <= 0.005 + 1e-9


@torch.no_grad()
def test_samples_follow_the_probabilities_of_the_digits() -> None:
    decoder, gathered = _decoder(), torch.randn(1, 16, generator=torch.Generator().manual_seed(1))
    condition = decoder.conditions(gathered, torch.arange(1))[:, 0]
    mean = 0.0
    mask = torch.from_numpy(digits.allowed())
    for prefix in itertools.product((digits.PLUS, digits.MINUS), range(10), range(10)):
        tokens = torch.tensor([[digits.NUMBER_TOKENS, prefix[0], *(digits.ZERO + d for d in prefix[1:])]])
        logits = decoder(condition[:, None].expand(-1, 4, -1), tokens)[0].masked_fill(~mask, -1e9)
        probability = logits.softmax(-1)
        chosen = probability[torch.arange(3), tokens[0, 1:]].prod()
        hundredths = (probability[3, digits.ZERO :] * torch.arange(10)).sum() / 100
        size = prefix[1] + prefix[2] / 10 + hundredths
        mean += float(chosen * size) * (-1 if prefix[0] == digits.MINUS else 1)
    sampled = sample_scores(decoder, condition.expand(4000, -1), (np.arange(4000) + 0.5) / 4000)
    assert abs(sampled.mean() - mean) < 0.01
    assert (np.diff(sampled) >= 0).all(), "higher quantiles are higher numbers"


def test_only_numbers_come_out_whatever_the_weights() -> None:
    for seed, scale in ((0, 1e4), (1, float("inf")), (2, float("nan"))):
        scores = sample_scores(_decoder(seed, scale), torch.randn(50, 16), np.random.default_rng(0).random(50))
        assert np.isfinite(scores).all()
        assert (np.abs(scores) <= digits.LARGEST).all()
