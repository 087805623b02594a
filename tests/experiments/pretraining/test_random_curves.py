"""Claims about the random learning curves that the in-context decoder is pretrained on."""

from __future__ import annotations

import numpy as np
from scipy.stats import spearmanr

from experiments.pretraining.random_curves import LATENTS, draw_curves

SEEDS = range(40)


def _curves(seed: int, length: int = 8) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return draw_curves(rng.standard_normal((80, LATENTS)), length, rng)


def test_curves_rise() -> None:
    gains = [np.median(curves[:, -1] - curves[:, 0]) for curves in map(_curves, SEEDS)]
    assert np.mean(np.array(gains) > 0) > 0.9


def test_curves_saturate() -> None:
    drawn = [_curves(seed) for seed in SEEDS]
    first = [np.median(curves[:, 2] - curves[:, 0]) for curves in drawn]
    last = [np.median(curves[:, -1] - curves[:, -3]) for curves in drawn]
    assert np.mean(np.array(first) > np.array(last)) > 0.8


def test_later_values_predict_the_end_better_and_curves_cross() -> None:
    early = [spearmanr(curves[:, 0], curves[:, -1]).statistic for curves in map(_curves, SEEDS)]
    late = [spearmanr(curves[:, -2], curves[:, -1]).statistic for curves in map(_curves, SEEDS)]
    assert np.mean(late) > np.mean(early) + 0.1
    assert min(early) < 0.5


def test_some_trainings_fail() -> None:
    falls = [np.mean(np.diff(curves, axis=1).min(1) < -1.0) for curves in map(_curves, range(100))]
    assert 0.03 < np.mean(np.array(falls) > 0.01) < 0.5
