"""Number of threads of numerical libraries: one, unless a training step is large or the user sets a number.

Networks and predictors are small here, so threads that wait for each other cost more than they gain, above all on busy
cores: a training step of a small cell took 31 ms with one thread and 3,900 ms with two spinning threads.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

VARIABLE = "OMP_NUM_THREADS"
_LINEAR_ALGEBRA = ("scipy.linalg", "sklearn.utils")  # libraries with thread pools of their own
_OVERRIDING = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # come first in these libraries
_CHOSEN = "NAS_CHOSE_THREADS"  # environment variable that tells child processes that the user set no number
MULTIPLY_ADDS_PER_THREAD = 2_000_000_000  # of one training step; a further thread pays from here on


def set_default_threads() -> None:
    """Use one thread in this process and its children, and let idle threads sleep, unless the user set the variables.

    Call it before numpy and torch are imported, because they read the variables on import.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if VARIABLE not in os.environ:
        os.environ[VARIABLE] = "1"
        os.environ[_CHOSEN] = "1"


@contextmanager
def threads_for(multiply_adds: float) -> Iterator[None]:
    """Set torch's number of threads by the cost of a training step, at most one per core; the user's number wins."""
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
    """Use one thread in torch and linear algebra, since the last digits of sums depend on the number of threads.

    A limit applies to loaded libraries only, so they are imported first, unless they begin with one thread anyway.
    """
    from threadpoolctl import threadpool_limits

    if os.environ.get(VARIABLE) != "1" or any(os.environ.get(name, "1") != "1" for name in _OVERRIDING):
        for library in (*_LINEAR_ALGEBRA, "torch"):
            import_module(library)
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else 1
    if torch:
        torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        if torch:
            torch.set_num_threads(before)
