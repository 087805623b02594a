from __future__ import annotations

import pytest

from predictors import create
from predictors.testing import check_predictor
from search_spaces import InputError


@pytest.mark.parametrize(
    ("kind", "options"),
    [("rlm", {}), ("gnn", {"steps": 60}), ("gp", {}), ("ridge", {}), ("forest", {"trees": 50}), ("rlm+ridge", {})],
    ids=["rlm", "gnn", "gp", "ridge", "forest", "rlm+ridge"],
)
def test_conforms_to_the_contract(kind: str, options: dict[str, int]) -> None:
    check_predictor(lambda: create(kind, seed=1, **options))


@pytest.mark.parametrize("kind", ["gnn", "gp", "ridge", "forest"])
def test_predictors_that_need_a_graph_refuse_other_text(kind: str) -> None:
    """The RLM is not among them: it reads any text."""
    with pytest.raises(InputError, match="not ONNX text"):
        create(kind).fit(["not a network"], {"metric": [1.0]})
