"""Recalibration, teachers and fidelity."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nas.evaluation.datasets import Dataset, Part, load_dataset
from nas.evaluation.inheritance import (
    Cosine,
    adapted_to_data,
    distance,
    distillation,
    imitated,
    recalibrate,
    tolerated_change,
)
from nas.evaluation.tasks import TrainingTask, fine_tuning_rate
from nas.evaluation.trainable import Trainable
from nas.evaluation.training import train
from nas.search.study.networks import NetworkId
from search_spaces import InputError, Subnetworks


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x)


def space(**options: str) -> Subnetworks:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3), Block(), Block(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(576, 10)
    )
    return Subnetworks(net, torch.zeros(1, 1, 8, 8), name="net", **options)  # type: ignore[arg-type]


def test_statistics_are_means_over_the_batches_and_nothing_else_changes() -> None:
    norm = nn.BatchNorm1d(3)
    net = nn.Sequential(norm, nn.Dropout(0.5), nn.BatchNorm1d(3, track_running_stats=False)).eval()
    norm.momentum = 0.3
    x = torch.randn(4, 10, 3) * 5 + 2
    recalibrate(net, x)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert torch.allclose(norm.running_mean, x.mean((0, 1)), atol=1e-4)
    assert torch.allclose(norm.running_var, x.var(1).mean(0), atol=1e-3)
    assert (norm.momentum, net.training, norm.training) == (0.3, False, False)
    net.train()
    recalibrate(net, x)
    assert net[1].training


def test_distillation_is_zero_for_the_teachers_own_outputs() -> None:
    outputs = torch.randn(5, 4)
    for kind in ("classes", "vectors"):
        assert float(distillation(outputs, outputs, kind)) == pytest.approx(0, abs=1e-5)
        assert float(distillation(outputs, outputs.flip(1), kind)) > 0.1


def test_the_whole_network_has_full_fidelity() -> None:
    data = load_dataset("digits")
    for outputs in ("classes", "vectors"):
        parts = space(outputs=outputs)
        network = Trainable.of(parts, parts.whole)
        assert isinstance(network.teacher, nn.Module)
        imitation = imitated(data, network)
        assert (imitation.metric, imitation.test_metric) == ("fidelity", "test_fidelity")
        with torch.no_grad():
            taught = parts.model(torch.from_numpy(data.test.inputs))
        kept = taught.argmax(1) if outputs == "classes" else taught
        assert np.allclose(imitation.test.targets, kept.numpy(), atol=1e-5)
        # Its statistics are recalibrated, too, and are those of the adapted model.
        norms = sum(isinstance(layer, nn.BatchNorm2d) for layer in parts.model.modules())
        score = train(network, imitation, task=TrainingTask(0)).validation[0]
        assert norms == 2
        assert score > 98


def narrow() -> Dataset:
    """Bright images of one class: nothing that the model's statistics are from."""
    data = load_dataset("digits")
    ones = [part.rows(part.targets == 1) for part in (data.train, data.test)]
    train_part, test_part = (Part(3 + 0.2 * part.inputs, part.targets) for part in ones)
    return replace(data, name="ones", train=train_part, test=test_part, validation=test_part)


def trained_net() -> nn.Sequential:
    """A network with the statistics of a training."""
    parts = space(start="fresh")
    state = train(
        Trainable.of(parts, parts.whole), load_dataset("digits"), task=TrainingTask(3)
    ).state
    assert state is not None
    net = parts.module(parts.whole)
    net.load_state_dict(state)
    assert isinstance(net, nn.Sequential)
    return net.eval()


def test_a_model_adapted_to_other_data_has_the_same_outputs_and_their_statistics() -> None:
    model, data = trained_net(), narrow()
    x = torch.from_numpy(data.train.inputs)
    images = torch.from_numpy(load_dataset("digits").test.inputs)
    before = model(x).detach(), model(images).detach()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    block = model[1]
    assert isinstance(block, Block)
    norm = block.layers[1]
    assert isinstance(norm, nn.BatchNorm2d)
    for _ in range(2):  # the second time, with known statistics
        with adapted_to_data(model, data, [x[:50], x[50:]], model):
            assert torch.allclose(model(x), before[0], atol=1e-4)
            assert torch.allclose(model(images), before[1], atol=1e-4)
            # What the first normalization receives.
            received = block.layers[0](model[0](x))
            assert norm.running_mean is not None
            assert norm.running_var is not None
            assert torch.allclose(norm.running_mean, received.mean((0, 2, 3)), atol=1e-4)
            variance = received.var((0, 2, 3), correction=0)
            assert torch.allclose(norm.running_var, variance, rtol=1e-3)
            assert not torch.equal(norm.running_mean, state["1.layers.1.running_mean"])
        assert all(torch.equal(x, state[name]) for name, x in model.state_dict().items())


