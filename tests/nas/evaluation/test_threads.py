"""Claims about threads: one by default, more for a large training, and the user's own number has priority."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from threadpoolctl import threadpool_info

from nas.evaluation import threads
from nas.evaluation.threads import MULTIPLY_ADDS_PER_THREAD, one_thread, threads_for

SHOW = "import nas.cli, os, torch; print(os.environ['OMP_WAIT_POLICY'], torch.get_num_threads())"


@pytest.mark.slow
@pytest.mark.parametrize(("given", "expected"), [({}, "PASSIVE 1"), ({"OMP_NUM_THREADS": "2"}, "PASSIVE 2"), ({
    "OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE 1")])  # fmt: skip
def test_the_command_line_uses_one_thread_unless_the_user_says_otherwise(given: dict[str, str], expected: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "NAS_CHOSE"))}
    made = subprocess.run(
        [sys.executable, "-c", SHOW], env=environment | given, capture_output=True, text=True, check=True
    )
    assert made.stdout.strip() == expected


def test_a_large_training_step_gets_more_threads_and_a_small_one_a_single_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def used(multiply_adds: float) -> int:
        with threads_for(multiply_adds):
            return torch.get_num_threads()

    before = torch.get_num_threads()
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.delenv(threads.VARIABLE, raising=False)
    assert [used(n * MULTIPLY_ADDS_PER_THREAD) for n in (0.01, 1.5, 3, 99)] == [1, 1, 3, 4]
    monkeypatch.setenv(threads.VARIABLE, "1")  # by `nas` itself
    monkeypatch.setenv(threads._CHOSEN, "1")
    assert used(3 * MULTIPLY_ADDS_PER_THREAD) == 3
    monkeypatch.delenv(threads._CHOSEN)  # by the user
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
from nas.evaluation.threads import one_thread
with one_thread():
    print(sorted({"torch", "scipy", "sklearn"} & set(sys.modules)))
    import scipy.linalg, sklearn.ensemble, sklearn.gaussian_process, torch, threadpoolctl
    print({library["num_threads"] for library in threadpoolctl.threadpool_info()}, torch.get_num_threads())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "of_openblas", "loaded"),
    [("2", "1", "['scipy', 'sklearn', 'torch']"), ("1", "2", "['scipy', 'sklearn', 'torch']"), ("1", "1", "[]")],
)
def test_libraries_that_a_comparison_loads_for_its_first_score_use_one_thread_too(
    number: str, of_openblas: str, loaded: str
) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": number, "OPENBLAS_NUM_THREADS": of_openblas}
    made = subprocess.run([sys.executable, "-c", LATE], env=environment, capture_output=True, text=True, check=True)
    assert made.stdout.splitlines() == [loaded, "{1} 1"]
