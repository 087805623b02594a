"""Claims about all predictors: they keep the contract in `predictors.base`."""

from __future__ import annotations

import numpy as np
import pytest

from predictors import create
from predictors.testing import check_predictor
from search_spaces import InputError, get_space


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("rlm", {}),
        pytest.param("gnn", {"steps": 12}, marks=pytest.mark.slow),
        ("gp", {}),
        ("gp-choices", {}),
        ("rlm+gp", {}),
        ("ridge", {}),
        ("forest", {"trees": 50}),
    ],
    ids=["rlm", "gnn", "gp", "gp-choices", "rlm+gp", "ridge", "forest"],
)
def test_conforms_to_the_contract(kind: str, options: dict[str, int]) -> None:
    check_predictor(lambda: create(kind, seed=1, **options))


@pytest.mark.parametrize("kind", ["gnn", "gp", "ridge", "forest"])
def test_predictors_that_need_a_graph_refuse_other_text(kind: str) -> None:
    """The RLM is not among them: it reads any text."""
    with pytest.raises(InputError, match="not ONNX text"):
        create(kind).fit(["not a network"], {"metric": [1.0]})


@pytest.mark.parametrize("kind", ["rlm", "gnn", "gp", "ridge"])
def test_predictors_of_texts_refuse_architectures_with_the_remedy(kind: str) -> None:
    with pytest.raises(InputError, match=r"space\.to_text"):
        create(kind).fit(
            [get_space("tiny-resnet").sample(np.random.default_rng(0))], {"metric": [1.0]}
        )


@pytest.mark.parametrize("seed", [-1, 1.5, "1", None])
def test_a_seed_is_a_whole_number(seed: object) -> None:
    with pytest.raises(InputError, match="seed must be a whole number from 0"):
        create("ridge", seed=seed)  # type: ignore[arg-type]


def test_an_unknown_name_and_an_unknown_option_are_refused() -> None:
    with pytest.raises(InputError, match="did you mean 'rlm'"):
        create("rml")
    with pytest.raises(InputError, match="does not take these options"):
        create("gp", steps=3)
