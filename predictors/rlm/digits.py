"""Scores as tokens: sign, units, tenths, hundredths; -1.238 is `- 1 2 4`. Scores are rounded, not
truncated.
"""

from __future__ import annotations

import numpy as np

PLUS, MINUS, ZERO = 0, 1, 2
NUMBER_TOKENS = 12
NUMBER_LENGTH = 4
MAX_SCORE = 9.99


def allowed() -> np.ndarray:
    """Mask (NUMBER_LENGTH, NUMBER_TOKENS), True where the grammar allows a token; any allowed
    sequence is a number.
    """
    mask = np.zeros((NUMBER_LENGTH, NUMBER_TOKENS), bool)
    mask[0, :ZERO] = True
    mask[1:, ZERO:] = True
    return mask


def encode(scores: np.ndarray) -> np.ndarray:
    """Tokens (…, NUMBER_LENGTH) of finite scores (…), which are clipped to ±`MAX_SCORE`."""
    hundredths = np.rint(np.clip(scores, -MAX_SCORE, MAX_SCORE) * 100).astype(np.int64)
    size = np.abs(hundredths)
    digits = [size // 100, size // 10 % 10, size % 10]
    return np.stack([np.where(hundredths < 0, MINUS, PLUS), *(ZERO + d for d in digits)], -1)


def decode(tokens: np.ndarray) -> np.ndarray:
    """Scores (…) of tokens (…, NUMBER_LENGTH)."""
    size = ((tokens[..., 1:] - ZERO) * np.array([1.0, 0.1, 0.01])).sum(-1)
    return np.where(tokens[..., 0] == MINUS, -size, size)
