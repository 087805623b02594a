"""Claims about the table of jointly learned metrics."""

from __future__ import annotations

import numpy as np

from experiments.joint_metrics import _means


def test_networks_with_equal_texts_get_their_mean() -> None:
    assert _means(["b", "a", "b", "c"], np.array([1.0, 5.0, 2.0, 7.0])).tolist() == [
        1.5,
        5.0,
        1.5,
        7.0,
    ]
