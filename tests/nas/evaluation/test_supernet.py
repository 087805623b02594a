"""Claims about one training for all networks of a space."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from nas.evaluation.datasets import digits, load_dataset
from nas.evaluation.supernet import supernet_score, train_supernet
from nas.evaluation.tasks import TrainingTask
from search_spaces import InputError, TorchSpace, get_space
from search_spaces.choosers import Trial
from search_spaces.shared_weights import SharedWeights


def build(trial: Trial) -> nn.Module:
    width = trial.suggest_categorical("width", [4, 8, 16])
    kernel = trial.suggest_categorical("kernel", [3, 5])
    layers = [nn.Conv2d(1, width, kernel, padding=kernel // 2), nn.BatchNorm2d(width), nn.ReLU()]
    if trial.suggest_categorical("deep", [False, True]):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(
        nn.Sequential(*layers), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * width, 10)
    )


SPACE = TorchSpace(build, torch.zeros(1, 1, 8, 8))


def equal(a: SharedWeights, b: SharedWeights) -> bool:
    pairs = [(a.tensors[key], b.tensors[key]) for key in a.tensors]
    return a.tensors.keys() == b.tensors.keys() and all(torch.allclose(*pair) for pair in pairs)


@pytest.mark.slow
def test_all_networks_learn_from_one_training() -> None:
    task = TrainingTask(4)
    data = digits().with_validation(task.validation)
    untrained = train_supernet(SPACE, data, task, until=0)
    trained = train_supernet(SPACE, data, task)
    archs = list(SPACE.enumerate())
    before, after = (
        np.array([supernet_score(SPACE, weights, arch, data, task) for arch in archs])
        for weights in (untrained, trained)
    )
    assert before.mean() < 20
    assert after.mean() > before.mean() + 20
    wide = np.array([arch.as_dict()["width"] == 16 for arch in archs])
    assert after[wide].mean() > after[~wide].mean()


def test_an_interrupted_training_resumes_with_the_same_result(tmp_path: Path) -> None:
    data, task = digits(128), TrainingTask(2)
    state = tmp_path / "state.pt"
    half = train_supernet(SPACE, data, task, checkpoint=state, until=1)
    whole = train_supernet(SPACE, data, task)
    resumed = train_supernet(SPACE, data, task, checkpoint=state)
    assert equal(resumed, whole)
    assert not equal(half, whole)
    with pytest.raises(InputError, match="differs in task"):
        train_supernet(SPACE, data, TrainingTask(4), checkpoint=state)


def test_what_cannot_be_trained_is_refused() -> None:
    with pytest.raises(InputError, match="PyTorch modules"):
        train_supernet(get_space("tiny-resnet"), load_dataset("digits"), TrainingTask(1))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="batch = 512"):
        train_supernet(SPACE, digits(128), TrainingTask(1, batch=512))
