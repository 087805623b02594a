"""Claims about retraining a network of a front: it keeps the settings of the search, resumes, and
writes files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from nas import Measurement, Problem, search
from nas.evaluation.datasets import Dataset, digits
from nas.evaluation.tasks import TrainingTask
from nas.evaluation.trainable import Trainable
from nas.evaluation.training import train
from nas.search.measured_evaluator import MeasuredEvaluator
from nas.search.own_evaluator import FunctionEvaluator
from nas.search.retraining import Retraining, retrain
from search_spaces import Architecture, SearchSpace, get_space
from search_spaces.common.errors import InputError

CODE = """
def evaluate(model, architecture, report, epochs=2):
    for epoch in range(1, epochs + 1):
        report(epoch, {"mAP": epoch})
    for p in model.parameters():
        p.data.fill_(epochs)
    return {"mAP": epochs, "test_mAP": epochs / 2}
"""


@pytest.fixture
def space() -> SearchSpace:
    return get_space("tiny-resnet", input_shape=(1, 8, 8))


@pytest.fixture
def small(space: SearchSpace) -> Architecture:
    """One of the smaller networks."""
    return min((space.sample(np.random.default_rng(seed)) for seed in range(20)), key=space.flops)


@pytest.fixture(scope="module")
def data() -> Dataset:
    torch.set_num_threads(1)
    return digits()


def source(space: SearchSpace, data: Dataset | None) -> dict[str, Any]:
    metrics = ("digits_accuracy",) if data else ("params",)
    found = MeasuredEvaluator(space, Measurement(metrics, data, (0, 1), TrainingTask(1))).source
    return dict(json.loads(json.dumps(found)))


def test_settings_that_are_not_given_are_those_of_the_search(
    space: SearchSpace, data: Dataset, small: Architecture, tmp_path: Path
) -> None:
    how = Retraining({"epochs": 3})
    found = retrain(space, small, source(space, data), how, tmp_path / "03")
    expected = train(Trainable.of(space, small), data, (0, 1), TrainingTask(3))
    best = expected.best
    assert found["values"] == {
        "digits_accuracy": expected.validation[best], "digits_test_accuracy": expected.test[best],
    }  # fmt: skip
    assert found["training"]["training"]["epochs"] == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "03.onnx",
        "03.safetensors",
        "03.txt",
        "summary.json",
    ]
    session = onnxruntime.InferenceSession(
        str(tmp_path / "03.onnx"), providers=["CPUExecutionProvider"]
    )
    logits = np.asarray(session.run(None, {"input": data.test.inputs})[0])
    accuracy = 100 * (logits.argmax(1) == data.test.targets).mean()
    assert accuracy == pytest.approx(expected.test[best], abs=100.5 / len(data.test))


def test_an_interrupted_training_goes_on_and_a_finished_one_is_kept(
    space: SearchSpace, data: Dataset, small: Architecture, tmp_path: Path
) -> None:
    how, origin = Retraining({"epochs": 3}), source(space, data)

    def kill(what: str, done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        retrain(space, small, origin, how, tmp_path / "0" / "00", kill)
    epochs: list[int] = []
    found = retrain(
        space,
        small,
        origin,
        how,
        tmp_path / "0" / "00",
        lambda what, done, total: epochs.append(done),
    )
    assert epochs == [3]
    assert retrain(space, small, origin, how, tmp_path / "0" / "00", kill) == found
    with pytest.raises(
        InputError, match="contains a network trained with other settings: give another --out"
    ):
        retrain(space, small, origin, Retraining({"epochs": 4}), tmp_path / "0" / "00")


def test_a_search_that_trained_nothing_needs_a_data_set(
    space: SearchSpace, small: Architecture, tmp_path: Path
) -> None:
    for origin in ({"benchmark": "digits201"}, source(space, None)):
        with pytest.raises(InputError, match="trained no network: give --dataset"):
            retrain(space, small, origin, Retraining({}), tmp_path / "00")
    found = retrain(
        space, small, {"benchmark": "x"}, Retraining({"epochs": 1}, data="digits"), tmp_path / "00"
    )
    assert found["values"].keys() == {"digits_accuracy", "digits_test_accuracy"}


def test_data_other_than_the_search_used_are_refused(
    space: SearchSpace, data: Dataset, small: Architecture, tmp_path: Path
) -> None:
    np.savez(tmp_path / "other.npz", x=np.zeros((40, 8, 8)), y=np.arange(40) % 10)
    how = Retraining({}, data=str(tmp_path / "other.npz"))
    with pytest.raises(InputError, match=r"other\.npz: this is not the data set"):
        retrain(space, small, source(space, data), how, tmp_path / "00")


def test_the_users_own_function_gets_the_new_settings(
    space: SearchSpace, small: Architecture, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(CODE)
    function = f"{tmp_path}/mine.py:evaluate"
    evaluator = FunctionEvaluator(space, function, ["mAP"])
    result = search(Problem(space, evaluator, "mAP"), sampler="random", evaluations=1)
    origin = json.loads(json.dumps(evaluator.source))
    shown: list[tuple[int, int]] = []
    how = Retraining({"epochs": 4}, function=function)
    found = retrain(
        space,
        small,
        origin,
        how,
        tmp_path / "x" / "00",
        lambda what, done, total: shown.append((done, total)),
    )
    assert result.evaluated.values.tolist() == [[2.0]]
    assert found["values"] == {"mAP": 4.0, "test_mAP": 2.0}
    assert shown == [(1, 4), (2, 4), (3, 4), (4, 4)]
    with pytest.raises(InputError, match=r"must take .*speed"):
        retrain(
            space, small, origin, Retraining({"speed": 4}, function=function), tmp_path / "y" / "00"
        )
    with pytest.raises(InputError, match="give --trust"):
        retrain(space, small, origin, Retraining({}), tmp_path / "y" / "00")
