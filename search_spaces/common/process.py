"""What work sets in its process while it runs: the number of threads of numerical libraries, and
the garbage collector.

One thread, unless a training step is large or the user sets a number: networks and predictors are
small here, so threads that wait for each other cost more than they gain, above all on busy cores. A
training step of a small cell took 31 ms with one thread and 3,900 ms with two spinning threads.

The command line sets environment variables for its whole process (`set_default_threads`). Functions
of the Python API set the number while they run and restore it (`few_threads`). Both leave a number
that the user has set as it is.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

VARIABLE = "OMP_NUM_THREADS"
_LINEAR_ALGEBRA = ("scipy.linalg", "sklearn.utils")  # libraries with thread pools of their own
_OVERRIDING = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # come first in these libraries
# Environment variable that tells child processes that the user set no number
_CHOSEN = "NAS_CHOSE_THREADS"
MULTIPLY_ADDS_PER_THREAD = 2_000_000_000  # of one training step; a further thread pays from here on

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def set_default_threads() -> None:
    """Use one thread in this process and its children, and let idle threads sleep.

    Variables that the user set stay as they are. Call it before torch is imported, which reads the
    variables on import. Numpy is loaded already and is limited.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if VARIABLE not in os.environ:
        _pools.enter()  # until the process ends
        os.environ[VARIABLE] = "1"
        os.environ[_CHOSEN] = "1"


@contextmanager
def few_threads() -> Iterator[None]:
    """Use one thread within the block, as the command line does, unless the user chose a number.

    The user's choice is one of the environment variables `OMP_NUM_THREADS`, `OPENBLAS_NUM_THREADS`
    and `MKL_NUM_THREADS`, or a call of `torch.set_num_threads` with another number than torch's
    default, which is the number of cores. On exit, all numbers are what they were. Blocks may be
    nested, at the cost of microseconds, and may be in several threads.
    """
    if any(name in os.environ for name in (VARIABLE, *_OVERRIDING)):
        yield
        return
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else 1
    if before != 1 and before not in _default_numbers():  # the user called torch.set_num_threads
        yield
        return
    if torch and before != 1:
        torch.set_num_threads(1)
    _pools.enter()
    try:
        yield
    finally:
        _pools.leave()
        if torch and before != 1:
            torch.set_num_threads(before)


def with_few_threads(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The function, called within `few_threads`."""

    @wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with few_threads():
            return function(*args, **kwargs)

    return call


@contextmanager
def threads_for(multiply_adds: float) -> Iterator[None]:
    """Set torch's number of threads by the cost of a training step, at most one per core.

    The user's number wins. At the end, the number is set back.
    """
    import torch

    before = torch.get_num_threads()
    if VARIABLE not in os.environ or _CHOSEN in os.environ:
        threads = int(multiply_adds / MULTIPLY_ADDS_PER_THREAD)
        cores = os.cpu_count() or 1
        torch.set_num_threads(max(1, min(cores, threads)))
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread in torch and linear algebra.

    The last digits of sums depend on the number of threads. A limit applies to loaded libraries
    only, so they are imported first, unless they begin with one thread anyway.
    """
    from threadpoolctl import threadpool_limits

    if os.environ.get(VARIABLE) != "1" or any(
        os.environ.get(name, "1") != "1" for name in _OVERRIDING
    ):
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


@cache
def _default_numbers() -> frozenset[int]:
    """The numbers of threads with which torch may begin.

    They are those of all cores, of the physical cores, and of the cores that this process may use.
    """
    import psutil

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    return frozenset(
        number for number in (os.cpu_count(), psutil.cpu_count(logical=False), usable) if number
    )


class _ThreadPools:
    """The thread pools of linear algebra, which blocks of `few_threads` limit to one thread.

    These blocks may be in any thread. The first block limits them and the last one restores them.
    A block within others limits them again only if a library with pools was imported since. To
    search all loaded libraries for pools takes milliseconds, so the result is kept as long as no
    further one was imported.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks = 0
        self._limits: list[Any] = []  # of threadpoolctl, in the order in which they were set
        self._limited: list[str] = []  # libraries that were loaded at the last limit
        self._searched: list[str] = []  # libraries that were loaded when pools were searched for
        self._controller: Any = None

    def enter(self) -> None:
        """Begin a block."""
        with self._lock:
            self._blocks += 1
            loaded = [name for name in ("numpy", *_LINEAR_ALGEBRA, "torch") if name in sys.modules]
            if loaded != self._limited:
                self._limits.append(self._limit(loaded))
                self._limited = loaded

    def leave(self) -> None:
        """End a block."""
        with self._lock:
            self._blocks -= 1
            while self._limits and not self._blocks:
                self._limits.pop().restore_original_limits()
                self._limited = []

    def _limit(self, loaded: list[str]) -> Any:
        from threadpoolctl import ThreadpoolController

        if loaded != self._searched:
            self._controller = ThreadpoolController()
            self._searched = loaded
        return self._controller.limit(limits=1)


_pools = _ThreadPools()


# --- the garbage collector


@contextmanager
def collection_paused() -> Iterator[None]:
    """Disable the cyclic garbage collector within the block.

    This suits short work that allocates many small objects, most of which stay in use. Scanning
    them took a quarter of the time of writing a large network's text, and the scan of what was left
    after it another tenth. So what is left joins the oldest generation, which is scanned seldom.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if not gc.get_freeze_count():  # the user's frozen objects stay frozen
                gc.freeze()
                gc.unfreeze()
            gc.enable()
