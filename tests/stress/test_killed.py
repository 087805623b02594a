"""Claims about killed searches: nothing is lost, and the check would detect a loss."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from nas import Problem, search
from nas.search.study.load import read_search
from search_spaces import Architecture, get_space
from tests.stress.killed import Costs, judged, survive

GOOD = {
    "evaluations": 40,
    "distinct": 40,
    "values equal": True,
    "front equal": True,
    "unfinished trials": 0,
}


@pytest.mark.slow
def test_a_search_that_is_killed_three_times_ends_like_an_uninterrupted_one(tmp_path: Path) -> None:
    journal = tmp_path / "search.journal"
    killed = survive(journal, 40, 3, np.random.default_rng(), "random", "tiny-resnet")
    assert killed == 3
    assert judged(read_search(journal), "tiny-resnet") == GOOD


def test_the_check_finds_wrong_values(tmp_path: Path) -> None:
    class Wrong(Costs):
        def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
            return np.add(super().__call__(architectures), [[len(architectures), 0.0]])

    space = get_space("tiny-resnet")
    found = search(
        Problem(space, Wrong("tiny-resnet"), "params:max,flops"), sampler="random", evaluations=5
    )
    assert judged(found, "tiny-resnet") | {"evaluations": 40, "distinct": 40} == GOOD | {
        "values equal": False,
        "front equal": False,
    }
