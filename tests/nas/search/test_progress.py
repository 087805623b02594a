"""Claims about progress: a front and hypervolume that grow point by point equal those of all points
at once.
"""

from __future__ import annotations

import numpy as np
import pytest

from nas.search.pareto import hypervolume, non_dominated
from nas.search.progress import FRAME_POINTS, GrowingFront, SearchProgress, labelled


@pytest.mark.parametrize("m", [1, 2, 3, 5])
def test_volume_by_increments_is_that_of_the_whole_front(m: int) -> None:
    points = np.random.default_rng(m).normal(size=(120, m)).round(1)  # some are equal
    growing = GrowingFront(m)
    improved = [growing.add(point) for point in points]
    best, worst = points[:FRAME_POINTS].min(axis=0), points[:FRAME_POINTS].max(axis=0)
    unit = worst - best
    assert growing.hypervolume == pytest.approx(hypervolume((points - best) / unit, np.ones(m)))
    assert {tuple(p) for p in growing.points} == {tuple(p) for p in points[non_dominated(points)]}
    assert 0 < sum(improved) < 120


def test_a_constant_objective_has_zero_hypervolume() -> None:
    growing = GrowingFront(2)
    assert [growing.add(np.array([3.0, x])) for x in (5.0, 4.0, 4.5)] == [True, True, False]
    assert growing.points.tolist() == [[3.0, 4.0]]
    assert growing.hypervolume == 0


def test_progress_is_printed_as_one_line() -> None:
    assert str(SearchProgress(3, 20, 2, 0.51234, {})) == "2 on the front, hypervolume 0.512"
    assert str(SearchProgress(3, 20, 2, None, {"accuracy": 91.25})) == (
        "2 on the front, best accuracy 91.25"
    )
    some = SearchProgress(3, 20, 2, 0.51234, {"accuracy": 91.25, "latency_ms": 0.5})
    assert str(some) == "2 on the front, hypervolume 0.512, best accuracy 91.25, latency_ms 0.5"


def test_progress_of_several_searches_is_added_up() -> None:
    calls: list[tuple[str, int, int]] = []
    report = labelled(lambda *call: calls.append(call), "seed 2", number=2, count=5)
    assert report is not None
    report(SearchProgress(3, 20, 2, 0.5, {}))
    assert calls == [("seed 2: 2 on the front, hypervolume 0.500", 2 * 20 + 3, 5 * 20)]
