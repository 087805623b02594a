"""Claims about decoding: samples follow the digits' distributions, in order, jointly, and are always numbers."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from predictors.rlm import digits
from predictors.rlm.context import ContextConfig, NumberDecoder
from predictors.rlm.decoding import sample_scores

CONFIG = ContextConfig(width=8, number_width=8, number_layers=2)
STEP = digits.NUMBER_LENGTH + 1
ALLOWED = digits.allowed()
EVERY = np.array(list(product(*(np.flatnonzero(row) for row in ALLOWED))))  # (2000, 4)


def _decoder(seed: int = 0, scale: float = 1.0) -> NumberDecoder:
    torch.manual_seed(seed)
    decoder = NumberDecoder(CONFIG).eval()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(scale)
    return decoder


def _evenly(samples: int, metrics: int, texts: int = 1, seed: int = 0) -> np.ndarray:
    """Quantiles (texts, samples, metrics) in the middle of equal parts, in random order after the first metric."""
    rng = np.random.default_rng(seed)
    middle = (np.arange(samples) + 0.5) / samples
    columns = [middle, *(rng.permutation(middle) for _ in range(metrics - 1))]
    return np.tile(np.stack(columns, 1), (texts, 1, 1))


@torch.inference_mode()
def _probabilities(decoder: NumberDecoder, gathered: torch.Tensor, before: list[np.ndarray]) -> np.ndarray:
    """Probability (2000,) of every number of the next slot for one query, by teacher forcing of all of them."""
    slots = torch.arange(len(before) + 1)
    conditions = decoder.conditions(gathered, slots).repeat_interleave(STEP, 1).expand(len(EVERY), -1, -1)
    columns = []
    for slot, number in enumerate([*before, EVERY]):
        columns.append(np.full((len(EVERY), 1), digits.NUMBER_TOKENS + slot))
        columns.append(np.broadcast_to(number, EVERY.shape))
    logits = decoder(conditions, torch.from_numpy(np.concatenate(columns, 1)))[:, -STEP:-1].double()
    share = logits.masked_fill(~torch.from_numpy(ALLOWED), -torch.inf).log_softmax(-1)
    return share.gather(-1, torch.from_numpy(EVERY)[..., None]).sum((1, 2)).exp().numpy()


def _frequencies(scores: np.ndarray) -> np.ndarray:
    """Share of samples in each of 41 equal ranges of scores."""
    return np.histogram(scores, np.linspace(-10, 10, 42))[0] / len(scores)


@pytest.mark.parametrize("seed", range(3))
def test_samples_follow_the_digit_distributions(seed: int) -> None:
    decoder, gathered = _decoder(seed), torch.randn(1, CONFIG.width)
    probability = _probabilities(decoder, gathered, [])
    assert probability.sum() == pytest.approx(1)
    samples = sample_scores(decoder, gathered, 1, _evenly(2000, 1))[0, :, 0]
    expected = np.histogram(digits.decode(EVERY), np.linspace(-10, 10, 42), weights=probability)[0]
    np.testing.assert_allclose(_frequencies(samples), expected, atol=2 / 2000)


def test_the_next_number_is_conditioned_on_the_one_before() -> None:
    decoder, gathered = _decoder(1, scale=1.5), torch.randn(1, CONFIG.width)
    quantiles = _evenly(2000, 2)
    quantiles[:, :, 0] = 0.3  # the same first number in all samples
    scores = sample_scores(decoder, gathered, 2, quantiles)[0]
    assert len(np.unique(scores[:, 0])) == 1
    probability = _probabilities(decoder, gathered, [digits.encode(scores[:1, 0])])
    expected = np.histogram(digits.decode(EVERY), np.linspace(-10, 10, 42), weights=probability)[0]
    np.testing.assert_allclose(_frequencies(scores[:, 1]), expected, atol=2 / 2000)
    quantiles[:, :, 0] = 0.9
    other = sample_scores(decoder, gathered, 2, quantiles)[0]
    assert not np.array_equal(other[:, 1], scores[:, 1])


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.lists(st.floats(0, 1, exclude_max=True), min_size=2, max_size=30))
def test_a_higher_quantile_is_a_higher_number(seed: int, quantiles: list[float]) -> None:
    chosen = np.sort(quantiles)[None, :, None]
    scores = sample_scores(_decoder(seed), torch.randn(1, CONFIG.width), 1, chosen)[0, :, 0]
    assert (np.diff(scores) >= 0).all()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([0.0, 1.0, 30.0, 1e6, float("inf"), float("nan")]))
def test_no_weights_can_write_anything_but_numbers(seed: int, scale: float) -> None:
    gathered = torch.randn(3, CONFIG.width) * 10
    scores = sample_scores(_decoder(seed, scale), gathered, 3, _evenly(8, 3, texts=3))
    assert scores.shape == (3, 8, 3)
    np.testing.assert_allclose(digits.decode(digits.encode(scores)), scores, atol=1e-9)


def test_a_decoder_without_weights_writes_all_numbers_equally_often() -> None:
    scores = sample_scores(_decoder(scale=0.0), torch.randn(1, CONFIG.width), 1, _evenly(2000, 1))[0, :, 0]
    np.testing.assert_allclose(scores, np.sort(digits.decode(EVERY)), atol=0.011)


def test_queries_are_decoded_as_if_each_were_alone() -> None:
    decoder, gathered = _decoder(), torch.randn(5, CONFIG.width)
    together = sample_scores(decoder, gathered, 2, _evenly(16, 2, texts=5))
    alone = [sample_scores(decoder, one[None], 2, _evenly(16, 2))[0] for one in gathered]
    np.testing.assert_allclose(together, alone, atol=0.011)
