from __future__ import annotations

import pytest

from predictors import create
from predictors.testing import check_predictor


@pytest.mark.parametrize(
    ("kind", "options"),
    [("gnn", {"steps": 60}), ("ridge", {}), ("forest", {"trees": 50})],
    ids=["gnn", "ridge", "forest"],
)
def test_conforms_to_the_contract(kind: str, options: dict[str, int]) -> None:
    check_predictor(lambda: create(kind, seed=1, **options))
