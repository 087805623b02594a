"""Claims about the announced duration of searches: near the truth, in plain words, and without an
effect on results.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from torch.optim.optimizer import register_optimizer_step_post_hook

from nas.benchmarks import load_benchmark
from nas.comparison.runs import Budget, SearchOptions, run_measured_studies, run_studies
from nas.evaluation.datasets import load_dataset
from nas.evaluation.device_command import DeviceCommand
from nas.evaluation.measurement import Measurement
from nas.evaluation.tasks import TrainingTask
from nas.search.duration import Duration, Workload, in_words
from nas.search.measured_evaluator import MeasuredEvaluator
from nas.search.own_evaluator import FunctionEvaluator
from nas.search.search import run_search
from nas.search.settings import SearchSettings
from search_spaces import SearchSpace, get_space
from search_spaces.ir.builder import Network, Tensor

OBJECTIVES = "digits_accuracy,params"


class Widths(SearchSpace):
    input_shape = (1, 8, 8)

    def build(self, trial: Any, net: Network) -> Tensor:
        x = net.input
        for layer in range(2):
            x = net.relu(net.conv(x, trial.suggest_int(f"width{layer}", 4, 32), 3))
        return net.classifier(x)


def measured(folder: Path, metrics: str = OBJECTIVES, epochs: int = 2) -> MeasuredEvaluator:
    names = tuple(metrics.split(","))
    data = load_dataset("digits") if "digits_accuracy" in names else None
    measurement = Measurement(names, data, training=TrainingTask(epochs=epochs))
    return MeasuredEvaluator(Widths(), measurement, folder / "states")


def search(
    evaluator: MeasuredEvaluator | FunctionEvaluator,
    folder: Path,
    evaluations: int,
    objectives: str = OBJECTIVES,
    sampler: str = "random",
    **options: object,
) -> list[Duration]:
    """What a search announces."""
    told: list[Duration] = []
    settings = SearchOptions(announce=told.append, **options)  # type: ignore[arg-type]
    run_measured_studies(
        evaluator, objectives, [sampler], evaluations, [0], folder, options=settings
    )
    return told


@pytest.fixture
def clock_of_steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A clock on which a training step takes one second and nothing else takes time."""
    seconds = 0.0

    def tick(*_: object) -> None:
        nonlocal seconds
        seconds += 1

    hook = register_optimizer_step_post_hook(tick)
    monkeypatch.setattr(time, "monotonic", lambda: seconds)
    yield
    hook.remove()


