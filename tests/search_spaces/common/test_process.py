"""Claims about what work sets in its process: one thread by default, more for a large training, and
the user's own number has priority; the garbage collector is off for a short time only.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator

import pytest
import torch
from threadpoolctl import threadpool_info

from search_spaces.common import process
from search_spaces.common.process import (
    MULTIPLY_ADDS_PER_THREAD,
    collection_paused,
    one_thread,
    threads_for,
)

SHOW = "import nas.cli, os, torch; print(os.environ['OMP_WAIT_POLICY'], torch.get_num_threads())"


@pytest.mark.slow
@pytest.mark.parametrize(("given", "expected"), [({}, "PASSIVE 1"), ({"OMP_NUM_THREADS": "2"}, "PASSIVE 2"), ({
    "OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE 1")])  # fmt: skip
def test_the_command_line_uses_one_thread_unless_the_user_says_otherwise(
    given: dict[str, str], expected: str
) -> None:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OMP_", "NAS_CHOSE"))
    }
    made = subprocess.run(
        [sys.executable, "-c", SHOW],
        env=environment | given,
        capture_output=True,
        text=True,
        check=True,
    )
    assert made.stdout.strip() == expected


def test_a_large_training_step_gets_more_threads_and_a_small_one_a_single_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def used(multiply_adds: float) -> int:
        with threads_for(multiply_adds):
            return torch.get_num_threads()

    before = torch.get_num_threads()
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.delenv(process.VARIABLE, raising=False)
    assert [used(n * MULTIPLY_ADDS_PER_THREAD) for n in (0.01, 1.5, 3, 99)] == [1, 1, 3, 4]
    monkeypatch.setenv(process.VARIABLE, "1")  # by `nas` itself
    monkeypatch.setenv(process._CHOSEN, "1")
    assert used(3 * MULTIPLY_ADDS_PER_THREAD) == 3
    monkeypatch.delenv(process._CHOSEN)  # by the user
    assert used(3 * MULTIPLY_ADDS_PER_THREAD) == before == torch.get_num_threads()


def test_a_comparison_computes_with_one_thread_whatever_is_set() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
            assert {library["num_threads"] for library in threadpool_info()} == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


LATE = """
import sys
import threading
from search_spaces.common.process import one_thread
with one_thread():
    print(sorted({"torch", "scipy", "sklearn"} & set(sys.modules)))
    import scipy.linalg, sklearn.ensemble, sklearn.gaussian_process, torch, threadpoolctl
    print({library["num_threads"] for library in threadpoolctl.threadpool_info()}, torch.get_num_threads())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "of_openblas", "loaded"),
    [
        ("2", "1", "['scipy', 'sklearn', 'torch']"),
        ("1", "2", "['scipy', 'sklearn', 'torch']"),
        ("1", "1", "[]"),
    ],
)
def test_libraries_that_a_comparison_loads_for_its_first_score_use_one_thread_too(
    number: str, of_openblas: str, loaded: str
) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": number, "OPENBLAS_NUM_THREADS": of_openblas}
    made = subprocess.run(
        [sys.executable, "-c", LATE], env=environment, capture_output=True, text=True, check=True
    )
    assert made.stdout.splitlines() == [loaded, "{1} 1"]


IN_PYTHON = """
import os, sys, threading
import numpy as np, torch
from threadpoolctl import threadpool_info
import nas, predictors
from predictors.baselines import Ridge
from search_spaces import get_space

exec(os.environ.get("FIRST", ""))

def numbers():
    return {torch.get_num_threads(), *(pool["num_threads"] for pool in threadpool_info())}

before, seen = numbers(), []

class Mine(Ridge):
    kind = "mine"

    def fit(self, architectures, metrics):
        import sklearn.linear_model  # a library with a thread pool that is loaded within the block
        fitted = super().fit(architectures, metrics)
        seen.append(("fit", numbers()))
        return fitted

space = get_space("tiny-resnet")

class Evaluator:
    metrics = ("params", "flops")

    def __call__(self, architectures):
        seen.append(("evaluate", numbers()))
        return np.array([[space.params(a), space.flops(a)] for a in architectures], float)

nas.search(nas.Problem(space, Evaluator(), "params,flops"), sampler="ridge", evaluations=3)
rng = np.random.default_rng(0)
texts = [space.to_text(space.sample(rng)) for _ in range(8)]
Mine().fit(texts, {"x": np.arange(8.0)}).predict(texts, ["x"])
names = {name for name, _ in seen}
inside = set().union(*(found for _, found in seen))
print(sorted(names), sorted(inside), numbers() == before)
"""


