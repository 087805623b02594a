"""Claims about the end of a search: its front is measured and trained again, and both values are
kept.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from nas import Measurement, Problem, load_benchmark, load_search, search
from nas.comparison.runs import open_studies
from nas.evaluation.datasets import digits
from nas.evaluation.latency import LatencyTask
from nas.evaluation.training import TrainingTask
from nas.search.measured_evaluator import MeasuredEvaluator
from nas.search.own_evaluator import FunctionEvaluator
from nas.search.study.result import SearchResult
from search_spaces import SearchSpace, get_space
from search_spaces.common.errors import InputError

TIMING = LatencyTask(runs=3, warmup=1, windows=2)


def lucky(model: torch.nn.Module, architecture: Any, report: Any, seed: int = 0) -> dict[str, Any]:
    """The first training is 5 points too good; a later one says its seed and torch's."""
    return {"top1": 80.0 if seed == 0 else 75.0 + seed, "drawn": float(torch.rand(()))}


def run(space: SearchSpace, folder: Path, **options: Any) -> SearchResult:
    evaluator = FunctionEvaluator(
        space, lucky, ["top1"], Measurement(("cpu_latency_ms",), latency=TIMING)
    )
    problem = Problem(space, evaluator, "top1:accuracy:max,cpu_latency_ms")
    return search(problem, sampler="random", evaluations=3, out=folder, **options)


def test_latencies_of_the_front_are_measured_again_in_one_pass_and_both_are_shown(
    switches: SearchSpace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[int] = []
    together = Measurement.time_together

    def counting(self: Measurement, models: Any, progress: Any = None) -> Any:
        passes.append(len(models))
        return together(self, models, progress)

    monkeypatch.setattr(Measurement, "time_together", counting)
    result = run(switches, tmp_path)
    assert passes == [len(result.front)]
    assert (result.front["cpu_latency_ms_again"] > 0).all()
    assert "top1_again" not in result.front
    for network in result.distinct:
        if network.on_front:
            value, low, high, meaning = network.confirmed["cpu_latency_ms"]
            assert low <= value <= high
            assert meaning.startswith("90 % interval for a later measurement")
            assert network.values["cpu_latency_ms"] != value, "the search's own value is kept"

    again = run(switches, tmp_path)
    assert passes == [len(result.front)], "a front that has been measured again is not once more"
    assert again.front.equals(result.front)


def test_front_is_trained_again_with_fresh_seeds_so_that_luck_shows(
    switches: SearchSpace, tmp_path: Path
) -> None:
    result = run(switches, tmp_path, confirm=2)
    assert (result.front["top1"] == 80).all()
    assert (result.front["top1_again"] == 76.5).all()  # the mean of 76 and 77
    (network, *_) = [network for network in result.distinct if network.on_front]
    assert network.confirmed["top1"][1:] == pytest.approx(
        (76.5 - 0.5**0.5, 76.5 + 0.5**0.5, "mean ± standard deviation of 2 fresh trainings")
    )
    assert "top1_again" in (tmp_path / "front.csv").read_text()
    assert load_search(tmp_path).front.equals(result.front), "it is stored"
    (row, *_) = open_studies(tmp_path).front_rows
    assert row["top1_again"] == 76.5


def test_confirmation_that_was_interrupted_goes_on(
    switches: SearchSpace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(switches, tmp_path, confirm=1)
    calls: list[int] = []

    def train_again(*arguments: object) -> dict[str, float]:
        calls.append(1)
        return {"top1": 1.0}

    monkeypatch.setattr(FunctionEvaluator, "train_again", train_again)
    run(switches, tmp_path, confirm=1)
    assert not calls, "every network of the front has been trained again"
    run(switches, tmp_path, confirm=2)
    assert len(calls) == 2 * len(result.front), "with more trainings, all of them are new"


def test_built_in_training_is_repeated_with_other_seeds(tmp_path: Path) -> None:
    space = get_space("tiny-resnet", input_shape=(1, 8, 8))
    measurement = Measurement(
        ("digits_accuracy",), digits(train_images=64), training=TrainingTask(2), seeds=(0, 1)
    )
    problem = Problem(space, MeasuredEvaluator(space, measurement), "digits_accuracy")
    result = search(problem, sampler="random", evaluations=1, confirm=1)
    (network,) = result.distinct
    value, low, high, meaning = network.confirmed["digits_accuracy"]
    assert value == low == high
    assert value != network.values["digits_accuracy"]
    assert meaning == "one fresh training"
    again = search(problem, sampler="random", evaluations=1, confirm=1)
    assert again.distinct[0].confirmed["digits_accuracy"][0] == value, "seeds are fresh, not random"


def test_values_that_were_looked_up_or_counted_cannot_be_confirmed(switches: SearchSpace) -> None:
    problem = load_benchmark("digits201").problem({"digits_accuracy": "max", "params": "min"})
    with pytest.raises(InputError, match="confirm = 2: this search trains no networks"):
        search(problem, sampler="random", evaluations=3, confirm=2)
    counted = MeasuredEvaluator(switches, Measurement(("params", "flops")))
    with pytest.raises(InputError, match="this search trains no networks"):
        search(
            Problem(switches, counted, "params,flops"), sampler="random", evaluations=3, confirm=1
        )
