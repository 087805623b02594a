"""Claims about training: reproducible, resumable to the same result, and honest about networks that
fail.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nas.evaluation import training
from nas.evaluation.datasets import Dataset, Part, digits
from nas.evaluation.module import memory_format_of
from nas.evaluation.trainable import Trainable
from nas.evaluation.training import DigitsTask, Trained, TrainingTask, train, train_digits
from search_spaces import get_space
from search_spaces.common.errors import InputError
from search_spaces.ir.builder import Network
from search_spaces.ir.pytorch import record

SPACE = get_space(
    "nasbench201", channels=8, cells=1, input_shape=(1, 8, 8), num_classes=10, prune=True
)
SHORT = TrainingTask(epochs=3, batch=32)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def data() -> Dataset:
    return digits(train_images=128)


def small_network(*, param: bool = False) -> Trainable:
    net = Network((1, 8, 8), 10)
    x = net.conv_bn_relu(net.input, 4, stride=2)
    if param:
        x = net.add(x, net.op("Param", attrs=(("shape", (4, 1, 1)),)))
    return Trainable(net.graph(net.classifier(x)))


def scores(trained: Trained) -> tuple[list[float], list[float]]:
    return trained.validation, trained.test


def assert_same(trained: Trained, other: Trained) -> None:
    """Equal scores, and equal weights to the last bit."""
    assert scores(trained) == scores(other)
    assert trained.state is not None
    assert other.state is not None
    assert all(torch.equal(trained.state[name], tensor) for name, tensor in other.state.items())


@pytest.mark.slow
def test_digits201_stays_reproducible() -> None:
    """Recorded when the table was built: exact batches and initial weights, accuracies up to
    rounding.
    """
    graph = SPACE.graph(
        SPACE.parse(
            "|skip_connect~0|+|none~0|avg_pool_3x3~1|+|nor_conv_3x3~0|nor_conv_3x3~1|nor_conv_3x3~2|"
        )
    )
    run = training._Training(Trainable(graph), digits(test_share=0.0), (0, 1), DigitsTask(), "cpu")
    assert sum(
        float(p.detach().double().square().sum()) for p in run.net.parameters()
    ) == pytest.approx(1893.4356867)
    epochs = [list(zip(*run._batches(), strict=True)) for _ in range(2)]
    images, labels = zip(*((torch.cat(x), torch.cat(y)) for x, y in epochs), strict=True)
    squares = [
        float(x.double().square().sum()) for x in (*images, torch.from_numpy(run.validation.inputs))
    ]
    assert squares == pytest.approx([14658.816525584, 14719.574029049, 18588.144901752])
    assert labels[1][:6].T.tolist() == [[0, 1, 3, 8, 8, 9], [9, 4, 3, 9, 6, 7]]
    assert train_digits(graph, (0, 1)) == pytest.approx(
        [75.09727626459144, 77.2762645914397], abs=5
    )


def test_the_same_seeds_give_the_same_accuracies_and_others_do_not(data: Dataset) -> None:
    first, again, other = (
        scores(train(small_network(), data, seeds, SHORT)) for seeds in ((0, 1), (0, 1), (2, 3))
    )
    assert first == again != other


def test_training_learns(data: Dataset) -> None:
    network = Trainable.of(SPACE, SPACE.sample(np.random.default_rng(3)))
    trained = train(network, digits(), (0,), TrainingTask(schedule="cosine", learning_rate=0.05))
    assert trained.validation[0] > 40
    assert abs(trained.validation[0] - trained.test[0]) < 10


class Killed(Exception):
    pass


@pytest.mark.parametrize(
    "task", [SHORT, replace(SHORT, epochs=4, patience=2, schedule="cosine", flip=True)]
)
@pytest.mark.parametrize("param", [False, True], ids=["side by side", "one by one"])
def test_training_killed_after_any_epoch_goes_on_to_the_same_result(
    tmp_path: Path, data: Dataset, task: TrainingTask, param: bool
) -> None:
    network, checkpoint = small_network(param=param), tmp_path / "training.pt"
    whole = train(network, data, (0, 1), task)

    def kill(step: str, done: int, total: int) -> None:
        raise Killed

    killed = 0
    while True:  # one epoch at a time
        try:
            assert_same(
                train(network, data, (0, 1), task, checkpoint=checkpoint, progress=kill), whole
            )
            break
        except Killed:
            killed += 1
    assert killed > 1
    # Nothing is left to do.
    assert_same(train(network, data, (0, 1), task, checkpoint=checkpoint, progress=kill), whole)


def test_checkpoint_of_another_training_is_refused(tmp_path: Path, data: Dataset) -> None:
    network, checkpoint = small_network(), tmp_path / "training.pt"
    train(network, data, (0,), SHORT, checkpoint=checkpoint)
    for changed, message in (
        ({"seeds": (1,)}, "differs in seeds"),
        ({"task": replace(SHORT, epochs=4)}, "differs in task"),
        ({"data": digits(train_images=129)}, "differs in data set"),
        ({"network": small_network(param=True)}, "differs in network"),
    ):
        settings: dict[str, Any] = {
            "network": network,
            "data": data,
            "seeds": (0,),
            "task": SHORT,
            **changed,
        }
        with pytest.raises(InputError, match=message):
            train(**settings, checkpoint=checkpoint)


def test_damaged_checkpoint_is_refused(tmp_path: Path, data: Dataset) -> None:
    checkpoint = tmp_path / "training.pt"
    checkpoint.write_bytes(b"not a checkpoint")
    with pytest.raises(InputError, match=r"training\.pt: not a training checkpoint"):
        train(small_network(), data, (0,), SHORT, checkpoint=checkpoint)


def test_diverged_network_has_no_accuracy_and_spoils_no_other(
    data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoiled = training._Training(small_network(), data, (0, 1), SHORT, "cpu")
    sound = training._Training(small_network(), data, (0, 1), SHORT, "cpu")
    with torch.no_grad():
        next(spoiled.net.parameters())[:4] = math.nan  # the first replica's convolution
    for run in (spoiled, sound):
        while not run.finished:
            run.run_epoch()
    assert math.isnan(spoiled.results()[0].validation)
    assert spoiled.results()[1].validation == sound.results()[1].validation


def test_patience_stops_early_at_the_best_epoch(
    data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    validated = iter([[10.0], [30.0], [20.0], [30.0], [50.0]])
    tested = iter([[11.0], [31.0], [51.0]])
    held = []

    def accuracies(self: Any, part: Part) -> list[float]:
        held.append(len(part))
        return next(tested if part is self.test else validated)

    monkeypatch.setattr(training._Training, "_scores", accuracies)
    epochs: list[int] = []
    unsplit, task = replace(data, validation=None), replace(SHORT, epochs=9, patience=2)
    result = train(
        small_network(), unsplit, (0,), task, progress=lambda _, done, total: epochs.append(done)
    )
    assert (result.validation, result.test) == ([30.0], [31.0])
    assert epochs == [1, 2, 3, 4]
    assert held[0] == 26  # a fifth of 128


def test_large_data_sets_are_augmented_in_blocks(
    data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "AUGMENTATION_BLOCK", 64)
    run = training._Training(small_network(), data, (0, 1), SHORT, "cpu")
    batches = list(run._batches())
    assert [tuple(x.shape) for x, _ in batches] == [(32, 2, 8, 8)] * 4
    labels = torch.cat([y for _, y in batches])
    for replica in range(2):
        assert sorted(labels[:, replica].tolist()) == sorted(data.train.targets.tolist())


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "schedule": ({"schedule": "one-cycl"}, "did you mean 'one-cycle'"),
    "epochs": ({"epochs": -1}, "epochs = -1: it must be at least 0"),
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
    with pytest.raises(
        InputError, match=r"inputs of shape \(3, 32, 32\); digits has inputs of shape \(1, 8, 8\)"
    ):
        train(Trainable.of(space, space.sample(np.random.default_rng(0))), data)
    net = Network((1, 8, 8), 3)
    with pytest.raises(InputError, match="digits has 10 classes"):
        train(Trainable(net.graph(net.classifier(net.input))), data)
    with pytest.raises(InputError, match="batch = 256 is more than"):
        train(small_network(), data, task=TrainingTask(batch=256))
    with pytest.raises(InputError, match="at least one seed"):
        train(small_network(), data, ())


@pytest.mark.parametrize("device", ["abacus", "cuda:99"])
def test_device_that_is_not_there_is_named(data: Dataset, device: str) -> None:
    with pytest.raises(InputError, match=device):
        train(small_network(), data, device=device)


@pytest.mark.parametrize(
    ("channels", "kernel", "stride", "is_last"),
    [(4, 1, 2, False), (4, 1, 1, True), (4, 3, 2, True), (8, 1, 2, True)],
)
def test_networks_with_few_channels_train_without_writing_beyond_their_memory(
    channels: int, kernel: int, stride: int, is_last: bool
) -> None:
    net = Network((1, 8, 8), 10)
    x = net.conv(net.conv(net.input, channels, 3), channels, kernel, stride=stride)
    network = Trainable(net.graph(net.classifier(x)))
    assert (memory_format_of(network.graph) == torch.channels_last) == is_last
    assert 0 <= train(network, digits(), task=TrainingTask(1)).validation[0] <= 100


def test_convolutions_whose_weights_depend_on_the_input_are_trained_as_the_others() -> None:
    class Dynamic(torch.nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(channels, channels, 1, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scale = x.mean((0, 2, 3)).view(-1, 1, 1, 1)
            return torch.nn.functional.conv2d(x, self.weight * scale, stride=2)

    for channels, is_last in ((4, False), (8, True)):
        graph = record(Dynamic(channels), torch.zeros(1, channels, 8, 8))
        assert (memory_format_of(graph) == torch.channels_last) == is_last