def in_python(first: str = "", **variables: str) -> str:
    environment = {
        k: v
        for k, v in os.environ.items()
        if not k.endswith("NUM_THREADS") and not k.startswith("NAS_CHOSE")
    }
    done = subprocess.run(
        [sys.executable, "-c", IN_PYTHON],
        env=environment | variables | {"FIRST": first},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="torch begins with one thread")
def test_searches_and_predictors_use_one_thread_in_python_and_restore_the_number() -> None:
    assert in_python() == "['evaluate', 'fit'] [1] True"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "variables", "expected"),
    [("torch.set_num_threads(3)", {}, 3), ("", {"OPENBLAS_NUM_THREADS": "2"}, 2)],
)
def test_a_number_that_the_user_has_set_is_kept_in_python(
    first: str, variables: dict[str, str], expected: int
) -> None:
    shown = in_python(first, **variables)
    assert shown.startswith("['evaluate', 'fit'] [")
    assert f"{expected}" in shown.split("] [")[1], "the number is used"
    assert shown.endswith("True")


def test_blocks_in_several_threads_end_with_the_numbers_from_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in (process.VARIABLE, *process._OVERRIDING):
        monkeypatch.delenv(name, raising=False)
    before, cores = torch.get_num_threads(), max(2, os.cpu_count() or 1)
    monkeypatch.setattr(process, "_default_numbers", lambda: {cores})
    torch.set_num_threads(cores)
    outside = threadpool_info()
    entered, left, seen = threading.Event(), threading.Event(), []

    def other() -> None:
        with process.few_threads():
            entered.set()
            left.wait(30)
            seen.append(torch.get_num_threads())

    try:
        thread = threading.Thread(target=other)
        with process.few_threads():
            thread.start()
            entered.wait(30)
            with process.few_threads():
                assert {pool["num_threads"] for pool in threadpool_info()} == {1}
        left.set()
        thread.join()
        assert torch.get_num_threads() == cores
        assert threadpool_info() == outside
        with pytest.raises(KeyError), process.few_threads():
            raise KeyError
        assert torch.get_num_threads() == cores
    finally:
        torch.set_num_threads(before)


# --- the garbage collector

MANY = 20_000  # objects, many more than the collector lets pass


@pytest.fixture
def collections() -> Iterator[list[str]]:
    """The collections that ran, as they run."""
    found: list[str] = []

    def note(phase: str, _: dict[str, int]) -> None:
        found.append(phase)

    gc.collect()
    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)


def test_nothing_is_collected_in_the_block_or_right_after_it(collections: list[str]) -> None:
    with collection_paused():
        kept = [[number] for number in range(MANY)]
    after = [[number] for number in range(10)]
    assert collections == []
    assert len(kept) + len(after) == MANY + 10


def test_collection_goes_on_after_the_block(collections: list[str]) -> None:
    with collection_paused():
        pass
    kept = [[number] for number in range(MANY)]
    assert collections
    assert len(kept) == MANY


class Link:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.itself = self


def test_a_cycle_that_was_made_in_the_block_is_found_later() -> None:
    with collection_paused():
        left = weakref.ref(Link())
    gc.collect()
    assert left() is None


def test_frozen_objects_stay_frozen() -> None:
    link = Link()
    assert any(found is link for found in gc.get_objects())
    gc.freeze()
    try:
        with collection_paused():
            pass
        assert gc.get_freeze_count() > 0
        assert not any(found is link for found in gc.get_objects())  # which leaves out frozen ones
    finally:
        gc.unfreeze()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with collection_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