def test_the_whole_model_keeps_its_fidelity_on_data_it_was_not_trained_on() -> None:
    parts = Subnetworks(trained_net(), torch.zeros(1, 1, 8, 8), name="net", outputs="vectors")
    network = Trainable.of(parts, parts.whole)
    imitation = imitated(narrow(), network)
    for epochs in (0, 1):
        task = TrainingTask(epochs, batch=16, learning_rate=0.001, shift=0, noise=0)
        assert train(network, imitation, task=task).validation[0] > 99


def test_what_is_set_of_optimizer_and_rate_stays() -> None:
    rates = {inherited: TrainingTask(2).of_weights(inherited) for inherited in (False, True)}
    assert (rates[False].optimizer, rates[False].learning_rate) == ("sgd", 0.1)
    assert (rates[True].optimizer, rates[True].learning_rate) == ("adamw", None)
    # A rate alone is one of SGD.
    own = TrainingTask(2, learning_rate=0.03).of_weights(inherited=True)
    assert (own.optimizer, own.learning_rate) == ("sgd", 0.03)
    assert TrainingTask(2, optimizer="sgd").of_weights(inherited=True).learning_rate is None
    assert TrainingTask(2, optimizer="adamw").of_weights(inherited=False).learning_rate == 0.002


def test_distances_are_relative_to_constant_outputs() -> None:
    torch.manual_seed(0)
    taught = 3 * torch.randn(50, 4)
    for kind in ("classes", "vectors"):
        near = distance(taught + 0.1 * torch.randn(50, 4), taught, kind)
        far = distance(taught + 2 * torch.randn(50, 4), taught, kind)
        assert 0 < near < 0.1 < far < 1
        assert distance(taught, taught, kind) == pytest.approx(0, abs=1e-6)
        assert distance(-taught, taught, kind) == 1
        assert distance(taught * float("nan"), taught, kind) == 1


def test_networks_near_the_model_have_lower_rates() -> None:
    rates = [fine_tuning_rate("adamw", far) for far in (0, 0.01, 0.25, 1)]
    highest = rates[-1]
    assert rates == pytest.approx([0.001 * highest, 0.1 * highest, 0.5 * highest, highest])
    assert fine_tuning_rate("adamw", None) == rates[2], "as of a network half way"


def test_networks_whose_outputs_depend_on_small_changes_have_lower_rates() -> None:
    """The outputs of many layers change more by the same change of every weight."""

    def tolerated(layers: int) -> float:
        torch.manual_seed(0)
        hidden = [nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(layers)]
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), *hidden, nn.Linear(32, 10))
        parts = Subnetworks(model, torch.zeros(1, 1, 8, 8), name="layers")
        network = Trainable.of(parts, parts.whole)
        module = network.module()
        before = {name: value.clone() for name, value in module.state_dict().items()}
        change = tolerated_change(network, module, torch.randn(64, 1, 8, 8))
        assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
        return change

    assert tolerated(12) < tolerated(1) / 2
    assert fine_tuning_rate("adamw", 1, tolerated=0.005) == 0.005


def test_fine_tuning_changes_large_and_small_weights_by_the_same_share() -> None:
    """Adam's steps are of one size; a layer of small weights would be overwritten by them."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.small = nn.Linear(64, 32, bias=False)
            self.large = nn.Linear(32, 10, bias=False)
            with torch.no_grad():
                self.small.weight *= 0.01
                self.large.weight *= 100

        def forward(self, x: Tensor) -> Tensor:
            return self.large(self.small(x.flatten(1)))

    torch.manual_seed(0)
    model = Scaled()
    parts = Subnetworks(model, torch.zeros(1, 1, 8, 8), name="scaled")
    network = Trainable.of(parts, parts.ranked(0.5))
    before = parts.module(parts.ranked(0.5)).state_dict()
    trained = train(network, load_dataset("digits"), task=TrainingTask(1, noise=0, shift=0))
    state = trained.state
    assert state is not None
    changes = []
    for name in ("small.weight", "large.weight"):
        moved = state[name] - before[name]
        changes.append(float(moved.norm() / before[name].norm()))
    assert 0.002 < min(changes) < max(changes) < 5 * min(changes)


@pytest.mark.parametrize("outputs", ["classes", "vectors"])
def test_the_whole_model_stays_as_it_is_in_any_number_of_epochs(outputs: str) -> None:
    parts = Subnetworks(trained_net(), torch.zeros(1, 1, 8, 8), name="net", outputs=outputs)
    network = Trainable.of(parts, parts.whole)
    data = imitated(load_dataset("digits"), network)
    trained = train(network, data, task=TrainingTask(3, noise=0, shift=0))
    assert trained.test[0] > 99.5


@pytest.mark.parametrize("patience", [None, 2])
def test_a_training_that_makes_inherited_weights_worse_changes_nothing(
    patience: int | None,
) -> None:
    parts = Subnetworks(trained_net(), torch.zeros(1, 1, 8, 8), name="net")
    network = Trainable.of(parts, parts.uniform(0.5))
    data = load_dataset("digits")
    before = train(network, data, task=TrainingTask(0))
    destroyed = TrainingTask(2, learning_rate=50.0, patience=patience)
    after = train(network, data, task=destroyed)
    assert (after.validation, after.test) == (before.validation, before.test)
    assert after.state is not None
    assert before.state is not None
    assert all(torch.equal(x, before.state[name]) for name, x in after.state.items())


def test_normalizations_that_share_their_weights_are_not_adapted() -> None:
    torch.manual_seed(0)
    first, second = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    second.weight = first.weight
    model = nn.Sequential(first, nn.Linear(3, 3), second).eval()
    x = torch.randn(20, 3) * 4
    before = model(x).detach()
    with adapted_to_data(model, narrow(), [x], model):
        assert torch.equal(model(x), before)


class Tagger(nn.Module):
    """Five outputs for each of six tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.wide, self.narrow, self.head = nn.Linear(16, 64), nn.Linear(64, 16), nn.Linear(16, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        return self.head(x + self.narrow(self.wide(x).relu()))


def segmenter() -> nn.Module:
    """Five outputs for each pixel."""
    return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 5, 1))


