"""Claims about trained networks: the ONNX file has the trained weights and gives the score that was
reported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from nas.evaluation.datasets import Dataset, Part, digits, load_dataset
from nas.evaluation.export import (
    load_weights,
    preprocessing,
    save_onnx,
    save_weights,
    trained_model,
)
from nas.evaluation.goals import goal_of
from nas.evaluation.trainable import Trainable
from nas.evaluation.training import TrainingTask, train
from search_spaces import InputError, TorchSpace, get_space, to_text
from search_spaces.ir.builder import Network, Tensor
from search_spaces.ir.graph import BATCH, Typed

SPACE = get_space("nasbench201", channels=4, cells=1, input_shape=(1, 8, 8), num_classes=10)
TASK = TrainingTask(epochs=2, batch=32)
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def run_onnx(model: onnx.ModelProto | Path, inputs: np.ndarray) -> np.ndarray:
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    session = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {session.get_inputs()[0].name: inputs})[0])


def score(model: onnx.ModelProto | Path, data: Dataset, part: Part) -> float:
    """A part's score by ONNX Runtime."""
    goal = goal_of(data)
    outputs = torch.from_numpy(run_onnx(model, part.inputs))[:, None]
    return goal.score(float(goal.terms(outputs, torch.from_numpy(part.targets)).mean()))


def test_the_onnx_model_of_the_best_seed_reproduces_its_scores() -> None:
    """Three networks are trained side by side, and one branch of the cell computes nothing."""
    cell = "|nor_conv_3x3~0|+|none~0|skip_connect~1|+|avg_pool_3x3~0|none~1|nor_conv_1x1~2|"
    data, network = digits(), Trainable.of(SPACE, SPACE.parse(cell))
    trained = train(network, data, (0, 1, 2), TASK)
    assert trained.state is not None
    assert data.validation is not None
    assert len(set(trained.validation)) > 1
    assert trained.validation[trained.best] == max(trained.validation)
    model = trained_model(network, trained.state)
    onnx.checker.check_model(model)
    assert score(model, data, data.validation) == pytest.approx(
        max(trained.validation), abs=100.5 / len(data.validation)
    )
    assert score(model, data, data.test) == pytest.approx(
        trained.test[trained.best], abs=100.5 / len(data.test)
    )


def test_with_patience_the_weights_are_those_of_the_best_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The learning rate destroys what was learned before."""
    task = replace(TASK, epochs=6, patience=6, learning_rate=0.9, schedule="one-cycle")
    data, network = digits(), Trainable.of(SPACE, SPACE.sample(np.random.default_rng(3)))
    curve: list[float] = []

    def report(_: int, values: Mapping[str, float]) -> bool:
        curve.append(values[data.metric])
        return True

    trained = train(network, data, (0,), task, report=report)
    assert trained.state is not None
    assert data.validation is not None
    assert trained.validation[0] == max(curve)
    found = score(trained_model(network, trained.state), data, data.validation)
    assert found == pytest.approx(max(curve), abs=100.5 / len(data.validation))


def test_numbers_are_predicted_within_their_noise(tmp_path: Path) -> None:
    x = RNG.normal(3, 2, (600, 5))
    y = np.stack([50 * x[:, 0] - 20 * x[:, 1], 1000 + 30 * np.maximum(x[:, 2], 3)], 1) + RNG.normal(
        0, 5, (600, 2)
    )
    np.savez(tmp_path / "line.npz", x=x, y=y)
    data = load_dataset(tmp_path / "line.npz", (5,))
    net = Network((5,), 2)
    network = Trainable(net.graph(net.linear(net.relu(net.linear(net.input, 32)), 2)))
    trained = train(network, data, (0, 1), TrainingTask(epochs=30, batch=32, learning_rate=0.05))
    assert max(trained.validation + trained.test) < 15  # the noise's is 5, that of the mean some 75
    assert trained.validation[trained.best] == min(trained.validation)
    assert trained.state is not None
    path = tmp_path / "net.onnx"
    save_onnx(path, network, trained.state, preprocessing(data))
    assert score(path, data, data.test) == pytest.approx(trained.test[trained.best], rel=1e-3)
    # With what the file says, it predicts in the numbers' own unit from inputs as they are.
    said = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
    assert (said["data"], said["weights"]) == ("line", "trained")
    inputs, targets = (json.loads(said[f"{name}_scale"]) for name in ("input", "target"))
    outputs = run_onnx(path, ((x - inputs["mean"]) / inputs["std"]).astype(np.float32))
    predicted = outputs * targets["std"] + targets["mean"]
    assert np.sqrt(np.mean((predicted - y) ** 2)) < 15


def test_token_ids_are_classified(tmp_path: Path) -> None:
    """The class is the one of four tokens that occurs in the sequence."""
    x, y = RNG.integers(4, 20, (500, 6)), RNG.integers(0, 4, 500)
    x[np.arange(500), RNG.integers(0, 6, 500)] = y
    np.savez(tmp_path / "tokens.npz", x=x, y=y)
    data = load_dataset(tmp_path / "tokens.npz", Typed((6,), "int64"))
    network = token_network(rows=20)
    task = TrainingTask(epochs=20, batch=32, optimizer="adamw", learning_rate=0.02)
    trained = train(network, data, (0,), task)
    assert trained.test[0] > 80  # chance: 25
    assert trained.state is not None
    assert score(trained_model(network, trained.state), data, data.test) == pytest.approx(
        trained.test[0], abs=1
    )
    with pytest.raises(
        InputError, match="tokens has the token id 19; the network's embedding has 19 rows"
    ):
        train(token_network(rows=19), data, (0,), task)


def token_network(rows: int) -> Trainable:
    """The mean of the tokens' embeddings, and a layer on it."""
    net = Network((6,), 4)
    net.input = Tensor(0, Typed((BATCH, 6), "int64"))
    net._shapes[0] = net.input.shape
    x = net.op("Embedding", net.input, attrs=(("features", 16), ("rows", rows)))
    x = net.op("ReduceMax", x, attrs=(("axes", (1,)), ("keepdims", 0)))
    return Trainable(net.graph(net.linear(x, 4)))


