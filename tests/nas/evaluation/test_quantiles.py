"""Claims about intervals of predictions: samples are the middles of equal parts of a
distribution.
"""

from __future__ import annotations

import numpy as np
import pytest

from nas.evaluation.devices import quantiles


@pytest.mark.parametrize("count", [10, 16, 32, 64])
def test_intervals_hold_their_share_of_the_distribution(count: int) -> None:
    uniform = (np.random.default_rng(count).permutation(count) + 0.5) / count
    shares = [0.05, 0.25, 0.5, 0.75, 0.95]
    found = quantiles(np.stack([uniform, 3 * uniform - 1]), shares)
    np.testing.assert_allclose(found, np.stack([shares, 3 * np.array(shares) - 1], 1), atol=1e-12)