@pytest.mark.parametrize("outputs", ["classes", "vectors"])
@pytest.mark.parametrize("kind", ["tokens", "pixels"])
def test_models_with_an_output_for_each_token_or_pixel_are_imitated_there(
    kind: str, outputs: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    model: nn.Module
    if kind == "tokens":
        model, example = Tagger().eval(), torch.zeros(1, 6, dtype=torch.int64)
        inputs, positions = rng.integers(0, 20, (100, 6)), 6
    else:
        model, example = segmenter().eval(), torch.zeros(1, 3, 4, 5)
        inputs, positions = rng.normal(size=(100, 3, 4, 5)).astype(np.float32), 20
    np.savez(tmp_path / "inputs.npz", x=inputs)
    data = load_dataset(f"raw:{tmp_path / 'inputs.npz'}")
    parts = Subnetworks(model, example, name="net", outputs=outputs)
    whole, half = (Trainable.of(parts, arch) for arch in (parts.whole, parts.uniform(0.5)))

    # 1. Targets are what the model says at each place.
    imitation = imitated(data, whole)
    x = torch.from_numpy(imitation.test.inputs)
    with torch.no_grad():
        said = model(x) if kind == "tokens" else model(x).flatten(2).transpose(1, 2)
    targets = torch.from_numpy(imitation.test.targets)
    assert said.shape == (len(x), positions, 5)
    kept = said.argmax(2) if outputs == "classes" else said
    assert torch.allclose(targets.to(kept.dtype), kept, atol=1e-5)

    # 2. The whole model agrees everywhere, a half of it in part, and learns.
    calibrated = TrainingTask(0)
    assert train(whole, imitation, task=calibrated).test[0] == pytest.approx(100)
    before = train(half, imitated(data, half), task=calibrated)
    longer = TrainingTask(20, batch=20, learning_rate=0.02, optimizer="adamw", shift=0, noise=0)
    after = train(half, imitated(data, half), task=longer)
    assert before.validation[0] < after.validation[0] <= 100

    # 3. The score by hand.
    module = half.module()
    assert after.state is not None
    module.load_state_dict(after.state)
    with torch.no_grad():
        made = module.eval()(x) if kind == "tokens" else module.eval()(x).flatten(2).transpose(1, 2)
    agrees = (
        (made.argmax(2) == kept).double()
        if outputs == "classes"
        else nn.functional.cosine_similarity(made, kept, dim=2)
    )
    assert after.test[0] == pytest.approx(100 * float(agrees.mean()), abs=1e-3)


def test_training_towards_the_teacher_raises_the_fidelity() -> None:
    parts = space()
    arch = parts.architecture({**parts.whole.as_dict(), "width.0": 8})
    network = Trainable.of(parts, arch)
    data = imitated(load_dataset("digits"), network)
    before, after = (
        train(network, data, task=TrainingTask(n, learning_rate=0.02)).validation[0] for n in (0, 4)
    )
    assert after > before


def test_fidelity_without_a_teacher_is_refused() -> None:
    parts = space(teacher="none")
    with pytest.raises(InputError, match="fidelity is agreement with a trained model"):
        imitated(load_dataset("digits"), Trainable.of(parts, parts.whole))


def test_cosines_are_in_percent() -> None:
    goal, targets = Cosine(), torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    outputs = torch.tensor([[[2.0, 0.0]], [[1.0, 0.0]]])
    assert goal.terms(outputs, targets).tolist() == [[1.0], [0.0]]
    assert goal.score(0.5) == 50


class Branches(nn.Module):
    """Two branches that compute alike, so that a text does not tell which of them is narrow."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (
            nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)) for _ in range(2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x) + self.b(x)


def test_networks_of_one_text_with_other_weights_are_not_one_network() -> None:
    for start, is_one in (("inherited", False), ("fresh", True)):
        parts = Subnetworks(Branches(), torch.zeros(1, 16), start=start)
        archs = [
            parts.architecture({**parts.whole.as_dict(), f"width.{branch}.0": 8}) for branch in "ab"
        ]
        first, second = (Trainable.of(parts, arch) for arch in archs)
        assert first.text == second.text
        assert (NetworkId.of(first) == NetworkId.of(second)) == is_one
