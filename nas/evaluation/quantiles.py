"""Quantiles of predicted samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def quantiles(samples: np.ndarray, shares: Sequence[float]) -> np.ndarray:
    """Quantiles (shares, n) of samples (n, s), each of which is the middle of an equal part of its
    distribution.

    numpy's default takes the outer samples for the ends of the distribution. Its central 90 % of 32
    such samples hold 87 % of the distribution.
    """
    return np.quantile(samples, shares, axis=1, method="hazen")
