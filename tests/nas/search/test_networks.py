"""Claims about distinct networks: duplicates and repeated evaluations are one network, with the
mean of its values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

from nas import Problem, search
from nas.comparison.runs import open_studies
from nas.search.study.load import RecordedSpace
from nas.search.study.networks import DistinctNetwork, distinct_networks
from nas.search.study.result import SearchResult
from nas.search.study.schema import NETWORK_KEY, REPEAT_KEY
from nas.search.study.storage import open_storage
from search_spaces import Architecture, SearchSpace, get_space, registry
from search_spaces.ir.builder import Network, Tensor

optuna.logging.set_verbosity(optuna.logging.WARNING)


class Twins(SearchSpace):
    """Three networks, each of them built by two architectures."""

    name = "twins"
    input_shape = (1, 4, 4)
    num_classes = 2
    size = 6

    def build(self, trial: Any, net: Network) -> Tensor:
        width = trial.suggest_categorical("width", [1, 2, 3])
        trial.suggest_categorical("twin", ["a", "b"])
        return net.classifier(net.conv_bn_relu(net.input, width))


class Noisy:
    """A table of accuracies by width and twin; latency is the width."""

    metrics = ("accuracy", "x_latency_ms", "power")

    def __init__(
        self, accuracies: Mapping[tuple[int, str], float], powers: Mapping[str, float] | None = None
    ) -> None:
        self.accuracies, self.powers = accuracies, powers or {"a": 1.0, "b": 1.0}

    def __call__(self, architectures: Sequence[Architecture]) -> np.ndarray:
        choices = [architecture.as_dict() for architecture in architectures]
        return np.array(
            [
                [self.accuracies[c["width"], c["twin"]], c["width"], self.powers[c["twin"]]]
                for c in choices
            ]
        )


# The two trainings of width 2 differ: one was lucky.
LUCKY = {
    (1, "a"): 70.0,
    (1, "b"): 70.0,
    (2, "a"): 93.0,
    (2, "b"): 87.0,
    (3, "a"): 91.1,
    (3, "b"): 91.1,
}
GOALS = "accuracy,x_latency_ms"


def run(evaluator: Noisy, **changes: Any) -> SearchResult:
    goal = Problem(
        Twins(), evaluator, changes.pop("objectives", GOALS), changes.pop("constraints", None)
    )
    return search(goal, sampler="random", evaluations=6, **changes)


def values(networks: Sequence[DistinctNetwork], metric: str = "accuracy") -> list[float]:
    return [network.values[metric] for network in networks]


def test_a_network_has_the_mean_of_its_evaluations_so_that_luck_gains_nothing() -> None:
    result = run(Noisy(LUCKY))
    assert [(row["accuracy"], row["x_latency_ms"]) for row in result.front_rows] == [
        (91.1, 3.0),
        (90.0, 2.0),
        (70.0, 1.0),
    ]
    assert [len(network.evaluations) for network in result.distinct] == [2, 2, 2]
    # With single evaluations, the lucky training would have hidden the best network.
    assert sorted(result.evaluated.values[:, 0]) == sorted(LUCKY.values())


def test_the_mean_of_equal_values_is_exactly_that_value() -> None:
    third = 0.1 + 0.2  # has no short decimal notation, so that sums round
    result = run(Noisy(dict.fromkeys(LUCKY, third)), objectives="accuracy")
    assert {row["accuracy"] for row in result.front_rows} == {third}
    assert len(result.front_rows) == 3


def test_constraints_apply_to_the_means() -> None:
    bound = run(Noisy(LUCKY, {"a": 1.0, "b": 3.0}), constraints="power <= 1.9")
    assert bound.front_rows == []
    assert bound.feasible.sum() == 3, "one evaluation of each network keeps the bound"
    assert [row["violation"] for row in bound.least_violating] == [pytest.approx(0.1 / 1.9)] * 3
    assert len(run(Noisy(LUCKY, {"a": 1.0, "b": 3.0}), constraints="power <= 2").front_rows) == 3


def test_the_spread_of_evaluations_is_kept() -> None:
    lucky = next(
        network for network in run(Noisy(LUCKY)).distinct if network.values["x_latency_ms"] == 2
    )
    low, high, meaning = lucky.spreads["accuracy"]
    assert (low, high) == (87.0, 93.0)
    assert "2 evaluations" in meaning
    assert "x_latency_ms" not in lucky.spreads
    assert lucky.representative.values["accuracy"] == 93.0, (
        "its files are of the evaluation whose weights are kept"
    )


def test_the_hypervolume_counts_each_architecture_with_its_own_value() -> None:
    """The protocol of benchmarks: it must not change with what is shown."""
    result = run(Noisy(LUCKY))
    expected = 1 * 70 + 1 * 93 + 1 * 93  # up to (0, 4) in (accuracy, latency)
    assert result.hypervolume([0.0, 4.0]) == pytest.approx(expected)


def test_an_architecture_that_several_searches_read_in_a_table_counts_once() -> None:
    table = Noisy(LUCKY)
    first, second = (
        run(table),
        search(Problem(Twins(), table, GOALS), sampler="random", evaluations=3, seed=1),
    )
    evaluations = [*first.evaluations(0), *second.evaluations(1)]
    merged = distinct_networks(evaluations, first.objectives)
    assert values(merged) == values(first.distinct)
    assert sum(len(network.evaluations) for network in merged) == 6 + 3
    assert {network.origin["seed"] for network in merged} == {0}


def test_networks_are_told_apart_where_they_cannot_be_built(tmp_path: Path) -> None:
    """A report that may not run the space's code shows the same front as the search."""
    (tmp_path / "mine.py").write_text(
        "from search_spaces import SearchSpace\n"
        "class Mine(SearchSpace):\n"
        "    name, input_shape, num_classes = 'mine', (1, 4, 4), 2\n"
        "    def build(self, trial, net):\n"
        "        width = trial.suggest_categorical('width', [1, 2, 3])\n"
        "        trial.suggest_categorical('twin', ['a', 'b'])\n"
        "        return net.classifier(net.conv_bn_relu(net.input, width))\n"
    )
    space = get_space(f"{tmp_path / 'mine.py'}:Mine")
    searched = search(
        Problem(space, Noisy(LUCKY), GOALS),
        sampler="random",
        evaluations=6,
        storage=tmp_path / "s.journal",
    )
    read = open_studies(tmp_path / "s.journal")
    assert isinstance(read.first.space, RecordedSpace)
    assert values(read.distinct) == values(searched.distinct)
    params = [Twins().params(network.architecture) for network in run(Noisy(LUCKY)).distinct]
    assert values(read.distinct, "params") == params


def test_searches_of_older_versions_are_merged_by_building_their_networks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched = run(Noisy(LUCKY), storage=tmp_path / "new.journal")
    study = optuna.create_study(
        directions=["maximize", "minimize"], storage=open_storage(tmp_path / "old.journal")
    )
    for key, value in searched.study.user_attrs.items():
        study.set_user_attr(key, value)
    for trial in searched.study.get_trials(states=(TrialState.COMPLETE,)):
        if REPEAT_KEY in trial.user_attrs:
            continue
        del trial.user_attrs[NETWORK_KEY]
        study.add_trial(trial)
    monkeypatch.setitem(registry._SPACES, "twins", Twins)
    old = open_studies(tmp_path / "old.journal")
    assert values(old.distinct) == values(searched.distinct)
    assert all(NETWORK_KEY not in trial.user_attrs for trial in old.first.study.trials)
