"""Duplicates: architectures of equal text, which are the same network."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import numpy as np


def repeat_exactly(results: Iterable[tuple[Hashable, Sequence[float] | np.ndarray]]) -> bool:
    """True if duplicates were trained and always reached equal accuracies, so that training another is useless.

    Args:
        results: for each training, a key that duplicates share, and its accuracies (k,) in %.
    """
    first: dict[Hashable, Sequence[float] | np.ndarray] = {}
    count = 0
    for key, accuracies in results:
        if not np.array_equal(first.setdefault(key, accuracies), accuracies):
            return False
        count += 1
    return len(first) < count