def build(trial: Any) -> nn.Module:
    """Convolutions with a lazy classifier and dropout."""
    width = trial.suggest_categorical("width", [4, 8])
    block = nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
    return nn.Sequential(*block, nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.1), nn.LazyLinear(10))


build.example_input = torch.zeros(1, 1, 8, 8)  # type: ignore[attr-defined]


def test_a_users_own_module_is_trained_and_written_with_its_weights(tmp_path: Path) -> None:
    space, data = TorchSpace(build), digits()
    network = Trainable.of(space, space.sample(np.random.default_rng(0)))
    assert isinstance(network.module(), nn.Sequential)
    whole = train(network, data, (0, 1), TASK)

    def kill(step: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    for _ in range(len(whole.validation) * TASK.epochs):  # dropout goes on as it would have, too
        with suppress(KeyboardInterrupt):
            train(network, data, (0, 1), TASK, checkpoint=tmp_path / "t.pt", progress=kill)
    trained = train(network, data, (0, 1), TASK, checkpoint=tmp_path / "t.pt")
    assert trained.validation == whole.validation
    assert trained.state is not None
    path = tmp_path / "net.onnx"
    save_onnx(path, network, trained.state)
    assert score(path, data, data.test) == pytest.approx(
        trained.test[trained.best], abs=100.5 / len(data.test)
    )
    assert to_text(onnx.load(path)) == network.text
    space.module(space.sample(np.random.default_rng(0))).load_state_dict(trained.state)


def test_weights_are_kept_as_safetensors(tmp_path: Path) -> None:
    network = Trainable.of(SPACE, SPACE.sample(np.random.default_rng(0)))
    state = network.state(network.module())
    path = tmp_path / "weights" / "0.safetensors"
    save_weights(path, state, {"data": "digits"})
    kept, about = load_weights(path)
    assert about == {"data": "digits"}
    assert kept.keys() == state.keys()
    assert all(torch.equal(kept[name], tensor) for name, tensor in state.items())
    network.module().load_state_dict(kept)
    with pytest.raises(InputError, match="the weights belong to another network"):
        trained_model(token_network(rows=9), kept)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match=r"0\.safetensors: not readable as safetensors"):
        load_weights(path)
    with pytest.raises(InputError, match=r"none\.safetensors: no such file"):
        load_weights(tmp_path / "none.safetensors")
