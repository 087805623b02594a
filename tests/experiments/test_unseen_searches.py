"""Claims about searches in unseen spaces: nobody trains what breaks the limit, and shares grow."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import nas
from experiments import unseen_searches
from experiments.unseen_searches import PROBLEMS, score

needs_tables = pytest.mark.skipif(
    "NAS_DATA" not in os.environ, reason="NAS_DATA does not name a folder with the tables"
)


@pytest.mark.parametrize("sampler", ["random", "tpe", "gp-choices"])
def test_no_sampler_trains_a_network_that_breaks_the_limit(sampler: str) -> None:
    row = score("digits-pnas", "limit", sampler, trainings=14, seed=0)
    assert row["violators"] == 0
    assert 0 < row["HV@10"] <= 1


def test_violators_are_counted_where_nothing_skips_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that ignores the limit trains about seven violators of ten."""

    def without_constraints(problem: nas.Problem, **options: Any) -> nas.SearchResult:
        problem.constraints = ()
        return nas.search(problem, **options)

    monkeypatch.setattr(unseen_searches, "search", without_constraints)
    row = score("digits-pnas", "limit", "random", trainings=30, seed=0)
    assert row["violators"] > 10


@pytest.mark.slow
@needs_tables
def test_costs_of_the_published_networks_are_counted() -> None:
    """Once-for-all networks are published with accuracies; FLOPs and parameters are counted."""
    table = unseen_searches._once_for_all()
    accuracy, cost, limited = PROBLEMS["ofa-mbv3"]
    assert np.isfinite(table.values(cost)).all()
    assert table.values(accuracy).max() > 77
    assert len(set(table.architectures)) == len(table.architectures)
    assert (table.values(limited) > 1e6).all()


@pytest.mark.slow
@needs_tables
def test_a_floor_leaves_poor_networks_out_of_the_front() -> None:
    """The cheapest networks of once-for-all are among its worst tenth."""
    plain = score("ofa-mbv3", "plain", "random", trainings=10, seed=1)
    floor = score("ofa-mbv3", "floor", "random", trainings=10, seed=1)
    assert plain["HV@10"] != floor["HV@10"]
