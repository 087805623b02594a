"""How many threads numerical libraries use: one, unless a training step is worth more, or the user says otherwise.

The networks and predictors here are small. Threads that wait for each other then cost more than they bring, above all
on busy cores: a training step of a small cell took 31 ms with one thread and 3,900 ms with two that spin.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

VARIABLE = "OMP_NUM_THREADS"
_LINEAR_ALGEBRA = ("scipy.linalg", "sklearn.utils")  # each brings threads of its own
_CHOSEN = "NAS_CHOSE_THREADS"  # environment variable that tells children that the user set no number
MULTIPLY_ADDS_PER_THREAD = 2_000_000_000  # of one training step, from which on a further thread pays


def set_default_threads() -> None:
    """Use one thread in this process and its children, and let waiting threads sleep; the user's variables win.

    It must come before numpy and torch are imported, which read the variables when they are loaded.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if VARIABLE not in os.environ:
        os.environ[VARIABLE] = "1"
        os.environ[_CHOSEN] = "1"


@contextmanager
def threads_for(multiply_adds: float) -> Iterator[None]:
    """Use as many threads in torch as one training step is worth, at most one per core; the user's number wins."""
    import torch

    before = torch.get_num_threads()
    if VARIABLE not in os.environ or _CHOSEN in os.environ:
        torch.set_num_threads(max(1, min(os.cpu_count() or 1, int(multiply_adds / MULTIPLY_ADDS_PER_THREAD))))
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread in torch and in linear algebra: the last digits of sums depend on how many share them.

    Libraries that are loaded within it would use more, so they are loaded before.
    """
    import torch
    from threadpoolctl import threadpool_limits

    for library in _LINEAR_ALGEBRA:
        import_module(library)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)
