"""Claims about training: reproducible, resumable to the same result, and honest about networks that fail."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nas.evaluation import training
from nas.evaluation.datasets import Dataset, digits
from nas.evaluation.training import DigitsTask, TrainingTask, train, train_digits
from search_spaces import get_space
from search_spaces.common.errors import InputError
from search_spaces.graph.builder import Network
from search_spaces.graph.ir import Graph

SPACE = get_space("nasbench201", channels=8, cells=1, input_shape=(1, 8, 8), num_classes=10, prune=True)
SHORT = TrainingTask(epochs=3, batch=32)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def data() -> Dataset:
    return digits(train_images=128)


def small_graph(*, param: bool = False) -> Graph:
    net = Network((1, 8, 8), 10)
    x = net.conv_bn_relu(net.input, 4, stride=2)
    if param:
        x = net.add(x, net.op("Param", attrs=(("shape", (4, 1, 1)),)))
    return net.graph(net.classifier(x))


def test_digits201_stays_reproducible() -> None:
    """Recorded when the table was built: batches and initial weights exactly, accuracies up to how sums are rounded."""
    graph = SPACE.graph(
        SPACE.parse("|skip_connect~0|+|none~0|avg_pool_3x3~1|+|nor_conv_3x3~0|nor_conv_3x3~1|nor_conv_3x3~2|")
    )
    run = training._Training(graph, digits(), (0, 1), DigitsTask(), "cpu")
    assert sum(float(p.detach().double().square().sum()) for p in run.net.parameters()) == pytest.approx(1893.4356867)
    epochs = [list(zip(*run._batches(), strict=True)) for _ in range(2)]
    images, labels = zip(*((torch.cat(x), torch.cat(y)) for x, y in epochs), strict=True)
    squares = [float(x.double().square().sum()) for x in (*images, torch.from_numpy(digits().test_images))]
    assert squares == pytest.approx([14658.816525584, 14719.574029049, 18588.144901752])
    assert labels[1][:6].T.tolist() == [[0, 1, 3, 8, 8, 9], [9, 4, 3, 9, 6, 7]]
    assert train_digits(graph, (0, 1)) == pytest.approx([75.09727626459144, 77.2762645914397], abs=5)


def test_the_same_seeds_give_the_same_accuracies_and_others_do_not(data: Dataset) -> None:
    graph = small_graph()
    assert train(graph, data, (0, 1), SHORT) == train(graph, data, (0, 1), SHORT) != train(graph, data, (2, 3), SHORT)


def test_training_learns(data: Dataset) -> None:
    graph = SPACE.graph(SPACE.sample(np.random.default_rng(3)))
    (accuracy,) = train(graph, digits(), (0,), TrainingTask(schedule="cosine", learning_rate=0.05))
    assert accuracy > 40


class Killed(Exception):
    pass


@pytest.mark.parametrize("task", [SHORT, replace(SHORT, epochs=4, patience=2, schedule="cosine", flip=True)])
@pytest.mark.parametrize("param", [False, True], ids=["side by side", "one by one"])
def test_training_killed_after_any_epoch_goes_on_to_the_same_result(
    tmp_path: Path, data: Dataset, task: TrainingTask, param: bool
) -> None:
    graph, checkpoint = small_graph(param=param), tmp_path / "training.pt"
    whole = train(graph, data, (0, 1), task)

    def kill(done: int, total: int) -> None:
        raise Killed

    killed = 0
    while True:  # one epoch at a time
        try:
            assert train(graph, data, (0, 1), task, checkpoint=checkpoint, progress=kill) == whole
            break
        except Killed:
            killed += 1
    assert killed > 1
    assert train(graph, data, (0, 1), task, checkpoint=checkpoint, progress=kill) == whole  # nothing is left to do


def test_checkpoint_of_another_training_is_refused(tmp_path: Path, data: Dataset) -> None:
    graph, checkpoint = small_graph(), tmp_path / "training.pt"
    train(graph, data, (0,), SHORT, checkpoint=checkpoint)
    for changed, message in (
        ({"seeds": (1,)}, "other seeds"),
        ({"task": replace(SHORT, epochs=4)}, "other task"),
        ({"data": digits(train_images=129)}, "other data set"),
        ({"graph": small_graph(param=True)}, "other network"),
    ):
        settings: dict[str, Any] = {"graph": graph, "data": data, "seeds": (0,), "task": SHORT, **changed}
        with pytest.raises(InputError, match=message):
            train(**settings, checkpoint=checkpoint)


def test_damaged_checkpoint_is_refused(tmp_path: Path, data: Dataset) -> None:
    checkpoint = tmp_path / "training.pt"
    checkpoint.write_bytes(b"not a checkpoint")
    with pytest.raises(InputError, match=r"training\.pt: not the checkpoint"):
        train(small_graph(), data, (0,), SHORT, checkpoint=checkpoint)


def test_diverged_network_has_no_accuracy_and_spoils_no_other(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    spoiled = training._Training(small_graph(), data, (0, 1), SHORT, "cpu")
    sound = training._Training(small_graph(), data, (0, 1), SHORT, "cpu")
    with torch.no_grad():
        next(spoiled.net.parameters())[:4] = math.nan  # the first replica's convolution
    for run in (spoiled, sound):
        while not run.finished:
            run.run_epoch()
    assert math.isnan(spoiled.result()[0])
    assert spoiled.result()[1] == sound.result()[1]


def test_patience_stops_early_at_the_best_epoch(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    validated = iter([[10.0], [30.0], [20.0], [30.0], [50.0]])
    tested = iter([[11.0], [31.0], [51.0]])
    held = []

    def accuracies(self: Any, images: np.ndarray, labels: np.ndarray) -> list[float]:
        held.append(len(images))
        return next(tested if len(images) == len(data.test_images) else validated)

    monkeypatch.setattr(training._Training, "_accuracies", accuracies)
    epochs: list[int] = []
    result = train(
        small_graph(), data, (0,), replace(SHORT, epochs=9, patience=2), progress=lambda done, _: epochs.append(done)
    )
    assert result == [31.0]
    assert epochs == [1, 2, 3, 4]
    assert held[0] == 13  # a tenth of 128


def test_large_data_sets_are_disturbed_in_blocks(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "AT_ONCE", 64)
    run = training._Training(small_graph(), data, (0, 1), SHORT, "cpu")
    batches = list(run._batches())
    assert [tuple(x.shape) for x, _ in batches] == [(32, 2, 8, 8)] * 4
    labels = torch.cat([y for _, y in batches])
    for replica in range(2):
        assert sorted(labels[:, replica].tolist()) == sorted(data.train_labels.tolist())


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "schedule": ({"schedule": "one-cycl"}, "did you mean 'one-cycle'"),
    "epochs": ({"epochs": 0}, "epochs = 0: it must be at least 1"),
    "batch of one": ({"batch": 1}, "batch = 1: it must be at least 2"),
    "learning rate": ({"learning_rate": math.nan}, "learning_rate = nan"),
    "noise": ({"noise": -1}, "noise = -1"),
    "validation": ({"validation": 1.0}, "validation = 1.0"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_task_is_named(case: str) -> None:
    settings, message = BAD[case]
    with pytest.raises(InputError, match=message):
        TrainingTask(**settings)


def test_data_that_do_not_fit_are_refused(data: Dataset) -> None:
    space = get_space("nasbench201", channels=4, cells=1)
    with pytest.raises(InputError, match=r"inputs of shape \(3, 32, 32\); the images of digits have shape \(1, 8, 8\)"):
        train(space.graph(space.sample(np.random.default_rng(0))), data)
    net = Network((1, 8, 8), 3)
    with pytest.raises(InputError, match="digits has 10 classes"):
        train(net.graph(net.classifier(net.input)), data)
    with pytest.raises(InputError, match="batches of 256 images"):
        train(small_graph(), data, task=TrainingTask(batch=256))
    with pytest.raises(InputError, match="at least one seed"):
        train(small_graph(), data, ())


@pytest.mark.parametrize("device", ["abacus", "cuda:99"])
def test_device_that_is_not_there_is_named(data: Dataset, device: str) -> None:
    with pytest.raises(InputError, match=device):
        train(small_graph(), data, device=device)
