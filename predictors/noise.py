"""Noise for samples: the same for the same text and seed, wherever the text stands among others."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
from scipy.special import ndtri


def text_noise(texts: Sequence[str], samples: int, metrics: int, seed: Sequence[int]) -> np.ndarray:
    """Independent standard normal noise (n, samples, metrics).

    Over the samples of one text it is the normal distribution's quantiles in random order: it adds up to zero, so that
    the samples' mean is not noisy.
    """
    levels = ndtri((np.arange(samples) + 0.5) / samples)
    levels /= levels.std() or 1.0
    rows = np.tile(levels, (metrics, 1))
    drawn = {
        text: np.random.default_rng([*seed, zlib.crc32(text.encode())]).permuted(rows, axis=1) for text in set(texts)
    }
    return np.array([drawn[text] for text in texts]).reshape(len(texts), metrics, samples).transpose(0, 2, 1)