@pytest.mark.usefixtures("clock_of_steps")
def test_an_estimate_is_the_number_of_training_steps_times_the_time_of_one(tmp_path: Path) -> None:
    before, after = search(measured(tmp_path), tmp_path / "search", 4)
    task = TrainingTask(epochs=2)
    images = len(load_dataset("digits").with_validation(task.validation).train)
    steps_per_training = task.epochs * (images // task.batch)
    assert before.seconds == 4 * steps_per_training
    assert after.basis == "as the first"
    assert "4 trainings of 2 epochs, " in before.sentence
    assert "left: 3 of 4 trainings" in after.sentence
    assert before.sentence in (log := (tmp_path / "search" / "nas.log").read_text())
    assert after.sentence in log


def test_an_estimate_says_which_measurements_it_leaves_out(tmp_path: Path) -> None:
    """A device takes its time, which only a whole evaluation tells."""
    settings = {"warmup": 0, "runs": 1, "retries": 0}
    board = DeviceCommand.parse("board=echo 3; : {model}", settings)
    names = ("digits_accuracy", "board_latency_ms", "params")
    training = TrainingTask(epochs=1)
    measurement = Measurement(names, load_dataset("digits"), training=training, commands=(board,))
    evaluator = MeasuredEvaluator(Widths(), measurement, tmp_path / "states")
    before, after = search(evaluator, tmp_path / "search", 2, ",".join(names))
    assert before.basis == "from a few training steps, without board_latency_ms"
    assert after.basis == "as the first"


@pytest.mark.slow
def test_an_estimate_changes_no_result_and_a_resumed_search_knows_its_seconds(
    tmp_path: Path,
) -> None:
    search(measured(tmp_path, epochs=1), tmp_path / "a", 2)
    (again,) = search(measured(tmp_path, epochs=1), tmp_path / "a", 3)
    assert "left: 1 of 3 trainings of 1 epoch, " in again.sentence
    assert again.basis == "as the 2 stored ones"
    assert search(measured(tmp_path, epochs=1), tmp_path / "a", 3) == [], "it is over"
    evaluator = measured(tmp_path, epochs=1)
    plain = run_search(
        evaluator.space, OBJECTIVES, evaluator, SearchSettings(sampler="random", evaluations=3)
    )
    log = (tmp_path / "a" / "nas.log").read_text()
    for accuracy in plain.evaluated.values[:, 0]:
        assert f"digits_accuracy {accuracy:.6g}" in log


def test_a_users_function_tells_its_seconds_with_its_first_evaluation(tmp_path: Path) -> None:
    def evaluate(model, architecture, report):  # type: ignore[no-untyped-def]
        time.sleep(0.05)
        return {"score": float(sum(architecture.as_dict().values()))}

    evaluator = FunctionEvaluator(Widths(), evaluate, ["score"], Measurement(("params",)))
    before, after = search(evaluator, tmp_path, 5, "score,params")
    assert before.sentence == "5 evaluations; how long they take is known after the first"
    assert before.seconds is None
    assert after.each is not None
    assert 0.05 < after.each < 1
    assert after.sentence.startswith("about ")
    assert " left: 4 of 5 evaluations, " in after.sentence


@pytest.mark.slow
def test_a_budget_in_epochs_is_told_by_epochs(tmp_path: Path) -> None:
    budget = Budget((1, 2), 4)
    before, after = search(measured(tmp_path), tmp_path, 0, sampler="asha", budget=budget)
    assert ": 4 epochs of training, " in before.sentence
    assert " left: 3 of 4 epochs of training, " in after.sentence


def test_what_takes_no_time_announces_nothing(tmp_path: Path) -> None:
    assert search(measured(tmp_path, "params,flops"), tmp_path / "a", 3, "params,flops") == []
    told: list[Duration] = []
    space = get_space("nasbench201")
    names = [space.format(a) for a in islice(space.enumerate(), 20)]
    rows = [f"{name},{i * i % 17},{i}" for i, name in enumerate(names)]
    (tmp_path / "t.csv").write_text("\n".join(["arch,x_accuracy,y", *rows]))
    run_studies(
        load_benchmark(str(tmp_path / "t.csv")),
        "x_accuracy,y",
        ["random"],
        3,
        [0],
        tmp_path / "b",
        options=SearchOptions(announce=told.append),
    )
    assert told == []


def test_sentences_are_plain() -> None:
    work = Workload(60, trainings=1, epochs=20)
    estimate = Duration(work, 60, 12.0, "from a few training steps")
    sentence = "about 12 min: 60 trainings of 20 epochs, 12 s each (from a few training steps)"
    assert estimate.sentence == sentence
    two = Duration(Workload(60, trainings=3, epochs=20, jobs=2, confirm=1), 30, 12.0, "as so far")
    assert two.sentence == (
        "about 3 min left: 30 of 60 evaluations of 3 trainings of 20 epochs in 2 processes, "
        "12 s each (as so far), then 1 fresh training of each network of the front"
    )
    limited = Duration(Workload(60, limit=300), 60, 12.0, "as the first")
    assert limited.sentence.startswith("about 5 min, the time limit: 60 evaluations, 12 s each")
    words = [in_words(seconds) for seconds in (0.234, 3.2, 45, 720, 9000, 400000)]
    assert words == ["0.2 s", "3 s", "45 s", "12 min", "2.5 h", "4.6 days"]
