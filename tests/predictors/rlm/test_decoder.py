"""Claims about decoding: samples follow the digits' distributions, in order, and are always
numbers.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from predictors.rlm.decoder import (
    START,
    NumberDecoder,
    grammar,
    read_numbers,
    sample_numbers,
    write_numbers,
)
from predictors.rlm.in_context import ContextConfig

CONFIG = ContextConfig(width=8, number_width=8, number_layers=2)
ALLOWED = grammar()
EVERY = np.array(list(product(*(np.flatnonzero(row) for row in ALLOWED))))  # (2000, 4)


def _decoder(seed: int = 0, scale: float = 1.0) -> NumberDecoder:
    torch.manual_seed(seed)
    decoder = NumberDecoder(CONFIG).eval()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(scale)
    return decoder


def _evenly(samples: int) -> np.ndarray:
    """Quantiles (samples,) in the middle of equal parts."""
    return (np.arange(samples) + 0.5) / samples


@torch.inference_mode()
def _sampled(decoder: NumberDecoder, gathered: torch.Tensor, quantiles: np.ndarray) -> np.ndarray:
    """Scores (q, samples) for gathered states (q, D), all at the same quantiles (samples,)."""
    conditions = decoder.conditions(gathered)
    rows = np.repeat(np.arange(len(gathered)), len(quantiles))
    return sample_numbers(decoder, conditions, rows, np.tile(quantiles, len(gathered))).reshape(
        len(gathered), -1
    )


@torch.inference_mode()
def _probabilities(decoder: NumberDecoder, gathered: torch.Tensor) -> np.ndarray:
    """Probability (2000,) of each number for one query, by teacher forcing."""
    conditions = decoder.conditions(gathered).expand(len(EVERY), -1)
    tokens = np.concatenate([np.full((len(EVERY), 1), START), EVERY[:, :-1]], 1)
    logits = decoder(conditions, torch.from_numpy(tokens)).double()
    share = logits.masked_fill(~torch.from_numpy(ALLOWED), -torch.inf).log_softmax(-1)
    return share.gather(-1, torch.from_numpy(EVERY)[..., None]).sum((1, 2)).exp().numpy()


def _frequencies(scores: np.ndarray) -> np.ndarray:
    """Share of samples in each of 41 equal ranges of scores."""
    return np.histogram(scores, np.linspace(-10, 10, 42))[0] / len(scores)


@pytest.mark.parametrize("seed", range(3))
def test_samples_follow_the_digit_distributions(seed: int) -> None:
    decoder, gathered = _decoder(seed), torch.randn(1, CONFIG.width)
    probability = _probabilities(decoder, gathered)
    assert probability.sum() == pytest.approx(1)
    samples = _sampled(decoder, gathered, _evenly(2000))[0]
    expected = np.histogram(read_numbers(EVERY), np.linspace(-10, 10, 42), weights=probability)[0]
    np.testing.assert_allclose(_frequencies(samples), expected, atol=2 / 2000)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.lists(st.floats(0, 1, exclude_max=True), min_size=2, max_size=30))
def test_a_higher_quantile_is_a_higher_number(seed: int, quantiles: list[float]) -> None:
    scores = _sampled(_decoder(seed), torch.randn(1, CONFIG.width), np.sort(quantiles))[0]
    assert (np.diff(scores) >= 0).all()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([0.0, 1.0, 30.0, 1e6, float("inf"), float("nan")]))
def test_only_numbers_are_decoded_for_any_weights(seed: int, scale: float) -> None:
    gathered = torch.randn(3, CONFIG.width) * 10
    scores = _sampled(_decoder(seed, scale), gathered, _evenly(8))
    assert scores.shape == (3, 8)
    np.testing.assert_allclose(read_numbers(write_numbers(scores)), scores, atol=1e-9)


def test_a_decoder_without_weights_writes_all_numbers_equally_often() -> None:
    scores = _sampled(_decoder(scale=0.0), torch.randn(1, CONFIG.width), _evenly(2000))[0]
    np.testing.assert_allclose(scores, np.sort(read_numbers(EVERY)), atol=0.011)


def test_queries_are_decoded_as_if_each_were_alone() -> None:
    decoder, gathered = _decoder(), torch.randn(5, CONFIG.width)
    together = _sampled(decoder, gathered, _evenly(16))
    alone = [_sampled(decoder, one[None], _evenly(16))[0] for one in gathered]
    np.testing.assert_allclose(together, alone, atol=0.011)
