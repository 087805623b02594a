"""Recalibration, teachers and fidelity."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from nas.evaluation.datasets import load_dataset
from nas.evaluation.inheritance import Cosine, distillation, imitated, recalibrate
from nas.evaluation.tasks import TrainingTask
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
        # Statistics are recalibrated even here, which changes an untrained network a little.
        norms = sum(isinstance(layer, nn.BatchNorm2d) for layer in parts.model.modules())
        score = train(network, imitation, task=TrainingTask(0)).validation[0]
        assert norms == 2
        assert 5 < score <= 100


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


def test_networks_of_one_text_with_other_weights_are_not_one_network() -> None:
    parts = space()
    archs = [
        parts.architecture({**parts.whole.as_dict(), f"depth.{block}": False})
        for block in ("1", "2")
    ]
    first, second = (Trainable.of(parts, arch) for arch in archs)
    assert first.text == second.text
    assert NetworkId.of(first) != NetworkId.of(second)
    fresh = space(start="fresh")
    assert NetworkId.of(Trainable.of(fresh, archs[0])) == NetworkId.of(
        Trainable.of(fresh, archs[1])
    )
