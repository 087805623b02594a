"""A problem says once what is searched, how it is evaluated and what is better; anything else is
refused.
"""

from __future__ import annotations

import doctest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import nas
from nas import Problem, api, problem
from nas.evaluation.datasets import load_dataset
from nas.evaluation.measurement import Measurement
from nas.evaluation.tasks import TrainingTask
from nas.search.evaluators import Evaluator, TableEvaluator
from nas.search.measured_evaluator import MeasuredEvaluator
from nas.search.own_evaluator import FunctionEvaluator
from search_spaces import InputError, SearchSpace, get_space


def build(trial: Any) -> nn.Module:
    width = trial.suggest_categorical("width", [2, 4, 8])
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))


build.example_input = torch.zeros(1, 4)  # type: ignore[attr-defined]


def evaluate(model: nn.Module, architecture: Any, report: Any) -> dict[str, float]:
    return {"gain": float(architecture.as_dict()["width"])}


class Counting(Evaluator):
    metrics = ("params", "gain")

    def __call__(self, architectures: Any) -> np.ndarray:
        return np.array([[1.0, 2.0] for _ in architectures])


def test_functions_and_a_dictionary_are_a_problem() -> None:
    result = nas.search(
        Problem(build, evaluate, {"gain": "max", "params": "min"}), sampler="random", evaluations=3
    )
    assert list(result.front["gain"]) == [8.0, 4.0, 2.0]
    assert result.front["params"].is_monotonic_decreasing
    assert len(result.networks) == len(result.front) == 3
    assert isinstance(result.model(0), nn.Module)
    assert (
        sum(weight.numel() for weight in result.model(2).parameters()) == result.front["params"][2]
    )


@pytest.mark.parametrize(
    "space", ["tiny-resnet", get_space("tiny-resnet"), type(get_space("tiny-resnet"))]
)
def test_a_space_is_a_name_an_object_or_a_class(space: Any) -> None:
    counted = Problem(space, None, "params,flops")
    assert isinstance(counted.space, SearchSpace)
    assert counted.space.name == "tiny-resnet"
    assert isinstance(counted.evaluator, MeasuredEvaluator)


def test_a_table_gives_its_own_values() -> None:
    by_method = nas.load_benchmark("digits201").problem(
        {"digits_accuracy": "max"}, ["cpu_latency_ms <= 1"]
    )
    by_hand = Problem(
        nas.load_benchmark("digits201"), None, {"digits_accuracy": "max"}, ["cpu_latency_ms <= 1"]
    )
    for table in (by_method, by_hand):
        assert isinstance(table.evaluator, TableEvaluator)
        assert table.metrics == ("digits_accuracy", "cpu_latency_ms")


def test_what_this_machine_measures_is_not_asked_of_the_function() -> None:
    measured = Problem(build, evaluate, ["gain:max", "cpu_latency_ms"], "params <= 50")
    assert isinstance(measured.evaluator, FunctionEvaluator)
    assert measured.evaluator.returned == ("gain",)
    assert set(measured.evaluator.metrics) == {"gain", "cpu_latency_ms", "params"}


def test_an_evaluator_is_taken_as_it_is() -> None:
    own = Counting()
    assert Problem("tiny-resnet", own, "params").evaluator is own
    with pytest.raises(InputError, match="unknown metric 'gan': did you mean 'gain'"):
        Problem("tiny-resnet", own, "gan")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, None, "params"), "3 is no search space: give a name"),
        (("tiny-resnt", None, "params"), "did you mean 'tiny-resnet'"),
        (("tiny-resnet", 3, "params"), "3 evaluates nothing: give a function"),
        (("tiny-resnet", None), "no objectives"),
        (("tiny-resnet", None, {"params": "down"}), "bad objective"),
        ((build, None, "digits_accuracy"), "the digits have"),
        ((lambda trial: None, evaluate, "gain"), "no example input"),
    ],
)
def test_anything_else_is_refused_in_one_line(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        Problem(*arguments)
    assert "\n" not in str(caught.value)


def test_a_folder_keeps_the_search_and_its_result(tmp_path: Path) -> None:
    goal = Problem(build, evaluate, {"gain": "max", "params": "min"})
    first = nas.search(goal, sampler="random", evaluations=2, out=tmp_path)
    again = nas.search(goal, sampler="random", evaluations=3, out=tmp_path)  # resumes
    assert len(first.networks) == 2
    assert len(again.networks) == 3
    assert {"front", "front.csv", "networks.csv", "summary.json", "studies"} <= {
        path.name for path in tmp_path.iterdir()
    }
    read = nas.load_search(tmp_path, trust=True)
    assert read.networks["params"].tolist() == again.networks["params"].tolist()
    nas.search(goal, sampler="random", evaluations=1, seed=1, out=tmp_path)
    with pytest.raises(
        InputError, match="has the searches random-0, random-1: give the name of one"
    ):
        nas.load_search(tmp_path)


def test_paused_trainings_are_kept_in_the_folder_of_the_search(tmp_path: Path) -> None:
    task = TrainingTask(epochs=2, learning_rate=0.05)
    measurement = Measurement(("digits_accuracy", "params"), load_dataset("digits"), training=task)

    def images(trial: Any) -> nn.Module:
        width = trial.suggest_categorical("width", [2, 4, 6, 8])
        return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

    images.example_input = torch.zeros(1, 1, 8, 8)  # type: ignore[attr-defined]
    goal = Problem(images, measurement, {"digits_accuracy": "max", "params": "min"})
    budget: dict[str, Any] = {"fidelities": [1, 2], "budget": 5, "sampler": "asha"}
    with pytest.raises(InputError, match=r"paused trainings need a folder.*nas.search\(out="):
        nas.search(goal, **budget)
    result = nas.search(goal, **budget, out=tmp_path)
    assert len(result.networks)
    assert list((tmp_path / "studies" / "training").glob("paused-*"))
    assert goal.evaluator.checkpoints is None, "another search has a folder of its own"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budget": 3.0}, "budget=3.0 does not apply to a search without fidelities"),
        ({"fidelities": [1, 2]}, "fidelities need a budget"),
        (
            {"fidelities": [1, 2], "budget": 3.0, "evaluations": 3},
            "evaluations=3 does not apply to a search with",
        ),
        (
            {"fidelities": [1, 2], "budget": 3.0, "patience": 3},
            "patience=3 does not apply to a search with",
        ),
    ],
)
def test_no_argument_is_ignored(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        nas.search(Problem(build, evaluate, "gain:max"), sampler="random", **arguments)


def test_the_examples_of_the_docstrings_run() -> None:
    for module in (problem, api):
        result = doctest.testmod(module)
        assert result.attempted
        assert not result.failed


def test_every_public_name_is_there_and_typed() -> None:
    for name in nas.__all__:
        assert getattr(nas, name) is not None
    assert (Path(nas.__file__).parent / "py.typed").is_file()


def test_a_search_has_a_hypervolume_without_a_reference_point() -> None:
    problem = nas.load_benchmark("digits201").problem({"digits_accuracy": "max", "params": "min"})
    few = nas.search(problem, sampler="random", evaluations=10)
    assert 0 < few.hypervolume() < 1
    point = [0.0, 1e6]  # in the units of the objectives
    assert few.hypervolume(point) > 0
