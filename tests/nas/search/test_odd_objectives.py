"""Claims about searches with unusual objectives: they end with the correct front."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from nas import PredictorSampler, Problem, search
from predictors import create
from search_spaces import Architecture, InputError, SearchSpace, get_space
from search_spaces.ir.builder import Network, Tensor

SPACE = get_space("tiny-resnet")
OBJECTIVES = "gain:max,cost"
Row = Callable[[Architecture], list[float]]


class Only(SearchSpace):
    """One network."""

    name = "only"
    input_shape = (1, 4, 4)
    num_classes = 2
    size = 1

    def build(self, trial: Any, net: Network) -> Tensor:
        return net.classifier(net.conv_bn_relu(net.input, trial.suggest_categorical("width", [2])))


class Given:
    metrics = ("gain", "cost")

    def __init__(self, row: Row) -> None:
        self.row = row

    def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
        return np.array([self.row(architecture) for architecture in architectures])


def guided(space: SearchSpace) -> PredictorSampler:
    return PredictorSampler(
        space, lambda: create("ridge"), ("gain:max", "cost"), n_startup=5, refit_every=5, fresh=30
    )


def params(architecture: Architecture) -> float:
    return float(SPACE.params(architecture))


@pytest.mark.parametrize(
    "row",
    [
        lambda a: [1.0, 2.0],
        lambda a: [1.0, params(a)],
        lambda a: [-params(a), -params(a)],
        lambda a: [1e11 * params(a), 1e-12 * params(a)],
    ],
    ids=["equal", "one equal", "negative", "huge and tiny"],
)
def test_the_front_contains_exactly_the_non_dominated_networks(row: Row) -> None:
    result = search(Problem(SPACE, Given(row), OBJECTIVES), sampler=guided(SPACE), evaluations=12)
    values = [tuple(row(architecture)) for architecture in result.evaluated.architectures]
    assert len(values) == 12
    front = [v for v in values if not any(w != v and w[0] >= v[0] and w[1] <= v[1] for w in values)]
    assert sorted((entry["gain"], entry["cost"]) for entry in result.front_rows) == sorted(front)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_never_finite_end_the_search_with_the_reason(bad: float) -> None:
    with pytest.raises(
        InputError, match=f"10 evaluations in a row failed; the last: cost is {bad}"
    ):
        search(
            Problem(SPACE, Given(lambda a: [1.0, bad]), OBJECTIVES),
            sampler=guided(SPACE),
            evaluations=12,
        )


@pytest.mark.parametrize("sampler", ["random", "nsga2", "tpe", "guided"])
def test_space_of_one_network_is_searched_once(sampler: str) -> None:
    only = Only()
    evaluator = Given(lambda a: [1.0, 2.0])
    result = search(
        Problem(only, evaluator, OBJECTIVES),
        sampler=guided(only) if sampler == "guided" else sampler,
        evaluations=5,
    )
    assert [row["cost"] for row in result.front_rows] == [2.0]
    assert len(result.evaluated.architectures) == 1
