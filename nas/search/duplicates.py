"""Duplicates: architectures of equal text, which are the same network."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import numpy as np

ROUNDING = 1e-6  # relative: two processors round the result of one training differently


def repeat_exactly(results: Iterable[tuple[Hashable, Sequence[float] | np.ndarray]]) -> bool:
    """True if duplicates were trained and always reached equal accuracies, so that training another
    is useless.

    Accuracies that differ by `ROUNDING` are equal: another machine may have computed them.

    Args:
        results: for each training, a key that duplicates share, and its accuracies (k,) in %.
    """
    first: dict[Hashable, Sequence[float] | np.ndarray] = {}
    count = 0
    for key, accuracies in results:
        if not np.allclose(first.setdefault(key, accuracies), accuracies, rtol=ROUNDING, atol=0):
            return False
        count += 1
    return len(first) < count
